"""A validation as JUnit XML, which CI systems show as tests."""

from __future__ import annotations

from collections import Counter
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from dflash_pack.errors import printable
from dflash_pack.results import Check, ValidationReport


def validation_junit(report: ValidationReport) -> str:
    """Return each check as a test case; warnings pass, with what they say as their output."""
    counts = Counter(check.status for check in report.checks)
    suite = Element(
        "testsuite",
        name=f"dflash-pack validate {printable(report.checkpoint)}",
        tests=str(len(report.checks)),
        failures=str(counts["failed"]),
        errors="0",
        skipped=str(counts["not run"]),
        time=f"{report.seconds:.3f}",
    )
    for check in report.checks:
        _case(suite, check)
    suites = Element("testsuites")
    suites.append(suite)
    indent(suites)
    return tostring(suites, encoding="unicode", xml_declaration=True)


def _case(suite: Element, check: Check) -> None:
    group, _, name = check.id.partition(".")
    case = SubElement(suite, "testcase", classname=f"dflash-pack.{group}", name=name or group)
    said = printable(" ".join(part for part in (f"{check.finding}.", check.remedy) if part))
    if check.status == "failed":
        SubElement(case, "failure", message=printable(check.finding)).text = said
    elif check.status == "not run":
        SubElement(case, "skipped", message=printable(check.finding))
    else:
        SubElement(case, "system-out").text = said
