"""The record ``dflash_pack.json`` that convert writes beside the weights and push reads."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash_pack.accounting import Ledger
from dflash_pack.checkpoint import MANIFEST_NAME
from dflash_pack.drafter import Drafter
from dflash_pack.errors import CheckpointError, printable
from dflash_pack.output_folder import write_whole
from dflash_pack.strict_json import read_json_object

MANIFEST_VERSION = 1
MAX_MANIFEST_BYTES = 16 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_NAME = 255


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and sha256 (hex) of one written file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class SourceRecord:
    """What was converted.

    Attributes:
        identity: Hub id or path as the user gave it.
        revision: Commit of a Hub source, None for a folder.
        format: Name of the source format.
        files: Name -> sha256 of each file that was read.
    """

    identity: str
    revision: str | None
    format: str
    files: dict[str, str]


@dataclass(frozen=True)
class TargetRecord:
    """The target that is written as verifier: id, pinned revision, architectures."""

    identifier: str
    revision: str | None
    architectures: tuple[str, ...]


@dataclass(frozen=True)
class LedgerItem:
    """One item of the source that is not in the result, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class LedgerRecord:
    """The ledger's summary.

    Attributes:
        dropped: Items without a meaning for the result.
        lossy: Items that the user gave up.
        mapped: Number of items whose meaning is in the result.
        stated: Values that the user stated, whatever the source says.
    """

    dropped: tuple[LedgerItem, ...]
    lossy: tuple[LedgerItem, ...]
    mapped: int
    stated: tuple[LedgerItem, ...] = ()

    @staticmethod
    def of(ledger: Ledger) -> LedgerRecord:
        """Return the summary of ``ledger``."""
        return LedgerRecord(
            dropped=tuple(LedgerItem(e.name, e.detail) for e in ledger.of("dropped")),
            lossy=tuple(LedgerItem(e.name, e.detail) for e in ledger.of("lossy")),
            mapped=len(ledger.of("mapped")),
            stated=tuple(LedgerItem(e.name, e.detail) for e in ledger.of("stated")),
        )


@dataclass(frozen=True)
class Manifest:
    """Everything that is known of one converted checkpoint.

    Attributes:
        version: Version of this record's form, 1.
        tool_version: Version of dflash-pack that converted.
        source: What was converted.
        target: The model that verifies.
        format: Output form: ``speculators``, ``native`` or ``universal``.
        drafter: The drafter's meaning as plain data; see :func:`drafter_record`.
        ledger: What became of the source's items.
        files: Name -> size and sha256 of each written file but this one.
        validation: Summary of the last validation; see :mod:`dflash_pack.hub.validation`.
    """

    version: int
    tool_version: str
    source: SourceRecord
    target: TargetRecord
    format: str
    drafter: dict[str, Any]
    ledger: LedgerRecord
    files: dict[str, FileRecord]
    validation: dict[str, Any] | None = None


def drafter_record(drafter: Drafter) -> dict[str, Any]:
    """Return ``drafter`` as plain JSON data; :func:`read_drafter` is the inverse."""
    record: dict[str, Any] = json.loads(json.dumps(asdict(drafter), allow_nan=False))
    return record


def read_drafter(manifest: Manifest, *, where: str | Path) -> Drafter:
    """Return the drafter that ``manifest`` records.

    Args:
        manifest: A manifest that was read or made.
        where: The manifest's path, for messages.

    Raises:
        CheckpointError: If the record is not one of a drafter, or states impossible sizes.
    """
    drafter: Drafter = parse_record(Drafter, manifest.drafter, where=where, prefix="drafter")
    sizes = {
        "block_size": (drafter.block_size, 2),
        "target_hidden_size": (drafter.target_hidden_size, 1),
        "geometry.hidden_size": (drafter.geometry.hidden_size, 1),
        "vocabulary.size": (drafter.vocabulary.size, 1),
        "vocabulary.draft_size": (drafter.vocabulary.draft_size, 1),
        "layers": (len(drafter.layers), 1),
        "target_layer_ids": (len(drafter.target_layer_ids), 1),
    }
    for field, (value, least) in sizes.items():
        if value < least:
            raise CheckpointError(
                f"is {value}, but at least {least} is needed",
                where=where,
                field=f"drafter.{field}",
                remedy="Convert the source again",
            )
    return drafter


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of ``folder``.

    Raises:
        CheckpointError: If there is none, or it is broken, of an unknown version, or names files
            that can't lie in the folder.
    """
    path = folder / MANIFEST_NAME
    if not os.path.lexists(path):
        raise CheckpointError(
            f"holds no {MANIFEST_NAME}, which dflash-pack convert writes unless told --no-verify",
            where=folder,
            remedy="Convert the checkpoint with dflash-pack convert and push its output",
        )
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(
            "is not a regular file", where=path, remedy="Convert the source again"
        )
    data = read_json_object(path, max_bytes=MAX_MANIFEST_BYTES)
    version = data.get("version")
    if type(version) is not int or version != MANIFEST_VERSION:
        raise CheckpointError(
            f"is {printable(repr(version))[:80]}, but this dflash-pack reads {MANIFEST_VERSION}",
            where=path,
            field="version",
            remedy="Update dflash-pack, or convert the source again with this version",
        )
    manifest: Manifest = parse_record(Manifest, data, where=path)
    for name, record in manifest.files.items():
        _check_name(name, where=path, field="files")
        if record.size < 0:
            raise CheckpointError(f"is {record.size}", where=path, field=f"files.{name}.size")
        _check_sha256(record.sha256, where=path, field=f"files.{name}.sha256")
    for name, digest in manifest.source.files.items():
        _check_sha256(digest, where=path, field=f"source.files.{name}")
    return manifest


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the exact content of ``dflash_pack.json``."""
    return (json.dumps(asdict(manifest), indent=2, allow_nan=False) + "\n").encode()


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write ``manifest`` into ``folder`` atomically and return its path."""
    path = folder / MANIFEST_NAME
    write_whole(path, manifest_bytes(manifest))
    return path


def _check_name(name: str, *, where: Path, field: str) -> None:
    plain = name and len(name.encode(errors="replace")) <= _MAX_NAME and name.isprintable()
    if not plain or name.startswith(".") or "/" in name or "\\" in name:
        raise CheckpointError(
            f"names {printable(repr(name))[:120]}, which is no plain file name",
            where=where,
            field=field,
            remedy="Convert the source again",
        )


def _check_sha256(digest: str, *, where: Path, field: str) -> None:
    if not _SHA256.fullmatch(digest):
        raise CheckpointError(
            "is no sha256 in lower-case hex",
            where=where,
            field=field[:200],
            remedy="Convert the source again",
        )


def parse_record(
    kind: type[Any], data: Mapping[str, Any], *, where: str | Path, prefix: str = ""
) -> Any:
    """Return ``data`` as the dataclass ``kind``, with JSON's types taken strictly.

    Args:
        kind: A dataclass; keys of ``data`` that it lacks are ignored.
        data: A parsed JSON object.
        where: The file it is from, for messages.
        prefix: Dotted name of ``data`` in that file, for messages.

    Raises:
        CheckpointError: If a field is missing or of another type.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        # By way of JSON text: in JSON mode a list is a tuple, yet "8" is no int.
        return TypeAdapter(kind).validate_json(json.dumps(data, allow_nan=False), strict=True)
    except (ValueError, RecursionError) as error:
        field, what = prefix, "holds values that JSON has no form for"
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = ".".join(filter(None, (prefix, *map(str, first["loc"]))))
            what = first["msg"][0].lower() + first["msg"][1:]
        raise CheckpointError(
            what[:200], where=where, field=field[:200] or None, remedy="Convert the source again"
        ) from None
