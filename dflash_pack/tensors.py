"""Tensor plans and the streaming safetensors writer: bytes move, tensors are never loaded.

A plan says of which pieces each output tensor consists; the writer turns a plan into files at the
speed of a copy. Splitting rows or joining tensors means other pieces, not another writer.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self

from dflash_pack.checkpoint import (
    DTYPE_BITS,
    INDEX_NAME,
    WEIGHTS_NAME,
    Checkpoint,
    TensorInfo,
    TensorSpec,
)
from dflash_pack.errors import CheckpointError, MissingHereError
from dflash_pack.strict_json import MIB, open_regular

if TYPE_CHECKING:
    from types import TracebackType

# Small enough to stay in a core's cache between copying, hashing and scanning.
CHUNK_BYTES = 1 * MIB
COPY_BYTES = 64 * MIB
FLUSH_BYTES = 128 * MIB
_BUFFERS = 4
_ALIGNMENT = 8
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


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


Piece = FileRange | Literal


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


@dataclass(frozen=True)
class NonFinite:
    """A tensor with values that are not numbers one can compute with."""

    name: str
    nan: int
    infinite: int


@dataclass(frozen=True)
class ScanResult:
    """What a search for NaN and infinity found.

    Attributes:
        scanned: Number of tensors whose every value was looked at.
        non_finite: Those that hold NaN or infinity, in the order of the files.
        unscanned: Tensors of float dtypes that the scan doesn't know (integers need no scan).
    """

    scanned: int
    non_finite: tuple[NonFinite, ...]
    unscanned: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether no value was NaN or infinite, among those scanned."""
        return not self.non_finite


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


def plan_tensors(checkpoint: Checkpoint, rename: Mapping[str, str | None]) -> TensorPlan:
    """Return the plan that copies ``checkpoint`` with other tensor names.

    Shards and the order of the data stay as they are, so a file is one range to copy as long as
    nothing is dropped from its middle. Shards that become empty vanish.

    Args:
        checkpoint: The source.
        rename: Source name -> output name, None to drop; names absent here stay.

    Raises:
        CheckpointError: Two tensors would get one name, or none is left.
        ValueError: ``rename`` has a tensor that the checkpoint hasn't.
    """
    unknown = rename.keys() - checkpoint.tensors.keys()
    if unknown:
        raise ValueError(f"no such tensors to rename: {sorted(unknown)}")
    homes: dict[str, str] = {}
    kept: list[tuple[tuple[PlannedTensor, ...], Mapping[str, str]]] = []
    for shard in checkpoint.shards:
        planned = []
        for tensor in shard.tensors:
            name = rename.get(tensor.name, tensor.name)
            if name is None:
                continue
            if name in homes:
                what = f"both {homes[name]} and {tensor.name} would be written under this name"
                raise CheckpointError(what, where=checkpoint.path, field=name)
            homes[name] = tensor.name
            piece = FileRange(tensor.path, tensor.offset, tensor.nbytes)
            planned.append(PlannedTensor(name, tensor.spec, (piece,)))
        if planned:
            # transformers 5 refuses files whose metadata does not name a framework.
            kept.append((tuple(planned), {"format": "pt", **shard.metadata}))
    if not kept:
        raise CheckpointError("no tensor would be left to write", where=checkpoint.path)
    return TensorPlan(
        tuple(
            OutputShard(_shard_name(number, len(kept)), tensors, metadata)
            for number, (tensors, metadata) in enumerate(kept, start=1)
        )
    )


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
        CheckpointError: A source file changed or ended meanwhile.
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
    pieces = _coalesced(shard.tensors)
    if len(pieces) != 1 or not isinstance(pieces[0], FileRange):
        return None
    data = pieces[0]
    if data.offset != len(header):
        return None
    found = bytearray(len(header))
    with _open_source(data.path) as source:
        if os.fstat(source).st_size != data.offset + data.nbytes:
            return None
        _fill(data.path, source, memoryview(found), 0)
    return data.path if found == header else None


def same_bytes(first: TensorInfo, second: TensorInfo) -> bool:
    """Return whether two tensors have one dtype, one shape and the same bytes.

    Raises:
        CheckpointError: One of the files can't be read any more.
    """
    if first.spec != second.spec or first.nbytes != second.nbytes:
        return False
    buffers = bytearray(CHUNK_BYTES), bytearray(CHUNK_BYTES)
    with _open_source(first.path) as one, _open_source(second.path) as two:
        for start in range(0, first.nbytes, CHUNK_BYTES):
            count = min(CHUNK_BYTES, first.nbytes - start)
            _fill(first.path, one, memoryview(buffers[0])[:count], first.offset + start)
            _fill(second.path, two, memoryview(buffers[1])[:count], second.offset + start)
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


def scan_finite(
    checkpoint: Checkpoint, progress: Callable[[int], None] | None = None
) -> ScanResult:
    """Return which tensors of ``checkpoint`` hold NaN or infinity.

    Args:
        checkpoint: An existing checkpoint.
        progress: Called with the number of bytes looked at since its last call.

    Raises:
        CheckpointError: A file changed since its header was read.
    """
    scan = _FiniteScan()
    buffer = bytearray(CHUNK_BYTES)
    for shard in checkpoint.shards:
        with _open_source(shard.path) as source:
            for chunk in _chunks(shard.tensors, CHUNK_BYTES):
                view = memoryview(buffer)[: chunk.nbytes]
                _fill(shard.path, source, view, chunk.offset)
                scan.look(buffer, chunk.parts)
                if progress:
                    progress(chunk.nbytes)
        scan.finish(shard.tensors)
    return scan.result()


@dataclass(frozen=True)
class _Part:
    """Whole elements of one tensor inside a chunk, ``start`` bytes into it."""

    name: str
    dtype: str
    start: int
    nbytes: int


@dataclass(frozen=True)
class _Chunk:
    offset: int
    nbytes: int
    parts: tuple[_Part, ...]


def _chunks(tensors: Sequence[TensorInfo], limit: int) -> Iterator[_Chunk]:
    """Cut adjoining tensors into chunks of at most ``limit`` bytes that split no element."""
    parts: list[_Part] = []
    begin = used = 0
    for tensor in tensors:
        done = 0
        while done < tensor.nbytes:
            take = min(limit - used, tensor.nbytes - done)
            if take < tensor.nbytes - done:
                take -= take % _ALIGNMENT
            if take == 0:
                yield _Chunk(begin, used, tuple(parts))
                parts, used = [], 0
                continue
            if not parts:
                begin = tensor.offset + done
            parts.append(_Part(tensor.name, tensor.spec.dtype, used, take))
            used += take
            done += take
    if parts:
        yield _Chunk(begin, used, tuple(parts))


# Bit patterns with the sign bit cleared: (bytes, first non-finite, first NaN).
# F8_E4M3 (OCP 8-bit "FN") has no infinity and one NaN.
_PATTERNS: Mapping[str, tuple[int, int, int]] = {
    "F64": (8, 0x7FF0_0000_0000_0000, 0x7FF0_0000_0000_0001),
    "F32": (4, 0x7F80_0000, 0x7F80_0001),
    "BF16": (2, 0x7F80, 0x7F81),
    "F16": (2, 0x7C00, 0x7C01),
    "F8_E5M2": (1, 0x7C, 0x7D),
    "F8_E4M3": (1, 0x7F, 0x7F),
}
_INTEGERS = frozenset({"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"})


class _FiniteScan:
    """Counts NaN and infinity by bit patterns, so that no dtype needs a library."""

    def __init__(self) -> None:
        self._found: dict[str, list[int]] = {}
        self._unscanned: list[str] = []
        self._scanned = 0

    def look(self, buffer: bytearray, parts: Iterable[_Part]) -> None:
        """Count in those ``parts`` of ``buffer`` whose dtype has a pattern."""
        import numpy as np

        for part in parts:
            if part.dtype not in _PATTERNS:
                continue
            width, infinity, first_nan = _PATTERNS[part.dtype]
            sign = 1 << (8 * width - 1)
            values: Any = np.frombuffer(
                buffer, dtype=f"<u{width}", count=part.nbytes // width, offset=part.start
            )
            # Two maxima decide without a temporary array: as signed for the positive values, as
            # unsigned for the negative ones.
            if int(values.view(f"<i{width}").max()) < infinity and int(values.max()) < (
                sign | infinity
            ):
                continue
            size = values & (sign - 1)
            counts = self._found.setdefault(part.name, [0, 0])
            nan = int(np.count_nonzero(size >= first_nan))
            counts[0] += nan
            counts[1] += int(np.count_nonzero(size >= infinity)) - nan

    def finish(self, tensors: Iterable[TensorInfo]) -> None:
        """Note that all of ``tensors`` have passed."""
        for tensor in tensors:
            if tensor.spec.dtype in _PATTERNS:
                self._scanned += 1
            elif tensor.spec.dtype not in _INTEGERS:
                self._unscanned.append(tensor.name)

    def result(self) -> ScanResult:
        """Return what was found."""
        found = tuple(NonFinite(name, nan, inf) for name, (nan, inf) in self._found.items())
        return ScanResult(self._scanned, found, tuple(self._unscanned))


class _Hasher:
    """Hashes buffers in order on a thread of its own while the next ones are filled."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._free: SimpleQueue[bytearray] = SimpleQueue()
        self._full: SimpleQueue[tuple[bytearray, int] | None] = SimpleQueue()
        for _ in range(_BUFFERS):
            self._free.put(bytearray(CHUNK_BYTES))
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

    def copy(self, count: int) -> None:
        """Append the next ``count`` bytes of the pieces."""
        while count:
            piece = self._pieces[self._number]
            step = min(count, piece.nbytes - self._done)
            if isinstance(piece, Literal):
                part = memoryview(piece.data)[self._done : self._done + step]
                moved = os.pwrite(self._output, part, self._position)
            else:
                moved = self._move(piece.path, piece.offset + self._done, step)
            self._position += moved
            self._done += moved
            count -= moved
            if self._done == piece.nbytes:
                self._number += 1
                self._done = 0

    def _move(self, path: Path, offset: int, count: int) -> int:
        if path not in self._sources:
            self._sources[path] = self._stack.enter_context(_open_source(path))
        source = self._sources[path]
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
            self._buffer = bytearray(CHUNK_BYTES)
        view = memoryview(self._buffer)[: min(count, CHUNK_BYTES)]
        read = _read_source(path, source, view, offset)
        return os.pwrite(self._output, view[:read], self._position)


def _write_shard(
    shard: OutputShard, path: Path, verify: bool, progress: Callable[[int], None] | None
) -> WrittenFile:
    header = header_bytes(shard)
    placed = _placed(shard.tensors, path, len(header))
    size = len(header) + shard.nbytes
    verbatim = verbatim_source(shard)
    pieces: Sequence[Piece] = (Literal(header), *_coalesced(shard.tensors))
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
        scan = _FiniteScan()
        head = TensorInfo("", TensorSpec("U8", (len(header),)), path, 0, len(header))
        with flusher, _Hasher() as hasher:
            for chunk in _chunks((head, *placed), CHUNK_BYTES):
                copier.copy(chunk.nbytes)
                buffer = hasher.take()
                # Read back: what is hashed and scanned is what stands in the output.
                _fill(path, output, memoryview(buffer)[: chunk.nbytes], chunk.offset)
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


def _coalesced(tensors: Iterable[PlannedTensor]) -> list[Piece]:
    """Return the pieces of all ``tensors`` in order, adjoining ranges of a file joined."""
    pieces: list[Piece] = []
    for tensor in tensors:
        for piece in tensor.pieces:
            last = pieces[-1] if pieces else None
            if piece.nbytes == 0:
                continue
            if (
                isinstance(piece, FileRange)
                and isinstance(last, FileRange)
                and piece.path == last.path
                and piece.offset == last.offset + last.nbytes
            ):
                pieces[-1] = FileRange(last.path, last.offset, last.nbytes + piece.nbytes)
            else:
                pieces.append(piece)
    return pieces


def _shard_name(number: int, count: int) -> str:
    return WEIGHTS_NAME if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def _read_source(path: Path, source: int, view: memoryview, offset: int) -> int:
    """Read into ``view`` and return how many bytes came, at least one."""
    try:
        count = os.preadv(source, [view], offset)
    except OSError as error:
        raise CheckpointError(f"can't be read ({error.strerror})", where=path) from error
    if count == 0:
        raise _changed(path)
    return count


def _fill(path: Path, source: int, view: memoryview, offset: int) -> None:
    """Fill ``view`` from the file, which must have that many bytes."""
    filled = 0
    while filled < len(view):
        filled += _read_source(path, source, view[filled:], offset + filled)


@contextmanager
def _open_source(path: Path) -> Iterator[int]:
    """Open a file to read from, and complain on leaving if it changed meanwhile."""
    with open_regular(path) as file:
        before = os.fstat(file.fileno())
        yield file.fileno()
        after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise _changed(path)


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


def _changed(path: Path) -> CheckpointError:
    return CheckpointError(
        "changed while it was read", where=path, remedy="Run again when nothing else writes it"
    )
