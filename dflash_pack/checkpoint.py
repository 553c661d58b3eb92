"""A checkpoint at rest: config, tensor headers and side files of a folder. Reads no tensor data."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_pack.errors import CheckpointError, DflashPackError, MissingHereError
from dflash_pack.strict_json import MIB, open_regular, parse_json_object, read_json_object

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIG_NAME = "config.json"
# What this tool itself puts beside the weights: its record, and its reports, never published.
MANIFEST_NAME = "dflash_pack.json"
REPORTS_NAME = ".dflash-pack"
CONVERSION_NAME, REPORT_NAME, LOG_NAME = "conversion.json", "validation.json", "decode.log"
MARKDOWN_NAME, JUNIT_NAME = "validation.md", "validation.xml"
# Of a validation; the first says that the others are a report's too.
VALIDATION_NAMES = (REPORT_NAME, MARKDOWN_NAME, JUNIT_NAME, LOG_NAME)
REPORT_NAMES = (CONVERSION_NAME, *VALIDATION_NAMES)
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
SUFFIX = ".safetensors"

# Bits of one element by dtype code: safetensors 0.8, safetensors/src/tensor.rs, enum Dtype.
DTYPE_BITS: Mapping[str, int] = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("BOOL", "U8", "I8"), 8),
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
# The names that configs and options use for the dtypes of unquantised weights.
DTYPE_NAMES: Mapping[str, str] = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
}

# What a clone without Git LFS has in place of a file: "version https://git-lfs...".
_LFS_POINTER = b"version "
# A header names about 130 bytes per tensor, so this is room for 100 000 tensors in one file.
MAX_HEADER_BYTES = 16 * MIB
MAX_HEADER_VALUES = 1_000_000
MAX_FILES = 10_000
MAX_FOLDER_DEPTH = 8
_SKIPPED_FOLDERS = frozenset({".git", ".cache", REPORTS_NAME})
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True)
class TensorSpec:
    """Dtype (safetensors code, e.g. ``BF16``) and shape of one tensor."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor's bytes lie.

    Attributes:
        name: Tensor name.
        spec: Dtype and shape.
        path: The file, safetensors or a torch archive.
        offset: Absolute byte offset of the data in that file.
        nbytes: Length of the data.
    """

    name: str
    spec: TensorSpec
    path: Path
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Shard:
    """One file of weights: its tensors in the order of their data."""

    name: str
    path: Path
    size: int
    tensors: tuple[TensorInfo, ...]
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class SideFile:
    """Any other file of the folder, by its path relative to it."""

    name: str
    path: Path
    size: int


@dataclass(frozen=True)
class Contents:
    """What an engine sees of a checkpoint, written or only planned.

    Attributes:
        config: The parsed ``config.json``.
        tensors: Name -> dtype and shape.
        side_files: Names of the other files.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, TensorSpec]
    side_files: frozenset[str]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose headers are read and checked.

    Attributes:
        path: Its folder, or the one file of weights where no folder belongs to it.
        config: The parsed config.
        shards: The files of weights.
        side_files: The other files of the folder.
        config_path: Where the config was read; None for the folder's ``config.json``.
    """

    path: Path
    config: Mapping[str, Any]
    shards: tuple[Shard, ...]
    side_files: tuple[SideFile, ...]
    config_path: Path | None = None

    @property
    def config_file(self) -> Path:
        """Return the file that the config was read from."""
        return self.path / CONFIG_NAME if self.config_path is None else self.config_path

    @property
    def loadable(self) -> bool:
        """Whether the folder has the form that engines load, so that their views of it count."""
        return self.config_path is None

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """Return name -> tensor over all shards."""
        return {tensor.name: tensor for shard in self.shards for tensor in shard.tensors}

    @property
    def contents(self) -> Contents:
        """Return the view that readers and engines take."""
        return Contents(
            config=self.config,
            tensors={name: info.spec for name, info in self.tensors.items()},
            side_files=frozenset(file.name for file in self.side_files),
        )

    @property
    def weight_bytes(self) -> int:
        """Total size of all tensors in bytes."""
        return sum(tensor.nbytes for shard in self.shards for tensor in shard.tensors)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Return the checkpoint in ``folder``, its config parsed and every tensor header checked.

    Weights are ``model.safetensors``, or the shards that ``model.safetensors.index.json`` names,
    or, with neither, the only ``*.safetensors`` file. Nothing but ``config.json``, the index and
    the headers is read; pickles and other side files are only listed.

    Raises:
        MissingHereError: ``folder`` is the name of a Hub repository, not a folder.
        CheckpointError: A file is missing, broken, contradicts another or leaves the folder.
    """
    if not folder.is_dir():
        raise not_a_folder(str(folder))
    files = {file.name: file for file in folder_files(folder)}
    if CONFIG_NAME not in files:
        raise CheckpointError(
            "is missing", where=folder / CONFIG_NAME, remedy="Give the drafter's folder"
        )
    config = read_json_object(folder / CONFIG_NAME)
    weights = sorted(name for name in files if name.endswith(SUFFIX) and "/" not in name)
    used = {CONFIG_NAME}
    if INDEX_NAME in files:
        weight_map = read_weight_map(folder / INDEX_NAME)
        names = sorted(set(weight_map.values()))
        used.add(INDEX_NAME)
        for name in names:
            if name not in files:
                raise CheckpointError(
                    f"names the shard {name}, which is not in the folder",
                    where=folder / INDEX_NAME,
                    remedy="Download the checkpoint again, completely",
                )
    else:
        weight_map = None
        names = [_only_weights(folder, weights, files)]
    stray = [name for name in weights if name not in names]
    if stray:
        said_by = INDEX_NAME if weight_map is not None else f"the presence of {WEIGHTS_NAME}"
        raise CheckpointError(
            f"holds {_some(stray)}, which {said_by} leaves unused while engines may load it",
            where=folder,
            remedy="Remove the stray weights",
        )
    used.update(names)
    shards = tuple(read_shard(files[name].path) for name in names)
    _check_names(folder, shards, weight_map)
    side_files = tuple(files[name] for name in sorted(files) if name not in used)
    return Checkpoint(path=folder, config=config, shards=shards, side_files=side_files)


def read_shard(path: Path) -> Shard:
    """Return the header of the safetensors file ``path``, checked against the file's size.

    Ours is the strict reading (unknown keys, duplicate keys, bounded size, sentences);
    ``safetensors.safe_open`` then has to agree, being what engines read with.

    Raises:
        CheckpointError: The file is truncated, too long, or its header is malformed.
    """
    header, data_start, size = _read_header(path)
    metadata = header.pop("__metadata__", {})
    if not _is_text_mapping(metadata):
        raise _broken(path, "__metadata__", "is not an object of strings")
    tensors = sorted(
        (_tensor(path, name, entry, data_start) for name, entry in header.items()),
        key=lambda tensor: (tensor.offset, tensor.nbytes),
    )
    end = data_start
    for tensor in tensors:
        if tensor.offset != end:
            what = "overlaps the tensor before it" if tensor.offset < end else "has a gap before it"
            raise _broken(path, tensor.name, what)
        end += tensor.nbytes
    if end > size:
        raise CheckpointError(
            f"is truncated: its header describes {end} bytes, the file has {size}",
            where=path,
            remedy="Copy or download it again",
        )
    if end < size:
        raise CheckpointError(f"has {size - end} bytes after its last tensor", where=path)
    _check_by_safetensors(path, len(tensors))
    return Shard(path.name, path, size, tuple(tensors), metadata)


def tensor_bytes(info: TensorInfo, *, limit: int = 16 * MIB) -> bytes:
    """Return the raw little-endian bytes of a small tensor.

    Raises:
        CheckpointError: It is larger than ``limit`` bytes, or its file can't be read any more.
    """
    if info.nbytes > limit:
        what = f"has {info.nbytes} bytes where at most {limit} are expected"
        raise CheckpointError(what, where=info.path, field=info.name)
    with open_regular(info.path) as file:
        try:
            file.seek(info.offset)
            data = file.read(info.nbytes)
        except OSError as error:
            what = f"can't be read ({error.strerror})"
            raise CheckpointError(what, where=info.path, field=info.name) from error
    if len(data) != info.nbytes:
        raise CheckpointError("changed while it was read", where=info.path, field=info.name)
    return data


def read_int64(info: TensorInfo, *, limit: int = 16 * MIB) -> NDArray[np.int64]:
    """Return a small int64 tensor such as ``d2t`` (shape as stored, read-only).

    Raises:
        CheckpointError: Its dtype is not I64, or as for :func:`tensor_bytes`.
    """
    import numpy as np

    _require_dtype(info, "I64")
    data = tensor_bytes(info, limit=limit)
    return np.frombuffer(data, dtype="<i8").reshape(info.spec.shape)


def read_bool(info: TensorInfo, *, limit: int = 16 * MIB) -> NDArray[np.bool_]:
    """Return a small bool tensor such as ``t2d`` (shape as stored, read-only).

    Raises:
        CheckpointError: Its dtype is not BOOL, a byte is neither 0 nor 1, or as for
            :func:`tensor_bytes`.
    """
    import numpy as np

    _require_dtype(info, "BOOL")
    values = np.frombuffer(tensor_bytes(info, limit=limit), dtype=np.uint8)
    if values.size and int(values.max()) > 1:
        raise CheckpointError(
            "holds a bool that is neither 0 nor 1", where=info.path, field=info.name
        )
    return values.view(np.bool_).reshape(info.spec.shape)


def is_repository(location: str) -> bool:
    """Return whether ``location`` has the form of a Hub id, ``owner/name``."""
    return _REPOSITORY.fullmatch(location) is not None


def not_a_folder(
    location: str, files: Iterable[str] = (), *, of: str = "checkpoint"
) -> DflashPackError:
    """Return the error for a checkpoint location that is no folder here.

    Args:
        location: What the user gave.
        files: The files that suffice of a Hub repository; all when empty.
        of: What is looked for there.
    """
    name, _, revision = location.partition("@")
    exists = _exists(location)
    if is_repository(name) and not exists:
        words = ["hf download", name, *files, *(["--revision", revision] if revision else [])]
        return MissingHereError(
            "is not a folder here; a Hub repository has to be downloaded first",
            where=location,
            remedy=f"Run: {' '.join(words)} --local-dir {name.replace('/', '--')}",
        )
    what = "is not a folder" if exists else "does not exist"
    return CheckpointError(what, where=location, remedy=f"Give the {of}'s folder")


def _exists(location: str) -> bool:
    try:
        return Path(location).exists()
    except (OSError, ValueError):
        # A name too long, or one that no file can have.
        return False


def read_weight_map(path: Path) -> dict[str, str]:
    """Return tensor name -> shard name of an index file; shard names are plain file names.

    Raises:
        CheckpointError: It has no usable ``weight_map``, or a shard's path leaves the folder.
    """
    weight_map = read_json_object(path).get("weight_map")
    if not _is_text_mapping(weight_map) or not weight_map:
        raise CheckpointError("is not an object of strings", where=path, field="weight_map")
    result: dict[str, str] = {}
    for tensor, shard in weight_map.items():
        if shard != Path(shard).name or shard in ("", "..") or "\\" in shard or "\0" in shard:
            what = f"names the shard {shard!r}, which is not a file name in the same folder"
            raise CheckpointError(what, where=path, field=tensor)
        if not shard.endswith(SUFFIX):
            what = f"names the shard {shard!r}, which is not a safetensors file"
            raise CheckpointError(what, where=path, field=tensor)
        result[tensor] = shard
    return result


def folder_files(folder: Path) -> Iterator[SideFile]:
    """Yield every file under ``folder`` that may be read: regular, and not leaving the folder.

    Raises:
        CheckpointError: If another kind of file is there, too many are, or it can't be listed.
    """
    roots = _roots(folder)
    pending = [("", folder, 0)]
    count = 0
    while pending:
        prefix, here, depth = pending.pop()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            raise CheckpointError(f"can't be listed ({error.strerror})", where=here) from error
        for entry in entries:
            count += 1
            if count > MAX_FILES:
                what = f"holds more than {MAX_FILES} files, which no checkpoint does"
                raise CheckpointError(what, where=folder)
            path, name = here / entry.name, prefix + entry.name
            if not entry.name.isprintable():
                raise CheckpointError("has a file name that is not plain text", where=path)
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _SKIPPED_FOLDERS and depth < MAX_FOLDER_DEPTH:
                    pending.append((name + "/", path, depth + 1))
            elif not (entry.is_symlink() and path.is_dir()):
                yield SideFile(name, path, _size(path, roots))


def _roots(folder: Path) -> tuple[Path, ...]:
    """Return the folders that a checkpoint's links may lead to.

    Its own, and for a snapshot in the Hub cache the blobs of its repository and, since
    huggingface_hub 2.4 (utils/_shared_blobs.py), the store that all repositories share.
    """
    own = folder.resolve()
    for parent in (own, *own.parents):
        if parent.parent.name == "snapshots" and parent.parent.parent.name.startswith("models--"):
            repository = parent.parent.parent
            return own, repository / "blobs", repository.parent / "blobs"
    return (own,)


def _size(path: Path, roots: tuple[Path, ...]) -> int:
    try:
        real = path.resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError) as error:
        raise CheckpointError("is a link to nothing", where=path) from error
    if not any(real.is_relative_to(root) for root in roots):
        raise CheckpointError(
            "is a symbolic link that leaves the folder",
            where=path,
            remedy="Replace it by the file itself",
        )
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError("is not a regular file", where=path)
    return status.st_size


def _only_weights(folder: Path, weights: list[str], files: Mapping[str, SideFile]) -> str:
    if WEIGHTS_NAME in weights:
        return WEIGHTS_NAME
    if len(weights) == 1:
        return weights[0]
    if weights:
        raise CheckpointError(
            f"holds {_some(weights)} but no {INDEX_NAME} that says which belong together",
            where=folder,
            remedy="Add the index, or keep one file only",
        )
    pickles = sorted(name for name in files if name.endswith(PICKLES))
    if pickles:
        one = folder / pickles[0]
        raise CheckpointError(
            f"holds pickles only ({_some(pickles)}), which can run code in what loads them",
            where=folder,
            remedy="Export the weights as safetensors first"
            + (
                f", or convert {one} --draft-config {folder / CONFIG_NAME}: its tensors are read "
                "without running anything"
                if len(pickles) == 1
                else ""
            ),
        )
    raise CheckpointError(
        f"holds no weights: neither {WEIGHTS_NAME} nor {INDEX_NAME}",
        where=folder,
        remedy="Download the checkpoint again, completely",
    )


def _check_names(
    folder: Path, shards: tuple[Shard, ...], weight_map: Mapping[str, str] | None
) -> None:
    home: dict[str, str] = {}
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.name in home:
                what = f"stands in {home[tensor.name]} and in {shard.name}"
                raise CheckpointError(what, where=folder, field=tensor.name)
            home[tensor.name] = shard.name
    if not home:
        raise CheckpointError("holds no tensor at all", where=folder)
    if weight_map is None:
        return
    for name in sorted(weight_map.keys() | home.keys()):
        said, found = weight_map.get(name), home.get(name)
        if said != found:
            where_said = f"{INDEX_NAME} places it in {said}" if said else f"{INDEX_NAME} lacks it"
            where_found = f"it stands in {found}" if found else "no shard holds it"
            what = f"{where_said} but {where_found}"
            raise CheckpointError(what, where=folder, field=name)


def _read_header(path: Path) -> tuple[dict[str, Any], int, int]:
    """Return the parsed header, the offset of the data and the size of the file."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            start = file.read(8)
            if start == _LFS_POINTER:
                raise CheckpointError(
                    "is a pointer of Git LFS, not the weights",
                    where=path,
                    remedy="Fetch them: git lfs pull",
                )
            length = int.from_bytes(start, "little")
            if size < 8 or length > size - 8:
                what = f"is truncated: its header ends at byte {length + 8}, the file at {size}"
                raise CheckpointError(what, where=path, remedy="Copy or download it again")
            if length > MAX_HEADER_BYTES:
                what = f"has a header of {length} bytes, more than {MAX_HEADER_BYTES // MIB} MiB"
                raise CheckpointError(what, where=path)
            data = file.read(length)
        except OSError as error:
            raise CheckpointError(f"can't be read ({error.strerror})", where=path) from error
    if data[:1] != b"{":
        raise CheckpointError("has a header that is not a JSON object", where=path)
    header = parse_json_object(data, f"{path} (header)", max_values=MAX_HEADER_VALUES)
    return header, length + 8, size


def _tensor(path: Path, name: str, entry: object, data_start: int) -> TensorInfo:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _broken(path, name, "has other fields than dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _broken(path, name, f"has the unknown dtype {str(dtype)[:40]!r}")
    if not _is_sizes(shape):
        raise _broken(path, name, "has a shape that is not a list of sizes")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _broken(path, name, "has data_offsets that are not a begin and an end")
    begin, end = offsets
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits % 8 or bits // 8 != end - begin:
        what = f"has {end - begin} bytes, which {dtype} {str(shape)[:80]} does not fill"
        raise _broken(path, name, what)
    return TensorInfo(name, TensorSpec(dtype, tuple(shape)), path, data_start + begin, end - begin)


def _check_by_safetensors(path: Path, count: int) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            seen = len(file.keys())
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"is refused by safetensors ({error})", where=path) from error
    if seen != count:
        raise CheckpointError("changed while it was read", where=path)


def _is_sizes(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= 64
        and all(type(item) is int and 0 <= item < 1 << 63 for item in value)
    )


def _is_text_mapping(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _require_dtype(info: TensorInfo, dtype: str) -> None:
    if info.spec.dtype != dtype:
        what = f"has dtype {info.spec.dtype} where {dtype} belongs"
        raise CheckpointError(what, where=info.path, field=info.name)


def _broken(path: Path, name: str, what: str) -> CheckpointError:
    return CheckpointError(what, where=path, field=name)


def _some(names: list[str], limit: int = 4) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
