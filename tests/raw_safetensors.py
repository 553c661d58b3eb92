"""Safetensors files made by hand, so that tests can also make wrong ones."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_pack.checkpoint import DTYPE_BITS

Raw = tuple[str, tuple[int, ...], bytes]


def raw(dtype: str, *shape: int, seed: int = 0) -> Raw:
    """Return a tensor of that dtype and shape with random, finite values."""
    count = math.prod(shape) * DTYPE_BITS[dtype] // 8
    data = bytearray(random.Random(seed).randbytes(count))
    if dtype == "BOOL":
        data = bytearray(byte & 1 for byte in data)
    else:
        # A zero in the exponent's highest byte keeps every float finite.
        width = max(DTYPE_BITS[dtype] // 8, 1)
        data[width - 1 :: width] = bytes(len(data[width - 1 :: width]))
    return dtype, shape, bytes(data)


def with_header(header: bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    """Return a file with that header and a length field that may lie."""
    stated = len(header) if length is None else length
    return stated.to_bytes(8, "little") + header + data


def safetensors_bytes(
    tensors: Mapping[str, Raw], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return a valid file with the tensors in the order given."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        end = offset + len(data)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return with_header(text, b"".join(data for _, _, data in tensors.values()))


def write_checkpoint(
    folder: Path,
    *shards: Mapping[str, Raw],
    config: Mapping[str, Any] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write a checkpoint of one file, or of several with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "qwen3"}))
    if len(shards) == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(shards[0], metadata))
        return folder
    weight_map = {}
    for number, tensors in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        (folder / name).write_bytes(safetensors_bytes(tensors, metadata))
        weight_map.update(dict.fromkeys(tensors, name))
    write_index(folder, weight_map)
    return folder


def write_index(folder: Path, weight_map: Mapping[str, str]) -> None:
    """Write an index with that weight map."""
    text = json.dumps({"metadata": {"total_size": 0}, "weight_map": dict(weight_map)})
    (folder / "model.safetensors.index.json").write_text(text)
