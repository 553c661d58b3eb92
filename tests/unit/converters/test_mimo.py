"""MiMo's drafters: mask embedding, sinks, a scale on values, a partial rope that is meant."""

from __future__ import annotations

import json

import pytest
from made import REMOVED, contents, native, specs

from dflash_pack.checkpoint import Contents, TensorSpec, open_checkpoint
from dflash_pack.converters import mimo
from dflash_pack.converters.registry import read_drafter
from dflash_pack.drafter import DraftLayer
from dflash_pack.errors import CheckpointError, ContradictionError

SINKS = {f"layers.{n}.self_attn.attention_sink_bias": TensorSpec("BF16", (2,)) for n in (0, 1)}
RELEASE = {
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "dflash_config__attention_sink_bias": True,
    "dflash_config__attention_value_scale": 0.612,
    "dflash_config__backbone_rotary_base": 5000000,
    "dflash_config__block_size": 4,
    "dflash_config__loss_decay_gamma": 7.0,
    "dflash_config__num_anchors": 4096,
    "dflash_config__swa_window_size": 8,
    "dflash_config__use_swa": True,
    "layer_types": REMOVED,
    "partial_rotary_factor": 0.5,
    "sliding_window": 8,
    "use_sliding_window": REMOVED,
    "v_head_dim": 8,
}


def read(*, extra=SINKS, side_files=("mask_embedding.pt",), **changes):
    config = native(**RELEASE | changes)
    return read_drafter(contents(config, extra=extra, side_files=side_files))


def test_a_release_is_read_whole():
    reading = read()
    drafter = reading.drafter
    assert reading.format == "mimo"
    assert drafter.layers == (DraftLayer(8, False),) * 2
    assert drafter.attention_sinks
    assert drafter.attention_value_scale == 0.612
    assert drafter.rope.partial_rotary_factor == 0.5
    assert drafter.vocabulary.mask_embedding
    assert reading.copied_files == ("mask_embedding.pt",)


def test_the_later_style_is_read_too():
    later = {
        "dflash_config__swa_window_size": REMOVED,
        "dflash_config__use_swa": REMOVED,
        "is_causal": False,
        "layer_types": ["sliding_attention"] * 2,
        "target_hidden_size": 16,
        "use_sliding_window": True,
    }
    assert read(**later).drafter.layers == (DraftLayer(8, False),) * 2


@pytest.mark.parametrize(
    "changes",
    [{"v_head_dim": 16}, {"sliding_window": 9}, {"dflash_config__block_size": 8}],
)
def test_facts_that_differ_are_refused(changes):
    with pytest.raises(ContradictionError):
        read(**changes)


@pytest.mark.parametrize(
    ("config", "extra", "side_files", "answer"),
    [
        (native(), None, (), False),
        (native(), None, ("mask_embedding.pt",), True),
        (native(), SINKS, (), True),
        (native(dflash_config__attention_value_scale=0.5), None, (), True),
        (native(has_embed_tokens=True), None, ("mask_embedding.pt",), False),
        (
            native(dflash_config__causal=False, torch_dtype="bfloat16"),
            None,
            ("mask_embedding.pt",),
            False,
        ),
        (native(architectures=["DFlash2DraftModel"]), None, ("mask_embedding.pt",), False),
    ],
)
def test_the_marks(config, extra, side_files, answer):
    assert mimo.detect(contents(config, extra=extra, side_files=side_files)) is answer


def test_sinks_without_their_switch_have_no_place():
    config = native(**RELEASE | {"dflash_config__attention_sink_bias": False})
    drafter = read_drafter(Contents(config, specs(config) | SINKS, frozenset())).drafter
    assert not drafter.attention_sinks  # the exact tensor set is then refused by the plan


def test_a_trailing_comma_is_told_with_its_place(tmp_path):
    text = json.dumps(native(**RELEASE))
    (tmp_path / "config.json").write_text(text.removesuffix("}") + ",}")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(tmp_path)
