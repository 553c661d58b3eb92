"""The two views of one plan."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

from dflash_pack.hub.folder import LeftOut
from dflash_pack.hub.plan import plan_push
from dflash_pack.hub.render import report, text, upload_command


def test_text_of_a_plan(packed: Any) -> None:
    """What a user reads, word for word."""
    (packed.folder / "train.log").write_text("loss")
    plan = plan_push(
        packed.folder, "me/Tiny-DFlash", private=True, licence="mit", message="Hi\n\nX"
    )
    size = {file.name: file for file in plan.files}
    weights, config = size["model.safetensors"], size["config.json"]
    lines = text(plan).splitlines()
    assert lines[:11] == [
        "Push plan (nothing was sent)",
        "",
        "  repository  me/Tiny-DFlash",
        "  visibility  private where the repository is new",
        "  goes to     main",
        "  commit      one commit: Hi",
        "  tag         none",
        "  target      acme/Tiny-Target",
        "  licence     mit",
        "  validation  cpu, passed on these files: acceptance length 2.625 at k=7",
        "",
    ]
    assert lines[12] == "  action  size     sha256        name"
    assert f"  add     {config.size} B    {config.sha256[:12]}  config.json" in lines
    assert (
        f"  add     {weights.size / 1000:.1f} kB  {weights.sha256[:12]}  model.safetensors" in lines
    )
    assert "  train.log  is a log of the training" in lines
    assert "README.md" not in lines
    assert "README.md" in text(plan, show_card=True).splitlines()


def test_a_pull_request_and_a_missing_proof_are_said(packed: Any) -> None:
    """Where it goes and what is not proven."""
    packed.update(validation=None)
    plan = plan_push(packed.folder, "me/X", create_pr=True, allow_unvalidated=True)
    shown = text(plan)
    assert "  goes to     a new pull request on main" in shown
    assert "  validation  none that holds: it was never validated" in shown


def test_control_characters_reach_no_terminal(packed: Any) -> None:
    """Names, notes and the card are shown escaped."""
    plan = plan_push(packed.folder, "me/X")
    bad = "x\x1b[2J\u202e\udcff\r"
    plan = replace(plan, left_out=(LeftOut(bad, "why"),), notes=(bad,), card=f"a\r\nb{bad}")
    shown = text(plan, show_card=True)
    assert all(line.isprintable() for line in shown.split("\n"))
    assert shown.count(r"x\x1b[2J\u202e\udcff\r") == 3


def test_long_lists_of_leftovers_are_cut_in_text_only(packed: Any) -> None:
    """A folder of thousands of logs doesn't bury the plan."""
    plan = plan_push(packed.folder, "me/X")
    plan = replace(plan, left_out=tuple(LeftOut(f"f{i}", "why") for i in range(250)))
    assert "  and 50 more" in text(plan)
    assert "f200" not in text(plan)
    assert len(report(plan).left_out) == 250


def test_upload_by_hand_names_exactly_the_planned_files(packed: Any) -> None:
    """And says where they go and how, as the plan does."""
    (packed.folder / "optimizer.pt").touch()
    plan = plan_push(packed.folder, "me/X", private=True, branch="dev", message="Hi\n\nX")
    command = upload_command(plan)
    assert command[:5] == ("hf", "upload", "me/X", str(packed.folder), ".")
    included = [name for flag, name in pairwise(command) if flag == "--include"]
    assert included == [file.name for file in plan.files]
    assert command[-5:] == ("--revision", "dev", "--private", "--commit-message", "Hi")
    request = upload_command(plan_push(packed.folder, "me/X", create_pr=True))
    assert "--create-pr" in request
    assert "--revision" not in request


def test_report_is_json_of_the_same_facts(packed: Any) -> None:
    """Each figure of the plan, and the card only on demand."""
    plan = plan_push(packed.folder, "me/X", tag="v1")
    data = json.loads(json.dumps(asdict(report(plan))))
    assert data["repo"] == "me/X"
    assert data["visibility"] == "public"
    assert data["tag"] == "v1"
    assert data["validation"] == {
        "level": "cpu",
        "proven": True,
        "problem": None,
        "acceptance_length": 2.625,
    }
    assert [(f["name"], f["sha256"], f["size"]) for f in data["files"]] == [
        (f.name, f.sha256, f.size) for f in plan.files
    ]
    assert [f["name"] for f in data["files"] if f["generated"]] == ["README.md"]
    assert data["serve"][:2] == ["vllm", "serve"]
    assert data["card"] is None
    assert report(plan, show_card=True).card == plan.card
    assert json.dumps(data).encode("utf-8")
