"""A former validation's report, against which a new decode is held."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_pack.errors import CheckpointError, UsageError
from dflash_pack.results import Check
from dflash_pack.smoke.result import DecodeResult, compare
from dflash_pack.strict_json import read_json_object

MAX_REPORT = 64 << 20
_REMEDY = "Give the validation.json of a validation that decoded"


@dataclass(frozen=True)
class Baseline:
    """A former decode, and how much shorter the acceptance length may be.

    Attributes:
        path: The report.
        decode: What it measured.
        tolerance: Largest loss of acceptance length, relative: 0.03 = 3 % shorter.
    """

    path: Path
    decode: DecodeResult
    tolerance: float


def read_baseline(path: Path, tolerance: float) -> Baseline:
    """Return the decode that the report ``path`` holds.

    Raises:
        UsageError: There is no such file.
        CheckpointError: It is no report of a validation with a decode.
    """
    from pydantic import TypeAdapter, ValidationError

    if not path.exists():
        raise UsageError("there is no such report", where=path, remedy="Correct --baseline")
    document = read_json_object(path, max_bytes=MAX_REPORT, max_values=MAX_REPORT)
    result = document.get("result")
    if document.get("document") != "validation" or not isinstance(result, dict):
        raise CheckpointError("is no report of a validation", where=path, remedy=_REMEDY)
    if result.get("decode") is None:
        raise CheckpointError("holds no decode", where=path, remedy=_REMEDY)
    try:
        decode = TypeAdapter(DecodeResult).validate_python(result["decode"])
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(map(str, ("result", "decode", *first["loc"])))
        raise CheckpointError(first["msg"], where=path, field=field, remedy=_REMEDY) from None
    if decode.acceptance.drafts < 1:
        raise CheckpointError("verified no draft at all", where=path, remedy=_REMEDY)
    return Baseline(path, decode, tolerance)


def judge_baseline(baseline: Baseline, result: DecodeResult) -> Check:
    """Judge a decode against a former one: not shorter by more than the tolerance.

    Prompts, k and dtype must be the same; another engine or device is said. Other output tokens,
    which are the target's, are a warning: then the target or its numbers changed.
    """
    former = baseline.decode
    for what, mine, theirs in (
        ("prompts", result.prompts_sha256, former.prompts_sha256),
        ("k", result.k, former.k),
        ("dtype", result.engine.dtype, former.engine.dtype),
    ):
        if mine != theirs:
            return Check(
                "decode.baseline",
                "failed",
                f"{what} of {baseline.path} differ ({theirs}, here {mine}), so the two say nothing "
                "of each other",
                "Decode with the same --prompts, --k and --dtype",
            )
    comparison = compare(former, result)
    change = comparison.relative_change
    said = (
        f"acceptance length {comparison.result_acceptance_length:.3f}, of {baseline.path} "
        f"{comparison.source_acceptance_length:.3f} ({change:+.1%})"
        f"{_positions(former, result)}{_conditions(former, result)}"
    )
    if change < -baseline.tolerance:
        return Check(
            "decode.baseline",
            "failed",
            f"{said}: more than {baseline.tolerance:.1%} shorter",
            "Find out what changed: drafter, target or engine",
        )
    if not comparison.same_outputs:
        return Check(
            "decode.baseline",
            "warning",
            f"{said}; the target's own output tokens differ",
            "Check that target, engine and prompts' template are the same",
        )
    return Check("decode.baseline", "passed", said)


def _positions(former: DecodeResult, result: DecodeResult) -> str:
    """Return the position at which the share of accepted tokens fell most, as a clause."""
    pairs = zip(
        former.acceptance.rates_per_position, result.acceptance.rates_per_position, strict=False
    )
    changes = [(now - then, index) for index, (then, now) in enumerate(pairs)]
    worst, index = min(changes, default=(0.0, 0))
    return f", at position {index + 1} {worst * 100:+.1f} points" if worst < 0 else ""


def _conditions(former: DecodeResult, result: DecodeResult) -> str:
    then, now = former.engine, result.engine
    other = [
        f"{one} then"
        for one, two in (
            (f"{then.name} {then.version}", f"{now.name} {now.version}"),
            (then.device_name, now.device_name),
        )
        if one != two
    ]
    return f" ({', '.join(other)})" if other else ""
