"""The command line: registers the commands and maps errors to exit codes."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer

from dflash_pack import __version__
from dflash_pack.commands.convert import convert
from dflash_pack.commands.inspect import inspect
from dflash_pack.commands.push import push
from dflash_pack.commands.schema import schema
from dflash_pack.commands.validate import validate
from dflash_pack.errors import EXIT_INTERRUPTED, EXIT_REFUSED, DflashPackError

app = typer.Typer(
    name="dflash-pack",
    no_args_is_help=True,
    add_completion=False,
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
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Turn a trained DFlash drafter into a checkpoint that is proven to draft the same."""


app.command("inspect")(inspect)
app.command("convert")(convert)
app.command("validate")(validate)
app.command("push")(push)
app.command("schema")(schema)


def main() -> NoReturn:
    """Run the command line and exit with the code that design and docs promise."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run())


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; expected errors become one line on stderr.

    Args:
        arguments: The command line without the program's name, None for ``sys.argv``.
    """
    import click

    given = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(args=given, prog_name="dflash-pack", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except DflashPackError as error:
        return _report(error, as_json="--json" in given)
    except click.exceptions.Abort:
        return _interrupted()
    except KeyboardInterrupt:
        return _interrupted()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        # The reader of our stdout went away; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_REFUSED


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


def _interrupted() -> int:
    print("dflash-pack: interrupted; nothing half-written is left.", file=sys.stderr)
    return EXIT_INTERRUPTED


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    # As an exception, so that temporary folders and child processes are cleaned up.
    raise KeyboardInterrupt
