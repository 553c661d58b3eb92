"""k: what a block gives at most, by its anchor."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import NATIVE, contents

from dflash_pack.converters.registry import read_drafter
from dflash_pack.draft_length import draft_length
from dflash_pack.errors import UsageError

DFLASH = read_drafter(contents(NATIVE)).drafter
ANCHORED = replace(DFLASH, sample_from_anchor=True)


@pytest.mark.parametrize(
    ("drafter", "asked", "k"),
    [
        (DFLASH, None, 3),
        (DFLASH, 1, 1),
        (DFLASH, 3, 3),
        (ANCHORED, None, 4),
        (ANCHORED, 4, 4),
        (replace(DFLASH, proposal_tokens=2), None, 2),
        (replace(DFLASH, proposal_tokens=2), 3, 3),
    ],
)
def test_k(drafter, asked, k):
    """An anchor that predicts makes the whole block count, without a word of the user's."""
    assert draft_length(drafter, asked) == k


@pytest.mark.parametrize(("drafter", "asked"), [(DFLASH, 4), (ANCHORED, 5)])
def test_more_than_the_block(drafter, asked):
    with pytest.raises(UsageError, match=f"at most {asked - 1} tokens"):
        draft_length(drafter, asked)
