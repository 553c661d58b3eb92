"""Torch archives: storages are found where torch finds them, and anything ambiguous is refused."""

from __future__ import annotations

import io
import os
import struct
import zipfile

import pytest
import torch
from peak_memory import peak_mib
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_files import TensorMade, entries_of, zipped

from dflash_pack.errors import CheckpointError
from dflash_pack.torch_archive import MAX_PICKLE, read_archive

SOUND = entries_of({"a": TensorMade()}, {"0": bytes(range(16)), "1": bytes(8)})


def read(path, data=None):
    if data is not None:
        path.write_bytes(data)
    return read_archive(path, remedy="Do this")


def patched(data: bytes, mark: bytes, offset: int, new: bytes, number: int = 0) -> bytes:
    """Return ``data`` with bytes changed, counted from the given occurrence of ``mark``."""
    at = -1
    for _ in range(number + 1):
        at = data.index(mark, at + 1)
    at += offset
    assert data[at : at + len(new)] != new
    return data[:at] + new + data[at + len(new) :]


def test_storages_lie_where_torch_finds_them(tmp_path):
    """torch 2.13 tells a fake tensor's place in the file without reading it."""
    path = tmp_path / "file.pt"
    tensors = {f"t{n}": torch.zeros(n + 1) for n in range(5)}
    torch.save(tensors, path)
    archive = read(path)
    with FakeTensorMode():
        loaded = torch.load(path, weights_only=True)
    places = [tensor.untyped_storage()._checkpoint_offset for tensor in loaded.values()]
    assert [archive.storages[str(n)].offset for n in range(5)] == places
    assert [archive.storages[str(n)].nbytes for n in range(5)] == [4, 8, 12, 16, 20]
    assert archive.size == path.stat().st_size


def test_a_made_archive_is_sound_before_it_is_spoilt(tmp_path):
    data = zipped(SOUND)
    archive = read(tmp_path / "file.pt", data)
    place = archive.storages["0"]
    assert data[place.offset : place.offset + place.nbytes] == bytes(range(16))
    assert archive.pickle == SOUND["archive/data.pkl"]
    assert set(archive.storages) == {"0", "1"}


LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
STORED = zipped(SOUND)
SPOILT = {
    "empty": (b"", "before the archive"),
    "text": (b"hello", "before the archive"),
    "a script before it": (b"#!/bin/sh\n" + STORED, "before the archive"),
    "another archive before it": (zipped({"x/y": b"z"}) + STORED, "gap precedes"),
    "cut": (STORED[:-30], "zip"),
    "half": (STORED[: len(STORED) // 2], "zip"),
    "no directory": (STORED[: STORED.index(CENTRAL)], "zip"),
    "compressed": (zipped(SOUND, compression=zipfile.ZIP_DEFLATED), "compressed"),
    "one storage compressed": (
        zipped(SOUND, compression=zipfile.ZIP_DEFLATED, compressed="archive/data/0"),
        "archive/data/0 is compressed",
    ),
    "encrypted": (patched(STORED, CENTRAL, 8, b"\x01"), "encrypted"),
    "encrypted inside": (patched(STORED, LOCAL, 6, b"\x01", 2), "contradicts"),
    "compressed inside": (patched(STORED, LOCAL, 8, b"\x08", 2), "contradicts"),
    "renamed inside": (patched(STORED, b"archive/data/0", 13, b"1"), "contradicts"),
    "unknown compression": (patched(STORED, CENTRAL, 10, b"\x4d"), "compressed"),
    "a size beyond the end": (
        patched(STORED, CENTRAL, 20, struct.pack("<II", 1 << 30, 1 << 30), 2),
        "beyond the end",
    ),
    "a size into the next": (
        patched(STORED, CENTRAL, 20, struct.pack("<II", 100, 100), 2),
        "overlaps",
    ),
    "two entries at one place": (
        patched(STORED, CENTRAL, 42, struct.pack("<I", STORED.index(LOCAL, 4)), 2),
        "overlaps",
    ),
    "an entry beyond the end": (patched(STORED, CENTRAL, 42, struct.pack("<I", 1 << 30), 2), ""),
    "two folders": (zipped(SOUND | {"other/data/0": b""}), "several folders"),
    "two pickles": (zipped(SOUND | {"archive/code.pkl": b"N."}), "exactly one pickle"),
    "a pickle elsewhere": (
        zipped({"archive/x/data.pkl": b"N.", "archive/version": b"3"}),
        "exactly one pickle",
    ),
    "no pickle": (zipped({"archive/version": b"3"}), "exactly one pickle"),
    "big-endian": (zipped(SOUND | {"archive/byteorder": b"big"}), "big-endian"),
    "no order known": (zipped(SOUND | {"archive/byteorder": b"?" * 99}), "big-endian"),
    "a pickle too large": (
        zipped(SOUND | {"archive/data.pkl": bytes(MAX_PICKLE + 1)}),
        "pickle is too large",
    ),
    "a directory too large": (
        patched(STORED, END, 12, struct.pack("<I", 1 << 27)) + bytes(1 << 17),
        "",
    ),
}


def bomb(method: int, record: str) -> bytes:
    """Return a small archive of which one record would take 128 MiB."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, data in SOUND.items():
            archive.writestr(name, bytes(128 << 20) if name == record else data)
    data = made.getvalue()
    # The directory says that it is small, as a hostile one would.
    place = data.index(record.encode(), data.index(CENTRAL)) - 46
    return data[: place + 24] + struct.pack("<I", 100) + data[place + 28 :]


@pytest.mark.parametrize("record", ["archive/data.pkl", "archive/byteorder"])
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_nothing_is_ever_decompressed(tmp_path, method, record):
    path = tmp_path / "file.pt"
    path.write_bytes(bomb(method, record))
    assert path.stat().st_size < 1 << 20
    code = """if True:
        import sys
        from pathlib import Path
        from dflash_pack.errors import CheckpointError
        from dflash_pack.torch_archive import read_archive
        try:
            read_archive(Path(sys.argv[1]), remedy="Do this")
        except CheckpointError as error:
            assert "compressed" in str(error), error
        else:
            raise AssertionError
    """
    assert peak_mib(code, str(path)) < 100


@pytest.mark.parametrize(("data", "words"), SPOILT.values(), ids=SPOILT)
def test_anything_ambiguous_is_refused_in_one_sentence(tmp_path, data, words):
    with pytest.raises(CheckpointError, match=r"file\.pt: is no file of torch\.save") as caught:
        read(tmp_path / "file.pt", data)
    assert words in str(caught.value)
    assert str(caught.value).endswith("Do this.")


def test_every_cut_is_refused(tmp_path):
    path = tmp_path / "file.pt"
    torch.save({"a": torch.zeros(3)}, path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 17):
        with pytest.raises(CheckpointError, match=r"is no file of torch\.save"):
            read(path, whole[:length])


def test_the_format_before_the_zip_one_is_refused(tmp_path):
    path = tmp_path / "file.pt"
    torch.save({"a": torch.zeros(3)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"of the format before 1\.6"):
        read(path)


def test_no_byte_order_means_little_endian(tmp_path):
    entries = {name: data for name, data in SOUND.items() if not name.endswith("byteorder")}
    assert read(tmp_path / "file.pt", zipped(entries)).storages


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "file.pt")
    with pytest.raises(CheckpointError, match="not a regular file"):
        read(tmp_path / "file.pt")


def test_a_directory_of_absurd_size_is_not_read(tmp_path):
    """The end says that the directory takes half a gigabyte, and the file has these bytes."""
    size = 512 << 20
    with (tmp_path / "file.pt").open("wb") as file:
        file.write(STORED[: STORED.index(CENTRAL)])
        start = file.tell()
        file.truncate(start + size)
        file.seek(0, os.SEEK_END)
        file.write(END + struct.pack("<HHHHIIH", 0, 0, 1, 1, size, start, 0))
    code = """if True:
        import sys
        from pathlib import Path
        from dflash_pack.errors import CheckpointError
        from dflash_pack.torch_archive import read_archive
        try:
            read_archive(Path(sys.argv[1]), remedy="")
        except CheckpointError as error:
            assert "directory is too large" in str(error), error
        else:
            raise AssertionError
    """
    assert peak_mib(code, str(tmp_path / "file.pt")) < 100
