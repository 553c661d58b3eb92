from __future__ import annotations

import os
from pathlib import Path

import pytest
from plans import ONE
from raw_safetensors import raw, write_checkpoint

from dflash_pack import file_reading
from dflash_pack.checkpoint import open_checkpoint
from dflash_pack.errors import CheckpointError
from dflash_pack.file_reading import same_bytes, sha256_file


def test_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_reading, "CHUNK_BYTES", 64)
    dtype, shape, data = ONE["fc.weight"]
    changed = bytearray(data)
    changed[-1] ^= 1
    tensors = {
        "shift": raw("F32", 3),
        "fc": (dtype, shape, data),
        "last byte": (dtype, shape, bytes(changed)),
        "other shape": (dtype, shape[::-1], data),
        "other dtype": ("F16", shape, data),
    }
    one = open_checkpoint(write_checkpoint(tmp_path / "a", ONE)).tensors["fc.weight"]
    two = open_checkpoint(write_checkpoint(tmp_path / "b", tensors)).tensors
    assert same_bytes(one, two["fc"])
    assert same_bytes(two["fc"], two["fc"])
    assert not same_bytes(one, two["last byte"])
    assert not same_bytes(one, two["other shape"])
    assert not same_bytes(one, two["other dtype"])


def test_same_bytes_of_a_file_that_shrank(tmp_path: Path):
    info = open_checkpoint(write_checkpoint(tmp_path, ONE)).tensors["layers.0.q.weight"]
    os.truncate(info.path, info.offset + 10)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        same_bytes(info, info)


def test_sha256_file(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256_file(tmp_path / "x").startswith("ba7816bf8f01cfea")
    with pytest.raises(CheckpointError, match="is missing"):
        sha256_file(tmp_path / "y")
