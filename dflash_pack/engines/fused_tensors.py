"""Projections that a checkpoint may hold fused or split, for engines that load both."""

from __future__ import annotations

from collections.abc import Collection, Mapping

QKV, GATE_UP = "self_attn.qkv_proj", "mlp.gate_up_proj"
_FUSED = {
    QKV: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    GATE_UP: ("mlp.gate_proj", "mlp.up_proj"),
}


def as_written(
    want: dict[str, tuple[int, ...]],
    have: Collection[str],
    *,
    split: Mapping[str, tuple[int, ...]],
    fused: Collection[str] = (QKV, GATE_UP),
) -> None:
    """Change ``want`` to the fused or split names that the checkpoint uses.

    Args:
        want: Name -> shape of the parameters; changed in place.
        have: Names in the checkpoint.
        split: Name -> shape of every projection where nothing is fused.
        fused: The modules that the engine loads fused.
    """
    for name in {*want, *have}:
        module, _, kind = name.rpartition(".")
        layer, inner = _place(module)
        if inner not in fused:
            continue
        pieces = [f"{layer}.{piece}.{kind}" for piece in _FUSED[inner]]
        if name in have and all(piece in want for piece in pieces):
            shapes = [want.pop(piece) for piece in pieces]
            want[name] = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        elif name in want and name not in have and any(piece in have for piece in pieces):
            del want[name]
            want.update({piece: split[piece] for piece in pieces if piece in split})


def _place(module: str) -> tuple[str, str]:
    """Return e.g. ``layers.0`` and ``self_attn.qkv_proj``."""
    layers, number, *rest = (*module.split("."), "", "")
    return f"{layers}.{number}", ".".join(part for part in rest if part)
