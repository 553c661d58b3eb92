"""What each engine will do with some files, as a table that a person reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING, Literal

from dflash_pack.agreement import EngineView
from dflash_pack.engines.meaning import Difference
from dflash_pack.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

Verdict = Literal["as meant", "not as meant", "no"]

_HEADER = ("engine", "reads", "serves it")
_INDENT = "  "
_NARROWEST = 30
_WORDS = {"True": "yes", "False": "no", "None": "none"}
_STYLES: dict[Verdict, str] = {"as meant": "green", "not as meant": "red", "no": "yellow"}


@dataclass(frozen=True)
class EngineRow:
    """One engine's line in the table.

    Attributes:
        engine: Its name.
        versions: The versions whose code the answer was read from.
        reads: Which of its parsers takes the file.
        verdict: Whether it serves the files as they are meant, otherwise, or not at all.
        details: Why not, or what it does otherwise; then what it ignores.
    """

    engine: str
    versions: str
    reads: str
    verdict: Verdict
    details: tuple[str, ...]


def verdict_on(view: EngineView) -> Verdict:
    """Return whether the engine serves the files, and as they are meant."""
    if view.meaning.refusals:
        return "no"
    return "not as meant" if view.differences else "as meant"


def engine_row(view: EngineView, *, verbose: bool = False) -> EngineRow:
    """Return the line on ``view``; with ``verbose`` every reason and every ignored name."""
    meaning = view.meaning
    reasons = meaning.refusals if verbose else _first(meaning.refusals)
    details = [*reasons, *difference_lines(view.differences)]
    if meaning.ignored:
        details.append(_ignored(meaning.ignored, verbose=verbose))
    return EngineRow(
        meaning.engine, meaning.versions, meaning.config_path, verdict_on(view), tuple(details)
    )


def difference_lines(differences: Iterable[Difference]) -> tuple[str, ...]:
    """Return e.g. ``layers 0-3: full, bidirectional (meant: sliding 2048, causal)``, one a fact."""
    return tuple(
        f"{difference.field}: {_word(difference.derived)} (meant: {_word(difference.meant)})"
        for difference in differences
    )


def show_engines(
    console: Console, title: str, views: Sequence[EngineView], *, verbose: bool = False
) -> None:
    """Print the table of ``views``, wrapped at the console's width, and nothing right of it."""
    from rich.text import Text

    rows = [engine_row(view, verbose=verbose) for view in views]
    names = [max(len(row.engine), len(row.versions) + len(_INDENT)) for row in rows]
    first = max(len(_HEADER[0]), *names) + 2
    second = max(len(_HEADER[1]), *(len(row.reads) for row in rows)) + 2
    lines = [Text(""), Text(title)]
    lines.append(Text(f"{_HEADER[0]:<{first}}{_HEADER[1]:<{second}}{_HEADER[2]}", style="bold"))
    for row in rows:
        width = max(console.width - first - second, _NARROWEST)
        details = [line for text in row.details for line in _wrapped(text, width)]
        left = [(printable(row.engine), row.reads), (_INDENT + printable(row.versions), "")]
        right = [(row.verdict, _STYLES[row.verdict]), *((line, "") for line in details)]
        for (name, reads), (text, style) in zip_longest(left, right, fillvalue=("", "")):
            line = Text(f"{name:<{first}}{reads:<{second}}").append(text, style=style)
            line.rstrip()
            lines.append(line)
    for line in lines:
        console.print(line, soft_wrap=True)


def _first(sentences: tuple[str, ...]) -> tuple[str, ...]:
    more = len(sentences) - 1
    if more < 1:
        return sentences
    return (sentences[0], f"(and {more} more reason{'s' if more > 1 else ''}: --verbose)")


def _ignored(names: tuple[str, ...], *, verbose: bool) -> str:
    if verbose:
        return f"ignores {', '.join(names)}"
    return f"ignores {len(names)} of the file's keys and tensors"


def _word(value: str) -> str:
    return _WORDS.get(value, value)


def _wrapped(text: str, width: int) -> list[str]:
    # Options and names with hyphens stay whole.
    return wrap(printable(text), width, break_on_hyphens=False)
