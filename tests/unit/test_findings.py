"""What this tool does with each input that `speculators convert` 0.9.0 gets wrong.

Numbers and subjects are those of the list in docs/formats.md, one test or more for each.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from formats_table import tensors_of
from made import (
    LAGUNA,
    MIXED,
    NATIVE,
    REMOVED,
    SLIDING,
    checkpoint,
    native,
    specs,
    target_folder,
)
from raw_safetensors import raw, write_checkpoint

from dflash_pack.checkpoint import Contents, TensorSpec, open_checkpoint, tensor_bytes
from dflash_pack.checks import static_checks
from dflash_pack.conversion import plan_conversion
from dflash_pack.converters.registry import read_drafter
from dflash_pack.errors import (
    CheckpointError,
    ContradictionError,
    DflashPackError,
    NotRepresentableError,
    TargetMismatchError,
    UnaccountedError,
)
from dflash_pack.overrides import Override
from dflash_pack.packing import pack
from dflash_pack.target import read_target

SINK = {f"layers.{n}.self_attn.attention_sink_bias": raw("BF16", 2, seed=n) for n in (0, 1)}
REDUCED = {
    "lm_head.weight": raw("BF16", 32, 16, seed=5),
    "d2t": ("I64", (32,), b"".join(n.to_bytes(8, "little") for n in range(32))),
    "t2d": ("BOOL", (64,), bytes([1, 0] * 32)),
}


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


class Lab:
    """A folder in which sources are made and converted."""

    def __init__(self, folder):
        self.folder = folder
        self.target = read_target(str(target_folder(folder / "target")), identifier="owner/target")

    def source(self, *, extra=None, **changes):
        return checkpoint(self.folder / "source", native(**changes), extra=extra)

    def plan(self, source=None, *, target=None, extra=None, options=None, **changes):
        path = source or self.source(extra=extra, **changes)
        return plan_conversion(open_checkpoint(path), target or self.target, **(options or {}))

    def convert(self, source=None, **given):
        pack(self.plan(source, **given), self.folder / "out")
        return self.folder / "out"

    def config(self):
        return json.loads((self.folder / "out" / "config.json").read_text())


def bytes_of(folder):
    return {name: tensor_bytes(info) for name, info in open_checkpoint(folder).tensors.items()}


@pytest.mark.parametrize(
    ("changes", "flag"),
    [({}, True), (SLIDING, False), (SLIDING | {"is_causal": False}, True)],
)
def test_finding_01_the_causality_flag_is_the_drafters(lab, changes, flag):
    lab.convert(**changes)
    assert lab.config()["sliding_window_non_causal"] is flag
    with pytest.raises(NotRepresentableError, match="--format universal"):
        lab.plan(**MIXED)


def nested(folder, **changes):
    inner = json.loads((target_folder(folder) / "config.json").read_text()) | changes
    outer = {"architectures": ["SomeForConditionalGeneration"], "text_config": inner}
    (folder / "config.json").write_text(json.dumps(outer))
    return read_target(str(folder), identifier="owner/target")


def test_finding_02_a_target_with_a_nested_text_config_is_read(lab):
    conversion = lab.plan(target=nested(lab.folder / "nested"))
    assert conversion.form.config["aux_hidden_state_layer_ids"] == [1, 3]


def test_finding_03_sizes_of_a_nested_target_are_checked(lab):
    with pytest.raises(TargetMismatchError, match="width 16, the target's are 32"):
        lab.plan(target=nested(lab.folder / "nested", hidden_size=32))


def test_finding_04_the_last_target_layer_stays_captured(lab):
    source = lab.source(dflash_config__target_layer_ids=[0, 3])
    lab.convert(source)
    assert lab.config()["aux_hidden_state_layer_ids"] == [1, 4]
    assert bytes_of(lab.folder / "out") == bytes_of(source)


def test_finding_05_no_slice_of_fc_is_dropped_wherever_its_layer_stands(lab):
    source = lab.source(dflash_config__target_layer_ids=[3, 0])
    lab.convert(source)
    assert lab.config()["aux_hidden_state_layer_ids"] == [1, 4]
    before, after = bytes_of(source)["fc.weight"], bytes_of(lab.folder / "out")["fc.weight"]
    row, half = 2 * 32, 2 * 16
    for start in range(0, len(before), row):
        old, new = before[start : start + row], after[start : start + row]
        assert (new[:half], new[half:]) == (old[half:], old[:half])


@pytest.mark.parametrize(
    ("changes", "extra", "fact", "value"),
    [
        ({"dflash_config__causal": True}, None, "causality", True),
        (
            {"dflash_config__use_swa": True, "dflash_config__swa_window_size": 8},
            None,
            "windows",
            [8, 8],
        ),
        ({"dflash_config__attention_value_scale": 0.6}, None, "attention_value_scale", 0.6),
        ({"dflash_config__attention_sink_bias": True}, SINK, "attention_sinks", True),
        ({"final_logit_softcapping": 30.0}, None, "final_logit_softcapping", 30.0),
        ({"dflash_config__output_multiplier": 0.5}, None, "output_multiplier", 0.5),
    ],
)
def test_finding_06_what_stands_in_dflash_config_is_carried(lab, changes, extra, fact, value):
    lab.convert(extra=extra, options={"form": "universal"}, **changes)
    drafter = lab.plan(lab.folder / "out", options={"form": "universal"}).drafter
    if fact == "windows":
        assert [layer.window for layer in drafter.layers] == value
    else:
        assert getattr(drafter, fact) == value


@pytest.mark.parametrize(
    ("changes", "extra"),
    [
        ({"dflash_config__attention_value_scale": 0.6}, None),
        ({"dflash_config__attention_sink_bias": True}, SINK),
        ({"dflash_config__input_embedding_scale": 2.0}, None),
    ],
)
def test_finding_06_or_refused_where_the_form_has_no_key(lab, changes, extra):
    with pytest.raises(NotRepresentableError, match="--format universal"):
        lab.plan(extra=extra, **changes)


def test_finding_06_a_projector_of_another_family_is_refused(lab):
    with pytest.raises(DflashPackError):
        lab.plan(dflash_config__projector_type="domino")


def test_finding_07_top_level_facts_keep_their_place(lab):
    lab.convert(is_causal=True)
    assert lab.config()["sliding_window_non_causal"] is False
    with pytest.raises(UnaccountedError, match="logit_scale"):
        lab.plan(logit_scale=2.0)
    wide = read_target(
        str(target_folder(lab.folder / "wide", hidden_size=12)), identifier="owner/wide"
    )
    own = {name: raw("BF16", 64, 16) for name in ("embed_tokens.weight", "lm_head.weight")}
    config = lab.plan(target=wide, target_hidden_size=12, extra=own).form.config
    assert config["target_hidden_size"] == 12
    assert "target_hidden_size" not in config["transformer_layer_config"]


def test_finding_08_side_files_are_copied_or_have_their_reason(lab):
    source = lab.source()
    (source / "LICENSE").write_text("text")
    (source / "README.md").write_text("text")
    conversion = lab.plan(source)
    assert conversion.reading.copied_files == ("LICENSE",)
    fates = {e.name: e for e in conversion.ledger.entries}
    assert fates["README.md"].fate == "dropped"
    assert "written anew" in fates["README.md"].detail
    torch.save({"embedding": torch.ones(16), "mask_token_id": 5}, source / "mask_embedding.pt")
    assert "mask_embedding.pt" in lab.plan(source).reading.copied_files


@pytest.mark.parametrize("name", ["embed_tokens.weight", "lm_head.weight"])
def test_finding_09_a_matrix_of_its_own_is_kept(lab, name):
    source = lab.source(extra={name: raw("BF16", 64, 16, seed=9)})
    lab.convert(source)
    assert bytes_of(lab.folder / "out")[name] == bytes_of(source)[name]


@pytest.mark.parametrize("form", ["speculators", "universal"])
def test_finding_10_a_reduced_vocabulary_is_carried(lab, form):
    source = lab.source(extra=REDUCED, draft_vocab_size=32)
    lab.convert(source, options={"form": form})
    assert lab.config()["draft_vocab_size"] == 32
    assert bytes_of(lab.folder / "out") == bytes_of(source)


def test_finding_11_extra_tensors_are_carried_stripped_or_refused_by_name(lab):
    with pytest.raises(CheckpointError, match="attention_sink_bias"):
        lab.plan(extra=SINK)
    lab.convert(extra=SINK, options={"form": "universal"}, dflash_config__attention_sink_bias=True)
    assert SINK.keys() <= bytes_of(lab.folder / "out").keys()
    tensors = {f"model.{n}": raw(s.dtype, *s.shape) for n, s in specs(NATIVE).items()}
    source = write_checkpoint(lab.folder / "prefixed", tensors, config=NATIVE)
    assert set(lab.plan(source).tensors.tensors) == set(specs(NATIVE))
    with pytest.raises(UnaccountedError, match=r"layers\.0\.extra"):
        lab.plan(extra={"layers.0.extra": raw("BF16", 4)})


@pytest.mark.parametrize("odd", ["F32", "F16"])
def test_finding_12_each_tensor_keeps_its_dtype(lab, odd):
    source = lab.source(extra={"fc.weight": raw(odd, 16, 32)})
    lab.convert(source)
    kept = {n: i.spec for n, i in open_checkpoint(lab.folder / "out").tensors.items()}
    assert kept["fc.weight"].dtype == odd
    assert kept["norm.weight"].dtype == "BF16"
    assert bytes_of(lab.folder / "out") == bytes_of(source)


def test_finding_12_fp8_without_scales_is_refused(lab):
    with pytest.raises(CheckpointError, match=r"fc\.weight: is of dtype F8_E4M3"):
        lab.plan(extra={"fc.weight": raw("F8_E4M3", 16, 32)})


def test_finding_13_a_missing_mask_token_stops_with_what_to_pass(lab):
    with pytest.raises(CheckpointError, match=r"--set dflash_config\.mask_token_id"):
        lab.plan(dflash_config__mask_token_id=REMOVED)


def test_finding_14_shards_and_other_file_names_are_read(lab):
    sharded = checkpoint(lab.folder / "sharded", NATIVE, shards=3)
    lab.convert(sharded)
    assert bytes_of(lab.folder / "out") == bytes_of(sharded)
    renamed = lab.source()
    (renamed / "model.safetensors").rename(renamed / "drafter.safetensors")
    assert set(lab.plan(renamed).tensors.tensors) == set(specs(NATIVE))


def test_finding_14_a_trailing_comma_is_a_sentence_with_its_place(lab):
    source = lab.source()
    text = (source / "config.json").read_text().rstrip().removesuffix("}") + ",}"
    (source / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        lab.plan(source)


def test_finding_15_the_parser_of_another_architecture_adds_nothing(lab):
    with pytest.raises(CheckpointError, match="--set model_type=qwen3"):
        lab.plan(model_type="gpt_oss")
    lab.convert(model_type="gpt_oss", options={"overrides": [Override("model_type", "qwen3")]})
    layer = lab.config()["transformer_layer_config"]
    assert layer["model_type"] == "qwen3"
    assert layer["layer_types"] == ["full_attention"] * 2
    assert layer["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}


def test_finding_16_a_window_that_the_switch_turns_off_is_a_contradiction(lab):
    with pytest.raises(ContradictionError, match="use_sliding_window"):
        lab.plan(**SLIDING | {"use_sliding_window": False})
    lab.convert(**SLIDING)
    layer = lab.config()["transformer_layer_config"]
    assert (layer["sliding_window"], layer["use_sliding_window"]) == (32, True)


@pytest.fixture
def laguna(lab):
    """A Laguna drafter on disk."""
    config = native(**LAGUNA)
    seed = {"fc.weight": TensorSpec("BF16", (16, 32))}
    needed = tensors_of(read_drafter(Contents(config, seed, frozenset())).drafter)
    tensors = {
        name: raw(spec.dtype, *spec.shape, seed=number)
        for number, (name, spec) in enumerate(needed.items())
    }
    return write_checkpoint(lab.folder / "source", tensors, config=config)


def test_finding_17_lagunas_gates_and_norms_stay_and_so_does_its_architecture(lab, laguna):
    out = lab.convert(laguna, options={"form": "native"})
    before, after = bytes_of(laguna), bytes_of(out)
    kept = {n for n in after if n.endswith("g_proj.weight") or n.startswith("aux_hidden_norms.")}
    assert len(kept) == 4
    assert after == before
    assert lab.config()["architectures"] == ["DFlashLagunaForCausalLM"]
    assert (lab.config()["model_type"], lab.config()["gating"]) == ("laguna", "per-head")


def test_finding_17_engines_without_lagunas_layers_do_not_serve_it(lab, laguna):
    views = {v.meaning.engine: v for v in lab.plan(laguna, options={"form": "native"}).engines}
    served = {name for name, view in views.items() if view.agrees}
    assert "vllm" in served
    assert {views[name].meaning.family for name in served} == {"laguna"}
    for engine in ("speculators", "zlab"):
        assert views[engine].meaning.refusals, engine


@pytest.mark.parametrize("form", ["speculators", "universal"])
def test_finding_17_no_other_form_takes_it_for_a_plain_drafter(lab, laguna, form):
    with pytest.raises(NotRepresentableError, match=r"gates its attention.*--format native"):
        lab.plan(laguna, options={"form": form})


def test_finding_18_the_targets_weights_are_not_needed(lab):
    assert {path.name for path in lab.target.path.iterdir()} == {"config.json"}
    lab.convert()
    assert lab.config()["speculators_config"]["verifier"]["name_or_path"] == "owner/target"


def test_finding_19_no_model_is_built(lab):
    source, out = lab.source(), lab.folder / "out"
    code = (
        "import runpy, sys\n"
        "sys.argv = ['dflash-pack', 'convert', *sys.argv[1:]]\n"
        "try:\n    runpy.run_module('dflash_pack', run_name='__main__')\n"
        "except SystemExit as done:\n    assert not done.code, done.code\n"
        "heavy = {'torch', 'transformers', 'speculators', 'vllm'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    arguments = [str(source), "-t", str(lab.target.path), "--target-id", "o/t", "-o", str(out)]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)
    assert bytes_of(out) == bytes_of(source)


@pytest.mark.parametrize(
    ("section", "key", "value", "check"),
    [
        (None, "aux_hidden_state_layer_ids", [1, 9], "target_layers.range"),
        (None, "sliding_window_non_causal", False, "engine.vllm"),
        (None, "mask_token_id", 64, "config.meaning"),
        ("transformer_layer_config", "head_dim", 16, "tensors.set"),
        ("transformer_layer_config", "vocab_size", 65, "target.vocab_size"),
    ],
)
def test_finding_20_ids_shapes_and_causality_are_validated(lab, section, key, value, check):
    out = lab.convert()
    (out / "dflash_pack.json").unlink()
    config = lab.config()
    (config if section is None else config[section])[key] = value
    (out / "config.json").write_text(json.dumps(config))
    found = static_checks(open_checkpoint(out), lab.target, {})
    assert check in {c.id for c in found.checks if c.status == "failed"}


def test_finding_21_no_code_and_no_auto_map_is_written(lab):
    source = lab.source(auto_map={"AutoModel": "dflash.DFlashDraftModel"})
    (source / "dflash.py").write_text("raise SystemExit")
    out = lab.convert(source)
    assert {p.name for p in out.iterdir()} == {
        "config.json",
        "model.safetensors",
        "dflash_pack.json",
    }
    assert "auto_map" not in lab.config()


def test_finding_22_the_verifier_is_the_hub_id_and_a_path_is_told(lab):
    lab.convert()
    assert lab.config()["speculators_config"]["verifier"]["name_or_path"] == "owner/target"
    by_path = read_target(str(lab.target.path), identifier=None)
    pack(lab.plan(target=by_path), lab.folder / "by_path")
    found = static_checks(open_checkpoint(lab.folder / "by_path"), by_path, {})
    told = [c for c in found.checks if c.id == "verifier.hub_id"]
    assert [c.status for c in told] == ["warning"]


def test_finding_23_a_rope_that_is_stated_nowhere_is_asked_for(lab):
    with pytest.raises(CheckpointError, match="--set rope_theta=VALUE"):
        lab.plan(rope_theta=REMOVED)


@pytest.mark.parametrize("form", ["speculators", "native", "universal"])
def test_finding_24_the_output_is_exactly_what_the_drafter_needs(lab, form):
    lab.convert(options={"form": form})
    assert set(bytes_of(lab.folder / "out")) == set(specs(NATIVE))
