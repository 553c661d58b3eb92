"""Nemotron's drafters: everything stated several times, an embedding of their own."""

from __future__ import annotations

import pytest
from made import REMOVED, contents, native

from dflash_pack.checkpoint import TensorSpec
from dflash_pack.converters.registry import read_drafter
from dflash_pack.errors import CheckpointError, ContradictionError

OWN = {"embed_tokens.weight": TensorSpec("BF16", (64, 16))}
STATED = {
    "dflash_config__causal": False,
    "dflash_query_causal": False,
    "draft_vocab_size": None,
    "dspark_fixup_head_type": None,
    "dspark_markov_rank": None,
    "eagle_aux_hidden_state_layer_ids": [1, 3],
    "has_embed_tokens": True,
    "has_lm_head": False,
    "mask_token_id": 5,
    "num_aux_layers": 2,
    "num_target_layers": REMOVED,
    "pard_token": 5,
    "target_layer_ids": [0, 2],
    "train_embed_tokens": False,
}


def read(extra=OWN, **changes):
    return read_drafter(contents(native(**STATED | changes), extra=extra))


def test_it_is_read_with_its_own_embedding():
    reading = read()
    assert reading.format == "nemotron"
    assert reading.drafter.vocabulary.embedding == "own"
    assert reading.drafter.vocabulary.head == "target"
    assert reading.drafter.target_layer_ids == (0, 2)
    assert reading.drafter.causality is False


@pytest.mark.parametrize(
    "changes",
    [
        {"eagle_aux_hidden_state_layer_ids": [0, 2]},
        {"target_layer_ids": [1, 3]},
        {"mask_token_id": 6},
        {"pard_token": 6},
        {"num_aux_layers": 3},
        {"dflash_query_causal": True},
        {"has_embed_tokens": False},
        {"has_lm_head": True},
    ],
)
def test_every_repeated_fact_must_agree(changes):
    with pytest.raises(ContradictionError):
        read(**changes)


def test_an_embedding_that_is_missing_is_a_contradiction():
    with pytest.raises(ContradictionError, match="no such tensor"):
        read(extra=None)


def test_the_block_size_is_asked_for():
    with pytest.raises(CheckpointError, match="--set block_size=VALUE"):
        read(block_size=REMOVED)


def test_a_markov_head_makes_it_another_family():
    with pytest.raises(CheckpointError):
        read(dspark_markov_rank=256)


def test_a_markov_head_is_refused_by_its_name_and_none_is_none():
    with pytest.raises(CheckpointError, match="Markov head is not converted"):
        read(dspark_markov_rank=4)
    assert read(dspark_markov_rank=0).drafter == read().drafter
