"""Where output goes: results to stdout, talk to stderr, never both in one stream."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dflash_pack.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

DOCUMENT_VERSION = 1


@dataclass(frozen=True)
class Output:
    """How the user wants to be talked to.

    Attributes:
        as_json: One JSON document on stdout and nothing else.
        quiet: No talk on stderr; results and errors stay.
        color: Whether colour may be used on a terminal.
    """

    as_json: bool = False
    quiet: bool = False
    color: bool = True

    def say(self, sentence: str) -> None:
        """Tell the user something on stderr."""
        if not self.quiet:
            print(printable(sentence), file=sys.stderr, flush=True)

    def emit(self, kind: str, result: Any, render: Callable[[Console], None]) -> None:
        """Put the result on stdout, as text by ``render`` or as one JSON document of ``kind``."""
        if self.as_json:
            print(json_document(kind, result))
            return
        render(self.console())

    def console(self, *, stderr: bool = False) -> Console:
        """Return a rich console; outside a terminal it never wraps shorter than 100 columns."""
        from rich.console import Console

        stream = sys.stderr if stderr else sys.stdout
        plain = not self.color or "NO_COLOR" in os.environ
        return Console(
            stderr=stderr,
            no_color=plain,
            highlight=False,
            soft_wrap=not stream.isatty(),
            width=None if stream.isatty() else 120,
        )


def json_document(kind: str, result: Any) -> str:
    """Return ``result`` as the versioned JSON document that ``--json`` prints.

    Args:
        kind: Name of the document; its schema is ``schemas/{kind}.schema.json``.
        result: A dataclass of :mod:`dflash_pack.results`, or plain JSON data.
    """
    from pydantic import TypeAdapter

    from dflash_pack import __version__

    data = TypeAdapter(type(result)).dump_python(result, mode="json")
    document = {
        "document": kind,
        "version": DOCUMENT_VERSION,
        "dflash_pack": __version__,
        "result": data,
    }
    return json.dumps(document, indent=2, allow_nan=False)
