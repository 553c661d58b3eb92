"""Writes a planned conversion: weights, config, side files and record, in one fresh folder."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_pack import __version__
from dflash_pack.checkpoint import Checkpoint
from dflash_pack.conversion import Conversion
from dflash_pack.errors import CheckpointError
from dflash_pack.file_reading import sha256_file
from dflash_pack.finite_scan import ScanResult
from dflash_pack.hub.manifest import (
    MANIFEST_VERSION,
    FileRecord,
    LedgerRecord,
    Manifest,
    SourceRecord,
    TargetRecord,
    drafter_record,
    write_manifest,
)
from dflash_pack.hub.validation import CARD_NAME
from dflash_pack.output_folder import fresh_folder
from dflash_pack.shard_writer import WrittenFile, merged_scan, write_plan
from dflash_pack.tensors import verbatim_source

# A mask embedding is one row, a licence a page; anything far larger is neither.
MAX_SIDE_FILE_BYTES = 64 << 20


@dataclass(frozen=True)
class Packed:
    """What was written.

    Attributes:
        out: The finished folder.
        files: Name, size in bytes and sha256 of each file; sha256 is None with ``verify=False``.
        seconds: Wall time of the write.
        scan: What the search for NaN and infinity found; None with ``verify=False``.
    """

    out: Path
    files: tuple[WrittenFile, ...]
    seconds: float
    scan: ScanResult | None


def pack(
    conversion: Conversion,
    out: Path,
    *,
    overwrite: bool = False,
    verify: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Packed:
    """Write ``conversion`` to ``out``, which is complete when this returns and absent if it fails.

    Args:
        conversion: A checked plan.
        out: The folder to make.
        overwrite: Whether an earlier output of this tool may be replaced.
        verify: Whether to hash every file and scan the weights for NaN and infinity.
        progress: Called with the number of tensor bytes written since the last call.

    Raises:
        OutputExistsError: If ``out`` exists.
        CheckpointError: If weights hold NaN or infinity, or a file can't be read or written.
    """
    started = time.perf_counter()
    source = conversion.source
    with fresh_folder(out, overwrite=overwrite) as folder, ThreadPoolExecutor(1) as hasher:
        copies = _verbatim_copies(conversion)
        digests = hasher.submit(_source_digests, source, copies) if verify else None
        files = [*write_plan(conversion.tensors, folder, verify=verify, progress=progress)]
        scan = merged_scan(files)
        _require_finite(scan, source)
        files.append(_write_config(folder / "config.json", conversion.form.config))
        files.extend(_copy_side_files(conversion, folder))
        if digests is not None:
            known = {f.name: f.sha256 for f in files if f.sha256 is not None}
            read = digests.result() | {path.name: known[out] for path, out in copies.items()}
            write_manifest(folder, make_manifest(conversion, files, read))
    return Packed(out, tuple(files), time.perf_counter() - started, scan)


def make_manifest(
    conversion: Conversion, files: Sequence[WrittenFile], source_files: Mapping[str, str]
) -> Manifest:
    """Return the record of ``conversion`` for ``dflash_pack.json``.

    Args:
        conversion: What was converted.
        files: What was written, every one hashed.
        source_files: Name -> sha256 of what was read.
    """
    target = conversion.target
    return Manifest(
        version=MANIFEST_VERSION,
        tool_version=__version__,
        source=SourceRecord(
            identity=str(conversion.source.path),
            revision=None,
            format=conversion.reading.format,
            files=dict(source_files),
        ),
        target=TargetRecord(target.identifier, target.revision, target.architectures),
        format=conversion.form.format,
        drafter=drafter_record(conversion.drafter),
        ledger=LedgerRecord.of(conversion.ledger),
        files={f.name: FileRecord(f.size, f.sha256) for f in files if f.sha256 is not None},
    )


def _verbatim_copies(conversion: Conversion) -> dict[Path, str]:
    """Return source file -> output file where the output will be equal byte for byte."""
    sources = {shard.name: verbatim_source(shard) for shard in conversion.tensors.shards}
    return {path: name for name, path in sources.items() if path is not None}


def _source_digests(source: Checkpoint, copies: Mapping[Path, str]) -> dict[str, str]:
    """Return name -> sha256 of config, weights and card of ``source``, but for ``copies``.

    Copies are hashed as they are written. The card is recorded because the licence that it states
    carries over to the release.
    """
    paths = [source.config_file, *(shard.path for shard in source.shards)]
    paths += [file.path for file in source.side_files if file.name == CARD_NAME]
    return {path.name: sha256_file(path) for path in paths if path not in copies}


def _require_finite(scan: ScanResult | None, source: Checkpoint) -> None:
    if scan is None or scan.clean:
        return
    first = scan.non_finite[0]
    more = f" (and {len(scan.non_finite) - 1} more tensors)" if len(scan.non_finite) > 1 else ""
    raise CheckpointError(
        f"holds {first.nan} NaN and {first.infinite} infinite values{more}",
        where=source.path,
        field=first.name,
        remedy="Export the drafter again from a sound training state",
    )


def _write_config(path: Path, config: Mapping[str, Any]) -> WrittenFile:
    data = (json.dumps(config, indent=2, allow_nan=False) + "\n").encode()
    path.write_bytes(data)
    return WrittenFile(path.name, len(data), hashlib.sha256(data).hexdigest())


def _copy_side_files(conversion: Conversion, folder: Path) -> list[WrittenFile]:
    """Copy the side files that belong to the drafter."""
    written = []
    for file in conversion.source.side_files:
        if file.name not in conversion.reading.copied_files:
            continue
        if file.size > MAX_SIDE_FILE_BYTES:
            raise CheckpointError(
                f"is larger than {MAX_SIDE_FILE_BYTES >> 20} MiB, too large for what its name says",
                where=file.path,
                remedy="Remove it from the source",
            )
        copied = folder / file.name
        try:
            shutil.copyfile(file.path, copied)
        except PermissionError as error:
            raise CheckpointError(
                f"can't be read: {error.strerror}",
                where=file.path,
                remedy="Give it read permission",
            ) from None
        written.append(WrittenFile(file.name, copied.stat().st_size, sha256_file(copied)))
    return written
