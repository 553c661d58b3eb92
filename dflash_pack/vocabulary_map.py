"""The map from a reduced draft vocabulary to the target's, by its content."""

from __future__ import annotations

from dflash_pack.checkpoint import Checkpoint, TensorInfo, read_bool, read_int64
from dflash_pack.converters.reading import Reading
from dflash_pack.errors import CheckpointError


def require_vocabulary_map(checkpoint: Checkpoint, reading: Reading) -> None:
    """Check ``d2t`` and ``t2d`` of a drafter with a reduced vocabulary.

    Engines add ``d2t`` to the draft ids whatever it holds, so a list of target ids instead of
    offsets would draft other tokens without a word.

    Raises:
        CheckpointError: If they are no such map.
    """
    if not reading.drafter.vocabulary.reduced:
        return
    sources = {to: name for name, to in reading.tensor_names.items()}
    d2t, t2d = (checkpoint.tensors[sources[name]] for name in ("d2t", "t2d"))
    problem = vocabulary_problem(d2t, t2d, reading.drafter.vocabulary.size)
    if problem is not None:
        raise CheckpointError(
            problem,
            where=checkpoint.path,
            field="d2t",
            remedy="Export the drafter again, with d2t[i] = target id - i",
        )


def vocabulary_problem(d2t: TensorInfo, t2d: TensorInfo, size: int) -> str | None:
    """Return what is wrong with a vocabulary map, None if it is right.

    Args:
        d2t: int64 [draft vocabulary], offsets: target id = draft id + d2t[draft id].
        t2d: bool [vocabulary], true at each target id that has a draft id.
        size: Number of target ids.
    """
    import numpy as np

    offsets = read_int64(d2t)
    mask = read_bool(t2d)
    targets = offsets + np.arange(len(offsets))
    if len(targets) == 0 or int(targets.min()) < 0 or int(targets.max()) >= size:
        return "d2t leads outside the vocabulary: it must hold offsets, target id - draft id"
    if not bool((np.diff(targets) > 0).all()):
        return "d2t does not lead to rising target ids: it must hold offsets, target id - draft id"
    if int(mask.sum()) != len(targets) or not bool(mask[targets].all()):
        return (
            f"t2d marks {int(mask.sum())} tokens, d2t names {len(targets)} others or not the same"
        )
    return None
