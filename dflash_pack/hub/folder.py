"""A folder about to be published: which of its files may go, and why the others may not."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_pack.checkpoint import CONFIG_NAME, INDEX_NAME, MANIFEST_NAME, REPORTS_NAME
from dflash_pack.errors import CheckFailedError, CheckpointError
from dflash_pack.hub.manifest import FileRecord
from dflash_pack.hub.validation import CARD_NAME
from dflash_pack.strict_json import read_json_object

MAX_ENTRIES = 10_000
MAX_TEXT_BYTES = 1 << 20
_MAX_INDEX_BYTES = 64 << 20
_MAX_HEADER_BYTES = 64 << 20

# Files other than weights that an engine reads; published only where convert wrote them.
_SIDE_FILES = frozenset({"hf_quant_config.json", "mask_embedding.pt", INDEX_NAME})
_LICENCE = re.compile(r"(LICENSE|NOTICE)([-_][A-Za-z0-9._-]{1,40})?(\.(md|txt|rst))?")
_WEIGHTS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")

_TRAINING_STATE = re.compile(
    r"(optimizer|scheduler|training_state|rng_state|scaler|trainer)", re.IGNORECASE
)
_PICKLES = (".bin", ".ckpt", ".joblib", ".npy", ".npz", ".pickle", ".pkl", ".pt", ".pth")
_LOGS = re.compile(
    r"(.*\.(log|csv|jsonl|out|err)|events\.out\.tfevents.*|run\.yaml|train_command\.txt"
    r"|(val|train)_metrics\.json|.*\.best_meta\.json)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class LocalFile:
    """A regular file of the folder that may be published: name, size in bytes, sha256."""

    name: str
    path: Path
    size: int
    sha256: str


@dataclass(frozen=True)
class LeftOut:
    """An entry of the folder that is not published, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Listing:
    """A folder's entries: those that may be published, and those left out with the reason.

    Attributes:
        chosen: Names to publish, the card and the manifest excluded.
        has_card: Whether there is a README.md of a regular file.
        left_out: Everything else.
    """

    chosen: tuple[str, ...]
    has_card: bool
    left_out: tuple[LeftOut, ...]


def list_folder(folder: Path, listed: Mapping[str, FileRecord]) -> Listing:
    """Sort the entries of ``folder`` by an allowlist; opens none of them and follows no link.

    Args:
        folder: A converted checkpoint.
        listed: The files that the manifest names.

    Raises:
        CheckFailedError: If a listed file is gone.
        CheckpointError: If a file that would be published is a link, pipe or folder, if there is no
            config or no weights, or if the folder has more than ``MAX_ENTRIES`` entries.
    """
    chosen: list[str] = []
    left_out: list[LeftOut] = []
    has_card = False
    seen: set[str] = set()
    for entry in _scan(folder):
        name = entry.name
        seen.add(name)
        allowed = _may_go(name, listed)
        wanted = allowed and (name in listed or name in (CARD_NAME, MANIFEST_NAME))
        if wanted and not entry.is_file(follow_symlinks=False):
            raise CheckpointError(
                f"is {_kind(entry)}, but only a regular file is published",
                where=folder / name,
                remedy="Convert the source again, or put the file itself there",
            )
        if name == CARD_NAME:
            has_card = True
        elif not allowed or not entry.is_file(follow_symlinks=False):
            left_out.append(LeftOut(name, _why_left_out(entry)))
        elif name != MANIFEST_NAME:
            chosen.append(name)
    _check_complete(folder, listed, seen, chosen)
    return Listing(
        tuple(sorted(chosen)), has_card, tuple(sorted(left_out, key=lambda item: item.name))
    )


def _check_complete(
    folder: Path, listed: Mapping[str, FileRecord], seen: set[str], chosen: list[str]
) -> None:
    gone = sorted(name for name in listed if name not in seen and name != CARD_NAME)
    if gone:
        raise CheckFailedError(
            f"is listed in {MANIFEST_NAME} but gone: the folder changed since convert",
            where=folder / gone[0],
            remedy="Convert the source again",
        )
    for what, found in (
        (CONFIG_NAME, CONFIG_NAME in chosen),
        ("safetensors file", any(name.endswith(".safetensors") for name in chosen)),
    ):
        if not found:
            raise CheckpointError(
                f"lists no {what}, so there is no drafter to publish",
                where=folder / MANIFEST_NAME,
                field="files",
                remedy="Convert the source again",
            )


def hash_file(path: Path) -> LocalFile:
    """Return the file with its size and sha256, read once in a stream.

    Raises:
        CheckpointError: If it can't be read, is no regular file, or changed while it was read.
    """
    try:
        # No link is followed, and a pipe does not block, even if it took the file's place just now.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        what = "is a symbolic link" if error.errno == errno.ELOOP else f"{error.strerror}"
        raise CheckpointError(what, where=path, remedy="Put a readable file there") from None
    with os.fdopen(descriptor, "rb") as file:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise CheckpointError("is not a regular file", where=path, remedy="Convert again")
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        after = os.fstat(descriptor)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise CheckpointError(
            "changed while it was read", where=path, remedy="Wait until nothing writes to it"
        )
    return LocalFile(path.name, path, before.st_size, digest)


def check_unchanged(file: LocalFile, record: FileRecord) -> None:
    """Check that ``file`` is byte for byte what convert wrote.

    Raises:
        CheckFailedError: If its size or sha256 is another.
    """
    if (file.size, file.sha256) == (record.size, record.sha256):
        return
    remedy = "Convert the source again, then validate the result"
    if file.size != record.size:
        what = f"changed since convert: {record.size} bytes then, {file.size} now"
    else:
        what = f"changed since convert: sha256 {record.sha256[:12]} then, {file.sha256[:12]} now"
    raise CheckFailedError(what, where=file.path, remedy=remedy)


def check_weights(folder: Path, names: tuple[str, ...]) -> None:
    """Check that each safetensors file is whole and that the index names exactly these.

    safetensors itself is asked: huggingface_hub's header readers take truncated and overlapping
    data (huggingface_hub 2.4, utils/_safetensors.py).

    Args:
        folder: The checkpoint.
        names: The files that would be published.

    Raises:
        CheckpointError: If a file is truncated, empty or malformed, or index and shards differ.
    """
    shards = sorted(name for name in names if name.endswith(".safetensors"))
    for shard in shards:
        _check_shard(folder / shard)
    if INDEX_NAME in names:
        index = folder / INDEX_NAME
        mapping = read_json_object(index, max_bytes=_MAX_INDEX_BYTES).get("weight_map")
        named = list(mapping.values()) if isinstance(mapping, dict) else []
        if not all(isinstance(name, str) for name in named) or set(named) != set(shards):
            raise CheckpointError(
                "does not name exactly the safetensors files beside it",
                where=index,
                field="weight_map",
                remedy="Convert the source again",
            )
    elif shards != ["model.safetensors"]:
        raise CheckpointError(
            f"has {len(shards)} safetensors files ({', '.join(shards[:3])}) but no {INDEX_NAME}, "
            "so engines would not find the weights",
            where=folder,
            remedy="Convert the source again",
        )


def read_text(path: Path) -> str:
    """Return the text of a small UTF-8 file, line endings as they are.

    Raises:
        CheckpointError: If it is larger than ``MAX_TEXT_BYTES`` or not UTF-8.
    """
    with path.open("rb") as file:
        data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise CheckpointError(
            f"is larger than {MAX_TEXT_BYTES} bytes", where=path, remedy="Shorten it"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"is not UTF-8 (byte {error.start})", where=path, remedy="Save it as UTF-8"
        ) from None


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    entries: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if len(entries) == MAX_ENTRIES:
                    raise CheckpointError(
                        f"has more than {MAX_ENTRIES} entries, so it is no checkpoint folder",
                        where=folder,
                        remedy="Convert into a folder of its own",
                    )
                entries.append(entry)
    except OSError as error:
        raise CheckpointError(
            f"{error.strerror}", where=folder, remedy="Give the folder that convert wrote"
        ) from None
    return entries


def _may_go(name: str, listed: Mapping[str, FileRecord]) -> bool:
    if name in (CARD_NAME, MANIFEST_NAME) or _LICENCE.fullmatch(name):
        return True
    if name == CONFIG_NAME or name in _SIDE_FILES or _WEIGHTS.fullmatch(name):
        return name in listed
    return False


def _why_left_out(entry: os.DirEntry[str]) -> str:
    name, lower = entry.name, entry.name.lower()
    if name == REPORTS_NAME:
        return "holds the full reports of dflash-pack"
    if not entry.is_file(follow_symlinks=False):
        return f"is {_kind(entry)}"
    if name.startswith("."):
        return "is a hidden file"
    if _TRAINING_STATE.match(name) and lower.endswith((*_PICKLES, ".json", ".safetensors")):
        return "is training state"
    if name == CONFIG_NAME or name in _SIDE_FILES or lower.endswith(".safetensors"):
        return f"was not written by convert: {MANIFEST_NAME} does not list it"
    if lower.endswith(_PICKLES):
        return "may be a pickle, which can run code when it is loaded"
    if lower.endswith((".py", ".pyc", ".so", ".sh", ".ipynb")):
        return "is code, and no engine needs any"
    if _LOGS.fullmatch(name):
        return "is a log of the training"
    return "is no file of a drafter"


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "a symbolic link"
    if entry.is_dir(follow_symlinks=False):
        return "a hidden folder" if entry.name.startswith(".") else "a folder"
    return "a regular file" if entry.is_file(follow_symlinks=False) else "a special file"


def _check_shard(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    problem = ""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if path.stat().st_size < 8 + length:
        problem = "is not a whole safetensors file"
    elif length > _MAX_HEADER_BYTES:
        problem = f"has a header of {length} bytes"
    else:
        try:
            with safe_open(path, framework="numpy") as opened:
                if not list(opened.keys()):
                    problem = "holds no tensor"
        except (SafetensorError, OSError) as error:
            problem = f"is not a whole safetensors file ({error})"[:300]
    if problem:
        raise CheckpointError(problem, where=path, remedy="Convert the source again")


def content_file(name: str, content: bytes, path: Path) -> LocalFile:
    """Return a file that exists only in memory yet, with the path it would have."""
    return LocalFile(name, path, len(content), hashlib.sha256(content).hexdigest())


def config_of(folder: Path) -> dict[str, object]:
    """Return the parsed ``config.json``."""
    return read_json_object(folder / CONFIG_NAME, max_bytes=MAX_TEXT_BYTES)
