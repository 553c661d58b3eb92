"""Files of torch.save: as trainers leave them, and made by hand so that they can also be wrong."""

from __future__ import annotations

import collections
import io
import os
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from made import NATIVE, REMOVED, specs

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def weights(config: Mapping[str, Any] = NATIVE, *, dtype: str = "BF16") -> dict[str, torch.Tensor]:
    """Return random weights of the drafter that ``config`` describes."""
    random = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(spec.shape, generator=random).to(DTYPES[dtype])
        for name, spec in specs(config).items()
    }


def training_state(
    config: Mapping[str, Any] = NATIVE,
    tensors: Mapping[str, torch.Tensor] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return what SpecForge 0.2.0 saves of a DFlash run; ``REMOVED`` takes a key away."""
    held = weights(config) if tensors is None else dict(tensors)
    state = {
        "draft_state_dict": held,
        "global_step": 3,
        "epoch": 1,
        "epoch_batch": 0,
        "epoch_samples": 0,
        "strategy": "dflash",
        "run_id": "run",
        "world_size": 1,
        "dataset_size": None,
        "accumulation_steps": 2,
        "specforge_step_options": {},
        "specforge_model_provenance": {"target_model": ("reference", "owner/target")},
        "dflash_draft_num_hidden_layers": config["num_hidden_layers"],
        "dflash_target_layer_ids": tuple(config["dflash_config"]["target_layer_ids"]),
        "dflash_block_size": config["block_size"],
        "dflash_mask_token_id": config["dflash_config"]["mask_token_id"],
        "dflash_attention_backend": "sdpa",
        "dflash_num_anchors": 512,
        "dflash_loss_decay_gamma": None,
        "dflash_loss_type": "dflash",
        "dflash_dpace_alpha": 0.5,
        "dflash_lk_loss_type": None,
        "dflash_kl_scale": 1.0,
        "dflash_kl_decay": 1.0,
    }
    # Nothing is copied: storages stay shared, and objects that run something don't.
    return {key: value for key, value in (state | changes).items() if value is not REMOVED}


def save_step(root: Path, step: int = 3, run: str = "run", **changes: Any) -> Path:
    """Write the training checkpoint of one step, its rank file included."""
    folder = root / f"{run}-step{step}"
    folder.mkdir(parents=True)
    state = training_state(**{"global_step": step, "run_id": run} | changes)
    torch.save(state, folder / "training_state.pt")
    rank = {"optimizer": None, "rng": {"torch": torch.get_rng_state()}}
    torch.save(rank, folder / "training_state_rank0.pt")
    return folder


class Runs:
    """An object whose loading runs a command."""

    def __init__(self, command: str = "true") -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@dataclass(frozen=True)
class StorageMade:
    """A storage reference with any content."""

    key: Any = "0"
    count: Any = 4
    kind: Any = torch.FloatStorage
    word: str = "storage"


@dataclass(frozen=True)
class TensorMade:
    """A tensor with any shape, stride and storage."""

    storage: Any = StorageMade()
    start: Any = 0
    shape: Any = (4,)
    stride: Any = (1,)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.storage, self.start, self.shape, self.stride)
        return torch._utils._rebuild_tensor_v2, (*arguments, False, collections.OrderedDict())


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, StorageMade):
            return obj.word, obj.kind, obj.key, "cpu", obj.count
        return None


def pickled(value: Any, protocol: int = 2) -> bytes:
    """Return ``value`` pickled as torch.save does it."""
    stream = io.BytesIO()
    _Pickler(stream, protocol).dump(value)
    return stream.getvalue()


def zipped(
    entries: Mapping[str, bytes],
    *,
    compression: int = zipfile.ZIP_STORED,
    compressed: str | None = None,
) -> bytes:
    """Return an archive of ``entries``, all or only the one named ``compressed`` compressed."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in entries.items():
            chosen = compressed in (None, name)
            kind = compression if chosen else zipfile.ZIP_STORED
            archive.writestr(name, data, compress_type=kind)
    return stream.getvalue()


def entries_of(value: Any, storages: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the entries of a torch archive with that pickle and those storages."""
    return {
        "archive/data.pkl": pickled(value),
        "archive/byteorder": b"little",
        **{f"archive/data/{key}": data for key, data in storages.items()},
        "archive/version": b"3\n",
    }
