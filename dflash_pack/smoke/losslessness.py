"""The judgement on emitted tokens, given the target's own log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_pack.smoke.result import Losslessness, TokenDifference


@dataclass(frozen=True)
class TokenScore:
    """What the target itself says of one emitted token, after the same prefix.

    Attributes:
        emitted: Id of the emitted token.
        emitted_logprob: Its log-probability in nats.
        choice: Id of the token that the target finds most likely.
        choice_logprob: Its log-probability in nats.
    """

    emitted: int
    emitted_logprob: float
    choice: int
    choice_logprob: float

    @property
    def gap(self) -> float:
        """By how many nats the target prefers its own choice."""
        return self.choice_logprob - self.emitted_logprob


def judge(scores: Sequence[Sequence[TokenScore]], *, near_tie_gap: float) -> Losslessness:
    """Return whether every emitted token is the target's own first choice.

    Args:
        scores: For each prompt, one score per emitted token.
        near_tie_gap: Gap in nats up to which another choice is a tie or near-tie: sums in another
            order may settle it either way, so it counts apart and is no difference.

    A gap that is not a number is a difference.
    """
    checked, near_ties, largest = 0, 0, 0.0
    first: TokenDifference | None = None
    for prompt, tokens in enumerate(scores):
        for position, score in enumerate(tokens):
            checked += 1
            if score.emitted == score.choice and score.gap == 0:
                continue
            if score.gap <= near_tie_gap:
                near_ties += 1
                largest = max(largest, score.gap)
            elif first is None:
                first = TokenDifference(prompt, position, score.emitted, score.choice, score.gap)
    return Losslessness(checked, near_ties, first, largest)
