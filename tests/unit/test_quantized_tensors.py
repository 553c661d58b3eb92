"""Quantised drafters: the exact set for each way of packing, and bits that pass untouched."""

from __future__ import annotations

import pytest
from made import contents, native, specs, target_folder
from raw_safetensors import raw, write_checkpoint

from dflash_pack.agreement import tensor_problems
from dflash_pack.checkpoint import TensorSpec, open_checkpoint, tensor_bytes
from dflash_pack.checks import static_checks
from dflash_pack.conversion import plan_conversion
from dflash_pack.converters.registry import read_drafter
from dflash_pack.errors import CheckpointError, NotRepresentableError
from dflash_pack.packing import pack
from dflash_pack.target import read_target

CONFIG = native(quantization_config={"quant_method": "some", "bits": 4})
DRAFTER = read_drafter(contents(CONFIG)).drafter
MODULE = "layers.0.mlp.gate_proj"  # [24, 16]
PACKINGS = {
    "fp8": {"weight": ("F8_E4M3", 24, 16), "weight_scale": ("F32",)},
    "fp8 blocks": {"weight": ("F8_E4M3", 24, 16), "weight_scale_inv": ("F32", 1, 1)},
    "nvfp4": {
        "weight": ("U8", 24, 8),
        "weight_scale": ("F8_E4M3", 24, 1),
        "weight_scale_2": ("F32",),
        "input_scale": ("F32",),
    },
    "int8": {"weight": ("I8", 24, 16), "weight_scale": ("BF16", 24, 1)},
    "compressed 4 bit": {
        "weight_packed": ("I32", 24, 2),
        "weight_scale": ("BF16", 24, 1),
        "weight_shape": ("I64", 2),
    },
    "compressed fp4": {
        "weight_packed": ("U8", 24, 8),
        "weight_scale": ("F8_E4M3", 24, 1),
        "weight_global_scale": ("F32", 1),
    },
    "awq": {"qweight": ("I32", 16, 3), "qzeros": ("I32", 1, 3), "scales": ("F16", 1, 24)},
}


def packed(parts):
    tensors = {n: s for n, s in specs(CONFIG).items() if n != f"{MODULE}.weight"}
    return tensors | {
        f"{MODULE}.{part}": TensorSpec(dtype, shape)
        for part, (dtype, *dims) in parts.items()
        for shape in [tuple(dims)]
    }


@pytest.mark.parametrize("parts", PACKINGS.values(), ids=PACKINGS)
def test_each_way_of_packing_is_exact(parts):
    assert tensor_problems(DRAFTER, packed(parts)) == ()


@pytest.mark.parametrize("parts", PACKINGS.values(), ids=PACKINGS)
def test_without_its_scale_it_is_incomplete(parts):
    scales = {"weight_scale", "weight_scale_inv", "scales"}
    without = {part: spec for part, spec in parts.items() if part not in scales}
    assert any("is missing beside" in text for text in tensor_problems(DRAFTER, packed(without)))


@pytest.mark.parametrize("parts", PACKINGS.values(), ids=PACKINGS)
def test_another_size_is_found(parts):
    main = next(iter(parts))
    dtype, rows, columns = parts[main]
    wrong = parts | {main: (dtype, rows, columns + 5)}
    assert any(f"{MODULE}.{main} has shape" in t for t in tensor_problems(DRAFTER, packed(wrong)))


@pytest.mark.parametrize("name", ["layers.0.mlp.gate_proj.weight_scale", "extra.weight_scale"])
def test_a_scale_of_a_plain_weight_is_stray(name):
    tensors = specs(CONFIG) | {name: TensorSpec("F32", ())}
    assert any("no packed weight" in text for text in tensor_problems(DRAFTER, tensors))


def test_a_missing_weight_is_named():
    tensors = {n: s for n, s in packed(PACKINGS["fp8"]).items() if n != "norm.weight"}
    assert tensor_problems(DRAFTER, tensors) == ("norm.weight is missing, plain and packed",)


def test_a_quantisation_that_no_weight_has_is_a_contradiction():
    assert tensor_problems(DRAFTER, specs(CONFIG)) == (
        "quantised weights are stated, but every weight is plain",
    )


def quantised_folder(folder, parts, **changes):
    names = {n: s for n, s in specs(CONFIG).items() if n != f"{MODULE}.weight"}
    tensors = {n: raw(s.dtype, *s.shape, seed=i) for i, (n, s) in enumerate(names.items())}
    tensors |= {f"{MODULE}.{p}": raw(*spec, seed=7) for p, spec in parts.items()}
    return write_checkpoint(folder, tensors, config=CONFIG | changes)


@pytest.mark.parametrize("form", ["speculators", "native", "universal"])
@pytest.mark.parametrize("parts", PACKINGS.values(), ids=PACKINGS)
def test_bits_pass_untouched_and_the_config_goes_along(tmp_path, parts, form):
    source = quantised_folder(tmp_path / "source", parts)
    (source / "hf_quant_config.json").write_text('{"quantization": {}}')
    target = read_target(str(target_folder(tmp_path / "target")), identifier="owner/target")
    conversion = plan_conversion(open_checkpoint(source), target, form=form)
    pack(conversion, tmp_path / "out")
    out = open_checkpoint(tmp_path / "out")
    before = {n: (i.spec, tensor_bytes(i)) for n, i in open_checkpoint(source).tensors.items()}
    assert {n: (i.spec, tensor_bytes(i)) for n, i in out.tensors.items()} == before
    assert out.config["quantization_config"] == CONFIG["quantization_config"]
    assert (tmp_path / "out" / "hf_quant_config.json").read_text() == '{"quantization": {}}'
    failed = {c.id for c in static_checks(out, target, {}).checks if c.status == "failed"}
    assert failed <= {"files.record"}


def test_what_would_need_other_bits_is_refused(tmp_path):
    source = quantised_folder(tmp_path / "source", PACKINGS["fp8"])
    target = read_target(str(target_folder(tmp_path / "target")), identifier="owner/target")
    with pytest.raises(NotRepresentableError, match="can't be cast"):
        plan_conversion(open_checkpoint(source), target, dtype="F16")
    section = CONFIG["dflash_config"] | {"target_layer_ids": [2, 0]}
    shuffled = quantised_folder(tmp_path / "shuffled", PACKINGS["fp8"], dflash_config=section)
    with pytest.raises(NotRepresentableError, match="before quantising"):
        plan_conversion(open_checkpoint(shuffled), target)


def test_packed_bits_without_a_quantisation_are_refused(tmp_path):
    source = quantised_folder(tmp_path / "source", PACKINGS["fp8"], quantization_config=None)
    target = read_target(str(target_folder(tmp_path / "target")), identifier="owner/target")
    with pytest.raises(CheckpointError):
        plan_conversion(open_checkpoint(source), target)
