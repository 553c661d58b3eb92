"""The streaming safetensors writer: a plan becomes files at the speed of a copy."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from dflash_pack import file_reading
from dflash_pack.checkpoint import INDEX_NAME, TensorInfo, TensorSpec
from dflash_pack.edit_stream import render
from dflash_pack.errors import CheckpointError, MissingHereError
from dflash_pack.file_reading import fill, open_for_reading, read_some
from dflash_pack.finite_scan import FiniteScan, ScanResult, chunks
from dflash_pack.pieces import Edit, FileRange, Literal, Piece
from dflash_pack.strict_json import MIB
from dflash_pack.tensors import (
    OutputShard,
    PlannedTensor,
    TensorPlan,
    header_bytes,
    verbatim_source,
)

if TYPE_CHECKING:
    from types import TracebackType

COPY_BYTES = 64 * MIB
FLUSH_BYTES = 128 * MIB
_BUFFERS = 4
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True)
class WrittenFile:
    """A finished file.

    Attributes:
        name: Its name in the output folder.
        size: Bytes.
        sha256: Of the bytes read back from the file; None without verification.
        scan: Of the bytes read back from the file; None for an index or without verification.
    """

    name: str
    size: int
    sha256: str | None
    scan: ScanResult | None = None


def write_plan(
    plan: TensorPlan,
    folder: Path,
    *,
    verify: bool = True,
    progress: Callable[[int], None] | None = None,
) -> tuple[WrittenFile, ...]:
    """Write the files of ``plan`` into ``folder`` and make them durable.

    Memory stays at a few chunks whatever the size. With ``verify`` every byte is read back from
    the output, hashed and searched for non-finite values in the same pass.

    Args:
        plan: What to write.
        folder: An existing folder that holds none of the files yet.
        verify: Whether to hash and scan.
        progress: Called with the number of bytes written since its last call.

    Raises:
        CheckpointError: A source file changed or ended meanwhile, or a number is too large for the
            dtype that it is cast to.
        MissingHereError: The disk is full or the files can't be written.
    """
    written = [_write_shard(shard, folder / shard.name, verify, progress) for shard in plan.shards]
    index = plan.index
    if index is not None:
        data = (json.dumps(index, indent=2, ensure_ascii=False) + "\n").encode()
        path = folder / INDEX_NAME
        with _write_errors(path), path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        digest = hashlib.sha256(data).hexdigest() if verify else None
        written.append(WrittenFile(INDEX_NAME, len(data), digest))
    return tuple(written)


def merged_scan(files: Iterable[WrittenFile]) -> ScanResult | None:
    """Return one scan result over ``files``; None where none was scanned."""
    scans = [file.scan for file in files if file.scan is not None]
    if not scans:
        return None
    return ScanResult(
        scanned=sum(scan.scanned for scan in scans),
        non_finite=tuple(found for scan in scans for found in scan.non_finite),
        unscanned=tuple(name for scan in scans for name in scan.unscanned),
    )


class _Hasher:
    """Hashes buffers in order on a thread of its own while the next ones are filled."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._free: SimpleQueue[bytearray] = SimpleQueue()
        self._full: SimpleQueue[tuple[bytearray, int] | None] = SimpleQueue()
        for _ in range(_BUFFERS):
            self._free.put(bytearray(file_reading.CHUNK_BYTES))
        self._thread = Thread(target=self._run, name="sha256", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._full.put(None)
        self._thread.join()

    def take(self) -> bytearray:
        """Return a buffer to fill, waiting for one."""
        return self._free.get()

    def put(self, buffer: bytearray, count: int) -> None:
        """Hash the first ``count`` bytes; the buffer may still be read until the next take."""
        self._full.put((buffer, count))

    def hexdigest(self) -> str:
        """Return the digest; only after the context has been left."""
        return self._digest.hexdigest()

    def _run(self) -> None:
        while (work := self._full.get()) is not None:
            buffer, count = work
            self._digest.update(memoryview(buffer)[:count])
            self._free.put(buffer)


class _Flusher:
    """Has what is written put on the disk meanwhile, so that the sync at the end is short."""

    def __init__(self, output: int) -> None:
        self._output = output
        self._dirty = 0
        self._wake = Event()
        self._ended = False
        self._error: OSError | None = None
        self._thread = Thread(target=self._run, name="flush", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended = True
        self._wake.set()
        self._thread.join()

    def wrote(self, count: int) -> None:
        """Note that ``count`` more bytes were written."""
        self._dirty += count
        if self._dirty >= FLUSH_BYTES:
            self._dirty = 0
            self._wake.set()

    def finish(self) -> None:
        """Put the rest on the disk; only after the context has been left.

        Raises:
            OSError: What was written before could not be stored; the kernel tells it only once.
        """
        if self._error is not None:
            raise self._error
        os.fsync(self._output)

    def _run(self) -> None:
        while self._wake.wait():
            self._wake.clear()
            if self._ended or self._error is not None:
                return
            try:
                os.fdatasync(self._output)
            except OSError as error:
                self._error = error


class _Copier:
    """Appends pieces to an open file, by the kernel where it can copy between the two files."""

    def __init__(self, output: int, pieces: Sequence[Piece], stack: ExitStack) -> None:
        self._output = output
        self._pieces = pieces
        self._stack = stack
        self._number = 0
        self._done = 0
        self._position = 0
        self._sources: dict[Path, int] = {}
        self._by_hand: set[Path] = set()
        self._buffer = bytearray()
        self._rendered: Iterator[memoryview] = iter(())
        self._left = memoryview(b"")

    def copy(self, count: int) -> None:
        """Append the next ``count`` bytes of the pieces."""
        while count:
            piece = self._pieces[self._number]
            step = min(count, piece.nbytes - self._done)
            if isinstance(piece, Literal):
                part = memoryview(piece.data)[self._done : self._done + step]
                moved = os.pwrite(self._output, part, self._position)
            elif isinstance(piece, Edit):
                moved = self._render(piece, step)
            else:
                moved = self._move(piece.path, piece.offset + self._done, step)
            self._position += moved
            self._done += moved
            count -= moved
            if self._done == piece.nbytes:
                self._number += 1
                self._done = 0

    def _render(self, edit: Edit, count: int) -> int:
        """Write at most ``count`` bytes of what is left of ``edit``'s output."""
        if self._done == 0:
            path = edit.source.path
            source = self._open(path)
            self._rendered = render(edit, lambda view, offset: fill(path, source, view, offset))
        if not self._left:
            self._left = next(self._rendered)
        moved = os.pwrite(self._output, self._left[:count], self._position)
        self._left = self._left[moved:]
        return moved

    def _move(self, path: Path, offset: int, count: int) -> int:
        source = self._open(path)
        if path not in self._by_hand:
            try:
                moved = os.copy_file_range(source, self._output, count, offset, self._position)
            except OSError as error:
                if error.errno in _DISK_FULL:
                    raise
                moved = 0
            if moved:
                return moved
            # Other file systems (EXDEV, EINVAL, ...), one that answers 0, or a real fault of either
            # file: reading and writing apart works or shows which.
            self._by_hand.add(path)
        if not self._buffer:
            self._buffer = bytearray(file_reading.CHUNK_BYTES)
        view = memoryview(self._buffer)[: min(count, file_reading.CHUNK_BYTES)]
        read = read_some(path, source, view, offset)
        return os.pwrite(self._output, view[:read], self._position)

    def _open(self, path: Path) -> int:
        if path not in self._sources:
            self._sources[path] = self._stack.enter_context(open_for_reading(path))
        return self._sources[path]


def _write_shard(
    shard: OutputShard, path: Path, verify: bool, progress: Callable[[int], None] | None
) -> WrittenFile:
    header = header_bytes(shard)
    placed = _placed(shard.tensors, path, len(header))
    size = len(header) + shard.nbytes
    verbatim = verbatim_source(shard)
    pieces: Sequence[Piece] = (Literal(header), *shard.pieces)
    if verbatim:
        pieces = (FileRange(verbatim, 0, size),)
    with ExitStack() as stack:
        stack.enter_context(_write_errors(path))
        output = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        stack.callback(os.close, output)
        copier = _Copier(output, pieces, stack)
        flusher = _Flusher(output)
        if not verify:
            with flusher:
                for start in range(0, size, COPY_BYTES):
                    count = min(COPY_BYTES, size - start)
                    copier.copy(count)
                    flusher.wrote(count)
                    if progress:
                        progress(count)
            flusher.finish()
            return WrittenFile(path.name, size, None)
        scan = FiniteScan()
        head = TensorInfo("", TensorSpec("U8", (len(header),)), path, 0, len(header))
        with flusher, _Hasher() as hasher:
            for chunk in chunks((head, *placed), file_reading.CHUNK_BYTES):
                copier.copy(chunk.nbytes)
                buffer = hasher.take()
                # Read back: what is hashed and scanned is what stands in the output.
                fill(path, output, memoryview(buffer)[: chunk.nbytes], chunk.offset)
                hasher.put(buffer, chunk.nbytes)
                flusher.wrote(chunk.nbytes)
                scan.look(buffer, chunk.parts)
                if progress:
                    progress(chunk.nbytes)
        flusher.finish()
        scan.finish(placed)
        return WrittenFile(path.name, size, hasher.hexdigest(), scan.result())


def _placed(tensors: Iterable[PlannedTensor], path: Path, offset: int) -> tuple[TensorInfo, ...]:
    """Return where the tensors will lie in the file ``path``, the first one at ``offset``."""
    placed = []
    for tensor in tensors:
        placed.append(TensorInfo(tensor.name, tensor.spec, path, offset, tensor.nbytes))
        offset += tensor.nbytes
    return tuple(placed)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise MissingHereError(
                "no space is left on the disk",
                where=path,
                remedy="Free space there or choose another --output",
            ) from error
        if isinstance(error, FileExistsError):
            raise CheckpointError("already exists", where=path) from error
        what = f"can't be written ({error.strerror})"
        raise MissingHereError(what, where=path, remedy="Choose another --output") from error
