"""``dflash-pack convert``: write a trained drafter in a form that engines serve as meant."""

from __future__ import annotations

from typing import Annotated

import typer

from dflash_pack.commands.options import (
    AllowLossyOption,
    DraftConfigOption,
    FromOption,
    JsonOption,
    NoColorOption,
    QuietOption,
    RequiredTargetOption,
    SetOption,
    TargetIdOption,
    output,
)


def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder of the trained drafter.")],
    target: RequiredTargetOption,
    output_folder: Annotated[
        str,
        typer.Option(
            "--output", "-o", envvar="DFLASH_PACK_OUTPUT", metavar="OUT", help="Folder to make."
        ),
    ],
    target_id: TargetIdOption = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            envvar="DFLASH_PACK_FORMAT",
            help="Output form: speculators, native, native-new, universal.",
        ),
    ] = "speculators",
    source_format: FromOption = None,
    draft_config: DraftConfigOption = None,
    set_values: SetOption = None,
    allow_lossy: AllowLossyOption = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            envvar="DFLASH_PACK_DTYPE",
            metavar="DTYPE",
            help="Cast weights: bfloat16, float16 or float32. Without it each keeps its own.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", envvar="DFLASH_PACK_DRY_RUN", help="Check everything, write nothing."
        ),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            envvar="DFLASH_PACK_OVERWRITE",
            help="Replace OUT if dflash-pack made it.",
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify/--no-verify",
            envvar="DFLASH_PACK_VERIFY",
            help="Hash what is written and look for NaN; without it no record is written.",
        ),
    ] = True,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    no_color: NoColorOption = False,
) -> int:
    """Convert a trained drafter, with every key and tensor accounted for.

    Everything is checked against headers before a byte is written; OUT appears only when complete.
    """
    import time

    from dflash_pack.checkpoint import CONVERSION_NAME
    from dflash_pack.commands.options import given_path, given_target, optional_path
    from dflash_pack.commands.progress import byte_progress
    from dflash_pack.console import json_document
    from dflash_pack.conversion import plan_conversion
    from dflash_pack.conversion_report import report_conversion
    from dflash_pack.converters.tensor_facts import cast_code
    from dflash_pack.output_folder import check_output
    from dflash_pack.overrides import parse_override
    from dflash_pack.packing import pack
    from dflash_pack.report import render_conversion
    from dflash_pack.report_folder import report_folder, write_report
    from dflash_pack.sources import open_source

    started = time.perf_counter()
    talk = output(as_json, quiet, no_color)
    trained, out = given_path(source, "SRC"), given_path(output_folder, "--output")
    keep = [given_path(target, "--target")]
    config = optional_path(draft_config, "--draft-config")
    if config is not None:
        keep.append(config)
    check_output(out, trained, overwrite=overwrite, keep=keep)
    checkpoint = open_source(trained, draft_config=config)
    verifier = given_target(target, target_id)
    conversion = plan_conversion(
        checkpoint,
        verifier,
        form=form,
        source_format=source_format,
        overrides=[parse_override(text) for text in set_values or ()],
        allow_lossy=allow_lossy or (),
        dtype=cast_code(dtype),
    )
    if form in ("speculators", "universal") and not conversion.target.is_hub_id:
        talk.say(
            f"warning: the verifier is written as the path {verifier.identifier}, which vLLM 0.33 "
            "won't serve by itself and push refuses; pass --target-id OWNER/NAME."
        )
    packed = None
    if not dry_run:
        with byte_progress(talk, conversion.tensors.total_bytes) as progress:
            packed = pack(conversion, out, overwrite=overwrite, verify=verify, progress=progress)
    result = report_conversion(conversion, packed, seconds=time.perf_counter() - started)
    if packed is not None:
        with report_folder(None, out) as kept:
            if kept.kept:
                write_report(kept.path / CONVERSION_NAME, json_document("conversion", result))
    talk.emit("conversion", result, lambda console: render_conversion(result, console))
    return 0
