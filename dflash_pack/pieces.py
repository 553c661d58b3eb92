"""The pieces that output tensors are put together from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dflash_pack.checkpoint import DTYPE_BITS


@dataclass(frozen=True)
class FileRange:
    """``nbytes`` of the file ``path`` from ``offset`` on."""

    path: Path
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Literal:
    """Bytes that stand in no file."""

    data: bytes

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return len(self.data)


@dataclass(frozen=True)
class Edit:
    """Rows of a tensor in a file, changed on the way: column slices moved, numbers cast.

    Attributes:
        tensor: The tensor's name in the source, for messages.
        source: Where the rows lie.
        dtype: Dtype code of the numbers there.
        cast_to: Dtype code of the output, the same where nothing is cast.
        row_bytes: Bytes of one row of ``source``.
        order: Slice i of an output row is slice ``order[i]`` of the source's row, all of one
            width; empty where columns stay.
    """

    tensor: str
    source: FileRange
    dtype: str
    cast_to: str
    row_bytes: int
    order: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Number of bytes of the output."""
        return self.source.nbytes * DTYPE_BITS[self.cast_to] // DTYPE_BITS[self.dtype]


Piece = FileRange | Literal | Edit


def coalesced(pieces: Iterable[Piece]) -> list[Piece]:
    """Return ``pieces`` in order, adjoining ranges of a file joined, empty pieces left out."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if piece.nbytes == 0:
            continue
        if (
            isinstance(piece, FileRange)
            and isinstance(last, FileRange)
            and piece.path == last.path
            and piece.offset == last.offset + last.nbytes
        ):
            joined[-1] = FileRange(last.path, last.offset, last.nbytes + piece.nbytes)
        else:
            joined.append(piece)
    return joined
