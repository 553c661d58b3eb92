"""What a small torch file may name, told without unpickling it."""

from __future__ import annotations

import collections
import io
import os
import pickle
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


HOSTILE = {
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


def test_a_pickle_that_unpacks_to_much_more_is_refused(tmp_path):
    path = tmp_path / "file.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(64 << 20))
    with pytest.raises(CheckpointError, match="too large"):
        require_plain_tensors(path)
