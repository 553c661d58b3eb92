"""Tensor plans: which pieces each tensor of the output consists of. No tensor is ever loaded.

:mod:`dflash_pack.shard_writer` turns a plan into files at the speed of a copy.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dflash_pack.casting import TARGETS
from dflash_pack.checkpoint import (
    DTYPE_BITS,
    WEIGHTS_NAME,
    Checkpoint,
    TensorInfo,
    TensorSpec,
)
from dflash_pack.edits import edited, split_rows
from dflash_pack.errors import CheckpointError
from dflash_pack.file_reading import fill, open_for_reading
from dflash_pack.pieces import FileRange, Piece, coalesced

_ALIGNMENT = 8
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor to write: its bytes are those of ``pieces``, one after the other.

    Raises:
        ValueError: The pieces don't add up to the size that ``spec`` needs.
    """

    name: str
    spec: TensorSpec
    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        """Check the size of the pieces against the spec."""
        bits = math.prod(self.spec.shape) * DTYPE_BITS[self.spec.dtype]
        if bits != self.nbytes * 8:
            raise ValueError(f"{self.name}: {self.nbytes} bytes planned for {self.spec}")

    @property
    def nbytes(self) -> int:
        """Number of bytes of all pieces."""
        return sum(piece.nbytes for piece in self.pieces)


@dataclass(frozen=True)
class OutputShard:
    """One safetensors file to write: its tensors in the order of their data."""

    name: str
    tensors: tuple[PlannedTensor, ...]
    metadata: Mapping[str, str]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, without the header."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The data in order, adjoining ranges of a file as one."""
        return tuple(coalesced(piece for tensor in self.tensors for piece in tensor.pieces))


@dataclass(frozen=True)
class TensorPlan:
    """All safetensors files of an output folder."""

    shards: tuple[OutputShard, ...]

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """Name -> dtype and shape of every tensor that will be written."""
        return {tensor.name: tensor.spec for shard in self.shards for tensor in shard.tensors}

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors, without headers."""
        return sum(shard.nbytes for shard in self.shards)

    @property
    def index(self) -> dict[str, Any] | None:
        """Content of ``model.safetensors.index.json``; None where one file holds everything."""
        if len(self.shards) == 1:
            return None
        homes = {tensor.name: shard.name for shard in self.shards for tensor in shard.tensors}
        return {
            "metadata": {"total_size": self.total_bytes},
            "weight_map": dict(sorted(homes.items())),
        }


def plan_tensors(
    checkpoint: Checkpoint,
    rename: Mapping[str, str | None],
    *,
    row_splits: Mapping[str, Sequence[tuple[str, int]]] = _NOTHING,
    column_orders: Mapping[str, Sequence[int]] = _NOTHING,
    dtype: str | None = None,
    keep_dtype: Collection[str] = (),
) -> TensorPlan:
    """Return the plan that copies ``checkpoint`` with other names, rows, columns or dtypes.

    Shards and the order of the data stay as they are, so a file is one range to copy as long as
    nothing is edited or dropped from its middle. Only where that would put numbers at odd
    offsets are the widest put first. Shards that become empty vanish.

    Args:
        checkpoint: The source.
        rename: Source name -> output name, None to drop; names absent here stay.
        row_splits: Source name -> (output name, number of rows) of each part that it is split
            into, from the first row on.
        column_orders: Output name of a [rows, slices * width] tensor -> order: column slice i of
            the output is slice ``order[i]`` of the source.
        dtype: Safetensors code (BF16, F16 or F32) that floating-point tensors are cast to, None to
            leave them. Integers, scaled (FP8) and packed tensors stay as they are.
        keep_dtype: Output names that are not cast; names that aren't written don't matter.

    Raises:
        CheckpointError: Two tensors would get one name, none is left, rows don't add up, or columns
            aren't such slices.
        ValueError: A mapping has a tensor that isn't there, a tensor is both renamed and split,
            ``dtype`` is none to cast to, or an order doesn't name each slice once.
    """
    unknown = (rename.keys() | row_splits.keys()) - checkpoint.tensors.keys()
    if unknown:
        raise ValueError(f"no such tensors to rename or split: {sorted(unknown)}")
    if both := rename.keys() & row_splits.keys():
        raise ValueError(f"both renamed and split: {sorted(both)}")
    if dtype is not None and dtype not in TARGETS:
        raise ValueError(f"no dtype to cast to: {dtype}")
    homes: dict[str, str] = {}
    kept: list[tuple[tuple[PlannedTensor, ...], Mapping[str, str]]] = []
    for shard in checkpoint.shards:
        planned = []
        for tensor in shard.tensors:
            for name, part in _outputs(tensor, rename, row_splits):
                if name in homes:
                    what = f"both {homes[name]} and {tensor.name} would be written under this name"
                    raise CheckpointError(what, where=checkpoint.path, field=name)
                homes[name] = tensor.name
                cast_to = None if name in keep_dtype else dtype
                spec, piece = edited(part, column_orders.get(name), cast_to)
                planned.append(PlannedTensor(name, spec, (piece,)))
        if planned:
            # transformers 5 refuses files whose metadata does not name a framework.
            kept.append((_aligned(planned), {"format": "pt", **shard.metadata}))
    if unknown := column_orders.keys() - homes.keys():
        raise ValueError(f"no such tensors to order the columns of: {sorted(unknown)}")
    if not kept:
        raise CheckpointError("no tensor would be left to write", where=checkpoint.path)
    return TensorPlan(
        tuple(
            OutputShard(_shard_name(number, len(kept)), tensors, metadata)
            for number, (tensors, metadata) in enumerate(kept, start=1)
        )
    )


def header_bytes(shard: OutputShard) -> bytes:
    """Return length and JSON header of ``shard`` as safetensors 0.8 writes them.

    The header is padded with spaces so that the data starts at a multiple of 8 bytes.
    """
    entries: dict[str, Any] = {}
    if shard.metadata:
        entries["__metadata__"] = dict(shard.metadata)
    offset = 0
    for tensor in shard.tensors:
        entries[tensor.name] = {
            "dtype": tensor.spec.dtype,
            "shape": list(tensor.spec.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def verbatim_source(shard: OutputShard) -> Path | None:
    """Return the source file that ``shard`` repeats byte for byte, header included; else None.

    Such a file can share its blocks with the source where the file system can (reflinks), and has
    the source's sha256.

    Raises:
        CheckpointError: The source can't be read.
    """
    header = header_bytes(shard)
    pieces = shard.pieces
    if len(pieces) != 1 or not isinstance(pieces[0], FileRange):
        return None
    data = pieces[0]
    if data.offset != len(header):
        return None
    found = bytearray(len(header))
    with open_for_reading(data.path) as source:
        if os.fstat(source).st_size != data.offset + data.nbytes:
            return None
        fill(data.path, source, memoryview(found), 0)
    return data.path if found == header else None


def _outputs(
    tensor: TensorInfo,
    rename: Mapping[str, str | None],
    row_splits: Mapping[str, Sequence[tuple[str, int]]],
) -> Iterator[tuple[str, TensorInfo]]:
    """Yield what ``tensor`` is written as: nothing, itself, or ranges of its rows."""
    if tensor.name in row_splits:
        yield from split_rows(tensor, row_splits[tensor.name])
        return
    name = rename.get(tensor.name, tensor.name)
    if name is not None:
        yield name, tensor


def _aligned(tensors: Sequence[PlannedTensor]) -> tuple[PlannedTensor, ...]:
    """Return ``tensors`` in their order, or widest elements first where one would lie askew.

    Safetensors itself writes the widest first, so that each tensor starts at a multiple of its
    elements' size. A file that is one range of its source stays what it is.
    """
    if len(coalesced(piece for tensor in tensors for piece in tensor.pieces)) < 2:
        return tuple(tensors)
    offset = 0
    for tensor in tensors:
        if tensor.nbytes and offset * 8 % DTYPE_BITS[tensor.spec.dtype]:
            return tuple(sorted(tensors, key=lambda t: -DTYPE_BITS[t.spec.dtype]))
        offset += tensor.nbytes
    return tuple(tensors)


def _shard_name(number: int, count: int) -> str:
    return WEIGHTS_NAME if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
