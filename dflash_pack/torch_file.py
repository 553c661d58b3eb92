"""Whether a small ``.pt`` file can only build a tensor, told without unpickling it."""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path

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
        with zipfile.ZipFile(path) as archive:
            entry = next(e for e in archive.infolist() if e.filename.endswith("/data.pkl"))
            with archive.open(entry) as stream:
                data = stream.read(_MAX_PICKLE + 1)
        if len(data) > _MAX_PICKLE:
            raise ValueError("its pickle is too large")
        named = _globals(data)
    except (zipfile.BadZipFile, StopIteration, ValueError, EOFError, NotImplementedError) as error:
        why = f" ({error})" if str(error) else ""
        raise CheckpointError(f"is no file of torch.save{why}", where=path, remedy=remedy) from None
    foreign = sorted(named - _HARMLESS)
    if foreign:
        raise CheckpointError(
            f"would run {foreign[0].replace(' ', '.')} when it is loaded", where=path, remedy=remedy
        )


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
