"""What the commands find out: plain frozen data that every renderer and the JSON schemas share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dflash_pack.accounting import Entry
from dflash_pack.agreement import EngineView
from dflash_pack.drafter import Drafter
from dflash_pack.engine_table import Verdict
from dflash_pack.engines.recipes import Recipe
from dflash_pack.smoke.result import Comparison, DecodeResult

Status = Literal["passed", "warning", "failed", "not run"]
Level = Literal["static", "cpu", "gpu"]


@dataclass(frozen=True)
class TargetFacts:
    """The target as far as it matters here."""

    identifier: str
    revision: str | None
    architectures: tuple[str, ...]
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int


@dataclass(frozen=True)
class WeightFacts:
    """Size of a checkpoint's weights: bytes of all tensors, number of tensors and of files."""

    weight_bytes: int
    tensors: int
    shards: int


@dataclass(frozen=True)
class InspectionReport:
    """What ``inspect`` shows of a checkpoint.

    Attributes:
        checkpoint: The folder or file.
        format: The form it is in.
        drafter: What it means.
        speculative_tokens: k.
        weights: Size of the weights.
        target: The model that verifies, None where none was given.
        engines: What each engine makes of the files as they are; empty where none can load them.
        verdicts: Engine -> whether it serves the files, and as they are meant.
        ledger: Fate of every key, tensor and file.
        notes: Sentences worth knowing.
    """

    checkpoint: str
    format: str
    drafter: Drafter
    speculative_tokens: int
    weights: WeightFacts
    target: TargetFacts | None
    engines: tuple[EngineView, ...]
    verdicts: Mapping[str, Verdict]
    ledger: tuple[Entry, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class OutputFile:
    """One written file; sha256 is None where hashing was switched off."""

    name: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class ConversionReport:
    """What ``convert`` planned and, unless it was a dry run, wrote.

    Attributes:
        source: The checkpoint that was read.
        source_format: Its format.
        out: The written folder; None for a dry run.
        form: The output form.
        target: The model that verifies.
        drafter: What was written.
        config: The output's config.json.
        fields: Field of the drafter -> key of the output that carries it.
        ledger: Fate of every key, tensor and file of the source.
        source_engines: What engines make of the source as it is.
        engines: What engines make of the result.
        notes: Sentences worth knowing.
        warnings: What engines that don't serve this form would take otherwise.
        weights: Size of the output's weights.
        files: What was written; planned names without a hash for a dry run.
        seconds: Wall time of planning and writing.
    """

    source: str
    source_format: str
    out: str | None
    form: str
    target: TargetFacts
    drafter: Drafter
    config: Mapping[str, Any]
    fields: Mapping[str, str]
    ledger: tuple[Entry, ...]
    source_engines: tuple[EngineView, ...]
    engines: tuple[EngineView, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    weights: WeightFacts
    files: tuple[OutputFile, ...]
    seconds: float


@dataclass(frozen=True)
class LaunchReport:
    """How an engine is told to serve a checkpoint.

    Attributes:
        checkpoint: The folder.
        target: What the engine is given as target.
        speculative_tokens: k, tokens proposed per verification step.
        recipe: Command and files.
        conditions: What else the engine needs, or does, with these files.
    """

    checkpoint: str
    target: str
    speculative_tokens: int
    recipe: Recipe
    conditions: tuple[str, ...]


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        id: Stable id, documented in docs/checks.md.
        status: ``warning`` does not fail a validation; ``not run`` says why in ``finding``.
        finding: What was found, one sentence.
        remedy: What to do about it; empty when passed.
    """

    id: str
    status: Status
    finding: str
    remedy: str = ""


@dataclass(frozen=True)
class ValidationReport:
    """What ``validate`` found.

    Attributes:
        checkpoint: The folder.
        level: How far it went: headers and bytes only, or a decode on that device.
        passed: Whether no check failed; at least one must have passed.
        checks: All checks in order.
        target: The model that verifies, None where none was given or found.
        decode: The decode of the checkpoint, None at level static.
        against: The decode of the source it is compared with.
        comparison: The two compared.
        files: Name -> sha256 of the files that were checked.
        seconds: Wall time.
    """

    checkpoint: str
    level: Level
    passed: bool
    checks: tuple[Check, ...]
    target: TargetFacts | None
    decode: DecodeResult | None
    against: DecodeResult | None
    comparison: Comparison | None
    files: Mapping[str, str]
    seconds: float
