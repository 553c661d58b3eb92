"""Carries out edits of tensors in bounded memory, a few rows or a part of one slice at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dflash_pack import file_reading
from dflash_pack.casting import CastOverflowError, cast, wide_enough
from dflash_pack.errors import CheckpointError
from dflash_pack.finite_scan import WIDEST
from dflash_pack.pieces import Edit

Read = Callable[[memoryview, int], None]


def render(edit: Edit, read: Read) -> Iterator[memoryview]:
    """Yield the output of ``edit`` in order; each view is good until the next is asked for.

    Args:
        edit: What to do; its rows are not empty.
        read: Fills a view from a byte offset of the source's file.

    Raises:
        CheckpointError: A number overflows in a cast, or the file can't be read.
    """
    buffer = memoryview(bytearray(max(file_reading.CHUNK_BYTES // WIDEST, 1) * WIDEST))
    whole = edit.source.offset, edit.source.nbytes
    views = _ordered(edit, buffer, read) if edit.order else _range(*whole, buffer, read)
    for view in views:
        yield view if edit.cast_to == edit.dtype else _cast(edit, view)


def _range(offset: int, nbytes: int, buffer: memoryview, read: Read) -> Iterator[memoryview]:
    """Yield ``nbytes`` of the file from ``offset`` on, through ``buffer``."""
    for start in range(0, nbytes, len(buffer)):
        view = buffer[: min(len(buffer), nbytes - start)]
        read(view, offset + start)
        yield view


def _ordered(edit: Edit, buffer: memoryview, read: Read) -> Iterator[memoryview]:
    """Yield the rows with their slices moved: many at once, or a large one by slices."""
    import numpy as np

    offset, nbytes = edit.source.offset, edit.source.nbytes
    slice_bytes = edit.row_bytes // len(edit.order)
    rows = len(buffer) // edit.row_bytes
    if rows == 0:
        for row in range(offset, offset + nbytes, edit.row_bytes):
            for index in edit.order:
                yield from _range(row + index * slice_bytes, slice_bytes, buffer, read)
        return
    order = np.array(edit.order, dtype=np.intp)
    moved = np.empty(rows * edit.row_bytes, dtype=np.uint8)
    for view in _range(offset, nbytes, buffer[: len(moved)], read):
        shape = len(view) // edit.row_bytes, len(order), slice_bytes
        source = np.frombuffer(view, dtype=np.uint8).reshape(shape)
        target = moved[: len(view)]
        # The order is checked; with mode "raise" numpy would buffer the output.
        np.take(source, order, axis=1, out=target.reshape(shape), mode="clip")
        yield target.data


def _cast(edit: Edit, view: memoryview) -> memoryview:
    try:
        return cast(view, edit.dtype, edit.cast_to)
    except CastOverflowError as error:
        names = " or ".join(f"--dtype {name}" for name in wide_enough(error.value))
        raise CheckpointError(
            str(error),
            where=edit.source.path,
            field=edit.tensor,
            remedy=f"Pass {names}" if names else "Leave --dtype out",
        ) from error
