"""The plan: everything that is refused before a byte is sent, and what it would send."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_pack.errors import (
    CheckFailedError,
    CheckpointError,
    ContradictionError,
    UsageError,
)
from dflash_pack.hub.manifest import SourceRecord, TargetRecord
from dflash_pack.hub.plan import plan_push

REPO = "me/Tiny-DFlash"


def snapshot(folder: Path) -> dict[str, tuple[int, str]]:
    """Return name -> time of change and digest of every file below ``folder``."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_plan_holds_what_would_be_sent(packed: Any) -> None:
    """Sizes and digests of the real bytes; the card's of its text."""
    plan = plan_push(packed.folder, REPO, tag="v1", private=True)
    assert [file.name for file in plan.files] == [
        "README.md",
        "config.json",
        "dflash_pack.json",
        "model.safetensors",
    ]
    for file in plan.files:
        content = plan.card.encode() if file.path is None else file.path.read_bytes()
        assert file.size == len(content)
        assert file.sha256 == hashlib.sha256(content).hexdigest()
        assert file.action == "add"
    assert plan.total_size == sum(file.size for file in plan.files)
    assert (plan.repo, plan.private, plan.revision, plan.tag) == (REPO, True, "main", "v1")
    assert plan.message == "Add DFlash drafter for acme/Tiny-Target (dflash-pack 0.1.0)"
    assert plan.serve[:3] == ("vllm", "serve", "acme/Tiny-Target")


def test_planning_changes_nothing_in_the_folder(packed: Any) -> None:
    """Not even a README.md is written."""
    before = snapshot(packed.folder)
    plan_push(packed.folder, REPO)
    assert snapshot(packed.folder) == before


def test_the_same_folder_gives_the_same_plan(packed: Any) -> None:
    """Nothing of time or order of listing is in it."""
    assert plan_push(packed.folder, REPO) == plan_push(packed.folder, REPO)


def test_a_changed_file_is_refused(packed: Any) -> None:
    """What was proven is what is published."""
    path = packed.folder / "config.json"
    path.write_text(path.read_text().replace("dflash", "eagle3", 1))
    with pytest.raises(CheckFailedError, match=r"config\.json: changed since convert"):
        plan_push(packed.folder, REPO)


def test_without_proof_it_takes_a_flag(packed: Any) -> None:
    """Refused, then planned with a note and a card that says so."""
    packed.update(validation=None)
    with pytest.raises(CheckFailedError) as caught:
        plan_push(packed.folder, REPO)
    assert caught.value.sentence() == (
        f"{packed.folder}: is not validated: it was never validated. Run dflash-pack validate on "
        "it, or pass --allow-unvalidated: the card says so."
    )
    plan = plan_push(packed.folder, REPO, allow_unvalidated=True)
    assert "**Not validated:** it was never validated." in plan.card
    assert any("Published without validation" in note for note in plan.notes)


def test_a_static_validation_is_noted(packed: Any) -> None:
    """It is proof of what was checked, and of no acceptance."""
    packed.validate(None)
    plan = plan_push(packed.folder, REPO)
    assert any("Only the static checks" in note for note in plan.notes)


@pytest.mark.parametrize("target", ["/models/Tiny", "./Tiny", "Tiny", "a/b/c", "~/Tiny", "acme/"])
def test_a_local_target_is_refused(make_packed: Callable[..., Any], target: str) -> None:
    """VLLM 0.33 does not auto-serve it, and nobody else has that path."""
    packed = make_packed("local", target=target)
    with pytest.raises(CheckpointError) as caught:
        plan_push(packed.folder, REPO, allow_unvalidated=True)
    assert "vLLM 0.33 does not auto-serve" in caught.value.sentence()
    assert caught.value.remedy == "Convert again with --target-id owner/name and --overwrite"


def test_a_target_that_config_and_manifest_tell_apart_is_refused(packed: Any) -> None:
    """The card would name one target and engines would load another."""
    packed.update(target=TargetRecord("acme/Other", None, ()))
    with pytest.raises(ContradictionError, match=r"verifier\.name_or_path"):
        plan_push(packed.folder, REPO)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_size", 16),
        ("mask_token_id", 1),
        ("aux_hidden_state_layer_ids", [1, 3, 5]),
        ("speculators_config", {}),
        ("speculators_config", []),
        ("dflash_config", {"target_layer_ids": [2, 4, 6]}),
    ],
)
def test_a_config_that_means_something_else_is_refused(
    packed: Any, key: str, value: object
) -> None:
    """Even where its digest was recorded: the card states the manifest's facts."""
    path = packed.folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    packed.record("config.json")
    with pytest.raises(ContradictionError, match=key):
        plan_push(packed.folder, REPO, allow_unvalidated=True)


def test_the_targets_own_repository_is_refused(packed: Any) -> None:
    """A drafter's config.json would replace the target's."""
    with pytest.raises(UsageError, match="is the target itself"):
        plan_push(packed.folder, "ACME/tiny-target")


@pytest.mark.parametrize(
    "options",
    [
        {"create_pr": True, "branch": "dev"},
        {"create_pr": True, "tag": "v1"},
        {"branch": "refs/pr/3", "tag": "v1"},
        {"branch": "a b"},
        {"tag": "v 1"},
        {"message": ""},
        {"licence": "MIT License"},
    ],
)
def test_options_that_make_no_sense_are_usage_errors(packed: Any, options: dict[str, Any]) -> None:
    """Exit code 2, before the folder is read."""
    with pytest.raises(UsageError) as caught:
        plan_push(Path("nowhere"), REPO, **options)
    assert caught.value.exit_code == 2


def test_a_branch_or_pull_request_is_the_destination(packed: Any) -> None:
    """One of the two."""
    assert plan_push(packed.folder, REPO, branch="dev").revision == "dev"
    plan = plan_push(packed.folder, REPO, create_pr=True)
    assert (plan.create_pr, plan.revision) == (True, "main")


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_no_folder_is_one_sentence(tmp_path: Path, name: str) -> None:
    """Absent, or a file."""
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="Give the folder"):
        plan_push(tmp_path / name, REPO)


def test_the_licence_comes_from_readme_option_or_source(packed: Any, tmp_path: Path) -> None:
    """In that order, never made up."""
    assert plan_push(packed.folder, REPO).licence is None
    assert plan_push(packed.folder, REPO, licence="mit").licence == "mit"

    source = tmp_path / "source"
    source.mkdir()
    card = b"---\nlicense: other\nlicense_name: acme-1\nlicense_link: LICENSE\n---\n"
    (tmp_path / "blob").write_bytes(card)
    (source / "README.md").symlink_to(tmp_path / "blob")  # as in the Hub's cache
    digest = hashlib.sha256(card).hexdigest()
    packed.update(source=SourceRecord(str(source), None, "zlab", {"README.md": digest}))
    plan = plan_push(packed.folder, REPO)
    assert plan.licence == "other"
    assert "license_name: acme-1" in plan.card

    (packed.folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# x\n")
    assert plan_push(packed.folder, REPO).licence == "apache-2.0"


def test_a_source_card_that_changed_is_not_believed(packed: Any, tmp_path: Path) -> None:
    """Only the card that was converted from states the licence."""
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    packed.update(source=SourceRecord(str(tmp_path), None, "zlab", {"README.md": "0" * 64}))
    assert plan_push(packed.folder, REPO).licence is None


def test_two_licences_are_a_contradiction(packed: Any) -> None:
    """The option does not silently win over the README."""
    (packed.folder / "README.md").write_text("---\nlicense: mit\n---\n")
    assert plan_push(packed.folder, REPO, licence="mit").licence == "mit"
    with pytest.raises(ContradictionError, match="license"):
        plan_push(packed.folder, REPO, licence="apache-2.0")


def test_licence_other_needs_name_and_link(packed: Any) -> None:
    """The Hub shows them instead."""
    with pytest.raises(UsageError, match="license_name"):
        plan_push(packed.folder, REPO, licence="other")
    (packed.folder / "README.md").write_text("---\nlicense_name: a\nlicense_link: b\n---\n")
    assert plan_push(packed.folder, REPO, licence="other").licence == "other"


def test_notes_warn_of_what_others_will_see(packed: Any) -> None:
    """A private path in the published manifest, an unpinned target, a missing licence."""
    packed.update(
        source=SourceRecord("/home/me/run", None, "zlab", {}),
        target=TargetRecord("acme/Tiny-Target", None, ("Qwen3ForCausalLM",)),
    )
    notes = "\n".join(plan_push(packed.folder, REPO).notes)
    assert "names the source by its local path '/home/me/run'" in notes
    assert "is not pinned" in notes
    assert "No licence is known" in notes


def test_notes_warn_of_a_folder_named_like_the_target(
    packed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VLLM 0.33 takes such a verifier for a local one."""
    (tmp_path / "acme" / "Tiny-Target").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    notes = plan_push(packed.folder, REPO).notes
    assert any("lies in the current folder" in note for note in notes)


def test_a_hostile_folder_publishes_only_the_drafter(packed: Any, tmp_path: Path) -> None:
    """Links out, pickles, .git, nested folders, strange names: none of it goes."""
    folder = packed.folder
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (folder / "LICENSE").symlink_to(secret)
    (folder / "weights.safetensors").symlink_to(secret)
    (folder / "empty.safetensors").touch()
    (folder / "optimizer_state_dict.pt").write_bytes(pickle.dumps(os.system))
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("[remote]")
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "model.safetensors").write_bytes(b"x")
    (folder / "bad\udcff\x1b[2J.json").touch()
    os.mkfifo(folder / "pipe.json")
    plan = plan_push(folder, REPO)
    assert {file.name for file in plan.files} == {
        "README.md",
        "config.json",
        "dflash_pack.json",
        "model.safetensors",
    }
    assert len(plan.left_out) == 8


def test_an_empty_weights_file_is_refused_though_listed(packed: Any) -> None:
    """Digest and manifest agree, and still it is no safetensors file."""
    (packed.folder / "model.safetensors").write_bytes(b"")
    packed.record("model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is not a whole safetensors"):
        plan_push(packed.folder, REPO, allow_unvalidated=True)


def test_broken_front_matter_is_one_sentence(packed: Any) -> None:
    """It names the README and what to do."""
    (packed.folder / "README.md").write_text("---\nlicense: [mit\n---\n# x\n")
    with pytest.raises(CheckpointError, match=r"README\.md: front matter: is not YAML"):
        plan_push(packed.folder, REPO)


def test_the_cards_file_is_not_on_disk(packed: Any) -> None:
    """Its content is the plan's text, so no path could be sent by mistake."""
    (packed.folder / "README.md").write_text("# Mine\n")
    plan = plan_push(packed.folder, REPO)
    card = next(file for file in plan.files if file.name == "README.md")
    assert card.path is None
    assert "# Mine" in plan.card
