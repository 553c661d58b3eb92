"""Whether a small ``.pt`` file can only build a tensor, told without unpickling it."""

from __future__ import annotations

import pickletools
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from dflash_pack.errors import CheckpointError

MAX_BYTES = 64 << 20
_MAX_PICKLE = 1 << 20
# What torch.load(weights_only=True) needs to rebuild a dict of tensors, and nothing else.
_HARMLESS = frozenset(
    {
        "collections OrderedDict",
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_parameter",
        "torch BFloat16Storage",
        "torch FloatStorage",
        "torch HalfStorage",
        "torch DoubleStorage",
    }
)


def require_plain_tensors(path: Path) -> None:
    """Check that ``path`` is a torch zip file whose pickle names nothing but tensor building.

    Raises:
        CheckpointError: If it is too large, no torch zip file, or names any other global.
    """
    remedy = "Save it again with torch.save of a plain tensor, or leave the file out"
    if path.stat().st_size > MAX_BYTES:
        raise CheckpointError(f"is larger than {MAX_BYTES >> 20} MiB", where=path, remedy=remedy)
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            data = _only_pickle(file, archive)
        named = _globals(data)
    except (OSError, RuntimeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # RuntimeError: encrypted; NotImplementedError, one of its kind: unknown compression.
        why = f" ({error})" if str(error) else ""
        raise CheckpointError(f"is no file of torch.save{why}", where=path, remedy=remedy) from None
    foreign = sorted(named - _HARMLESS)
    if foreign:
        raise CheckpointError(
            f"would run {foreign[0].replace(' ', '.')} when it is loaded", where=path, remedy=remedy
        )


def _only_pickle(file: BinaryIO, archive: zipfile.ZipFile) -> bytes:
    """Return the one pickle of a torch file; whatever could hide another is refused.

    Raises:
        ValueError: Something precedes the archive, names repeat or differ in their folder, there is
            not exactly one pickle, or it is too large.
    """
    file.seek(0)
    if file.read(4) != b"PK\x03\x04":
        raise ValueError("something stands before the archive")
    names = [entry.filename for entry in archive.infolist()]
    if len(set(names)) != len(names):
        raise ValueError("two entries have one name")
    if len({name.partition("/")[0] for name in names}) != 1:
        raise ValueError("entries lie in several folders")
    pickles = [name for name in names if name.endswith(".pkl")]
    root = names[0].partition("/")[0]
    if pickles != [f"{root}/data.pkl"]:
        raise ValueError("it holds not exactly one pickle")
    with archive.open(pickles[0]) as stream:
        data = stream.read(_MAX_PICKLE + 1)
    if len(data) > _MAX_PICKLE:
        raise ValueError("its pickle is too large")
    return data


def _globals(data: bytes) -> set[str]:
    """Return every global that the pickle names, ``module name``."""
    found: set[str] = set()
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("GLOBAL", "INST"):
            found.add(str(argument))
        elif opcode.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4"):
            # torch.save never writes these, and their names can be hidden in the memo.
            found.add(f"a hidden name ({opcode.name})")
    return found
