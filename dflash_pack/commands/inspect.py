"""``dflash-pack inspect``: what a checkpoint means and what each engine would do with it."""

from __future__ import annotations

from typing import Annotated

import typer

from dflash_pack.commands.options import (
    DraftConfigOption,
    FromOption,
    JsonOption,
    NoColorOption,
    QuietOption,
    SetOption,
    TargetIdOption,
    TargetOption,
    output,
)

VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        envvar="DFLASH_PACK_VERBOSE",
        help="Name all that engines ignore, and every reason why they refuse.",
    ),
]


def inspect(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder of the drafter.")],
    target: TargetOption = None,
    target_id: TargetIdOption = None,
    source_format: FromOption = None,
    draft_config: DraftConfigOption = None,
    set_values: SetOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    no_color: NoColorOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Show what a drafter means and what each engine would do with its files.

    Reads config and tensor headers only.
    """
    from dflash_pack.commands.options import given_path, given_target, optional_path
    from dflash_pack.inspection import inspect_checkpoint
    from dflash_pack.overrides import parse_override
    from dflash_pack.report import render_inspection
    from dflash_pack.sources import open_source

    checkpoint = open_source(
        given_path(source, "SRC"), draft_config=optional_path(draft_config, "--draft-config")
    )
    verifier = None if target is None else given_target(target, target_id)
    result = inspect_checkpoint(
        checkpoint,
        verifier,
        source_format=source_format,
        overrides=[parse_override(text) for text in set_values or ()],
    )
    output(as_json, quiet, no_color).emit(
        "inspection",
        result,
        lambda console: render_inspection(result, console, verbose=verbose),
    )
    return 0
