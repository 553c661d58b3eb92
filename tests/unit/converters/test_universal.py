"""One config with the keys of both forms: written from one drafter, read only if halves agree."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from made import MIXED, SLIDING, contents, native, speculators, target

from dflash_pack.converters import universal
from dflash_pack.converters.registry import read_drafter
from dflash_pack.errors import (
    CheckpointError,
    ContradictionError,
    DflashPackError,
    NotRepresentableError,
)

CASES = {
    "full": {},
    "sliding causal": SLIDING,
    "sliding bidirectional": SLIDING | {"is_causal": False},
    "mixed": MIXED,
    "mixed, all causal": MIXED | {"is_causal": True},
    "mixed, none causal": MIXED | {"is_causal": False},
    "full causal": {"is_causal": True},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 8.0}},
    "softcap": {"final_logit_softcapping": 30.0},
    "wider target": {"target_hidden_size": 12},
    "several end tokens": {"eos_token_id": [1, 2]},
    "sinks": {"dflash_config__attention_sink_bias": True},
    "value scale": {"dflash_config__attention_value_scale": 0.612},
    "embedding scale": {"dflash_config__input_embedding_scale": 2.0},
    "use_swa": {"dflash_config__use_swa": True, "dflash_config__swa_window_size": 8},
}


def drafter_of(changes):
    return read_drafter(contents(native(**changes))).drafter


def written(changes):
    drafter = drafter_of(changes)
    return universal.write(drafter, target(hidden_size=drafter.target_hidden_size)).config


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_what_is_written_means_what_was_read(changes):
    drafter = drafter_of(changes)
    back = read_drafter(contents(written(changes)))
    assert back.format == "universal"
    assert back.drafter == replace(
        drafter,
        target_depth=4,
        verifier="owner/target",
        verifier_architectures=("Qwen3ForCausalLM",),
    )


def test_mixed_layers_are_told_to_the_library_as_it_means_its_flag():
    assert written(MIXED)["sliding_window_non_causal"] is False
    assert written(SLIDING | {"is_causal": False})["sliding_window_non_causal"] is True


def test_every_key_of_both_halves_has_a_fate():
    config = written(MIXED)
    entries = {e.name for e in read_drafter(contents(config)).ledger.entries}
    assert set(config) - {"dflash_config", "speculators_config", "transformer_layer_config"} <= (
        entries
    )


FACTS = {
    "mask token": ("dflash_config", "mask_token_id", 7),
    "layer ids": ("dflash_config", "target_layer_ids", [0, 1]),
    "shifted layer ids": (None, "aux_hidden_state_layer_ids", [0, 2]),
    "block size": ("dflash_config", "block_size", 8),
    "rope, native": (None, "rope_theta", 5.0),
    "rope, both native spellings": (None, "rope_parameters", {"rope_theta": 5.0}),
    "rope, Speculators": ("transformer_layer_config", "rope_parameters", {"rope_theta": 5.0}),
    "epsilon": ("transformer_layer_config", "rms_norm_eps", 1e-5),
    "heads": ("transformer_layer_config", "num_attention_heads", 4),
    "layers": ("transformer_layer_config", "num_hidden_layers", 3),
    "vocabulary": ("transformer_layer_config", "vocab_size", 65),
    "window": ("transformer_layer_config", "sliding_window", 9),
    "layer types": (
        "transformer_layer_config",
        "layer_types",
        ["full_attention", "sliding_attention"],
    ),
    "causality, native": (None, "is_causal", False),
    "causality, nested": ("dflash_config", "causal", False),
    "causality, Speculators": (None, "sliding_window_non_causal", True),
    "anchor layout": (None, "sample_from_anchor", True),
    "softcap, native": (None, "final_logit_softcapping", 50.0),
    "softcap, Speculators": ("transformer_layer_config", "final_logit_softcapping", 50.0),
    "no softcap, native": (None, "final_logit_softcapping", None),
    "no softcap, Speculators": ("transformer_layer_config", "final_logit_softcapping", None),
    "end token, native": (None, "eos_token_id", 9),
    "end token, Speculators": ("transformer_layer_config", "eos_token_id", 9),
    "a shorter cache": ("transformer_layer_config", "max_position_embeddings", 16),
    "a longer context": (None, "max_position_embeddings", 1 << 20),
}


@pytest.mark.parametrize(("section", "key", "value"), FACTS.values(), ids=FACTS)
def test_halves_that_differ_are_refused(section, key, value):
    config = copy.deepcopy(written(SLIDING | {"final_logit_softcapping": 30.0, "eos_token_id": 7}))
    place = config if section is None else config[section]
    assert place.get(key) != value
    place[key] = value
    with pytest.raises(DflashPackError):
        read_drafter(contents(config, extra={}))


def test_a_difference_names_the_fact_and_both_halves():
    config = written({})
    config["aux_hidden_state_layer_ids"] = [1, 2]
    with pytest.raises(ContradictionError) as caught:
        read_drafter(contents(config))
    assert "target_layer_ids" in str(caught.value)
    assert "native keys" in str(caught.value)
    assert "Speculators keys" in str(caught.value)


def test_one_half_alone_is_no_universal_form():
    for config in (native(), speculators()):
        assert not universal.detect(contents(config))
    config = written({})
    del config["transformer_layer_config"]
    with pytest.raises(CheckpointError, match="transformer_layer_config"):
        read_drafter(contents(config))


def test_k_below_the_block_is_kept_by_the_half_that_states_it():
    drafter = replace(drafter_of({}), proposal_tokens=2)
    config = universal.write(drafter, target()).config
    assert read_drafter(contents(config)).drafter.speculative_tokens == 2


def test_the_embedding_output_is_refused():
    with pytest.raises(NotRepresentableError, match="--format speculators"):
        universal.write(replace(drafter_of({}), target_layer_ids=(-1, 2)), target())
