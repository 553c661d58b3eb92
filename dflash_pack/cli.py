"""The command line: registers the commands and maps errors to exit codes."""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Annotated, NoReturn

import typer

from dflash_pack import __version__
from dflash_pack.commands.convert import convert
from dflash_pack.commands.inspect import inspect
from dflash_pack.commands.launch import launch
from dflash_pack.commands.push import push
from dflash_pack.commands.schema import schema
from dflash_pack.commands.validate import validate
from dflash_pack.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    DflashPackError,
    MissingHereError,
)

# Faults of the machine and its rights, wherever they come up; any other is a bug of ours.
_OF_THE_MACHINE = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOSPC,
        errno.EPERM,
        errno.EROFS,
        errno.ESTALE,
    }
)

app = typer.Typer(
    name="dflash-pack",
    no_args_is_help=True,
    add_completion=False,
    # Plain help: rich would double the time that --help takes.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"dflash-pack {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Turn a trained DFlash drafter into a checkpoint that is proven to draft the same."""


def _guarded(command: Callable[..., int | None]) -> Callable[..., None]:
    """Return ``command`` with expected errors told in one line and results as exit codes."""

    @functools.wraps(command)
    def guarded(*args: object, **kwargs: object) -> None:
        try:
            code = command(*args, **kwargs) or EXIT_DONE
        except DflashPackError as error:
            code = _report(error, as_json=bool(kwargs.get("as_json")))
        except OSError as error:
            if error.errno not in _OF_THE_MACHINE:
                raise
            told = MissingHereError(
                f"can't be read or written ({error.strerror})",
                where=error.filename,
                remedy="Mend that, or give another path",
            )
            code = _report(told, as_json=bool(kwargs.get("as_json")))
        except KeyboardInterrupt:
            print("dflash-pack: interrupted; nothing half-written is left.", file=sys.stderr)
            code = EXIT_INTERRUPTED
        raise typer.Exit(code)

    return guarded


for _name, _command in (
    ("inspect", inspect),
    ("convert", convert),
    ("validate", validate),
    ("launch", launch),
    ("push", push),
    ("schema", schema),
):
    app.command(_name)(_guarded(_command))


def main() -> NoReturn:
    """Run the command line and exit with the code that design and docs promise."""
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, _terminate)
    try:
        app(prog_name="dflash-pack")
    except BrokenPipeError:
        # The reader of our stdout went away; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_REFUSED)
    sys.exit(EXIT_DONE)


def _report(error: DflashPackError, *, as_json: bool) -> int:
    print(f"dflash-pack: {error.sentence()}", file=sys.stderr)
    if as_json:
        from dflash_pack.console import json_document

        facts = {
            "sentence": error.sentence(),
            "where": error.where,
            "field": error.field,
            "remedy": error.remedy,
            "exit_code": error.exit_code,
        }
        print(json_document("error", facts))
    return error.exit_code


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    # As an exception, so that temporary folders and child processes are cleaned up.
    raise KeyboardInterrupt
