"""``mask_embedding.pt``: what a trainer learned for the mask token, by its content."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from dflash_pack.checkpoint import DTYPE_BITS, tensor_bytes
from dflash_pack.drafter import Drafter
from dflash_pack.errors import CheckpointError, ContradictionError
from dflash_pack.finite_scan import all_finite
from dflash_pack.torch_file import read_plain_tensors, tensor_shard
from dflash_pack.torch_pickle import StoredTensor

_REMEDY = (
    'Save {"embedding": tensor, "mask_token_id": id} with torch.save as the drafter was trained, '
    "or leave the file out"
)
_FLOATS = ("BF16", "F16", "F32")


def require_mask_embedding(path: Path, drafter: Drafter) -> None:
    """Check that ``path`` holds one finite embedding for the mask token of ``drafter``.

    Source: vllm 0.32, models/qwen3_dflash.py, _read_mask_embedding, takes ``embedding`` of a dict
    or a tensor alone, [hidden] in any shape; sglang 0.5.23, speculative/dflash_worker_v2.py, needs
    the dict with the token's id and one embedding for all positions.

    Args:
        path: The file; it is described, never unpickled.
        drafter: What it belongs to.

    Raises:
        CheckpointError: If it holds more than tensors, numbers and texts, or no such embedding.
        ContradictionError: If it is for another mask token.
    """
    file = read_plain_tensors(path)
    value, hidden = file.value, drafter.geometry.hidden_size
    if isinstance(value, dict):
        _require_same_token(path, value, drafter.vocabulary.mask_token_id)
        value = value.get("embedding")
    if not isinstance(value, StoredTensor):
        raise CheckpointError("holds no embedding", where=path, remedy=_REMEDY)
    if prod(value.shape) != hidden or value.dtype not in _FLOATS:
        raise CheckpointError(
            f"holds {value.dtype} {list(value.shape)}, where {hidden} floats are one embedding",
            where=path,
            field="embedding",
            remedy=_REMEDY,
        )
    (info,) = tensor_shard(file.archive, {"embedding": value}, remedy=_REMEDY).tensors
    if not _finite(tensor_bytes(info), value.dtype):
        raise CheckpointError(
            "holds NaN or infinity", where=path, field="embedding", remedy="Train or export again"
        )


def _finite(data: bytes, dtype: str) -> bool:
    import numpy as np

    return all_finite(np.frombuffer(data, dtype=f"<u{DTYPE_BITS[dtype] // 8}"), dtype)


def _require_same_token(path: Path, value: dict[Any, Any], mask: int) -> None:
    stated = value.get("mask_token_id", mask)
    if stated != mask:
        raise ContradictionError(
            "mask token",
            ("the config", mask),
            ("this file", stated),
            where=path,
            remedy="Give the file that belongs to this drafter",
        )
