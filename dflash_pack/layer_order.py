"""Changes that keep a drafter's meaning: captured layers in order, weights of another dtype."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dflash_pack.drafter import Drafter
from dflash_pack.errors import CheckpointError, NotRepresentableError

FC = "fc.weight"
_AUX_NORM = re.compile(r"aux_hidden_norms\.(\d+)\.weight")


@dataclass(frozen=True)
class Ordered:
    """A drafter whose captured layers are in ascending order.

    Attributes:
        drafter: The drafter, its ids ascending.
        names: Source tensor -> output name, None to drop.
        column_orders: Output name -> order of its column slices; empty where nothing moves.
        notes: Sentences the user should know.
    """

    drafter: Drafter
    names: Mapping[str, str | None]
    column_orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def in_ascending_order(drafter: Drafter, names: Mapping[str, str | None]) -> Ordered:
    """Return ``drafter`` with ascending target layer ids and ``fc``'s column slices to match.

    vLLM captures in ascending order whatever the ids say (vllm 0.32, models/qwen3.py), and so does
    TensorRT-LLM, so that a slice of ``fc`` would meet another layer's states.

    Args:
        drafter: The drafter, ids in the order of fc's slices.
        names: Source tensor -> output name.

    Raises:
        CheckpointError: If a layer is captured twice: engines capture it once.
        NotRepresentableError: If ``fc`` is quantised, so that its columns can't be moved.
    """
    ids = drafter.target_layer_ids
    order = tuple(sorted(range(len(ids)), key=ids.__getitem__))
    if len(set(ids)) < len(ids):
        twice = sorted({layer for layer in ids if ids.count(layer) > 1})
        raise CheckpointError(
            f"{list(ids)} names {twice} more than once, and engines capture a layer once",
            field="target_layer_ids",
            remedy="Correct the file, or train with distinct layers",
        )
    if order == tuple(range(len(ids))):
        return Ordered(drafter, names)
    if drafter.quantization is not None:
        raise NotRepresentableError(
            f"the captured layers {list(ids)} are not in ascending order, in which engines capture "
            "them, and the columns of quantised weights can't be moved",
            remedy="Order ids and fc before quantising",
        )
    ascending = tuple(ids[index] for index in order)
    moved = {source: _moved(name, order) for source, name in names.items()}
    note = (
        f"target_layer_ids {list(ids)} are written as {list(ascending)}, in which order engines "
        "capture, and the column slices of fc.weight are moved with them."
    )
    return Ordered(replace(drafter, target_layer_ids=ascending), moved, {FC: order}, notes=(note,))


def in_dtype(drafter: Drafter, dtype: str | None) -> Drafter:
    """Return ``drafter`` with its weights cast to ``dtype``, itself where that is None.

    Raises:
        NotRepresentableError: If the weights are quantised: their scales are no plain numbers.
    """
    if dtype is None:
        return drafter
    if drafter.quantization is not None:
        raise NotRepresentableError(
            "quantised weights and their scales can't be cast", remedy="Leave --dtype out"
        )
    return replace(drafter, dtype=dtype)


def _moved(name: str | None, order: tuple[int, ...]) -> str | None:
    """Return the name of a per-layer norm after its layer moved, any other name as it is."""
    match = _AUX_NORM.fullmatch(name) if name is not None else None
    if match is None:
        return name
    return f"aux_hidden_norms.{order.index(int(match[1]))}.weight"
