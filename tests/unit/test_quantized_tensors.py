"""Quantised drafters: the exact set for each way of packing, and bits that pass untouched."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import contents, native, specs, target_folder
from raw_safetensors import raw, write_checkpoint

from dflash_pack.agreement import tensor_problems
from dflash_pack.checkpoint import TensorSpec, open_checkpoint, tensor_bytes
from dflash_pack.checks import static_checks
from dflash_pack.conversion import plan_conversion
from dflash_pack.converters.registry import read_drafter
from dflash_pack.drafter import Dflash2Parts, LagunaParts, core_tensor_shapes
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


# Further variants, of fc [16, 32]: scheme and what differs.
FP8 = {"weight": ("F8_E4M3", 16, 32), "weight_scale": ("F32",)}
INT8 = {"weight": ("I8", 16, 32), "weight_scale": ("F32", 16, 1)}
NVFP4 = {
    "weight": ("U8", 16, 16),
    "weight_scale": ("F8_E4M3", 16, 2),
    "weight_scale_2": ("F32",),
}
MXFP4 = {"weight": ("U8", 16, 16), "weight_scale": ("U8", 16, 1)}
MODELOPT_INT4 = {"weight": ("U8", 8, 32), "weight_scale": ("F32", 16, 4)}
PACKED_NVFP4 = {
    "weight_packed": ("U8", 16, 16),
    "weight_scale": ("F8_E4M3", 16, 2),
    "weight_global_scale": ("F32", 1),
}
PACKED_MXFP4 = {"weight_packed": ("U8", 16, 16), "weight_scale": ("U8", 16, 1)}
PACKED_INT4 = {
    "weight_packed": ("I32", 16, 4),
    "weight_scale": ("BF16", 16, 2),
    "weight_shape": ("I64", 2),
}
AWQ = {"qweight": ("I32", 32, 2), "qzeros": ("I32", 2, 2), "scales": ("F16", 2, 16)}
GPTQ = {"qweight": ("I32", 4, 16), "qzeros": ("I32", 2, 2), "scales": ("F16", 2, 16)}
SOUND = {
    "fp8": FP8,
    "fp8 scale [1]": FP8 | {"weight_scale": ("BF16", 1)},
    "fp8 per channel": FP8 | {"weight_scale": ("F16", 16)},
    "fp8 per channel, as a column": FP8 | {"weight_scale": ("F32", 16, 1)},
    "fp8 blocks of 8 and 16": FP8 | {"weight_scale": ("F32", 2, 2)},
    "fp8 blocks, the last short": FP8 | {"weight_scale": ("F32", 2, 3)},
    "fp8 blocks of modelopt": FP8 | {"weight_scale": ("F32", 1, 1, 1, 1)},
    "fp8 blocks, exponents": FP8 | {"weight_scale": ("F8_E8M0", 2, 2)},
    "fp8 inverse": {"weight": FP8["weight"], "weight_scale_inv": ("BF16", 1, 1)},
    "fp8 inverse, exponents": {"weight": FP8["weight"], "weight_scale_inv": ("F8_E8M0", 1, 1)},
    "fp8 inputs": FP8 | {"input_scale": ("F32", 1), "pre_quant_scale": ("BF16", 32)},
    "mxfp8": FP8 | {"weight_scale": ("U8", 16, 1)},
    "mxfp8 of 4 rows": FP8 | {"weight_scale": ("F8_E8M0", 4, 1)},
    "int8": INT8,
    "int8 of modelopt": INT8 | {"weight_scale": ("F32", 16), "pre_quant_scale": ("F16", 32)},
    "int8 per tensor": INT8 | {"weight_scale": ("F32",), "input_scale": ("F32", 1)},
    "int8 groups": INT8 | {"weight_scale": ("F32", 16, 4), "output_scale": ("F32", 1)},
    "int8 zero points": INT8 | {"weight_zero_point": ("I8", 16, 1), "input_zero_point": ("I8", 1)},
    "nvfp4": NVFP4,
    "nvfp4 [1]": NVFP4 | {"weight_scale_2": ("F32", 1), "input_scale": ("F32",)},
    "nvfp4 smoothed": NVFP4 | {"pre_quant_scale": ("BF16", 32)},
    "nvfp4 groups of 32": NVFP4 | {"weight_scale": ("F8_E4M3", 16, 1)},
    "nvfp4 elements": NVFP4 | {"weight": ("F4", 16, 32)},
    "nvfp4 of quark": NVFP4 | {"input_scale_2": ("F32",)},
    "mxfp4": MXFP4,
    "mxfp4 exponents": MXFP4 | {"weight_scale": ("F8_E8M0", 16, 1), "input_scale": ("F32",)},
    "modelopt w4a16": MODELOPT_INT4 | {"pre_quant_scale": ("BF16", 32)},
    "modelopt w4a8": MODELOPT_INT4 | {"weight_scale_2": ("F32",), "input_scale": ("F32",)},
    "packed nvfp4": PACKED_NVFP4,
    "packed nvfp4 inputs": PACKED_NVFP4 | {"input_global_scale": ("F32", 1)},
    "packed mxfp4": PACKED_MXFP4,
    "packed int4": PACKED_INT4,
    "packed int4 asymmetric": PACKED_INT4 | {"weight_zero_point": ("I32", 2, 2)},
    "packed int4 ordered": PACKED_INT4 | {"weight_g_idx": ("I32", 32)},
    "packed int4 per channel": PACKED_INT4
    | {"weight_scale": ("F32", 16, 1), "weight_zero_point": ("I32", 2, 1)},
    "packed int4, int32 shape": PACKED_INT4 | {"weight_shape": ("I32", 2)},
    "packed int8": PACKED_INT4 | {"weight_packed": ("I32", 16, 8)},
    "packed int3, whole numbers": PACKED_INT4 | {"weight_packed": ("I32", 16, 4)},
    "packed int3, dense": PACKED_INT4 | {"weight_packed": ("I32", 16, 3)},
    "packed int4 8o8": PACKED_INT4 | {"input_scale": ("F32", 1), "output_scale": ("F32", 1)},
    "awq": AWQ,
    "awq one group": AWQ | {"qzeros": ("I32", 1, 2), "scales": ("BF16", 1, 16)},
    "gptq": GPTQ,
    "gptq without zeros": {part: GPTQ[part] for part in ("qweight", "scales")},
    "gptq ordered": GPTQ | {"g_idx": ("I32", 32)},
    "gptq 8 bit": GPTQ | {"qweight": ("I32", 8, 16), "qzeros": ("I32", 2, 4)},
}
# Set, the part that is wrong, and what it has; None where it is missing.
FAULTS = [
    (FP8, "weight", ("F8_E4M3", 32, 16)),
    (FP8, "weight", ("F8_E5M2", 16, 32)),
    (FP8, "weight", ("I64", 16, 32)),
    (FP8, "weight_scale", None),
    (FP8, "weight_scale", ("F32", 9, 9)),
    (FP8, "weight_scale", ("F32", 32)),
    (FP8, "weight_scale", ("F32", 16, 32)),
    (FP8, "weight_scale", ("F32", 1, 32)),
    (FP8, "weight_scale", ("F32", 5)),
    (FP8, "weight_scale", ("F32", 0, 0)),
    (FP8, "weight_scale", ("F32", 2, 2, 1, 1)),
    (FP8, "weight_scale", ("BOOL",)),
    (FP8, "weight_scale", ("I64",)),
    (FP8, "weight_scale", ("F8_E4M3",)),
    (FP8, "weight_scale", ("U8", 16, 2)),
    (FP8, "weight_scale", ("F8_E8M0", 5, 5, 5)),
    (FP8, "weight_scale_inv", ("F32", 1, 1)),
    (FP8, "weight_scale_2", ("F32",)),
    (FP8, "input_scale", ("F32", 7)),
    (FP8, "input_scale", ("I32",)),
    (FP8, "pre_quant_scale", ("F32", 16)),
    (FP8, "k_scale", ("F32",)),
    (FP8, "q_scale", ("F32",)),
    (SOUND["fp8 inverse"], "weight_scale_inv", ("F32", 9, 9)),
    (SOUND["fp8 inverse"], "weight_scale_inv", ("F32",)),
    (SOUND["fp8 inverse"], "weight_scale_inv", ("I64", 1, 1)),
    (SOUND["mxfp8"], "weight_scale", ("U8", 3, 1)),
    (INT8, "weight", ("I8", 32, 16)),
    (INT8, "weight_scale", None),
    (INT8, "weight_scale", ("F32", 7, 7)),
    (INT8, "weight_scale", ("F32", 16, 5)),
    (INT8, "weight_scale", ("I8", 16, 1)),
    (INT8, "weight_zero_point", ("I8", 16)),
    (INT8, "weight_zero_point", ("F32", 16, 1)),
    (INT8, "weight_scale_inv", ("F32", 1, 1)),
    (INT8, "input_scale", ("F32", 16)),
    (INT8, "weight_g_idx", ("I32", 5)),
    (NVFP4, "weight", ("U8", 16, 32)),
    (NVFP4, "weight", ("F4", 16, 16)),
    (NVFP4, "weight_scale", None),
    (NVFP4, "weight_scale", ("F8_E4M3", 3, 7)),
    (NVFP4, "weight_scale", ("F8_E4M3", 2, 16)),
    (NVFP4, "weight_scale", ("F32", 16, 2)),
    (NVFP4, "weight_scale", ("U8", 16, 2)),
    (NVFP4, "weight_scale_2", None),
    (NVFP4, "weight_scale_2", ("F32", 5)),
    (NVFP4, "weight_scale_2", ("BF16",)),
    (NVFP4, "weight_global_scale", ("F32",)),
    (NVFP4, "input_scale", ("F32", 16, 2)),
    (NVFP4, "pre_quant_scale", ("F32", 16)),
    (NVFP4, "v_scale", ("F32",)),
    (MXFP4, "weight_scale", None),
    (MXFP4, "weight_scale", ("U8", 16, 2)),
    (MXFP4, "weight_global_scale", ("F32",)),
    (MODELOPT_INT4, "weight_scale", None),
    (MODELOPT_INT4, "weight_scale", ("F32", 16, 5)),
    (MODELOPT_INT4, "weight_scale", ("F32", 8, 4)),
    (MODELOPT_INT4, "weight_scale_2", ("F32", 16)),
    (PACKED_NVFP4, "weight_packed", ("U8", 16, 32)),
    (PACKED_NVFP4, "weight_packed", ("I8", 16, 16)),
    (PACKED_NVFP4, "weight_scale", None),
    (PACKED_NVFP4, "weight_scale", ("F32", 16, 2)),
    (PACKED_NVFP4, "weight_scale", ("F8_E4M3", 16, 1)),
    (PACKED_NVFP4, "weight_global_scale", None),
    (PACKED_NVFP4, "weight_global_scale", ("F32", 16)),
    (PACKED_NVFP4, "weight_global_scale", ("F8_E4M3", 1)),
    (PACKED_NVFP4, "input_global_scale", ("F32", 2)),
    (PACKED_NVFP4, "weight_shape", ("I64", 2)),
    (PACKED_MXFP4, "weight_scale", ("U8", 16, 2)),
    (PACKED_INT4, "weight_packed", ("I32", 4, 16)),
    (PACKED_INT4, "weight_packed", ("I32", 64)),
    (PACKED_INT4, "weight_scale", None),
    (PACKED_INT4, "weight_scale", ("BF16", 2, 16)),
    (PACKED_INT4, "weight_scale", ("BF16", 16)),
    (PACKED_INT4, "weight_scale", ("BF16", 16, 5)),
    (PACKED_INT4, "weight_scale", ("I32", 16, 2)),
    (PACKED_INT4, "weight_shape", None),
    (PACKED_INT4, "weight_shape", ("I64", 3)),
    (PACKED_INT4, "weight_shape", ("F32", 2)),
    (PACKED_INT4, "weight_zero_point", ("I32", 2, 4)),
    (PACKED_INT4, "weight_zero_point", ("I32", 16, 2)),
    (PACKED_INT4, "weight_zero_point", ("I8", 2, 2)),
    (PACKED_INT4, "weight_g_idx", ("I32", 9)),
    (PACKED_INT4, "weight_g_idx", ("BF16", 32)),
    (PACKED_INT4, "weight_scale_2", ("F32",)),
    (AWQ, "qweight", ("I32", 2, 32)),
    (AWQ, "qweight", ("U8", 32, 2)),
    (AWQ, "qzeros", None),
    (AWQ, "qzeros", ("I32", 4, 2)),
    (AWQ, "qzeros", ("F16", 2, 2)),
    (AWQ, "scales", None),
    (AWQ, "scales", ("F16", 7, 7)),
    (AWQ, "scales", ("F16", 5, 16)),
    (AWQ, "scales", ("I32", 2, 16)),
    (AWQ, "g_idx", ("I32", 32)),
    (GPTQ, "qweight", ("I32", 16, 4)),
    (GPTQ, "qweight", ("I32", 5, 16)),
    (GPTQ, "qzeros", ("I32", 2, 16)),
    (GPTQ, "scales", None),
    (GPTQ, "scales", ("F16", 16, 2)),
    (GPTQ, "scales", ("BOOL", 2, 16)),
    (GPTQ, "g_idx", ("I32", 16)),
    (GPTQ, "g_idx", ("I64", 32)),
]


def packed(parts, module=MODULE, config=CONFIG):
    tensors = {n: s for n, s in specs(config).items() if n != f"{module}.weight"}
    return tensors | {f"{module}.{part}": spec_of(spec) for part, spec in parts.items()}


def spec_of(spec):
    dtype, *dims = spec
    return TensorSpec(dtype, tuple(dims))


def with_part(parts, part, spec):
    return {p: s for p, s in parts.items() if p != part} | ({} if spec is None else {part: spec})


@pytest.mark.parametrize("parts", PACKINGS.values(), ids=PACKINGS)
def test_each_way_of_packing_is_exact(parts):
    assert tensor_problems(DRAFTER, packed(parts)) == ()


@pytest.mark.parametrize("parts", SOUND.values(), ids=SOUND)
def test_each_variant_is_sound(parts):
    assert tensor_problems(DRAFTER, packed(parts, "fc")) == ()


@pytest.mark.parametrize(("parts", "part", "spec"), FAULTS)
def test_each_fault_is_named(parts, part, spec):
    faulty = packed(with_part(parts, part, spec), "fc")
    (problem,) = tensor_problems(DRAFTER, faulty)[:1]
    assert f"fc.{part} " in problem


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (("F8_E4M3", 3, 7), "has shape [3, 7], but in NVFP4 it must be [16, 2] or [16, 1]"),
        (("F32", 16, 2), "has dtype F32, but in NVFP4 it must be F8_E4M3"),
        (
            ("I32", 2),
            "has dtype I32 and shape [2], but in NVFP4 it must be F8_E4M3 of [16, 2] or [16, 1]",
        ),
    ],
)
def test_a_fault_says_what_is_there_and_what_should_be(shape, text):
    problems = tensor_problems(DRAFTER, packed(NVFP4 | {"weight_scale": shape}, "fc"))
    assert problems == (f"fc.weight_scale {text}",)


def test_a_size_that_does_not_divide_fits_no_group():
    config = CONFIG | {"hidden_size": 24}
    drafter = read_drafter(contents(config)).drafter
    parts = {
        "weight": ("U8", 24, 12),
        "weight_scale": ("F8_E4M3", 24, 1),
        "weight_scale_2": ("F32",),
    }
    (problem,) = tensor_problems(drafter, packed(parts, MODULE, config))
    assert problem.endswith("has shape [24, 1], but in NVFP4 it must be [24, 24/16] or [24, 24/32]")


# Names below layers.0.self_attn, of 2 heads and 1 of keys and values.
CACHE_SCALES = [
    ("k_proj.k_scale", ("F32",)),
    ("v_proj.v_scale", ("BF16", 1)),
    ("q_proj.output_scale", ("F32", 1)),
    ("k_scale", ("F32", 1)),
    ("q_scale", ("BF16", 2, 1, 1)),
    ("v_zero_point", ("F8_E4M3", 1, 1, 1)),
]
BAD_CACHE_SCALES = [
    ("k_proj.k_scale", ("F32", 5)),
    ("k_proj.k_scale", ("I64",)),
    ("k_proj.v_scale", ("F32",)),
    ("q_proj.q_scale", ("F32",)),
    ("o_proj.k_scale", ("F32",)),
    ("qkv_proj.k_scale", ("F32",)),
    ("q_scale", ("F32", 3, 1, 1)),
    ("prob_scale", ("F32",)),
]
ATTENTION = "layers.0.self_attn"


@pytest.mark.parametrize(("name", "spec"), CACHE_SCALES)
def test_scales_of_the_cache_stand_beside_plain_and_packed_projections(name, spec):
    tensors = packed(FP8, "fc") | {f"{ATTENTION}.{name}": spec_of(spec)}
    assert tensor_problems(DRAFTER, tensors) == ()
    projection = packed(
        {"weight": ("F8_E4M3", 8, 16), "weight_scale": ("F32",)}, f"{ATTENTION}.k_proj"
    )
    assert tensor_problems(DRAFTER, projection | {f"{ATTENTION}.{name}": spec_of(spec)}) == ()


@pytest.mark.parametrize(("name", "spec"), BAD_CACHE_SCALES)
def test_another_scale_of_the_cache_is_found(name, spec):
    tensors = packed(FP8, "fc") | {f"{ATTENTION}.{name}": spec_of(spec)}
    (problem,) = tensor_problems(DRAFTER, tensors)
    assert f"{ATTENTION}.{name}" in problem


# Every kind of tensor that no one packs, and a dtype that engines would read as numbers.
REDUCED = replace(
    DRAFTER,
    geometry=replace(DRAFTER.geometry, attention_bias=True),
    attention_sinks=True,
    vocabulary=replace(DRAFTER.vocabulary, draft_size=32, head="own"),
    parts=Dflash2Parts(conv_kernel_size=2, conv_group_size=8, selector_rank=4, selector_top_k=4),
)
PLAIN = [
    ("layers.0.self_attn.q_proj.bias", "I32"),
    ("layers.0.self_attn.attention_sink_bias", "BOOL"),
    ("candidate_selector.predecessor_codebook", "U8"),
    ("candidate_selector.successor_codebook", "F8_E4M3"),
    ("layers.0.mlp_conv.base_kernel", "I8"),
    ("norm.weight", "F8_E4M3"),
    ("layers.0.self_attn.q_norm.weight", "I64"),
    ("d2t", "BF16"),
    ("d2t", "I32"),
    ("t2d", "U8"),
]


def reduced():
    dtypes = {"d2t": "I64", "t2d": "BOOL"}
    shapes = core_tensor_shapes(REDUCED).items()
    tensors = {name: TensorSpec(dtypes.get(name, "F32"), shape) for name, shape in shapes}
    del tensors["fc.weight"]
    return tensors | {f"fc.{part}": spec_of(spec) for part, spec in FP8.items()}


def test_what_no_one_packs_is_plain():
    assert tensor_problems(REDUCED, reduced()) == ()


@pytest.mark.parametrize(("name", "dtype"), PLAIN)
def test_another_dtype_of_what_no_one_packs_is_found(name, dtype):
    tensors = reduced()
    tensors[name] = replace(tensors[name], dtype=dtype)
    (problem,) = tensor_problems(REDUCED, tensors)
    assert problem.startswith(f"{name} has dtype {dtype}, but unquantised it must be ")


def test_a_plain_tensor_of_another_shape_is_found():
    tensors = reduced() | {"d2t": TensorSpec("I64", (31,))}
    assert tensor_problems(REDUCED, tensors) == (
        "d2t has shape [31], but unquantised it must be [32]",
    )


def test_a_fused_projection_may_carry_the_scales_of_the_cache():
    drafter = replace(DRAFTER, parts=LagunaParts("per-head"))
    shapes = core_tensor_shapes(drafter).items()
    tensors = {name: TensorSpec("BF16", shape) for name, shape in shapes if name != "fc.weight"}
    tensors |= {f"fc.{part}": spec_of(spec) for part, spec in FP8.items()}
    tensors |= {f"{ATTENTION}.qkv_proj.{s}_scale": TensorSpec("F32", ()) for s in "kv"}
    assert tensor_problems(drafter, tensors) == ()


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


def test_packed_numbers_of_another_dtype_are_named():
    tensors = packed({"qweight": ("U8", 32, 2), "scales": ("F16", 2, 16)}, "fc")
    assert tensor_problems(DRAFTER, tensors) == (
        "fc.qweight has dtype U8, in which no weight is packed",
    )


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
