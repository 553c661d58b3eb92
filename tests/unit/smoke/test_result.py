"""Counts, their rates, and the comparison of two decodes."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from measured import ENGINE

from dflash_pack.smoke.result import (
    Acceptance,
    DecodeResult,
    Losslessness,
    TokenDifference,
    compare,
)

RESULT = DecodeResult(
    acceptance=Acceptance(drafts=10, draft_tokens=30, accepted=15, accepted_per_position=(9, 5, 1)),
    outputs=((1, 2, 3), (4,)),
    prompts_sha256="ab",
    losslessness=Losslessness(4, 1, TokenDifference(1, 0, 4, 5, 0.5), 1e-5),
    engine=ENGINE,
    load_seconds=1.5,
    decode_seconds=0.5,
    k=3,
)


def with_counts(**changes) -> DecodeResult:
    return replace(RESULT, acceptance=replace(RESULT.acceptance, **changes))


def test_acceptance_length_counts_the_bonus_token():
    assert RESULT.acceptance.acceptance_length == 2.5
    assert with_counts(accepted=0).acceptance.acceptance_length == 1.0
    assert RESULT.acceptance.rate == 0.5
    assert RESULT.acceptance.rates_per_position == (0.9, 0.5, 0.1)
    assert RESULT.tokens == 4


def test_rates_of_nothing_are_no_numbers():
    nothing = Acceptance(0, 0, 0, (0, 0))
    assert math.isnan(nothing.acceptance_length)
    assert math.isnan(nothing.rate)
    assert all(math.isnan(rate) for rate in nothing.rates_per_position)


@pytest.mark.parametrize(
    "result",
    [
        RESULT,
        replace(RESULT, losslessness=None),
        replace(RESULT, losslessness=Losslessness(4, 0, None)),
    ],
)
def test_a_result_survives_its_way_through_json(result):
    assert DecodeResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_a_decode_equals_another_one_with_the_same_counts_and_outputs():
    slower = replace(RESULT, load_seconds=99.0, decode_seconds=99.0)
    comparison = compare(RESULT, slower)
    assert comparison.equal
    assert comparison.same_per_position == (True, True, True)
    assert comparison.first_output_difference is None
    assert comparison.relative_change == 0


def test_equal_sums_with_other_positions_are_not_equal():
    comparison = compare(RESULT, with_counts(accepted_per_position=(8, 6, 1)))
    assert comparison.same_counts
    assert comparison.same_per_position == (False, False, True)
    assert not comparison.equal


def test_fewer_accepted_tokens_are_a_relative_change():
    comparison = compare(RESULT, with_counts(accepted=10, accepted_per_position=(7, 2, 1)))
    assert not comparison.same_counts
    assert not comparison.equal
    assert comparison.relative_change == pytest.approx(-0.2)


@pytest.mark.parametrize(
    ("outputs", "where"),
    [
        (((1, 2, 9), (4,)), (0, 2)),
        (((1, 2), (4,)), (0, 2)),
        (((1, 2, 3), (4, 5)), (1, 1)),
        (((1, 2, 3),), (1, 0)),
    ],
)
def test_the_first_output_difference_is_found(outputs, where):
    for comparison in (
        compare(RESULT, replace(RESULT, outputs=outputs)),
        compare(replace(RESULT, outputs=outputs), RESULT),
    ):
        assert comparison.first_output_difference == where
        assert not comparison.same_outputs
        assert not comparison.equal


@pytest.mark.parametrize(
    "other",
    [
        replace(RESULT, prompts_sha256="cd"),
        replace(RESULT, k=4),
        replace(RESULT, engine=replace(ENGINE, version="0.33.0")),
        replace(RESULT, engine=replace(ENGINE, dtype="bfloat16")),
        replace(RESULT, engine=replace(ENGINE, threads=1)),
    ],
)
def test_equal_counts_under_other_conditions_prove_nothing(other):
    comparison = compare(RESULT, other)
    assert comparison.same_counts
    assert not comparison.same_conditions
    assert not comparison.equal


def test_another_k_makes_the_further_positions_unequal():
    shorter = with_counts(accepted_per_position=(9, 5))
    assert compare(RESULT, shorter).same_per_position == (True, True, False)
