"""What a file of ``torch.save`` holds, told without unpickling it or reading a tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_pack.checkpoint import DTYPE_BITS, Shard, TensorInfo, TensorSpec
from dflash_pack.errors import CheckpointError
from dflash_pack.torch_archive import TorchArchive, read_archive
from dflash_pack.torch_pickle import HARMLESS, StoredTensor, describe_pickle, named_globals

MAX_BYTES = 64 << 20
# All that a dict of float tensors needs.
_PLAIN_TENSORS = frozenset(
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


@dataclass(frozen=True)
class TorchFile:
    """A torch file, described.

    Attributes:
        archive: Where its storages lie.
        value: What was saved: plain values, ``StoredTensor`` for each tensor, ``Unread`` for any
            other object.
    """

    archive: TorchArchive
    value: Any


def read_plain_tensors(path: Path) -> TorchFile:
    """Return what ``path`` holds: a torch zip file whose pickle names nothing but tensor building.

    Raises:
        CheckpointError: If it is too large, no such file, malformed, or names any other global.
    """
    remedy = "Save it again with torch.save of a plain tensor, or leave the file out"
    if path.stat().st_size > MAX_BYTES:
        raise CheckpointError(f"is larger than {MAX_BYTES >> 20} MiB", where=path, remedy=remedy)
    return read_torch_file(path, remedy=remedy, allowed=_PLAIN_TENSORS)


def read_torch_file(path: Path, *, remedy: str, allowed: frozenset[str] = HARMLESS) -> TorchFile:
    """Return what ``path`` holds. Reads the pickle and the headers of the archive, no tensor.

    Args:
        path: A file that ``torch.save`` wrote.
        remedy: Next step for the user where it can't be read.
        allowed: Globals that the pickle may name, by default all of tensors, numbers and texts.

    Raises:
        CheckpointError: If it is no such file, names another global, or is malformed.
    """
    archive = read_archive(path, remedy=remedy)
    _require_named(archive, allowed, remedy)
    try:
        return TorchFile(archive, describe_pickle(archive.pickle))
    except ValueError as error:
        raise _unreadable(path, error, remedy) from None


def tensor_shard(
    archive: TorchArchive, tensors: Mapping[str, StoredTensor], *, remedy: str
) -> Shard:
    """Return where the numbers of ``tensors`` lie, so that they can be copied out of the archive.

    Two tensors may be the same numbers (a head tied to an embedding): they are then copied twice.

    Args:
        archive: The file.
        tensors: Name -> tensor.
        remedy: Next step for the user.

    Raises:
        CheckpointError: If a tensor is not one run of numbers inside its storage, the storage is
            missing or of another size, or two tensors overlap in part.
    """
    located = sorted(
        (_located(archive, name, tensor, remedy) for name, tensor in tensors.items()),
        key=lambda info: (info.offset, info.nbytes, info.name),
    )
    end, before = 0, (0, 0)
    for info in located:
        if info.offset < end and (info.offset, info.nbytes) != before:
            raise CheckpointError(
                "overlaps another tensor in part", where=archive.path, field=info.name
            )
        end, before = max(end, info.offset + info.nbytes), (info.offset, info.nbytes)
    return Shard(archive.path.name, archive.path, archive.size, tuple(located), {})


def _located(archive: TorchArchive, name: str, tensor: StoredTensor, remedy: str) -> TensorInfo:
    storage = tensor.storage
    record = archive.storages.get(storage.key)
    width = DTYPE_BITS[tensor.dtype] // 8
    count = math.prod(tensor.shape)
    problem: str | None = None
    if record is None:
        problem = "refers to a storage that is not in the file"
    elif record.nbytes != storage.count * (DTYPE_BITS[storage.dtype or "U8"] // 8):
        problem = f"has a storage of {record.nbytes} bytes, not of the size that it states"
    elif not _is_contiguous(tensor):
        problem = "is stored with gaps or transposed, not as one run of numbers"
    elif (tensor.start + count) * width > record.nbytes:
        problem = f"reaches beyond its storage of {record.nbytes} bytes"
    if problem is not None or record is None:
        raise CheckpointError(str(problem), where=archive.path, field=name, remedy=remedy)
    offset = record.offset + tensor.start * width
    return TensorInfo(
        name, TensorSpec(tensor.dtype, tensor.shape), archive.path, offset, count * width
    )


def _is_contiguous(tensor: StoredTensor) -> bool:
    """Return whether the elements follow each other in row order; single ones need no stride."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if size > 1 and stride != expected:
            return 0 in tensor.shape
        expected *= size
    return True


def _require_named(archive: TorchArchive, allowed: frozenset[str], remedy: str) -> None:
    try:
        foreign = sorted(named_globals(archive.pickle) - allowed)
    except ValueError as error:
        raise _unreadable(archive.path, error, remedy) from None
    if foreign:
        raise CheckpointError(
            f"names {foreign[0].replace(' ', '.')[:200]}, which is more than tensors, numbers and "
            "texts: loading it could run anything",
            where=archive.path,
            remedy=remedy,
        )


def _unreadable(path: Path, error: ValueError, remedy: str) -> CheckpointError:
    return CheckpointError(f"is no file of torch.save ({error})", where=path, remedy=remedy)
