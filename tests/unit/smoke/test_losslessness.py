"""The judgement on emitted tokens."""

from __future__ import annotations

import math

from dflash_pack.smoke.losslessness import TokenScore, judge
from dflash_pack.smoke.result import TokenDifference

FIRST_CHOICE = TokenScore(emitted=5, emitted_logprob=-0.25, choice=5, choice_logprob=-0.25)


def other_choice(gap: float) -> TokenScore:
    return TokenScore(emitted=5, emitted_logprob=-1.0 - gap, choice=9, choice_logprob=-1.0)


def test_the_targets_own_first_choice_everywhere_is_lossless():
    found = judge([[FIRST_CHOICE] * 3, [FIRST_CHOICE]], near_tie_gap=0.0)
    assert (found.tokens_checked, found.near_ties, found.first_difference) == (4, 0, None)
    assert found.holds


def test_a_token_that_the_target_would_not_choose_is_the_first_difference():
    scores = [[FIRST_CHOICE], [FIRST_CHOICE, other_choice(0.5), other_choice(2.0)]]
    found = judge(scores, near_tie_gap=0.25)
    assert found.first_difference == TokenDifference(1, 1, emitted=5, choice=9, gap=0.5)
    assert found.tokens_checked == 4
    assert not found.holds


def test_a_near_tie_counts_apart_up_to_the_gap_and_not_beyond():
    within = judge([[other_choice(0.25), FIRST_CHOICE]], near_tie_gap=0.25)
    assert (within.near_ties, within.first_difference, within.largest_near_tie) == (1, None, 0.25)
    assert within.holds
    beyond = judge([[other_choice(0.25)]], near_tie_gap=0.125)
    assert beyond.near_ties == 0
    assert not beyond.holds


def test_an_exact_tie_is_a_near_tie_even_without_any_gap_allowed():
    found = judge([[other_choice(0.0)]], near_tie_gap=0.0)
    assert (found.near_ties, found.holds) == (1, True)


def test_a_near_tie_does_not_hide_a_later_difference():
    found = judge([[other_choice(0.1), other_choice(0.5)]], near_tie_gap=0.2)
    assert found.near_ties == 1
    assert found.first_difference is not None
    assert found.first_difference.position == 1


def test_log_probabilities_that_are_no_numbers_are_a_difference():
    broken = TokenScore(5, math.nan, 5, math.nan)
    assert not judge([[broken]], near_tie_gap=1.0).holds
    impossible = TokenScore(5, -math.inf, 9, -0.1)
    assert not judge([[impossible]], near_tie_gap=1.0).holds


def test_nothing_checked_is_not_lossless():
    assert not judge([[], []], near_tie_gap=1.0).holds
