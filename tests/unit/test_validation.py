"""How a decode is judged, and what of it is kept in the checkpoint's record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import MIXED, NATIVE, checkpoint, native, target_folder
from measured import DECODE as RESULT

from dflash_pack.checkpoint import open_checkpoint
from dflash_pack.conversion import plan_conversion
from dflash_pack.errors import CheckFailedError, MissingHereError, UsageError
from dflash_pack.hub.manifest import MANIFEST_NAME, read_manifest
from dflash_pack.hub.validation import assess
from dflash_pack.packing import pack
from dflash_pack.reference import Reference
from dflash_pack.report_folder import ReportFolder, report_folder, write_report
from dflash_pack.results import Check
from dflash_pack.smoke.request import Prompt
from dflash_pack.smoke.result import (
    Acceptance,
    Losslessness,
    TokenDifference,
    compare,
)
from dflash_pack.smoke.run import DecodeFailedError
from dflash_pack.target import read_target
from dflash_pack.validation import (
    DecodePlan,
    judge_comparison,
    judge_decode,
    judge_source,
    record_validation,
    validate_checkpoint,
)

PLAN = DecodePlan(
    prompts=(Prompt(text="a"),),
    max_tokens=4,
    against=None,
    speculative_tokens=None,
    dtype="float32",
    near_tie_gap=0.0,
    min_acceptance_length=None,
    timeout=10.0,
    seed=0,
)


def judged(result, minimum=None, *, compared=False):
    return {check.id: check for check in judge_decode(result, minimum, compared=compared)}


def test_a_number_alone_is_never_a_pass():
    checks = judged(RESULT)
    assert checks["decode.ran"].status == "passed"
    assert checks["decode.lossless"].status == "passed"
    assert checks["decode.acceptance"].status == "warning"
    assert "2.800" in checks["decode.acceptance"].finding


@pytest.mark.parametrize(("minimum", "status"), [(2.8, "passed"), (2.81, "failed")])
def test_a_threshold_is_held(minimum, status):
    assert judged(RESULT, minimum)["decode.acceptance"].status == status


def test_an_engine_that_never_drafted_fails():
    idle = replace(RESULT, acceptance=Acceptance(0, 0, 0, (0, 0, 0)))
    assert judged(idle)["decode.ran"].status == "failed"


@pytest.mark.parametrize(
    ("lossless", "words"),
    [
        (Losslessness(3, 0, TokenDifference(0, 2, 7, 8, 0.5)), "prompt 0, token 2: emitted 7"),
        (Losslessness(0, 0, None), "no token was checked"),
    ],
)
def test_an_output_that_is_not_the_targets_own_fails(lossless, words):
    check = judged(replace(RESULT, losslessness=lossless))["decode.lossless"]
    assert check.status == "failed"
    assert words in check.finding


@pytest.mark.parametrize(("accepted", "told"), [(99, True), (100, False)])
def test_a_decode_that_accepts_little_tells_little(accepted, told):
    """Nine accepted tokens are equal for nearly any fault."""
    result = replace(RESULT, acceptance=Acceptance(200, 600, accepted, (accepted, 0, 0)))
    for compared in (True, False):
        assert ("decode.evidence" in judged(result, compared=compared)) == told


def test_near_ties_are_shown():
    near = replace(RESULT, losslessness=Losslessness(3, 2, None, 0.0004))
    finding = judged(near)["decode.lossless"].finding
    assert "2 near-ties, the largest 0.0004 nats" in finding


def test_only_equality_with_what_was_converted_is_claimed(converted, tmp_path):
    """A source of another kind may draft the same; the card speaks of the recorded one."""
    folder, target = converted
    report = validate_checkpoint(folder, target, None, tmp_path)
    other = checkpoint(tmp_path / "other", native(rope_theta=20000.0))
    for source, status in ((tmp_path / "source", "passed"), (other, "warning")):
        (check,) = judge_source(open_checkpoint(folder), Reference(source))
        assert (check.id, check.status) == ("decode.source", status)
        decoded = replace(
            report,
            level="cpu",
            decode=RESULT,
            comparison=compare(RESULT, RESULT),
            checks=(*report.checks, check),
        )
        record_validation(folder, decoded, "the source")
        against = state(folder).record.decode.against
        assert against == ("the source" if status == "passed" else None)
    (folder / MANIFEST_NAME).unlink()
    assert list(judge_source(open_checkpoint(folder), Reference(other))) == []


def test_what_failed_is_on_record(converted, tmp_path):
    folder, target = converted
    report = validate_checkpoint(folder, target, None, tmp_path)
    bad = Check("target.depth", "failed", "3, not 4", "Give the right target")
    record_validation(folder, replace(report, passed=False, checks=(bad,)), None)
    assert state(folder).problem == "its last validation failed (target.depth)"


OTHERS = {
    "counts": (replace(RESULT, acceptance=Acceptance(10, 30, 17, (9, 6, 2))), "-3.6%"),
    "positions": (replace(RESULT, acceptance=Acceptance(10, 30, 18, (8, 7, 3))), "[8, 7, 3]"),
    "outputs": (replace(RESULT, outputs=((1, 2, 4),)), "outputs differ from token (0, 2)"),
    "conditions": (replace(RESULT, prompts_sha256="1" * 64), "different conditions"),
}


@pytest.mark.parametrize(("other", "words"), OTHERS.values(), ids=OTHERS)
def test_any_difference_to_the_source_fails(other, words):
    check = judge_comparison(RESULT, other, compare(RESULT, other))
    assert check.status == "failed"
    assert words in check.finding


def test_equal_decodes_pass():
    assert judge_comparison(RESULT, RESULT, compare(RESULT, RESULT)).status == "passed"


@pytest.fixture
def converted(tmp_path):
    source = checkpoint(tmp_path / "source", NATIVE)
    target = read_target(str(target_folder(tmp_path / "target")), identifier="owner/target")
    (target.path / "model.safetensors").touch()  # of which no test here decodes
    pack(plan_conversion(open_checkpoint(source), target), tmp_path / "out")
    return tmp_path / "out", target


def test_a_decode_needs_a_target(converted, tmp_path):
    with pytest.raises(UsageError, match="needs the target"):
        validate_checkpoint(converted[0], None, PLAN, tmp_path)


def test_more_tokens_than_the_block_gives_are_refused(converted, tmp_path):
    folder, target = converted
    with pytest.raises(UsageError, match="a block of 4 gives at most 3 tokens"):
        validate_checkpoint(folder, target, replace(PLAN, speculative_tokens=4), tmp_path)


def test_a_decode_is_not_started_on_a_checkpoint_that_failed(converted, tmp_path):
    folder, target = converted
    (folder / "weights.pt").write_text("x")
    report = validate_checkpoint(folder, target, PLAN, tmp_path)
    assert not report.passed
    assert report.decode is None
    assert report.checks[-1].status == "not run"


def test_another_source_is_refused_before_an_engine_is_loaded(converted, tmp_path):
    folder, target = converted
    other = checkpoint(tmp_path / "other", native(block_size=6))
    with pytest.raises(CheckFailedError, match="has block size 6, the checkpoint 4"):
        validate_checkpoint(folder, target, replace(PLAN, against=Reference(other)), tmp_path)


def test_a_target_without_weights_decodes_nothing(converted, tmp_path):
    folder, target = converted
    (target.path / "model.safetensors").unlink()
    with pytest.raises(MissingHereError, match="no weights of the target") as caught:
        validate_checkpoint(folder, target, PLAN, tmp_path)
    assert caught.value.exit_code == 3
    assert validate_checkpoint(folder, target, None, tmp_path).passed


def test_what_only_a_gpu_runs_is_missing_here_and_leaves_the_record(converted, tmp_path):
    _, target = converted
    source = open_checkpoint(checkpoint(tmp_path / "mixed", native(**MIXED)))
    folder = tmp_path / "mixed-out"
    pack(plan_conversion(source, target, form="universal"), folder)
    before = (folder / MANIFEST_NAME).read_bytes()
    with pytest.raises(MissingHereError, match="sliding and full layers are mixed") as caught:
        validate_checkpoint(folder, target, PLAN, tmp_path)
    assert "Leave --cpu out" in str(caught.value.remedy)
    assert (folder / MANIFEST_NAME).read_bytes() == before
    assert validate_checkpoint(folder, target, None, tmp_path).passed


@pytest.mark.parametrize(("stay", "words"), [(True, "decode.log"), (False, "Pass --report DIR")])
def test_a_failed_engine_points_to_a_log_that_is_still_there(
    converted, tmp_path, monkeypatch, stay, words
):
    """The engine is a stand-in: what a real one's failure looks like is shown in smoke/test_run."""
    folder, target = converted

    def failing(requests, *, timeout_s, log):
        return [DecodeFailedError(request, "vLLM failed", log) for request in requests]

    monkeypatch.setattr("dflash_pack.validation.decode_many", failing)
    report = validate_checkpoint(folder, target, PLAN, tmp_path, logs_stay=stay)
    assert not report.passed
    assert words in report.checks[-1].remedy


def state(folder):
    manifest = read_manifest(folder)
    return assess(manifest, where=folder / MANIFEST_NAME)


def test_the_record_keeps_a_proof_until_something_speaks_against_it(converted, tmp_path):
    folder, target = converted
    static = validate_checkpoint(folder, target, None, tmp_path)
    assert state(folder).level == "none"
    record_validation(folder, static, None)
    assert (state(folder).level, state(folder).proven) == ("static", True)
    decoded = replace(static, level="cpu", decode=RESULT)
    record_validation(folder, decoded, "source")
    assert (state(folder).level, state(folder).proven) == ("cpu", True)
    record_validation(folder, static, None)
    assert state(folder).level == "cpu"
    bad = Check("files.record", "failed", "changed", "Convert again")
    record_validation(folder, replace(static, passed=False, checks=(bad,)), None)
    assert not state(folder).proven


def test_a_changed_file_ends_the_proof(converted, tmp_path):
    folder, target = converted
    report = validate_checkpoint(folder, target, None, tmp_path)
    record_validation(folder, replace(report, level="cpu", decode=RESULT), None)
    changed = replace(report, files={**report.files, "config.json": "0" * 64})
    record_validation(folder, changed, None)
    assert not state(folder).proven


def test_nothing_is_put_into_a_folder_that_is_the_users_own(tmp_path):
    mine = checkpoint(tmp_path / "mine", NATIVE)
    with report_folder(None, mine) as folder:
        assert not folder.path.is_relative_to(mine)
        assert not folder.kept
    assert not folder.path.exists()
    with report_folder(tmp_path / "deep" / "report", mine) as folder:
        assert folder == ReportFolder(tmp_path / "deep" / "report", kept=True)
    assert folder.path.is_dir()


def test_reports_of_an_own_output_lie_inside_it(converted):
    with report_folder(None, converted[0]) as folder:
        assert folder == ReportFolder(converted[0] / ".dflash-pack", kept=True)


def test_a_folder_that_cannot_be_written_to_loses_no_result(converted, tmp_path):
    (converted[0] / ".dflash-pack").write_text("a file where a folder belongs")
    with report_folder(None, converted[0]) as folder:
        assert not folder.kept
    with (
        pytest.raises(MissingHereError, match="--report"),
        report_folder(converted[0] / "config.json" / "x", converted[0]),
    ):
        pass


def test_a_hostile_checkpoint_leads_no_report_into_the_users_files(converted, tmp_path):
    folder, _ = converted
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "validation.json").write_text("mine")
    (folder / ".dflash-pack").symlink_to(mine)
    with report_folder(None, folder) as reports:
        assert not reports.kept
    (folder / ".dflash-pack").unlink()
    (folder / ".dflash-pack").mkdir()
    (folder / ".dflash-pack" / "validation.json").symlink_to(mine / "validation.json")
    write_report(folder / ".dflash-pack" / "validation.json", "report")
    assert (mine / "validation.json").read_text() == "mine"
    (folder / ".dflash-pack" / "pipe").mkdir()
    with pytest.raises(MissingHereError, match="can't be written"):
        write_report(folder / ".dflash-pack" / "pipe", "report")
    assert sorted(p.name for p in (folder / ".dflash-pack").iterdir()) == [
        "pipe",
        "validation.json",
    ]


def test_an_engine_that_did_not_run_takes_no_proof_away(converted, tmp_path):
    folder, target = converted
    static = validate_checkpoint(folder, target, None, tmp_path)
    record_validation(folder, replace(static, level="cpu", decode=RESULT), None)
    broken = Check("decode.ran", "failed", "vLLM failed", "See the log")
    failed = replace(static, level="cpu", passed=False, checks=(*static.checks, broken))
    record_validation(folder, failed, None)
    assert (state(folder).level, state(folder).proven) == ("cpu", True)
    other = Check("tensors.finite", "failed", "NaN", "Export again")
    record_validation(folder, replace(failed, checks=(other,)), None)
    assert not state(folder).proven
