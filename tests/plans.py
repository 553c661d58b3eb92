"""Checkpoints for tests of plans and the writer, and what one reads back from a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raw_safetensors import Raw, raw

from dflash_pack.checkpoint import open_checkpoint, tensor_bytes
from dflash_pack.shard_writer import WrittenFile, write_plan
from dflash_pack.tensors import plan_tensors

ONE = {
    "fc.weight": raw("BF16", 64, 96, seed=1),
    "norm.weight": raw("F32", 64, seed=2),
    "d2t": raw("I64", 7, seed=3),
    "t2d": raw("BOOL", 13, seed=4),
    "layers.0.q.weight": raw("F16", 33, 5, seed=5),
    "empty": raw("F32", 0, 4),
}
FIRST = {name: ONE[name] for name in ("fc.weight", "d2t")}
SECOND = {name: ONE[name] for name in ("t2d", "norm.weight", "empty")}


def contents(folder: Path) -> dict[str, Raw]:
    """Return dtype, shape and bytes of every tensor of a checkpoint."""
    tensors = open_checkpoint(folder).tensors
    return {n: (t.spec.dtype, t.spec.shape, tensor_bytes(t)) for n, t in tensors.items()}


def write(
    folder: Path, out: Path, rename: Mapping[str, str | None], *, verify: bool = True, **edits: Any
) -> tuple[WrittenFile, ...]:
    """Plan, write and complete the output so that it can be opened.

    Args:
        folder: The source.
        out: An empty folder.
        rename: As for :func:`plan_tensors`.
        verify: As for :func:`write_plan`.
        edits: Further arguments of either.
    """
    progress = edits.pop("progress", None)
    plan = plan_tensors(open_checkpoint(folder), rename, **edits)
    written = write_plan(plan, out, verify=verify, progress=progress)
    (out / "config.json").write_text("{}")
    return written
