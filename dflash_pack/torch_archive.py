"""A torch zip file at rest: its one pickle, and where its storages lie, within bounds."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_pack.errors import CheckpointError
from dflash_pack.strict_json import MIB, open_regular

# One tensor takes about 250 bytes of the pickle and 110 of the directory; optimizers have three
# for each weight. Room for several thousand weights, and far below what would hurt to hold.
MAX_PICKLE = 4 * MIB
_MAX_READ = MAX_PICKLE + MIB // 16
_LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
_MAGIC = b"PK\x03\x04"
_ENCRYPTED, _UTF8 = 0x1, 0x800
_FAULTS = (
    OSError,
    RuntimeError,  # NotImplementedError, one of its kind: a version that zipfile does not know
    ValueError,
    EOFError,
    OverflowError,
    struct.error,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class Record:
    """``nbytes`` of the file from ``offset`` on."""

    offset: int
    nbytes: int


@dataclass(frozen=True)
class TorchArchive:
    """What a torch zip file holds.

    Attributes:
        path: The file.
        size: Its bytes.
        pickle: The one pickle in it.
        storages: Key of a storage -> where its bytes lie, uncompressed and little-endian.
    """

    path: Path
    size: int
    pickle: bytes
    storages: Mapping[str, Record]


def read_archive(path: Path, *, remedy: str) -> TorchArchive:
    """Return pickle and storages of ``path``; of the storages only the headers are read.

    Whatever could make two readers see different things is refused: bytes before the archive,
    entries of one name, of several folders, compressed, encrypted or overlapping ones.

    Args:
        path: A file that ``torch.save`` wrote, in the zip format (torch 1.6 and later).
        remedy: Next step for the user.

    Raises:
        CheckpointError: If it is anything else, damaged, or its pickle is too large.
    """
    with open_regular(path) as file:
        try:
            return _read(path, file.fileno())
        except _FAULTS as error:
            why = f" ({error})" if str(error) else ""
            what = f"is no file of torch.save{why}"
            raise CheckpointError(what, where=path, remedy=remedy) from None


class _BoundedReads(io.FileIO):
    """A file that refuses large reads: zipfile reads the whole directory in one."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return at most ``size`` bytes, all that are left where it is negative or None.

        Raises:
            ValueError: If that is more than anything but a storage needs.
        """
        wanted = _MAX_READ + 1 if size is None or size < 0 else size
        if size is not None and size > _MAX_READ:
            raise ValueError("its directory is too large")
        data = super().read(wanted) or b""
        if len(data) > _MAX_READ:
            raise ValueError("its directory is too large")
        return data


def _read(path: Path, descriptor: int) -> TorchArchive:
    size = os.fstat(descriptor).st_size
    if os.pread(descriptor, 4, 0) != _MAGIC:
        raise ValueError("something stands before the archive, or it is of the format before 1.6")
    with _BoundedReads(os.dup(descriptor)) as file, zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        root = _only_folder(entries)
        # Before anything is read of an entry: a small one can decompress to any size.
        records = _records(descriptor, entries, archive.start_dir)
        data = _pickle(descriptor, entries, records, root)
    order = records.get(f"{root}/byteorder")
    if order is not None and os.pread(descriptor, min(order.nbytes, 64), order.offset) != b"little":
        raise ValueError("its numbers are big-endian")
    start = f"{root}/data/"
    storages = {
        name.removeprefix(start): record
        for name, record in records.items()
        if name.startswith(start)
    }
    return TorchArchive(path, size, data, storages)


def _only_folder(entries: list[zipfile.ZipInfo]) -> str:
    names = [entry.filename for entry in entries]
    if len(set(names)) != len(names):
        raise ValueError("two entries have one name")
    roots = {name.partition("/")[0] for name in names}
    if len(roots) != 1:
        raise ValueError("entries lie in several folders")
    return roots.pop()


def _pickle(
    descriptor: int, entries: list[zipfile.ZipInfo], records: Mapping[str, Record], root: str
) -> bytes:
    """Return the one pickle; another could be what some reader opens."""
    pickles = [entry for entry in entries if entry.filename.endswith(".pkl")]
    if [entry.filename for entry in pickles] != [f"{root}/data.pkl"]:
        raise ValueError("it holds not exactly one pickle")
    record = records[pickles[0].filename]
    if record.nbytes > MAX_PICKLE:
        raise ValueError("its pickle is too large")
    data = os.pread(descriptor, record.nbytes, record.offset)
    if zlib.crc32(data) != pickles[0].CRC:
        raise ValueError("its pickle is damaged")
    return data


def _records(descriptor: int, entries: list[zipfile.ZipInfo], directory: int) -> dict[str, Record]:
    """Return where the bytes of every entry lie; none is compressed, overlaps or leaves the file.

    Args:
        descriptor: The open file.
        entries: Its directory.
        directory: Offset at which the directory starts.
    """
    records: dict[str, Record] = {}
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end or (end == 0 and entry.header_offset != 0):
            raise ValueError(f"{entry.filename} overlaps another entry, or a gap precedes it")
        if entry.flag_bits & _ENCRYPTED:
            raise ValueError(f"{entry.filename} is encrypted")
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise ValueError(f"{entry.filename} is compressed, which torch.save never does")
        offset = entry.header_offset + _header_size(descriptor, entry)
        end = offset + entry.file_size
        if end > directory:
            raise ValueError(f"{entry.filename} reaches beyond the end")
        records[entry.filename] = Record(offset, entry.file_size)
    return records


def _header_size(descriptor: int, entry: zipfile.ZipInfo) -> int:
    """Return the bytes before an entry's data; its own header has to say what the directory says.

    Sizes are not compared: torch.save writes them behind the data only.
    """
    header = os.pread(descriptor, _LOCAL_HEADER.size, entry.header_offset)
    magic, _, flags, method, *_, name_size, extra_size = _LOCAL_HEADER.unpack(header)
    size: int = _LOCAL_HEADER.size + name_size + extra_size
    name = os.pread(descriptor, name_size, entry.header_offset + _LOCAL_HEADER.size)
    text = name.decode("utf-8" if flags & _UTF8 else "cp437")
    if magic != _MAGIC or flags & _ENCRYPTED or method or text != entry.orig_filename:
        raise ValueError(f"{entry.filename} has a header that the directory contradicts")
    return size
