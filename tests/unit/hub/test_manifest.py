"""The record beside the weights: read back as written, and refused when it is not one."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_pack.accounting import LedgerBuilder
from dflash_pack.drafter import Drafter, DraftLayer, Rope, Vocabulary
from dflash_pack.errors import CheckpointError
from dflash_pack.hub.manifest import (
    MANIFEST_NAME,
    LedgerItem,
    LedgerRecord,
    drafter_record,
    read_drafter,
    read_manifest,
    write_manifest,
)


def edit(folder: Path, **changes: Any) -> None:
    """Change top-level keys of the written record, as someone with an editor would."""
    path = folder / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_reads_back_what_was_written(packed: Any) -> None:
    """Every field survives, tuples and None included."""
    assert read_manifest(packed.folder) == packed.manifest


def test_drafter_reads_back_whatever_its_layers(packed: Any, drafter: Drafter) -> None:
    """Windows, causality, tuples in rope, reduced vocabulary and token ids survive JSON."""
    rich = replace(
        drafter,
        layers=(DraftLayer(2048, True), DraftLayer(None, False)),
        rope=Rope("longrope", 1e4, Rope.freeze({"short_factor": [1.0, 1.5], "flag": True})),
        vocabulary=Vocabulary(64, 32, 63, head="own", mask_embedding=True),
        token_ids=(("eos_token_id", (1, 2)), ("pad_token_id", None)),
        target_layer_ids=(-1, 3),
        final_logit_softcapping=30.0,
    )
    packed.update(drafter=drafter_record(rich))
    assert read_drafter(read_manifest(packed.folder), where="m") == rich


def test_folder_without_record_is_no_output_of_convert(tmp_path: Path) -> None:
    """The sentence says what to run."""
    with pytest.raises(CheckpointError) as caught:
        read_manifest(tmp_path)
    assert caught.value.sentence() == (
        f"{tmp_path}: holds no dflash_pack.json, which dflash-pack convert writes unless told "
        "--no-verify. "
        "Convert the checkpoint with dflash-pack convert and push its output."
    )


@pytest.mark.parametrize("version", [0, 2, "1", 1.0, True, None, [1]])
def test_other_versions_are_refused(packed: Any, version: object) -> None:
    """Only the integer 1 is version 1."""
    edit(packed.folder, version=version)
    with pytest.raises(CheckpointError, match=r"version: is .*, but this dflash-pack reads 1"):
        read_manifest(packed.folder)


@pytest.mark.parametrize(
    "name", ["../config.json", "/etc/passwd", "a/b", "a\\b", ".git", "", "..", "a\nb", "x" * 256]
)
def test_file_names_stay_in_the_folder(packed: Any, name: str) -> None:
    """A name with a path, a control character or a leading dot is refused."""
    edit(packed.folder, files={name: {"size": 1, "sha256": "0" * 64}})
    with pytest.raises(CheckpointError, match="no plain file name"):
        read_manifest(packed.folder)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"files": {"config.json": {"size": "5", "sha256": "0" * 64}}}, "files.config.json.size"),
        ({"files": {"config.json": {"size": -5, "sha256": "0" * 64}}}, "files.config.json.size"),
        ({"files": {"config.json": {"size": 5, "sha256": "0"}}}, "files.config.json.sha256"),
        ({"files": {"config.json": {"size": 5, "sha256": "A" * 64}}}, "files.config.json.sha256"),
        ({"files": []}, "files"),
        ({"target": {"identifier": 5, "revision": None, "architectures": []}}, "target.identifier"),
        ({"ledger": {"dropped": [{}], "lossy": [], "mapped": 1}}, "ledger.dropped.0.name"),
        ({"source": {"identity": "a", "revision": None, "format": "f"}}, "source.files"),
        ({"drafter": "none"}, "drafter"),
    ],
)
def test_wrong_types_name_their_field(packed: Any, changes: dict[str, Any], field: str) -> None:
    """The sentence names file and field."""
    edit(packed.folder, **changes)
    with pytest.raises(CheckpointError) as caught:
        read_manifest(packed.folder)
    assert caught.value.field == field
    assert caught.value.where == str(packed.folder / MANIFEST_NAME)


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("block_size", 1, "drafter.block_size"),
        ("block_size", "8", "drafter.block_size"),
        ("layers", [], "drafter.layers"),
        ("layers", [{"window": None}], "drafter.layers.0.causal"),
        ("target_layer_ids", [], "drafter.target_layer_ids"),
        ("rope", None, "drafter.rope"),
    ],
)
def test_a_broken_drafter_is_refused(packed: Any, key: str, value: object, field: str) -> None:
    """Sizes that no drafter has are refused as wrong types are."""
    edit(packed.folder, drafter={**packed.manifest.drafter, key: value})
    with pytest.raises(CheckpointError) as caught:
        read_drafter(read_manifest(packed.folder), where=MANIFEST_NAME)
    assert caught.value.field == field


def test_keys_of_a_later_tool_are_ignored(packed: Any) -> None:
    """Version 1 may gain keys."""
    edit(packed.folder, later="key")
    assert read_manifest(packed.folder) == packed.manifest


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 1, "version": 1}', "NaN"])
def test_broken_json_is_one_sentence(packed: Any, text: str) -> None:
    """No traceback for a broken file."""
    (packed.folder / MANIFEST_NAME).write_text(text)
    with pytest.raises(CheckpointError, match=MANIFEST_NAME):
        read_manifest(packed.folder)


def test_a_link_is_no_record(packed: Any, tmp_path: Path) -> None:
    """A link could point at anything, so that it is not followed."""
    path = packed.folder / MANIFEST_NAME
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_manifest(packed.folder)


def test_a_failed_write_leaves_the_former_record(
    packed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is replaced in one step, and nothing half-written stays."""
    before = sorted(packed.folder.iterdir())

    def fail(self: Path, target: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_manifest(packed.folder, replace(packed.manifest, tool_version="9"))
    assert sorted(packed.folder.iterdir()) == before
    assert read_manifest(packed.folder).tool_version == "0.1.0"


def test_the_record_is_readable_as_the_umask_says(packed: Any) -> None:
    """A temporary file is private to its owner; the record is not."""
    mask = os.umask(0o022)
    try:
        path = write_manifest(packed.folder, packed.manifest)
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_ledger_is_summed_up() -> None:
    """Drops and losses keep names and reasons; what was mapped is counted."""
    builder = LedgerBuilder()
    builder.map("tensor", "fc.weight", "fc.weight")
    builder.map("config key", "block_size", "block_size")
    builder.drop("config key", "use_cache", "no engine reads it")
    builder.lose("config key", "logit_scale", "accepted")
    assert LedgerRecord.of(builder.build()) == LedgerRecord(
        dropped=(LedgerItem("use_cache", "no engine reads it"),),
        lossy=(LedgerItem("logit_scale", "accepted"),),
        mapped=2,
    )
