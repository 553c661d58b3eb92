"""k, where the user asks for another one than the drafter's own."""

from __future__ import annotations

from dflash_pack.drafter import Drafter
from dflash_pack.errors import UsageError


def draft_length(drafter: Drafter, asked: int | None) -> int:
    """Return k: what ``--k`` asks for, else the drafter's own.

    Raises:
        UsageError: If more are asked for than the block gives.
    """
    most = drafter.most_speculative_tokens
    if asked is not None and asked > most:
        raise UsageError(
            f"a block of {drafter.block_size} gives at most {most} tokens",
            field=f"--k {asked}",
            remedy=f"Pass --k {most} or less",
        )
    return drafter.speculative_tokens if asked is None else asked
