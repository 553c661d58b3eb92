"""The source that a decode is held against: known to be decoded as it is meant, before it is."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dflash_pack.accounting import LedgerBuilder
from dflash_pack.agreement import require_tensors, view_engines
from dflash_pack.checkpoint import CONFIG_NAME, Checkpoint, Contents
from dflash_pack.converters.registry import read_drafter
from dflash_pack.drafter import Drafter
from dflash_pack.engines.vllm_serving import gpu_runner_need
from dflash_pack.errors import CheckFailedError, DflashPackError, MissingHereError
from dflash_pack.file_reading import sha256_file
from dflash_pack.overrides import Override, accept_losses, apply_overrides
from dflash_pack.sources import open_source
from dflash_pack.target import Target

_OTHERWISE = "Leave --against out and pass --min-acceptance-length"


@dataclass(frozen=True)
class Reference:
    """The source of ``--against``, and how the user has it read, as at ``convert``.

    Attributes:
        path: Folder of the source.
        source_format: Name of its reader, None to detect it.
        overrides: Config values that the user states.
        allow_lossy: Config keys and tensors that the user gives up.
    """

    path: Path
    source_format: str | None = None
    overrides: tuple[Override, ...] = ()
    allow_lossy: tuple[str, ...] = ()


@contextmanager
def decodable(reference: Reference, drafter: Drafter, target: Target) -> Iterator[Path]:
    """Yield the folder in which vLLM decodes the source.

    That is the source itself. Where the user states or gives up config keys, it is a temporary
    folder with the config as stated, and links to the source's files.

    Args:
        reference: The source.
        drafter: What the checkpoint means that is held against it.
        target: The model that verifies.

    Raises:
        CheckFailedError: The source has another block size, or vLLM would not load it, or do other
            than it means: its decode would then say nothing about the checkpoint.
        MissingHereError: No CPU runs it.
        DflashPackError: The source can't be read.
    """
    source = _open(reference.path)
    ledger = LedgerBuilder()
    stated = apply_overrides(source.contents, reference.overrides, ledger)
    read = accept_losses(stated, reference.allow_lossy, ledger)
    reading = read_drafter(read, source_format=reference.source_format, folder=source.path)
    meant = reading.drafter
    require_tensors(meant, reading.canonical(read), where=str(source.path))
    if meant.block_size != drafter.block_size:
        raise CheckFailedError(
            f"has block size {meant.block_size}, the checkpoint {drafter.block_size}",
            where=reference.path,
            remedy="Give the source that the checkpoint was converted from with --against",
        )
    require_cpu_runner(
        meant, reference.path, "Give the source that the checkpoint was converted from"
    )
    loaded = Contents(read.config, source.contents.tensors, source.contents.side_files)
    vllm = next(v for v in view_engines(meant, loaded, target) if v.meaning.engine == "vllm")
    if not vllm.agrees:
        raise CheckFailedError(
            "can't be held against, since vLLM does not decode it as it is meant: "
            f"{vllm.problems()[0].rstrip('.')}",
            where=reference.path,
            remedy=f"Give the drafter as it was trained with --against, or else: {_OTHERWISE}",
        )
    if read.config == source.config:
        yield source.path
        return
    with tempfile.TemporaryDirectory(prefix="dflash-pack-source-") as folder:
        yield _staged(source, read, Path(folder))


def require_cpu_runner(drafter: Drafter, where: Path, remedy: str) -> None:
    """Check that vLLM runs a drafter on a CPU.

    Raises:
        MissingHereError: If only its runner on a GPU does.
    """
    needs = gpu_runner_need(drafter.layers, drafter.family)
    if needs is not None:
        raise MissingHereError(f"can't be decoded on a CPU: {needs}", where=where, remedy=remedy)


def source_digests(reference: Reference) -> dict[str, str]:
    """Return name -> sha256 of config and weights of the source, as convert records them.

    Raises:
        DflashPackError: If it can't be read.
    """
    source = _open(reference.path)
    paths = [source.config_file, *(shard.path for shard in source.shards)]
    return {path.name: sha256_file(path) for path in paths}


def _open(path: Path) -> Checkpoint:
    try:
        source = open_source(path)
    except DflashPackError as error:
        if "--draft-config" not in (error.remedy or ""):
            raise
        raise _unloadable(path) from None
    if not source.loadable:
        raise _unloadable(path)
    return source


def _unloadable(path: Path) -> CheckFailedError:
    return CheckFailedError(
        "can't be held against: it is weights without a config, which vLLM does not load",
        where=path,
        remedy=f"Give its trainer's export with --against, or else: {_OTHERWISE}",
    )


def _staged(source: Checkpoint, read: Contents, folder: Path) -> Path:
    """Fill ``folder`` with the config as it is read and links to everything else."""
    (folder / CONFIG_NAME).write_text(json.dumps(dict(read.config)), encoding="utf-8")
    for entry in source.path.resolve().iterdir():
        if entry.name != CONFIG_NAME and entry.is_file():
            (folder / entry.name).symlink_to(entry)
    return folder
