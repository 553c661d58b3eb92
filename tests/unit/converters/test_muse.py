"""Muse Glimmer's assistant: renamed tensors, top-level facts, bidirectional layers."""

from __future__ import annotations

import pytest
from made import NATIVE, REMOVED, SLIDING, native, specs

from dflash_pack.checkpoint import Contents
from dflash_pack.converters.registry import read_drafter
from dflash_pack.errors import CheckpointError

CONFIG = {
    "architectures": ["MuseGlimmerAssistantModel"],
    "dflash_config": REMOVED,
    "mask_token_id": 5,
    "model_type": "muse_glimmer_assistant",
    "target_layer_ids": [0, 2],
}


def source(**changes):
    names = {"fc.": "encoder.fc.", "hidden_norm.": "encoder.output_norm_enc."}
    tensors = {}
    for name, spec in specs(NATIVE).items():
        start = next((old for old in names if name.startswith(old)), None)
        tensors[names[start] + name.removeprefix(start) if start else name] = spec
    return Contents(native(**CONFIG | changes), tensors, frozenset())


@pytest.mark.parametrize("changes", [{}, SLIDING, {"model_type": "qwen3"}])
def test_it_is_plain_dflash_that_sees_the_whole_block(changes):
    made = source(**changes)
    reading = read_drafter(made)
    assert reading.format == "muse"
    assert reading.canonical(made) == specs(NATIVE)
    assert reading.drafter.causality is False


def test_its_vocabulary_size_is_asked_for():
    with pytest.raises(CheckpointError, match="--set vocab_size=VALUE"):
        read_drafter(source(vocab_size=REMOVED))
