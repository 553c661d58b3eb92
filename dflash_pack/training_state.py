"""Trained weights in a torch file, as checkpoints: SpecForge's training state, a bare state dict.

The tensors stay where they are in the file; a copy of them is all that a conversion reads. What
the trainer resolved at run time (block size, mask token, captured layers) stands beside the weights
and becomes the config section ``training_state``, so that readers compare it with the config.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_pack.checkpoint import Checkpoint, Shard, SideFile, folder_files
from dflash_pack.errors import CheckpointError, UsageError
from dflash_pack.strict_json import read_json_object
from dflash_pack.torch_file import TorchFile, read_torch_file, tensor_shard
from dflash_pack.torch_pickle import StoredTensor

# Names of SpecForge 0.2.0: specforge/training/checkpoint.py and controller.py.
STATE_NAME = "training_state.pt"
WEIGHTS_KEY = "draft_state_dict"
SECTION = "training_state"
NOT_READ = "(not read)"

_MAX_KEYS = 1000
_MAX_NAME = 512
_MAX_TEXT = 1000
_MAX_LIST = 1024
_EXPORT = (
    "Export it with `specforge export --to hf`, or save the drafter's own state dict as plain "
    "tensors with torch.save"
)


def open_torch_checkpoint(
    path: Path, draft_config: Path | None, *, folder: Path | None = None
) -> Checkpoint:
    """Return the drafter whose weights the torch file ``path`` holds.

    Reads the pickle without running anything, and none of the numbers: an optimizer's state in
    the same file costs nothing.

    Args:
        path: A ``training_state.pt`` of SpecForge, or a file with a dict of tensors.
        draft_config: The JSON that describes the drafter; neither file does.
        folder: The checkpoint's folder, whose other files belong to it; None for the file alone.

    Raises:
        UsageError: If ``draft_config`` is None.
        CheckpointError: If either file is malformed or hostile, or holds no such weights.
    """
    if draft_config is None:
        raise UsageError(
            "holds weights but no config",
            where=path,
            remedy="Pass --draft-config with the JSON file that the drafter was trained with",
        )
    config = read_json_object(draft_config)
    if SECTION in config:
        raise CheckpointError(
            "stands in the config, where only the training checkpoint may put it",
            where=draft_config,
            field=SECTION,
            remedy="Remove it",
        )
    # First of all: it refuses links that leave the folder.
    others = () if folder is None else _others(folder, path, draft_config)
    file = read_torch_file(path, remedy=_EXPORT)
    weights, section = _parts(file)
    if section is not None:
        config = {**config, SECTION: section}
    shard = _shard(file, weights)
    return Checkpoint(folder or path, config, (shard,), others, config_path=draft_config)


def _parts(file: TorchFile) -> tuple[Mapping[Any, Any], dict[str, Any] | None]:
    """Return the state dict, and the config section of what stands beside it.

    Raises:
        CheckpointError: If the file holds neither a training state nor a state dict.
    """
    value, path = file.value, file.archive.path
    if isinstance(value, dict) and isinstance(value.get(WEIGHTS_KEY), dict):
        return value[WEIGHTS_KEY], _section(path, value)
    if isinstance(value, dict) and any(isinstance(v, StoredTensor) for v in value.values()):
        return value, None
    held = _keys(value) if isinstance(value, dict) else "a single object"
    raise CheckpointError(
        f"holds {held}, where {WEIGHTS_KEY} or the drafter's tensors by name are expected",
        where=path,
        remedy=_EXPORT,
    )


def _shard(file: TorchFile, weights: Mapping[Any, Any]) -> Shard:
    path = file.archive.path
    if not weights:
        raise CheckpointError("holds no tensor at all", where=path)
    for name, tensor in weights.items():
        if not _is_name(name):
            raise CheckpointError(
                "names a tensor by something other than plain text", where=path, remedy=_EXPORT
            )
        if not isinstance(tensor, StoredTensor):
            raise CheckpointError("is not a tensor", where=path, field=name, remedy=_EXPORT)
    return tensor_shard(file.archive, weights, remedy=_EXPORT)


def _section(path: Path, state: Mapping[Any, Any]) -> dict[str, Any]:
    """Return every key of ``state`` but the weights; objects are named but not carried."""
    if len(state) > _MAX_KEYS or not all(_is_name(key) for key in state):
        raise CheckpointError("has keys that are not a trainer's", where=path, remedy=_EXPORT)
    return {key: _plain(value) for key, value in state.items() if key != WEIGHTS_KEY}


def _plain(value: object) -> Any:
    """Return a number, a text or a list of these, as JSON has them; else ``NOT_READ``."""
    if isinstance(value, list | tuple) and len(value) <= _MAX_LIST:
        items = [_scalar(item) for item in value]
        return NOT_READ if NOT_READ in items else items
    return _scalar(value)


def _scalar(value: object) -> Any:
    match value:
        case None | bool():
            return value
        case int() if abs(value) < 1 << 63:
            return value
        case float() if math.isfinite(value):
            return value
        case str() if len(value) <= _MAX_TEXT and value.isprintable():
            return value
    return NOT_READ


def _is_name(key: object) -> bool:
    return isinstance(key, str) and 0 < len(key) <= _MAX_NAME and key.isprintable()


def _keys(value: Mapping[Any, Any]) -> str:
    names = [key for key in value if _is_name(key)]
    more = ", ..." if len(value) > len(names[:5]) else ""
    return f"the keys {', '.join(names[:5])}{more}" if names else "no named values"


def _others(folder: Path, *used: Path) -> tuple[SideFile, ...]:
    # realpath, not Path.resolve, which raises RuntimeError where links lead in a circle.
    read = {os.path.realpath(path) for path in used}
    files = (file for file in folder_files(folder) if os.path.realpath(file.path) not in read)
    return tuple(sorted(files, key=lambda file: file.name))
