"""Bytes of files that others may be writing: read in bounded chunks, changes noticed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dflash_pack.checkpoint import TensorInfo
from dflash_pack.errors import CheckpointError
from dflash_pack.strict_json import MIB, open_regular

# Small enough to stay in a core's cache between copying, hashing and scanning.
CHUNK_BYTES = 1 * MIB


@contextmanager
def open_for_reading(path: Path) -> Iterator[int]:
    """Open a file to read from, and complain on leaving if it changed meanwhile.

    Yields:
        The file descriptor.

    Raises:
        CheckpointError: The file can't be opened, or its size or time changed.
    """
    with open_regular(path) as file:
        before = os.fstat(file.fileno())
        yield file.fileno()
        after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise _changed(path)


def read_some(path: Path, source: int, view: memoryview, offset: int) -> int:
    """Read into ``view`` from byte ``offset`` and return how many bytes came, at least one.

    Raises:
        CheckpointError: The file can't be read or ends before.
    """
    try:
        count = os.preadv(source, [view], offset)
    except OSError as error:
        raise CheckpointError(f"can't be read ({error.strerror})", where=path) from error
    if count == 0:
        raise _changed(path)
    return count


def fill(path: Path, source: int, view: memoryview, offset: int) -> None:
    """Fill ``view`` from byte ``offset`` of the file, which must have that many bytes.

    Raises:
        CheckpointError: As :func:`read_some`.
    """
    filled = 0
    while filled < len(view):
        filled += read_some(path, source, view[filled:], offset + filled)


def same_bytes(first: TensorInfo, second: TensorInfo) -> bool:
    """Return whether two tensors have one dtype, one shape and the same bytes.

    Raises:
        CheckpointError: One of the files can't be read any more.
    """
    if first.spec != second.spec or first.nbytes != second.nbytes:
        return False
    buffers = bytearray(CHUNK_BYTES), bytearray(CHUNK_BYTES)
    with open_for_reading(first.path) as one, open_for_reading(second.path) as two:
        for start in range(0, first.nbytes, CHUNK_BYTES):
            count = min(CHUNK_BYTES, first.nbytes - start)
            fill(first.path, one, memoryview(buffers[0])[:count], first.offset + start)
            fill(second.path, two, memoryview(buffers[1])[:count], second.offset + start)
            # The rest of the buffers holds equal bytes of the round before, or zeros.
            if buffers[0] != buffers[1]:
                return False
    return True


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file in hex.

    Raises:
        CheckpointError: It can't be read.
    """
    with open_regular(path) as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointError(f"can't be read ({error.strerror})", where=path) from error


def _changed(path: Path) -> CheckpointError:
    return CheckpointError(
        "changed while it was read", where=path, remedy="Run again when nothing else writes it"
    )
