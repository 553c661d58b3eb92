"""Options that several commands share, each with its environment variable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dflash_pack.console import Output

JsonOption = Annotated[
    bool,
    typer.Option("--json", envvar="DFLASH_PACK_JSON", help="One JSON document on stdout."),
]
QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", envvar="DFLASH_PACK_QUIET", help="No talk on stderr."),
]
NoColorOption = Annotated[
    bool,
    typer.Option("--no-color", envvar="DFLASH_PACK_NO_COLOR", help="No colour (or set NO_COLOR)."),
]
_TARGET = typer.Option(
    "--target",
    "-t",
    envvar="DFLASH_PACK_TARGET",
    metavar="FOLDER",
    help="The model that verifies: a folder with its config.json.",
)
TargetOption = Annotated[str | None, _TARGET]
RequiredTargetOption = Annotated[str, _TARGET]
TargetIdOption = Annotated[
    str | None,
    typer.Option(
        "--target-id",
        envvar="DFLASH_PACK_TARGET_ID",
        metavar="OWNER/NAME",
        help="The target's Hub id, written as verifier instead of the folder's path.",
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        envvar="DFLASH_PACK_FROM",
        metavar="FORMAT",
        help="Format of the source instead of detecting it: zlab, speculators, specforge ...",
    ),
]
DraftConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--draft-config",
        envvar="DFLASH_PACK_DRAFT_CONFIG",
        metavar="FILE",
        help="JSON config of the drafter, for a source that is weights only (a training state).",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        envvar="DFLASH_PACK_SET",
        metavar="FIELD=VALUE",
        help="State a config value of the source; dotted field, JSON value. Repeatable.",
    ),
]
AllowLossyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-lossy",
        envvar="DFLASH_PACK_ALLOW_LOSSY",
        metavar="NAME",
        help="Give up a config key or tensor of the source, on record. Repeatable.",
    ),
]


def output(as_json: bool, quiet: bool, no_color: bool) -> Output:
    """Return the output settings of a command."""
    return Output(as_json=as_json, quiet=quiet, color=not no_color)


def refuse_given(ctx: typer.Context, names: Sequence[str], what: str, remedy: str) -> None:
    """Refuse the first of the options ``names`` that stands on the command line.

    One that the environment gives is left alone: it may be there for another command.

    Args:
        ctx: The command's context.
        names: Parameters of the command.
        what: Why it has no place there, after the option's name.
        remedy: The next step.

    Raises:
        UsageError: If one does.
    """
    from dflash_pack.errors import UsageError

    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{parameter.opts[0]} {what}", remedy=remedy)


def require_text(location: str | Path) -> None:
    """Refuse a path that no UTF-8 file could record, as config and record do, and an empty one.

    Raises:
        UsageError: If it holds bytes that are not UTF-8, or nothing (an unset shell variable).
    """
    from dflash_pack.errors import UsageError

    if not str(location):
        raise UsageError("a folder's name is empty", remedy="Give a folder")
    try:
        str(location).encode()
    except UnicodeEncodeError:
        shown = str(location).encode(errors="backslashreplace").decode()
        raise UsageError(
            "holds bytes that are not UTF-8", where=shown, remedy="Rename the folder"
        ) from None


def local_folder(location: str) -> Path:
    """Return ``location`` as an existing folder.

    Args:
        location: What the user gave as checkpoint.

    Raises:
        MissingHereError: If it looks like a Hub id, which this version does not fetch.
        CheckpointError: If it is no folder.
    """
    from dflash_pack.checkpoint import not_a_folder

    path = source_path(location)
    if not path.is_dir():
        raise not_a_folder(location)
    return path


def source_path(location: str) -> Path:
    """Return ``location`` as a path, which need not exist; a leading ``~`` is the user's home.

    Raises:
        UsageError: If no UTF-8 file could record it.
    """
    require_text(location)
    return Path(location).expanduser()
