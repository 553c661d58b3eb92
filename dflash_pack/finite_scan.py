"""The search for NaN and infinity, by bit patterns and in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_pack import file_reading
from dflash_pack.checkpoint import Checkpoint, TensorInfo
from dflash_pack.file_reading import fill, open_for_reading

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The widest element, in bytes: a cut at a multiple of it splits none.
WIDEST = 8

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
class Part:
    """Whole elements of one tensor inside a chunk, ``start`` bytes into it."""

    name: str
    dtype: str
    start: int
    nbytes: int


@dataclass(frozen=True)
class Chunk:
    """``nbytes`` of a file from ``offset`` on, and whose they are."""

    path: Path
    offset: int
    nbytes: int
    parts: tuple[Part, ...]


def chunks(tensors: Sequence[TensorInfo], limit: int) -> Iterator[Chunk]:
    """Yield the bytes of ``tensors`` in order, in chunks that split no element.

    A chunk holds more than one tensor where they adjoin in their file.

    Args:
        tensors: What to cut.
        limit: Bytes of a chunk at most; at least :data:`WIDEST`.
    """
    parts: list[Part] = []
    path, begin, used = Path(), 0, 0
    for tensor in tensors:
        done = 0
        while done < tensor.nbytes:
            adjoins = tensor.path == path and tensor.offset + done == begin + used
            take = min(limit - used, tensor.nbytes - done)
            if take < tensor.nbytes - done:
                take -= take % WIDEST
            if parts and (take == 0 or not adjoins):
                yield Chunk(path, begin, used, tuple(parts))
                parts, used = [], 0
                continue
            if not parts:
                path, begin = tensor.path, tensor.offset + done
            parts.append(Part(tensor.name, tensor.spec.dtype, used, take))
            used += take
            done += take
    if parts:
        yield Chunk(path, begin, used, tuple(parts))


def all_finite(bits: NDArray[Any], dtype: str) -> bool:
    """Return whether no value is NaN or infinite.

    Args:
        bits: The values' bit patterns as little-endian unsigned integers, at least one.
        dtype: A dtype code that has a pattern, of the same width.
    """
    width, infinity, _ = _PATTERNS[dtype]
    sign = 1 << (8 * width - 1)
    # Two maxima decide without a temporary array: as signed for the positive values, as unsigned
    # for the negative ones.
    return int(bits.view(f"<i{width}").max()) < infinity and int(bits.max()) < (sign | infinity)


class FiniteScan:
    """Counts NaN and infinity by bit patterns, so that no dtype needs a library."""

    def __init__(self) -> None:
        self._found: dict[str, list[int]] = {}
        self._unscanned: list[str] = []
        self._scanned = 0

    def look(self, buffer: bytearray, parts: Iterable[Part]) -> None:
        """Count in those ``parts`` of ``buffer`` whose dtype has a pattern."""
        import numpy as np

        for part in parts:
            if part.dtype not in _PATTERNS:
                continue
            width, infinity, first_nan = _PATTERNS[part.dtype]
            values: Any = np.frombuffer(
                buffer, dtype=f"<u{width}", count=part.nbytes // width, offset=part.start
            )
            if all_finite(values, part.dtype):
                continue
            size = values & ((1 << (8 * width - 1)) - 1)
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
    scan = FiniteScan()
    buffer = bytearray(file_reading.CHUNK_BYTES)
    for shard in checkpoint.shards:
        with ExitStack() as stack:
            sources: dict[Path, int] = {}
            for chunk in chunks(shard.tensors, len(buffer)):
                if chunk.path not in sources:
                    sources[chunk.path] = stack.enter_context(open_for_reading(chunk.path))
                view = memoryview(buffer)[: chunk.nbytes]
                fill(chunk.path, sources[chunk.path], view, chunk.offset)
                scan.look(buffer, chunk.parts)
                if progress:
                    progress(chunk.nbytes)
        scan.finish(shard.tensors)
    return scan.result()
