"""There and back: every tensor bit for bit, and the same drafter, through each form."""

from __future__ import annotations

import json

import pytest
from made import MIXED, SLIDING, checkpoint, native, target_folder
from raw_safetensors import raw

from dflash_pack.checkpoint import open_checkpoint, tensor_bytes
from dflash_pack.conversion import comparable, plan_conversion
from dflash_pack.errors import NotRepresentableError
from dflash_pack.overrides import Override
from dflash_pack.packing import pack
from dflash_pack.target import read_target

SINKS = {f"layers.{n}.self_attn.attention_sink_bias": raw("BF16", 2, seed=n) for n in (0, 1)}
REDUCED = {
    "lm_head.weight": raw("BF16", 32, 16, seed=5),
    "d2t": ("I64", (32,), b"".join(n.to_bytes(8, "little") for n in range(32))),
    "t2d": ("BOOL", (64,), bytes([1, 0] * 32)),
}
CASES = {
    "full": ({}, None),
    "sliding causal": (SLIDING, None),
    "sliding bidirectional": (SLIDING | {"is_causal": False}, None),
    "mixed": (MIXED, None),
    "full causal": ({"is_causal": True}, None),
    "yarn": ({"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, None),
    "attention biases": ({"attention_bias": True}, None),
    "softcap": ({"final_logit_softcapping": 30.0}, None),
    "use_swa": ({"dflash_config__use_swa": True, "dflash_config__swa_window_size": 8}, None),
    "sinks": ({"dflash_config__attention_sink_bias": True}, SINKS),
    "reduced": ({"draft_vocab_size": 32}, REDUCED),
    "own embedding": ({}, {"embed_tokens.weight": raw("BF16", 64, 16, seed=9)}),
    "last layer": ({"dflash_config__target_layer_ids": [0, 3]}, None),
}
ONLY_NATIVE_KEYS = {"mixed", "sinks"}


@pytest.fixture
def target(tmp_path):
    return read_target(str(target_folder(tmp_path / "target")), identifier="owner/target")


def bytes_of(folder):
    return {
        name: (info.spec, tensor_bytes(info))
        for name, info in open_checkpoint(folder).tensors.items()
    }


def convert(source, target, out, **options):
    conversion = plan_conversion(open_checkpoint(source), target, **options)
    pack(conversion, out)
    return conversion.drafter


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("through", ["speculators", "universal"])
@pytest.mark.parametrize(("changes", "extra"), CASES.values(), ids=CASES)
def test_native_there_and_back(tmp_path, target, changes, extra, through, shards, request):
    name = request.node.callspec.id
    source = checkpoint(tmp_path / "source", native(**changes), extra=extra, shards=shards)
    if through == "speculators" and any(name.startswith(only) for only in ONLY_NATIVE_KEYS):
        with pytest.raises(NotRepresentableError, match="--format universal"):
            plan_conversion(open_checkpoint(source), target, form=through)
        return
    there = convert(source, target, tmp_path / "there", form=through)
    back = convert(tmp_path / "there", target, tmp_path / "back", form="native")
    assert comparable(there) == comparable(back)
    assert comparable(there) == comparable(
        plan_conversion(open_checkpoint(source), target, form="native").drafter
    )
    assert bytes_of(tmp_path / "back") == bytes_of(tmp_path / "there") == bytes_of(source)


def test_a_second_trip_changes_no_byte_of_the_config(tmp_path, target):
    source = checkpoint(tmp_path / "source", native(**MIXED))
    configs = []
    for number, form in enumerate(["universal", "native", "universal", "native"]):
        convert(source, target, tmp_path / str(number), form=form)
        source = tmp_path / str(number)
        configs.append(json.loads((source / "config.json").read_text()))
    assert configs[0] == configs[2]
    assert configs[1] == configs[3]


def test_a_reduced_head_is_given_up_by_name_for_engines_that_use_the_targets(tmp_path, target):
    source = checkpoint(tmp_path / "source", native(draft_vocab_size=32), extra=REDUCED)
    names = ["draft_vocab_size", *REDUCED]
    conversion = plan_conversion(open_checkpoint(source), target, form="native", allow_lossy=names)
    assert conversion.drafter.vocabulary.head == "target"
    assert not conversion.drafter.vocabulary.reduced
    assert {entry.name for entry in conversion.ledger.of("lossy")} == set(names)
    assert not set(REDUCED) & set(conversion.tensors.tensors)


@pytest.mark.parametrize(("code", "size"), [("F32", 4), ("F16", 2), ("BF16", 2)])
def test_a_cast_reaches_every_weight_and_the_config(tmp_path, target, code, size):
    source = checkpoint(tmp_path / "source", native(draft_vocab_size=32), extra=REDUCED)
    drafter = convert(source, target, tmp_path / "out", dtype=code)
    out = open_checkpoint(tmp_path / "out")
    kinds = {name: info.spec.dtype for name, info in out.tensors.items()}
    assert kinds.pop("d2t") == "I64"
    assert kinds.pop("t2d") == "BOOL"
    assert set(kinds.values()) == {code}
    assert drafter.dtype == code
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    assert out.config["dtype"] == names[code]
    assert out.tensors["norm.weight"].nbytes == 16 * size


def test_the_users_word_counts_in_both_halves(tmp_path, target):
    source = checkpoint(tmp_path / "source", native())
    stated = [Override("dflash_config.mask_token_id", 9)]
    convert(source, target, tmp_path / "out", form="universal", overrides=stated)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["mask_token_id"] == config["dflash_config"]["mask_token_id"] == 9
