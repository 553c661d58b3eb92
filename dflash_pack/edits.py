"""What may be done to a tensor on its way: rows split off, column slices moved, numbers cast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dflash_pack.casting import CASTABLE, cast_dtype
from dflash_pack.checkpoint import DTYPE_BITS, TensorInfo, TensorSpec
from dflash_pack.errors import CheckpointError
from dflash_pack.pieces import Edit, FileRange, Piece

# Far more layers than any model has; a slice then never gets so small that moving it crawls.
MAX_SLICES = 1024


def split_rows(
    info: TensorInfo, parts: Sequence[tuple[str, int]]
) -> tuple[tuple[str, TensorInfo], ...]:
    """Return (output name, range of rows) for each of ``parts``, from the first row on.

    The ranges carry the source tensor's name.

    Args:
        info: A tensor of one or more dimensions.
        parts: Output name and number of rows of each part, in order.

    Raises:
        CheckpointError: The rows don't add up to those of the tensor, or a packed row ends within a
            byte.
    """
    shape = info.spec.shape
    counts = [rows for _, rows in parts]
    if shape[:1] != (sum(counts),) or not counts or min(counts) < 0:
        parted = " + ".join(map(str, counts[:6])) + (" + ..." if len(counts) > 6 else "")
        what = f"has shape {_shape(shape)}, which {parted or 'no'} rows don't make up"
        raise _refused(info, what)
    row_bits = math.prod(shape[1:]) * DTYPE_BITS[info.spec.dtype]
    found = []
    bits = 0
    for name, rows in parts:
        spec = TensorSpec(info.spec.dtype, (rows, *shape[1:]))
        if row_bits * rows % 8:
            raise _refused(
                info,
                f"{rows} rows of packed {spec.dtype} end within a byte and can't be split off",
                remedy="Split the tensor before it is quantised",
            )
        part = replace(info, spec=spec, offset=info.offset + bits // 8, nbytes=row_bits * rows // 8)
        found.append((name, part))
        bits += row_bits * rows
    return tuple(found)


def edited(
    info: TensorInfo, order: Sequence[int] | None, dtype: str | None
) -> tuple[TensorSpec, Piece]:
    """Return what ``info`` becomes and the piece that makes it, a plain range where nothing does.

    Args:
        info: A tensor, or rows of one.
        order: Column slice i of the output is slice ``order[i]`` of a [rows, slices * width]
            tensor; None to leave the columns.
        dtype: Code that floating-point numbers are cast to, None to leave them. Integers, scaled
            and packed dtypes stay as they are.

    Raises:
        CheckpointError: The tensor has no such column slices, or its columns aren't plain numbers.
        ValueError: ``order`` doesn't name each slice once.
    """
    spec = info.spec
    source = FileRange(info.path, info.offset, info.nbytes)
    cast_to = cast_dtype(spec.dtype, dtype)
    moved = _moved(info, tuple(order)) if order is not None else ()
    if cast_to == spec.dtype and not moved:
        return spec, source
    row_bytes = math.prod(spec.shape[1:]) * DTYPE_BITS[spec.dtype] // 8
    edit = Edit(info.name, source, spec.dtype, cast_to, row_bytes, moved)
    return TensorSpec(cast_to, spec.shape), edit


def _moved(info: TensorInfo, order: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``order`` where it fits the tensor; empty where it moves nothing."""
    count, shape = len(order), info.spec.shape
    if sorted(order) != list(range(count)):
        raise ValueError(f"{info.name}: {order} does not name each column slice once")
    if count > MAX_SLICES:
        raise _refused(info, f"{count} column slices are more than any model has layers")
    if len(shape) != 2:
        raise _refused(info, f"has shape {_shape(shape)}, in which no column slices can be moved")
    if info.spec.dtype not in CASTABLE:
        raise _refused(
            info,
            f"its columns are {info.spec.dtype}, packed or scaled, and can't be moved",
            remedy="Order them before quantising",
        )
    if count == 0 or shape[1] % count:
        raise _refused(info, f"its {shape[1]} columns are not {count} slices of one width")
    return () if order == tuple(range(count)) else order


def _shape(shape: tuple[int, ...]) -> str:
    return str(list(shape))[:80]


def _refused(info: TensorInfo, what: str, *, remedy: str | None = None) -> CheckpointError:
    remedy = remedy or "Correct the config or export the checkpoint again"
    return CheckpointError(what, where=info.path, field=info.name, remedy=remedy)
