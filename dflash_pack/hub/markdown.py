"""Values in Markdown: names in a checkpoint may be hostile, so none of them is ever markup."""

from __future__ import annotations

import re

from dflash_pack.errors import printable

_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#|~$!&:@])")
_LONGEST = 300


def plain(value: object) -> str:
    """Return ``value`` as ordinary text of one line, each character that could be markup escaped.

    Colons and at signs too: a bare address or mention would turn into a link.
    """
    return _MARKUP.sub(r"\\\1", _line(value))


def code(value: object) -> str:
    """Return ``value`` as a code span that is safe in a table cell as well.

    A pipe ends a cell even inside a code span and its escape would show outside of tables, so text
    with a pipe is given as escaped text instead.
    """
    text = _line(value)
    if not text.strip():
        return "(empty)"
    if "|" in text:
        return plain(text)
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    # A backtick at an end would join the fence, and one space at both ends is stripped.
    pad = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def block(text: str, language: str = "") -> str:
    """Return ``text`` (lines of printable characters) as a fenced code block."""
    lines = [printable(line) for line in text.split("\n")]
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def _line(value: object) -> str:
    text = printable(str(value))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
