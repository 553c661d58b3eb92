"""The validation's reports for CI: the same facts as the terminal's, and names are never markup."""

from __future__ import annotations

from dataclasses import replace
from xml.etree.ElementTree import fromstring

import pytest
from measured import CHECKS, DECODE, ENGINE, REPORT

from dflash_pack.report_junit import validation_junit
from dflash_pack.report_markdown import validation_markdown

HOSTILE = "<script>x</script> [a](http://b) | `c` @d \x1b[31m\n## e \ud800"


def rows(text, marker):
    return [line for line in text.splitlines() if line.startswith(marker)]


def test_markdown_leads_with_what_needs_attention():
    text = validation_markdown(REPORT)
    lines = text.splitlines()
    assert lines[0] == "## `folder/ckpt`: FAILED at level static"
    assert lines[2] == "1 failed, 1 warning, 1 passed, 1 not run; 1.2 s."
    assert rows(text, "- ") == [
        "- **warning** `dtype.uniform`: BF16 and F32. Export in one.",
        "- **failed** `decode.equals_source`: 9 of 10. Convert again.",
    ]
    assert len(rows(text, "| `")) == len(CHECKS)


def test_markdown_has_the_share_of_each_position():
    text = validation_markdown(replace(REPORT, level="cpu", decode=DECODE, against=DECODE))
    assert rows(text, "| checkpoint") == [
        "| checkpoint | 10 | 30 | 18 | 2.800 | 90.0% 60.0% 30.0% |"
    ]
    assert len(rows(text, "| source")) == 1


def test_junit_has_a_case_for_each_check():
    suite = fromstring(validation_junit(REPORT))[0]
    counts = {name: suite.get(name) for name in ("tests", "failures", "skipped", "errors")}
    assert counts == {"tests": "4", "failures": "1", "skipped": "1", "errors": "0"}
    cases = {f"{c.get('classname')}.{c.get('name')}": c for c in suite}
    assert set(cases) == {f"dflash-pack.{check.id}" for check in CHECKS}
    failed = cases["dflash-pack.decode.equals_source"].find("failure")
    assert failed is not None
    assert (failed.get("message"), failed.text) == ("9 of 10", "9 of 10. Convert again")
    assert cases["dflash-pack.engine.zlab"].find("skipped") is not None


@pytest.mark.parametrize("render", [validation_markdown, validation_junit])
def test_hostile_names_are_text(render):
    checks = tuple(replace(check, finding=HOSTILE, remedy=HOSTILE) for check in CHECKS)
    engine = replace(ENGINE, device_name=HOSTILE)
    report = replace(
        REPORT,
        checkpoint=HOSTILE,
        checks=checks,
        decode=replace(DECODE, engine=engine),
    )
    text = render(report)
    text.encode()
    assert "\x1b" not in text
    assert "<script>" not in text.replace("`<script>", "")
    if render is validation_junit:
        assert len(fromstring(text)[0]) == len(CHECKS)
    else:
        assert not rows(text, "## e")
        assert "](http" not in text.partition("\n")[2]
