"""``dflash-pack validate``: check a checkpoint, decode it and compare with its source."""

from __future__ import annotations

from typing import Annotated

import typer

from dflash_pack.commands.options import (
    AllowLossyOption,
    FromOption,
    JsonOption,
    NoColorOption,
    QuietOption,
    SetOption,
    TargetOption,
    output,
)

_ABOUT_SOURCES = ("source_format", "set_values", "allow_lossy")
_ABOUT_DECODES = (
    "against",
    *_ABOUT_SOURCES,
    "prompts",
    "speculative_tokens",
    "max_tokens",
    "dtype",
    "near_tie_gap",
    "min_acceptance_length",
    "baseline",
    "tolerance",
    "seed",
    "timeout",
)


def validate(
    ctx: typer.Context,
    ckpt: Annotated[str, typer.Argument(metavar="CKPT", help="Folder of the checkpoint.")],
    target: TargetOption = None,
    against: Annotated[
        str | None,
        typer.Option(
            envvar="DFLASH_PACK_AGAINST",
            metavar="SRC",
            help="Decode this source too and require equal accepted tokens at each position. "
            "--from, --set and --allow-lossy are about it, as at convert.",
        ),
    ] = None,
    source_format: FromOption = None,
    set_values: SetOption = None,
    allow_lossy: AllowLossyOption = None,
    cpu: Annotated[
        bool,
        typer.Option("--cpu", envvar="DFLASH_PACK_CPU", help="Decode in vLLM on the CPU."),
    ] = False,
    gpu: Annotated[
        bool,
        typer.Option("--gpu", envvar="DFLASH_PACK_GPU", help="Decode on a GPU (not built yet)."),
    ] = False,
    prompts: Annotated[
        str | None,
        typer.Option(
            envvar="DFLASH_PACK_PROMPTS",
            metavar="FILE",
            help='JSONL: {"messages": [...]} or {"text": "..."} a line.',
        ),
    ] = None,
    speculative_tokens: Annotated[
        int | None,
        typer.Option(
            "--k", envvar="DFLASH_PACK_K", min=1, help="Tokens to draft; default block size - 1."
        ),
    ] = None,
    max_tokens: Annotated[
        int,
        typer.Option(
            envvar="DFLASH_PACK_MAX_TOKENS", min=1, help="Most tokens to generate per prompt."
        ),
    ] = 128,
    dtype: Annotated[
        str,
        typer.Option(
            envvar="DFLASH_PACK_ENGINE_DTYPE",
            help="Of target and drafter in the engine: float32, bfloat16 or float16.",
        ),
    ] = "float32",
    near_tie_gap: Annotated[
        float,
        typer.Option(
            envvar="DFLASH_PACK_NEAR_TIE_GAP",
            min=0.0,
            help="Nats up to which another choice of the target counts as a near-tie.",
        ),
    ] = 1e-3,
    min_acceptance_length: Annotated[
        float | None,
        typer.Option(
            envvar="DFLASH_PACK_MIN_ACCEPTANCE_LENGTH",
            min=1.0,
            help="Fail below this mean number of tokens per verification step.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            envvar="DFLASH_PACK_BASELINE",
            metavar="REPORT",
            help="validation.json of a former decode, to be reached.",
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            envvar="DFLASH_PACK_TOLERANCE",
            min=0.0,
            max=1.0,
            help="How much shorter than the baseline's the acceptance length may be, relative.",
        ),
    ] = 0.03,
    seed: Annotated[int, typer.Option(envvar="DFLASH_PACK_SEED", help="The engine's seed.")] = 0,
    timeout: Annotated[
        float,
        typer.Option(
            envvar="DFLASH_PACK_TIMEOUT", min=1.0, metavar="SECONDS", help="For one decode."
        ),
    ] = 1800.0,
    report: Annotated[
        str | None,
        typer.Option(
            envvar="DFLASH_PACK_REPORT",
            metavar="DIR",
            help="Folder for report and engine logs; default CKPT/.dflash-pack.",
        ),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    no_color: NoColorOption = False,
) -> int:
    """Check a checkpoint; with --cpu, decode it and prove that it drafts the same as its source."""
    from dflash_pack.baseline import read_baseline
    from dflash_pack.checkpoint import JUNIT_NAME, MARKDOWN_NAME, REPORT_NAME
    from dflash_pack.commands.options import (
        given_target,
        local_folder,
        optional_path,
        refuse_given,
    )
    from dflash_pack.console import json_document
    from dflash_pack.errors import (
        EXIT_DONE,
        EXIT_REFUSED,
        DflashPackError,
        MissingHereError,
        UsageError,
    )
    from dflash_pack.overrides import parse_override
    from dflash_pack.reference import Reference
    from dflash_pack.report import render_validation
    from dflash_pack.report_folder import report_folder, write_report
    from dflash_pack.report_junit import validation_junit
    from dflash_pack.report_markdown import validation_markdown
    from dflash_pack.smoke.environment import require_engine
    from dflash_pack.smoke.request import ENGINE_DTYPES, builtin_prompts, load_prompts
    from dflash_pack.validation import DecodePlan, record_validation, validate_checkpoint

    talk = output(as_json, quiet, no_color)
    if gpu:
        raise MissingHereError(
            "decoding on a GPU is not built into this version", remedy="Pass --cpu"
        )
    if not cpu:
        refuse_given(ctx, _ABOUT_DECODES, "is about a decode", "Pass --cpu as well")
    elif against is None:
        refuse_given(ctx, _ABOUT_SOURCES, "is about a source", "Pass --against SRC as well")
    if dtype not in ENGINE_DTYPES:
        raise UsageError(
            f"--dtype {dtype} is none that a drafter is decoded in",
            remedy=f"Use one of {', '.join(ENGINE_DTYPES)}",
        )
    folder = local_folder(ckpt)
    source = optional_path(against, "--against") if cpu else None
    if source is not None and source.exists() and source.samefile(folder):
        raise UsageError(
            f"--against {against} is the checkpoint itself",
            remedy="Give the source that it was converted from",
        )
    verifier = None if target is None else given_target(target)
    plan = None
    if cpu:
        asked = optional_path(prompts, "--prompts")
        former = optional_path(baseline, "--baseline")
        plan = DecodePlan(
            prompts=builtin_prompts() if asked is None else load_prompts(asked),
            max_tokens=max_tokens,
            against=None
            if source is None
            else Reference(
                source,
                source_format,
                tuple(parse_override(text) for text in set_values or ()),
                tuple(allow_lossy or ()),
            ),
            speculative_tokens=speculative_tokens,
            dtype=dtype,
            near_tie_gap=near_tie_gap,
            min_acceptance_length=min_acceptance_length,
            timeout=timeout,
            seed=seed,
            baseline=None if former is None else read_baseline(former, tolerance),
        )
        if verifier is None:
            raise UsageError("a decode needs the target", remedy="Pass --target FOLDER")
        require_engine("cpu")
    with report_folder(optional_path(report, "--report"), folder) as kept:
        result = validate_checkpoint(
            folder,
            verifier,
            plan,
            kept.path,
            logs_stay=kept.kept,
            announce=lambda: talk.say(
                "Decoding in vLLM on the CPU; the first step is loading the engine."
            ),
        )
        if kept.kept:
            write_report(kept.path / REPORT_NAME, json_document("validation", result))
            write_report(kept.path / MARKDOWN_NAME, validation_markdown(result))
            write_report(kept.path / JUNIT_NAME, validation_junit(result))
    talk.emit("validation", result, lambda console: render_validation(result, console))
    try:
        if not record_validation(folder, result, against):
            talk.say(f"Nothing is recorded: {folder} is not an output of dflash-pack convert.")
    except DflashPackError as error:
        talk.say(f"warning: {error.sentence()}")
    return EXIT_DONE if result.passed else EXIT_REFUSED
