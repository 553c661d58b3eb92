from dataclasses import replace

import pytest

from dflash_pack.drafter import Drafter, DraftLayer, Geometry, Rope, Vocabulary
from dflash_pack.engines.limits import (
    describe_runs,
    native_form_problems,
    speculators_form_problems,
)

CAUSAL = DraftLayer(window=2048, causal=True)
WIDE = DraftLayer(window=4096, causal=True)
OPEN = DraftLayer(window=2048, causal=False)
FULL = DraftLayer(window=None, causal=False)
FULL_CAUSAL = DraftLayer(window=None, causal=True)
DRAFTER = Drafter(
    geometry=Geometry(64, 96, 4, 2, 16, 1e-5, "silu", 256),
    layers=(FULL,),
    target_layer_ids=(1, 3),
    target_hidden_size=64,
    block_size=8,
    rope=Rope("default", 1e4),
    vocabulary=Vocabulary(size=128, draft_size=128, mask_token_id=127),
    dtype="BF16",
)


def drafter(*layers, **changes):
    return replace(DRAFTER, layers=layers, **changes)


def test_mixed_causality_is_refused_for_speculators_with_the_form_that_carries_it():
    mixed = drafter(CAUSAL, CAUSAL, CAUSAL, CAUSAL, FULL)
    sentence = (
        "layers 0-3 are causal sliding, layer 4 is full and bidirectional; vLLM 0.33 gives one "
        "causality to all layers of a Speculators config. Use --format universal."
    )
    assert speculators_form_problems(mixed) == (sentence,)
    assert native_form_problems(mixed) == ()


@pytest.mark.parametrize(
    "layers",
    [
        (FULL, FULL),
        (CAUSAL, CAUSAL),
        (OPEN, OPEN),
        (OPEN, FULL),
        (CAUSAL, FULL_CAUSAL),
        (FULL_CAUSAL, FULL_CAUSAL),
    ],
)
def test_one_causality_goes_into_every_form(layers):
    assert speculators_form_problems(drafter(*layers)) == ()
    assert native_form_problems(drafter(*layers)) == ()


@pytest.mark.parametrize(
    "layers", [(OPEN, FULL_CAUSAL), (CAUSAL, OPEN), (FULL, FULL_CAUSAL), (CAUSAL, WIDE)]
)
def test_what_no_form_carries_is_said_for_both(layers):
    assert "no form" in speculators_form_problems(drafter(*layers))[0]
    assert "no form" in native_form_problems(drafter(*layers))[0]


def test_sampling_from_the_anchor_reaches_vllm_in_no_form():
    assert "anchor" in speculators_form_problems(drafter(FULL, sample_from_anchor=True))[0]
    assert "anchor" in native_form_problems(drafter(FULL, sample_from_anchor=True))[0]


def test_runs_of_layers_are_named():
    assert describe_runs((FULL, CAUSAL, CAUSAL)) == (
        "layer 0 is full and bidirectional, layers 1-2 are causal sliding"
    )
