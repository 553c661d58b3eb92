"""No value is ever markup: judged by a real Markdown renderer."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from dflash_pack.errors import printable
from dflash_pack.hub.markdown import block, code, plain

RENDERER = MarkdownIt("commonmark", {"html": True}).enable("table")
HOSTILE = [
    "a|b",
    "`x`",
    "``",
    "`",
    "a``b`c",
    " lead",
    "trail ",
    "<script>alert(1)</script>",
    "<!-- dflash-pack:end -->",
    "[x](javascript:alert(1))",
    "![x](http://evil.example/x.png)",
    "**bold** _it_ ~~s~~",
    "a\nb\r\nc",
    "a\n```\nb\n````",
    "\x1b[31mred",
    "{{ 7*7 }}{% raw %}",
    "&lt;b&gt;&amp;",
    "\\",
    "a\\|b\\`",
    "\u202eevil\u200b",
    "| `|` | `a|",
    "# head",
    "- item",
    "$x$",
    "@someone",
]
values = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40))


def cells(markdown: str) -> list[str]:
    """Return the text of each body cell of the one table rendered from ``markdown``."""
    page = RENDERER.render(f"| | |\n|---|---|\n| label | {markdown} |\n")
    assert page.count("<tr>") == 2
    found = re.findall(r"<td>(.*?)</td>", page, re.DOTALL)
    return [html.unescape(re.sub("</?code>", "", cell)) for cell in found]


@given(values)
def test_code_in_a_table_shows_the_value_and_nothing_else(value: str) -> None:
    """One row, two cells, the value as text."""
    label, shown = cells(code(value))
    assert label == "label"
    assert shown.strip() == (printable(value).strip() or "(empty)")


@given(values)
def test_plain_text_in_a_table_shows_the_value(value: str) -> None:
    """No tag, link or emphasis comes of a value."""
    _, shown = cells(plain(value))
    assert shown.strip() == printable(value).strip()


@given(values)
def test_code_in_a_list_shows_the_value(value: str) -> None:
    """Outside of tables too."""
    page = RENDERER.render(f"- {code(value)}: why\n")
    shown = re.fullmatch(r"<ul>\n<li>(.*): why</li>\n</ul>\n", page)
    assert shown
    text = html.unescape(re.sub("</?code>", "", shown[1]))
    assert text.strip() == (printable(value).strip() or "(empty)")


@given(values)
def test_block_stays_closed(value: str) -> None:
    """A value can't end its code block."""
    page = RENDERER.render(block(f"run {value}", "bash") + "\n\nafter\n")
    assert page.count("<pre>") == 1
    assert page.endswith("<p>after</p>\n")


def test_long_values_are_cut() -> None:
    """A card stays readable whatever a name's length."""
    assert len(code("x" * 10_000)) < 310


@pytest.mark.parametrize("value", [5, None, 1.5])
def test_values_need_not_be_text(value: object) -> None:
    """Numbers are shown as they are."""
    assert code(value) == f"`{value}`"
