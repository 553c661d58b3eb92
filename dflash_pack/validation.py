"""``validate``: the static checks, then the decode asked for, judged and recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_pack import __version__
from dflash_pack.baseline import Baseline, judge_baseline
from dflash_pack.checkpoint import LOG_NAME, MANIFEST_NAME, Checkpoint, open_checkpoint
from dflash_pack.checks import static_checks
from dflash_pack.draft_length import draft_length
from dflash_pack.drafter import Drafter
from dflash_pack.errors import MissingHereError, UsageError
from dflash_pack.file_reading import sha256_file
from dflash_pack.hub.manifest import read_manifest, write_manifest
from dflash_pack.hub.validation import (
    DecodeRecord,
    ValidationRecord,
    assess,
    validation_record,
)
from dflash_pack.inspection import target_facts
from dflash_pack.packing import MAX_SIDE_FILE_BYTES
from dflash_pack.reference import Reference, decodable, require_cpu_runner, source_digests
from dflash_pack.results import Check, Level, Status, ValidationReport
from dflash_pack.smoke.request import DecodeRequest, Prompt
from dflash_pack.smoke.result import Comparison, DecodeResult, compare
from dflash_pack.smoke.run import DecodeFailedError, decode_many
from dflash_pack.target import Target

# A wrong layer or causality costs 3 to 15 percent of them.
ENOUGH_ACCEPTED = 100


@dataclass(frozen=True)
class DecodePlan:
    """What to decode and how to judge it.

    Attributes:
        prompts: At least one.
        max_tokens: Most tokens to generate for each prompt.
        against: The source to decode too, None without comparison.
        speculative_tokens: k, None for the checkpoint's own.
        dtype: Of target and drafter, as vLLM names it.
        near_tie_gap: Nats up to which another choice of the target counts as a near-tie.
        min_acceptance_length: Mean tokens per verification step to reach, None without threshold.
        timeout: Seconds for one decode.
        seed: The engine's seed.
        baseline: A former decode to hold this one against, None without.
    """

    prompts: tuple[Prompt, ...]
    max_tokens: int
    against: Reference | None
    speculative_tokens: int | None
    dtype: str
    near_tie_gap: float
    min_acceptance_length: float | None
    timeout: float
    seed: int
    baseline: Baseline | None = None


def validate_checkpoint(
    folder: Path,
    target: Target | None,
    plan: DecodePlan | None,
    logs: Path,
    *,
    logs_stay: bool = True,
    announce: Callable[[], None] = lambda: None,
) -> ValidationReport:
    """Check ``folder`` and, with ``plan``, decode it in vLLM on the CPU.

    Args:
        folder: The checkpoint.
        target: The model that verifies; a decode needs it.
        plan: The decode, None for static checks only.
        logs: Existing folder for the engine's logs.
        logs_stay: Whether that folder outlives the command, so that failures may point there.
        announce: Called when all that needs no engine is done and the decode begins.

    Raises:
        UsageError: If a decode is asked for without a target.
        DflashPackError: If the checkpoint can't be opened, something needed is not here, or the
            source's decode would say nothing.
    """
    started = time.perf_counter()
    if plan is not None and target is None:
        raise UsageError("a decode needs the target", remedy="Pass --target FOLDER")
    if plan is not None and target is not None:
        _require_weights(target)
    checkpoint = open_checkpoint(folder)
    digests = file_digests(checkpoint)
    static = static_checks(checkpoint, target, digests)
    checks = list(static.checks)
    outcome = _Outcome()
    level: Level = "static"
    if plan is not None and target is not None:
        level = "cpu"
        if static.reading is None or any(check.status == "failed" for check in checks):
            checks.append(
                Check("decode.ran", "not run", "static checks failed", "Mend these first")
            )
        else:
            drafter = static.reading.drafter
            outcome = _decode(
                checkpoint, drafter, target, plan, logs, logs_stay=logs_stay, announce=announce
            )
            checks.extend(outcome.checks)
    passed = any(c.status == "passed" for c in checks) and not any(
        c.status == "failed" for c in checks
    )
    return ValidationReport(
        checkpoint=str(folder),
        level=level,
        passed=passed,
        checks=tuple(checks),
        target=None if target is None else target_facts(target),
        decode=outcome.result,
        against=outcome.source,
        comparison=outcome.comparison,
        files=digests,
        seconds=time.perf_counter() - started,
    )


def file_digests(checkpoint: Checkpoint) -> dict[str, str]:
    """Return name -> sha256 of config, weights and side files of ``checkpoint``.

    Side files too large for anything that is published (optimizer states) are left out.
    """
    paths = {"config.json": checkpoint.path / "config.json"}
    paths |= {shard.name: shard.path for shard in checkpoint.shards}
    small = (file for file in checkpoint.side_files if file.size <= MAX_SIDE_FILE_BYTES)
    paths |= {file.name: file.path for file in small}
    return {name: sha256_file(path) for name, path in sorted(paths.items())}


def record_validation(folder: Path, report: ValidationReport, source: str | None) -> bool:
    """Keep the summary of ``report`` in the checkpoint's record; return whether it has one.

    Args:
        folder: The checkpoint.
        report: The validation, passed or not.
        source: What the decode was compared with and found equal to.

    Raises:
        MissingHereError: If the record can't be written.
        CheckpointError: If the record is broken.
    """
    if MANIFEST_NAME not in report.files:
        return False
    manifest = read_manifest(folder)
    known = assess(manifest, where=folder / MANIFEST_NAME)
    sound = not any(c.status == "failed" and not c.id.startswith("decode.") for c in report.checks)
    same = all(report.files.get(name) == file.sha256 for name, file in manifest.files.items())
    decoded = known.proven and known.level != "static"
    if sound and report.decode is None and decoded and same:
        # Neither static checks that pass nor an engine that did not run speak against a proof.
        return True
    record = ValidationRecord(
        passed=report.passed,
        level=report.level if report.decode is not None else "static",
        files={name: sha for name, sha in report.files.items() if name != MANIFEST_NAME},
        tool_version=__version__,
        decode=_decode_record(report, source),
        failed=tuple(check.id for check in report.checks if check.status == "failed"),
    )
    try:
        write_manifest(folder, replace(manifest, validation=validation_record(record)))
    except OSError as error:
        raise MissingHereError(
            f"can't be written ({error.strerror}), so push will not know of this validation",
            where=folder / MANIFEST_NAME,
            remedy="Validate a copy that can be written to",
        ) from None
    return True


@dataclass(frozen=True)
class _Outcome:
    checks: tuple[Check, ...] = ()
    result: DecodeResult | None = None
    source: DecodeResult | None = None
    comparison: Comparison | None = None


def _decode(
    checkpoint: Checkpoint,
    drafter: Drafter,
    target: Target,
    plan: DecodePlan,
    logs: Path,
    *,
    logs_stay: bool,
    announce: Callable[[], None],
) -> _Outcome:
    k = draft_length(drafter, plan.speculative_tokens)
    request = DecodeRequest(
        target=str(target.path),
        drafter=str(checkpoint.path),
        speculative_tokens=k,
        device="cpu",
        dtype=plan.dtype,
        prompts=plan.prompts,
        max_tokens=plan.max_tokens,
        seed=plan.seed,
        near_tie_gap=plan.near_tie_gap,
    )
    require_cpu_runner(
        drafter, checkpoint.path, "Leave --cpu out: the static checks need no engine"
    )
    requests = [request]
    with ExitStack() as stack:
        if plan.against is not None:
            folder = stack.enter_context(decodable(plan.against, drafter, target))
            requests.append(replace(request, drafter=str(folder), check_lossless=False))
        announce()
        # One child for both: the engine's imports take longer than a small model's decode.
        result, *sources = decode_many(
            requests, timeout_s=plan.timeout * len(requests), log=logs / LOG_NAME
        )
    if isinstance(result, DecodeFailedError):
        return _Outcome((_failed("decode.ran", result, logs_stay),))
    compared = bool(sources) or plan.baseline is not None
    checks = list(judge_decode(result, plan.min_acceptance_length, compared=compared))
    if plan.baseline is not None and result.acceptance.drafts:
        checks.append(judge_baseline(plan.baseline, result))
    if plan.against is not None:
        checks += judge_source(checkpoint, plan.against)
    if not sources:
        return _Outcome(tuple(checks), result)
    source = sources[0]
    if isinstance(source, DecodeFailedError):
        checks.append(_failed("decode.equals_source", source, logs_stay))
        return _Outcome(tuple(checks), result)
    comparison = compare(source, result)
    checks.append(judge_comparison(source, result, comparison))
    return _Outcome(tuple(checks), result, source, comparison)


def _failed(check: str, error: DecodeFailedError, logs_stay: bool) -> Check:
    remedy = error.remedy if logs_stay else "Pass --report DIR, where the engine's log is then kept"
    return Check(check, "failed", error.what, remedy or "")


def _require_weights(target: Target) -> None:
    """Check that the target's weights are there, which only a decode needs.

    Raises:
        MissingHereError: If none are.
    """
    names = (entry.name for entry in target.path.iterdir())
    if not any(name.endswith((".safetensors", ".bin", ".pt")) for name in names):
        raise MissingHereError(
            "holds no weights of the target, and a decode runs it",
            where=target.path,
            remedy="Download the whole of it, or leave --cpu out for the static checks",
        )


def judge_decode(result: DecodeResult, minimum: float | None, *, compared: bool) -> Iterator[Check]:
    """Judge one decode by itself.

    Args:
        result: What was measured.
        minimum: Acceptance length to reach, None without threshold.
        compared: Whether it is held against a source or a former decode as well.
    """
    acceptance, lossless = result.acceptance, result.losslessness
    if acceptance.drafts == 0:
        yield Check(
            "decode.ran",
            "failed",
            "the engine verified no draft at all",
            "Use longer prompts or more tokens, and see the engine's log",
        )
        return
    yield Check(
        "decode.ran",
        "passed",
        f"{result.tokens} tokens in {acceptance.drafts} verification steps",
    )
    if acceptance.accepted < ENOUGH_ACCEPTED:
        yield Check(
            "decode.evidence",
            "warning",
            f"{acceptance.accepted} drafted tokens were accepted: too few to tell a drafter that "
            "is slightly wrong",
            "Pass --prompts with text of the kind that it was trained on, or more --max-tokens",
        )
    if lossless is not None and lossless.holds:
        ties = (
            f"; {lossless.near_ties} near-ties, the largest {lossless.largest_near_tie:.2g} nats"
            if lossless.near_ties
            else ""
        )
        yield Check(
            "decode.lossless",
            "passed",
            f"all {lossless.tokens_checked} emitted tokens are the target's own first choice{ties}",
        )
    elif lossless is not None:
        first = lossless.first_difference
        what = (
            "no token was checked"
            if first is None
            else f"prompt {first.prompt}, token {first.position}: emitted {first.emitted}, but the "
            f"target prefers {first.choice} by {first.gap:.3g} nats"
        )
        yield Check("decode.lossless", "failed", what, "Report it: the engine is at fault")
    length = acceptance.acceptance_length
    if minimum is not None:
        status: Status = "passed" if length >= minimum else "failed"
        yield Check(
            "decode.acceptance",
            status,
            f"acceptance length {length:.3f}, asked for at least {minimum:g}",
            "" if status == "passed" else "Check target, layer ids, mask token and causality",
        )
    elif not compared:
        yield Check(
            "decode.acceptance",
            "warning",
            f"acceptance length {length:.3f}, held against nothing",
            "Pass --against SRC, --baseline REPORT or --min-acceptance-length: a wrong layer costs "
            "only a few percent",
        )


def judge_source(checkpoint: Checkpoint, reference: Reference) -> Iterator[Check]:
    """Judge whether the source is the one that the checkpoint's record names; none without record.

    Args:
        checkpoint: What was decoded.
        reference: What it is held against.
    """
    if not any(file.name == MANIFEST_NAME for file in checkpoint.side_files):
        return
    recorded = read_manifest(checkpoint.path).source.files
    given = source_digests(reference)
    other = sorted(name for name, sha in given.items() if recorded.get(name) != sha)
    if other:
        yield Check(
            "decode.source",
            "warning",
            f"{other[0]} of {reference.path} is not what the checkpoint was converted from",
            "Give the source that convert read: equality with another folder proves little",
        )
    else:
        yield Check("decode.source", "passed", "the source is the one that convert read")


def judge_comparison(source: DecodeResult, result: DecodeResult, comparison: Comparison) -> Check:
    """Judge a decode against its source's: equal at every position, or failed."""
    ours = list(result.acceptance.accepted_per_position)
    theirs = list(source.acceptance.accepted_per_position)
    if comparison.equal:
        return Check(
            "decode.equals_source",
            "passed",
            f"accepted per position {ours}, the same as the source's, and the same output tokens",
        )
    if not comparison.same_conditions:
        what = "the two decodes ran under different conditions"
    elif not comparison.same_outputs:
        what = f"outputs differ from token {comparison.first_output_difference} on (prompt, token)"
    else:
        what = (
            f"accepted per position {ours} of {result.acceptance.draft_tokens} drafted, the "
            f"source's {theirs} of {source.acceptance.draft_tokens} "
            f"({comparison.relative_change:+.1%} acceptance length)"
        )
    return Check(
        "decode.equals_source",
        "failed",
        what,
        "Give the source that it was converted from, read as at convert (--set, --from), or "
        "convert that again",
    )


def _decode_record(report: ValidationReport, source: str | None) -> DecodeRecord | None:
    result = report.decode
    if result is None:
        return None
    # Only of the source that convert read can a card say that it drafts the same.
    known = any(c.id == "decode.source" and c.status == "passed" for c in report.checks)
    equal = known and report.comparison is not None and report.comparison.equal
    return DecodeRecord(
        engine=result.engine.name,
        engine_version=result.engine.version,
        device=result.engine.device_name,
        dtype=result.engine.dtype,
        speculative_tokens=result.k,
        prompts=len(result.outputs),
        drafts=result.acceptance.drafts,
        draft_tokens=result.acceptance.draft_tokens,
        accepted_per_position=result.acceptance.accepted_per_position,
        output_tokens=result.tokens,
        prompts_sha256=result.prompts_sha256,
        attention_backend=result.engine.draft_attention_backend,
        against=source if equal else None,
    )
