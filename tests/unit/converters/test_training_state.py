"""What a training checkpoint states, ahead of the config, for any native reader."""

from __future__ import annotations

import pytest
from made import NATIVE, REMOVED, contents, native

from dflash_pack.converters.native import NativeDialect
from dflash_pack.converters.training_state import (
    training_strategy,
    with_trained_depth,
    with_training_state,
)
from dflash_pack.errors import CheckpointError

DIALECT = NativeDialect(name="test")


def held(section, config=NATIVE):
    return contents(dict(config) | {"training_state": section})


@pytest.mark.parametrize("section", [None, [], "text", 5])
def test_without_a_section_nothing_changes(section):
    assert with_training_state(DIALECT, held(section)) is DIALECT
    assert with_trained_depth(held(section)).config == held(section).config
    assert training_strategy(held(section)) is None


@pytest.mark.parametrize("family", ["dflash", "dspark"])
def test_each_fact_stands_ahead_of_the_config(family):
    section = {
        "strategy": family,
        f"{family}_draft_num_hidden_layers": 2,
        f"{family}_target_layer_ids": [0, 2],
        f"{family}_block_size": 4,
        f"{family}_mask_token_id": 0,
    }
    dialect = with_training_state(DIALECT, held(section))
    start = f"training_state.{family}_"
    assert dialect.draft_count_keys == (f"{start}draft_num_hidden_layers",)
    assert dialect.layer_id_keys == (f"{start}target_layer_ids", *DIALECT.layer_id_keys)
    assert dialect.block_keys == (f"{start}block_size", *DIALECT.block_keys)
    assert dialect.mask_keys == (f"{start}mask_token_id", *DIALECT.mask_keys)
    assert dialect.sections == ("dflash_config", "training_state")


def test_facts_of_another_algorithm_are_left_for_the_ledger_to_stop_at():
    dialect = with_training_state(DIALECT, held({"strategy": "dflash", "dspark_block_size": 7}))
    assert dialect.block_keys == DIALECT.block_keys
    assert "training_state.dspark_block_size" not in dialect.harmless


def test_a_fact_that_is_not_stated_stays_where_the_config_has_it():
    assert with_training_state(DIALECT, held({"dflash_block_size": None})).block_keys == (
        DIALECT.block_keys
    )


HARMLESS = [
    "global_step",
    "run_id",
    "replicated_optimizer_state",
    "specforge_model_provenance",
    "dflash_attention_backend",
    "dflash_loss_decay_gamma",
    "dspark_num_anchors",
    "dspark_ce_loss_alpha",
    "dspark_loss_decay_gamma",
    "dflash2_selector_warmup_ratio",
]
# What would change the drafter, or is not known not to.
MEANT = ["dflash_sliding_draft_causal", "dflash2_selector_top_k", "dflash_block_size", "new_key"]


@pytest.mark.parametrize("key", [*HARMLESS, *MEANT])
def test_only_what_has_no_meaning_gets_a_reason(key):
    dialect = with_training_state(DIALECT, held({key: 8}))
    assert (f"training_state.{key}" in dialect.harmless) == (key in HARMLESS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("strategy", 5),
        ("dflash_draft_num_hidden_layers", 0),
        ("dflash_draft_num_hidden_layers", True),
        ("dflash_target_layer_ids", [0, "2"]),
        ("dflash_target_layer_ids", []),
        ("dflash_target_layer_ids", "(not read)"),
        ("dflash_block_size", 1),
        ("dflash_block_size", 1 << 40),
        ("dflash_mask_token_id", -1),
        ("dspark_block_size", 7.0),
    ],
)
def test_a_fact_of_the_wrong_type_or_range_is_refused_by_name(key, value):
    with pytest.raises(CheckpointError) as caught:
        with_training_state(DIALECT, held({key: value}))
    assert str(caught.value.field).startswith(f"training_state.{key}")


def test_the_depth_is_filled_in_only_where_the_config_has_none():
    section = {"dflash_draft_num_hidden_layers": 3}
    assert with_trained_depth(held(section)).config["num_hidden_layers"] == 2
    missing = contents(native())
    config = {k: v for k, v in missing.config.items() if k != "num_hidden_layers"}
    filled = with_trained_depth(
        type(missing)(config | {"training_state": section}, missing.tensors, frozenset())
    )
    assert filled.config["num_hidden_layers"] == 3
    assert REMOVED not in filled.config.values()
