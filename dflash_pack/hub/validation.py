"""What a manifest says of the last validation, and whether it still holds for these files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dflash_pack.errors import CheckpointError
from dflash_pack.hub.manifest import Manifest, parse_record

Level = Literal["static", "cpu", "gpu", "reference", "server"]
CARD_NAME = "README.md"


@dataclass(frozen=True)
class DecodeRecord:
    """What a real engine measured.

    Attributes:
        engine: ``vllm``, ``zlab`` ...
        engine_version: Its version.
        device: Name of the device it ran on.
        dtype: Compute dtype.
        speculative_tokens: k.
        prompts: Number of prompts decoded.
        drafts: Verification steps.
        draft_tokens: Tokens proposed.
        accepted_per_position: Accepted tokens at each of the k positions.
        output_tokens: Tokens emitted, None where not measured.
        prompts_sha256: Digest of the prompts, None where not recorded.
        attention_backend: Backend the drafter used, None where not recorded.
        against: What the result was compared with and found equal to, None without comparison.
    """

    engine: str
    engine_version: str
    device: str
    dtype: str
    speculative_tokens: int
    prompts: int
    drafts: int
    draft_tokens: int
    accepted_per_position: tuple[int, ...]
    output_tokens: int | None = None
    prompts_sha256: str | None = None
    attention_backend: str | None = None
    against: str | None = None

    @property
    def accepted_tokens(self) -> int:
        """Tokens accepted at all positions together."""
        return sum(self.accepted_per_position)

    @property
    def acceptance_length(self) -> float:
        """Mean tokens emitted per verification step, bonus token included."""
        return 1 + self.accepted_tokens / self.drafts

    @property
    def acceptance_rates(self) -> tuple[float, ...]:
        """Share of verification steps that accept the token at each position."""
        return tuple(count / self.drafts for count in self.accepted_per_position)


@dataclass(frozen=True)
class ValidationRecord:
    """The summary that validate keeps in the manifest.

    Attributes:
        passed: Whether every check passed.
        level: ``static`` without a decode, else where it decoded.
        files: Name -> sha256 of the files it was run on.
        tool_version: Version of dflash-pack that validated.
        decode: The measurement; None iff ``level`` is ``static``.
        failed: Ids of the checks that failed.
    """

    passed: bool
    level: Level
    files: dict[str, str]
    tool_version: str
    decode: DecodeRecord | None = None
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class ValidationState:
    """What may be claimed of these files.

    Attributes:
        level: ``none``, or the level of the last validation.
        proven: Whether it passed, on exactly these files, and measured something.
        problem: Why it doesn't count, as a clause; empty when proven.
        record: The validation's summary, None where there is none.
    """

    level: Literal["none"] | Level
    proven: bool
    problem: str = ""
    record: ValidationRecord | None = None


def validation_record(record: ValidationRecord) -> dict[str, Any]:
    """Return ``record`` as the plain data that ``Manifest.validation`` holds."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(record), allow_nan=False))
    return plain


def assess(manifest: Manifest, *, where: str | Path) -> ValidationState:
    """Return what the manifest's validation proves of the files that the manifest lists.

    Args:
        manifest: The manifest.
        where: Its path, for messages.

    Raises:
        CheckpointError: If the validation's summary is broken.
    """
    if manifest.validation is None:
        return ValidationState("none", False, "it was never validated")
    record: ValidationRecord = parse_record(
        ValidationRecord, manifest.validation, where=where, prefix="validation"
    )
    if (record.decode is None) != (record.level == "static"):
        raise CheckpointError(
            f"does not fit the level {record.level}",
            where=where,
            field="validation.decode",
            remedy="Validate again",
        )
    problem = _problem(manifest, record)
    return ValidationState(record.level, not problem, problem, record)


def _problem(manifest: Manifest, record: ValidationRecord) -> str:
    if not record.passed:
        which = f" ({', '.join(record.failed[:4])})" if record.failed else ""
        return f"its last validation failed{which}"
    # The card is written at push, so no validation can have seen it.
    stale = [
        name
        for name, file in sorted(manifest.files.items())
        if name != CARD_NAME and record.files.get(name) != file.sha256
    ]
    if stale:
        return f"its last validation was run on another {stale[0]}"
    decode = record.decode
    if decode is None:
        return ""
    if decode.drafts < 1 or decode.prompts < 1:
        return "its last validation measured no verification step"
    counts = decode.accepted_per_position
    if len(counts) != decode.speculative_tokens or not all(0 <= n <= decode.drafts for n in counts):
        return "its last validation has impossible counts per position"
    return ""
