"""Options that several commands share, each with its environment variable."""

from __future__ import annotations

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


def output(as_json: bool, quiet: bool, no_color: bool) -> Output:
    """Return the output settings of a command."""
    return Output(as_json=as_json, quiet=quiet, color=not no_color)


def require_text(location: str | Path) -> None:
    """Refuse a path that no UTF-8 file could record: config and record name it.

    Raises:
        UsageError: If it holds bytes that are not UTF-8.
    """
    from dflash_pack.errors import UsageError

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
