"""Options that several commands share, each with its environment variable."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_pack.console import Output

if TYPE_CHECKING:
    from dflash_pack.target import Target

_LONGEST_SHOWN = 80

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
    str | None,
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


def given_path(location: str, what: str) -> Path:
    """Return a path of the command line, which need not exist; ``~`` is the user's home.

    Args:
        location: What the user gave.
        what: The option or argument that it was given for.

    Raises:
        UsageError: If it is empty (an unset shell variable), no UTF-8 file could record it (config
            and record name it), or no file system could hold it.
    """
    from dflash_pack.errors import UsageError

    remedy = "Correct the path"
    if not location:
        raise UsageError("is empty", field=what, remedy="Give a path")
    try:
        location.encode()
    except UnicodeEncodeError:
        shown = location.encode(errors="backslashreplace").decode()
        why = "holds bytes that are not UTF-8"
        raise UsageError(why, where=shown, field=what, remedy="Rename the folder") from None
    shown = location if len(location) <= _LONGEST_SHOWN else location[:_LONGEST_SHOWN] + "..."
    try:
        path = Path(location).expanduser()
    except RuntimeError:
        raise UsageError("names no user's home", where=shown, field=what, remedy=remedy) from None
    try:
        path.stat()
    except ValueError:
        raise UsageError("is no path", where=shown, field=what, remedy=remedy) from None
    except OSError as error:
        if error.errno == errno.EACCES:
            raise  # told as any other file that can't be reached
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            why = f"leads nowhere ({error.strerror})"
            raise UsageError(why, where=shown, field=what, remedy=remedy) from None
    return path


def optional_path(location: str | None, what: str) -> Path | None:
    """Return :func:`given_path` of what is given, None of None."""
    return None if location is None else given_path(location, what)


def local_folder(location: str) -> Path:
    """Return ``location`` as an existing folder.

    Args:
        location: What the user gave as checkpoint.

    Raises:
        MissingHereError: If it looks like a Hub id, which this version does not fetch.
        CheckpointError: If it is no folder.
    """
    from dflash_pack.checkpoint import not_a_folder

    path = given_path(location, "CKPT")
    if not path.is_dir():
        raise not_a_folder(location)
    return path


def given_target(location: str, identifier: str | None = None) -> Target:
    """Return the target that ``--target`` names.

    Raises:
        DflashPackError: If it can't be read as one.
    """
    from dflash_pack.target import read_target

    path = given_path(location, "--target")
    # As it was given: a Hub's name is no path, and the message shows how to download it.
    text = str(path) if location.startswith("~") else location
    return read_target(text, identifier=identifier)
