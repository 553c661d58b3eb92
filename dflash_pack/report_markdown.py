"""A validation as Markdown, for a job's summary or a pull request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dflash_pack.hub.markdown import code, plain
from dflash_pack.results import Check, Status, ValidationReport
from dflash_pack.smoke.result import DecodeResult

_STATUSES: tuple[Status, ...] = ("failed", "warning", "passed", "not run")


def validation_markdown(report: ValidationReport) -> str:
    """Return the verdict, what needs attention, the decode's figures, and all checks.

    Names in it may be hostile: all are escaped.
    """
    return "\n".join(_lines(report))


def _lines(report: ValidationReport) -> Iterator[str]:
    verdict = "passed" if report.passed else "FAILED"
    yield f"## {code(report.checkpoint)}: {verdict} at level {report.level}"
    yield ""
    counts = Counter(check.status for check in report.checks)
    tally = ", ".join(f"{counts[s]} {s}" for s in _STATUSES if counts[s])
    target = "" if report.target is None else f", for {code(report.target.identifier)}"
    yield f"{tally}{target}; {report.seconds:.1f} s."
    pressing = [check for check in report.checks if check.status in ("failed", "warning")]
    if pressing:
        yield ""
        yield from (_sentence(check) for check in pressing)
    if report.decode is not None:
        yield ""
        yield from _decode(report.decode, report.against)
    yield ""
    yield "<details><summary>All checks</summary>"
    yield ""
    yield "| check | status | finding |"
    yield "|---|---|---|"
    for check in report.checks:
        yield f"| {code(check.id)} | {check.status} | {plain(check.finding)} |"
    yield ""
    yield "</details>"


def _sentence(check: Check) -> str:
    remedy = f" {plain(check.remedy)}." if check.remedy else ""
    return f"- **{check.status}** {code(check.id)}: {plain(check.finding)}.{remedy}"


def _decode(result: DecodeResult, against: DecodeResult | None) -> Iterator[str]:
    engine = result.engine
    yield (
        f"{len(result.outputs)} prompts in {plain(engine.name)} {plain(engine.version)} on "
        f"{plain(engine.device_name)}, {plain(engine.dtype)}, greedy, k = {result.k}:"
    )
    yield ""
    yield "| | steps | drafted | accepted | acceptance length | accepted per position |"
    yield "|---|---|---|---|---|---|"
    rows = [("checkpoint", result)] + ([("source", against)] if against else [])
    for label, row in rows:
        acceptance = row.acceptance
        rates = " ".join(f"{rate:.1%}" for rate in acceptance.rates_per_position)
        yield (
            f"| {label} | {acceptance.drafts} | {acceptance.draft_tokens} | {acceptance.accepted} "
            f"| {acceptance.acceptance_length:.3f} | {rates} |"
        )
