"""What a small torch file may name, told without unpickling it."""

from __future__ import annotations

import collections
import io
import os
import pickle
import warnings
import zipfile

import pytest
import torch

from dflash_pack.errors import CheckpointError
from dflash_pack.torch_file import require_plain_tensors

PLAIN = [
    torch.zeros(4),
    torch.zeros(4, dtype=torch.bfloat16),
    torch.nn.Parameter(torch.zeros(4)),
    {"embedding": torch.zeros(4), "mask_token_id": 3},
    collections.OrderedDict(embedding=torch.zeros(4)),
]


@pytest.mark.parametrize("value", PLAIN)
def test_plain_tensors_pass(tmp_path, value):
    torch.save(value, tmp_path / "file.pt")
    require_plain_tensors(tmp_path / "file.pt")


class Runs:
    def __reduce__(self):
        return os.system, ("true",)


def zipped(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", data)
    return buffer.getvalue()


def saved() -> bytes:
    buffer = io.BytesIO()
    torch.save({"embedding": torch.zeros(4)}, buffer)
    return buffer.getvalue()


def zipped_entries(*entries: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, data in entries:
            archive.writestr(name, data)
    return buffer.getvalue()


def patched(data: bytes, offset: int, value: int) -> bytes:
    """Return a zip with one byte of its first directory entry changed."""
    at = data.index(b"PK\x01\x02") + offset
    assert data[at] != value
    return data[:at] + bytes([value]) + data[at + 1 :]


GOOD = pickle.dumps({"mask_token_id": 5}, protocol=2)
BAD = pickle.dumps(Runs(), protocol=2)


HOSTILE = {
    "a pickle before the archive": BAD + saved(),
    "a decoy in a deeper folder": zipped_entries(("a/x/data.pkl", GOOD), ("a/data.pkl", BAD)),
    "two of one name": zipped_entries(("a/data.pkl", GOOD), ("a/data.pkl", BAD)),
    "two folders": zipped_entries(("a/data.pkl", GOOD), ("b/data.pkl", BAD)),
    "another pickle": zipped_entries(("a/data.pkl", GOOD), ("a/code.pkl", BAD)),
    "encrypted": patched(zipped(GOOD), 8, 1),
    "unknown compression": patched(zipped(GOOD), 10, 77),
    "protocol 2": zipped(pickle.dumps(Runs(), protocol=2)),
    "protocol 4, names on the stack": zipped(pickle.dumps(Runs(), protocol=4)),
    "no zip": pickle.dumps(Runs()),
    "zip without pickle": zipped(b""),
    "empty": b"",
    "truncated pickle": zipped(b"cos"),
    "text": b"hello",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_anything_else_is_refused(tmp_path, data):
    path = tmp_path / "file.pt"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"file\.pt"):
        require_plain_tensors(path)


def test_what_is_patched_was_sound_before(tmp_path):
    (tmp_path / "file.pt").write_bytes(zipped(GOOD))
    require_plain_tensors(tmp_path / "file.pt")


def test_a_pickle_that_unpacks_to_much_more_is_refused(tmp_path):
    path = tmp_path / "file.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(64 << 20))
    with pytest.raises(CheckpointError, match="too large"):
        require_plain_tensors(path)
