"""What of a folder may be published: an allowlist that hostile folders can't widen."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dflash_pack.errors import CheckFailedError, CheckpointError
from dflash_pack.hub import folder as folder_module
from dflash_pack.hub.folder import (
    check_unchanged,
    check_weights,
    hash_file,
    list_folder,
    read_text,
)


def reasons(packed: Any) -> dict[str, str]:
    """Return name -> reason of what is left out."""
    listing = list_folder(packed.folder, packed.manifest.files)
    return {item.name: item.reason for item in listing.left_out}


def chosen(packed: Any) -> tuple[str, ...]:
    """Return the names that would be published beside card and manifest."""
    return list_folder(packed.folder, packed.manifest.files).chosen


def test_a_clean_folder_is_published_whole(packed: Any) -> None:
    """Nothing is left out of what convert wrote."""
    assert chosen(packed) == ("config.json", "model.safetensors")
    assert reasons(packed) == {}


def test_everything_else_is_left_out_with_its_reason(packed: Any) -> None:
    """Training leftovers, pickles, code, logs, hidden files and folders."""
    folder = packed.folder
    leftovers = {
        "optimizer_state_dict.pt": "is training state",
        "scheduler_state_dict.pt": "is training state",
        "training_state.pt": "is training state",
        "optimizer.safetensors": "is training state",
        "pytorch_model.bin": "may be a pickle, which can run code when it is loaded",
        "data.pkl": "may be a pickle, which can run code when it is loaded",
        "dflash.py": "is code, and no engine needs any",
        "train.log": "is a log of the training",
        "train_command.txt": "is a log of the training",
        "val_metrics.json": "is a log of the training",
        "events.out.tfevents.1": "is a log of the training",
        ".gitattributes": "is a hidden file",
        "tokenizer.json": "is no file of a drafter",
        "mask_embedding.pt": "was not written by convert: dflash_pack.json does not list it",
        "stray.safetensors": "was not written by convert: dflash_pack.json does not list it",
        "na\x1bme\u202e.txt": "is no file of a drafter",
        "ključ.safetensors": "was not written by convert: dflash_pack.json does not list it",
        "CONFIG.JSON": "is no file of a drafter",
        "LICENSE.exe": "is no file of a drafter",
    }
    for name in leftovers:
        (folder / name).write_bytes(pickle.dumps({"a": 1}))
    (folder / ".git" / "objects").mkdir(parents=True)
    (folder / ".dflash-pack").mkdir()
    (folder / "checkpoint-7").mkdir()
    assert reasons(packed) == {
        **leftovers,
        ".git": "is a hidden folder",
        ".dflash-pack": "holds the full reports of dflash-pack",
        "checkpoint-7": "is a folder",
    }
    assert chosen(packed) == ("config.json", "model.safetensors")


@pytest.mark.parametrize("name", ["LICENSE", "LICENSE.md", "LICENSE-MODEL.txt", "NOTICE"])
def test_licences_go_along(packed: Any, name: str) -> None:
    """They bind whoever gets the files, listed or not."""
    (packed.folder / name).write_text("terms")
    assert name in chosen(packed)


def test_side_files_go_along_where_convert_wrote_them(packed: Any) -> None:
    """The one pickle that engines read is published only if the manifest lists it."""
    for name in ("mask_embedding.pt", "hf_quant_config.json"):
        (packed.folder / name).write_bytes(b"x")
    packed.record("mask_embedding.pt", "hf_quant_config.json")
    assert set(chosen(packed)) >= {"mask_embedding.pt", "hf_quant_config.json"}


@pytest.mark.parametrize("name", ["evil.py", "optimizer.pt", "model.bin", "tokenizer.json"])
def test_a_manifest_cannot_widen_the_allowlist(packed: Any, name: str) -> None:
    """Listing a file is not enough to publish it."""
    (packed.folder / name).write_bytes(b"x")
    packed.record(name)
    assert name not in chosen(packed)
    assert name in reasons(packed)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README.md"])
def test_a_link_in_the_place_of_a_published_file_is_refused(
    packed: Any, tmp_path: Path, name: str
) -> None:
    """A link out of the folder would publish a file of the user's."""
    secret = tmp_path / "secret"
    secret.write_text("token")
    (packed.folder / name).unlink(missing_ok=True)
    (packed.folder / name).symlink_to(secret)
    with pytest.raises(CheckpointError, match=f"{name}: is a symbolic link"):
        list_folder(packed.folder, packed.manifest.files)


def test_other_links_and_pipes_are_left_out_unopened(packed: Any) -> None:
    """A pipe would block whoever opens it; a link to a folder could be endless."""
    (packed.folder / "LICENSE").symlink_to("/etc/hostname")
    (packed.folder / "loop").symlink_to(packed.folder)
    (packed.folder / "gone").symlink_to("nowhere")
    os.mkfifo(packed.folder / "pipe")
    assert reasons(packed) == {
        "LICENSE": "is a symbolic link",
        "loop": "is a symbolic link",
        "gone": "is a symbolic link",
        "pipe": "is a special file",
    }


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_a_pipe_or_folder_named_like_weights_is_refused(packed: Any, kind: str) -> None:
    """Neither hangs nor recurses."""
    path = packed.folder / "model.safetensors"
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(CheckpointError, match="only a regular file is published"):
        list_folder(packed.folder, packed.manifest.files)


def test_a_listed_file_that_is_gone_is_a_change(packed: Any) -> None:
    """Less than what was converted is not published."""
    (packed.folder / "model.safetensors").unlink()
    with pytest.raises(CheckFailedError, match=r"model\.safetensors: is listed .* but gone"):
        list_folder(packed.folder, packed.manifest.files)


@pytest.mark.parametrize(
    ("listed", "what"),
    [("model.safetensors", r"lists no config\.json"), ("config.json", "lists no safetensors")],
)
def test_a_manifest_without_config_or_weights_is_refused(
    packed: Any, listed: str, what: str
) -> None:
    """Nothing to serve is nothing to publish."""
    packed.update(files={listed: packed.manifest.files[listed]})
    with pytest.raises(CheckpointError, match=what):
        list_folder(packed.folder, packed.manifest.files)


def test_a_huge_folder_is_refused_early(packed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of entries is bounded."""
    monkeypatch.setattr(folder_module, "MAX_ENTRIES", 5)
    for index in range(4):
        (packed.folder / f"f{index}").touch()
    with pytest.raises(CheckpointError, match="more than 5 entries"):
        list_folder(packed.folder, packed.manifest.files)


def test_sha256_is_recomputed(packed: Any) -> None:
    """One changed byte of the same length is found, and the file named."""
    path = packed.folder / "model.safetensors"
    record = packed.manifest.files["model.safetensors"]
    check_unchanged(hash_file(path), record)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        CheckFailedError, match=r"model\.safetensors: changed since convert: sha256"
    ):
        check_unchanged(hash_file(path), record)
    path.write_bytes(data + b"x")
    with pytest.raises(CheckFailedError, match=f"{record.size} bytes then, {record.size + 1} now"):
        check_unchanged(hash_file(path), record)


def test_hashing_follows_no_link_and_waits_for_no_pipe(tmp_path: Path) -> None:
    """Even if the entry was swapped after the folder was listed."""
    (tmp_path / "link").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="symbolic link"):
        hash_file(tmp_path / "link")
    with pytest.raises(CheckpointError, match="not a regular file"):
        hash_file(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="No such file"):
        hash_file(tmp_path / "gone")


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _trailing(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _endless_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


def _no_tensor(path: Path) -> None:
    save_file({}, path)


def _text(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")


@pytest.mark.parametrize(
    "damage", [_truncated, _trailing, _empty, _endless_header, _no_tensor, _text]
)
def test_damaged_weights_are_refused(packed: Any, damage: Any) -> None:
    """Whatever the manifest says of their digest."""
    damage(packed.folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: (is not a whole|holds no)"):
        check_weights(packed.folder, ("config.json", "model.safetensors"))


def test_a_giant_header_is_not_read(packed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded before safetensors parses anything."""
    monkeypatch.setattr(folder_module, "_MAX_HEADER_BYTES", 64)
    with pytest.raises(CheckpointError, match="has a header of"):
        check_weights(packed.folder, ("model.safetensors",))


def test_index_and_shards_are_one(tmp_path: Path) -> None:
    """The index names exactly the shards that are published."""
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    for name in names:
        save_file({name[6:11]: np.zeros(2, np.float32)}, tmp_path / name)
    index = tmp_path / "model.safetensors.index.json"
    everything = (*names, index.name)
    index.write_text(f'{{"weight_map": {{"00001": "{names[0]}", "00002": "{names[1]}"}}}}')
    check_weights(tmp_path, everything)
    for wrong in (
        f'{{"weight_map": {{"00001": "{names[0]}"}}}}',
        '{"weight_map": {"00001": "../../etc/passwd"}}',
        '{"weight_map": {"00001": ["x"]}}',
        '{"weight_map": []}',
        "{}",
    ):
        index.write_text(wrong)
        with pytest.raises(CheckpointError, match="does not name exactly"):
            check_weights(tmp_path, everything)
    with pytest.raises(CheckpointError, match="has 2 safetensors files"):
        check_weights(tmp_path, names)


def test_text_is_bounded_utf8(tmp_path: Path) -> None:
    """A README is a small text file or refused."""
    path = tmp_path / "README.md"
    path.write_bytes(b"\xef\xbb\xbf# x\r\n")
    assert read_text(path) == "# x\r\n"
    path.write_bytes(b"\xff\xfe#")
    with pytest.raises(CheckpointError, match="is not UTF-8"):
        read_text(path)
    path.write_bytes(b"x" * (folder_module.MAX_TEXT_BYTES + 1))
    with pytest.raises(CheckpointError, match="is larger than"):
        read_text(path)
