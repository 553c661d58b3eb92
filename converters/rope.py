"""One rotary embedding out of the two styles that configs write it in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_pack.converters.reading import CONFIG, ConfigCursor
from dflash_pack.drafter import Rope
from dflash_pack.errors import CheckpointError, ContradictionError

_NOT_EXTRAS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})


# Kinds whose training length transformers fills in from max_position_embeddings where absent
# (transformers 5.19, modeling_rope_utils.py, standardize_rope_params).
_NEED_ORIGINAL = frozenset({"llama3", "yarn", "longrope"})
_ORIGINAL = "original_max_position_embeddings"


def read_rope(cursor: ConfigCursor, longest: int, prefix: str = "") -> Rope:
    """Return the rope stated as ``rope_parameters`` or as ``rope_theta`` and ``rope_scaling``.

    Where both styles are present they must agree (SpecForge exports mirror one in the other). A
    missing theta is refused: transformers' Qwen3Config, Speculators 0.9 and vLLM's native path take
    1e4, vLLM's Speculators path 1e6 (vllm 0.32, models/qwen3_dflash.py, set_default_rope_theta).

    Args:
        cursor: The config.
        longest: ``max_position_embeddings``, which stands in for the length before scaling.
        prefix: Dotted prefix of the section, e.g. ``transformer_layer_config.``.

    Raises:
        CheckpointError: If theta is stated nowhere or a parameter has no usable value.
        ContradictionError: If the two styles differ.
    """
    nested_key, flat_key = f"{prefix}rope_parameters", f"{prefix}rope_scaling"
    nested: Mapping[str, Any] = cursor.agree("rope", nested_key) or {}
    flat: Mapping[str, Any] = cursor.agree("rope", flat_key) or {}
    if any(isinstance(value, Mapping) for value in nested.values()):
        raise CheckpointError(
            "holds one rope per layer type, but all draft layers share one rope",
            where=CONFIG,
            field=nested_key,
            remedy=f'Pass --set {nested_key}=\'{{"rope_type": ..., "rope_theta": ...}}\'',
        )
    theta = _agree_theta(cursor, prefix, nested, flat)
    factor = _partial_factor(cursor, prefix, nested, flat)
    if nested and flat:
        _same_kind(nested_key, nested, flat_key, flat)
    stated = nested or flat
    parameters = {k: v for k, v in stated.items() if k not in _NOT_EXTRAS and v is not None}
    if _kind(stated) in _NEED_ORIGINAL and _ORIGINAL not in parameters:
        parameters[_ORIGINAL] = longest
        cursor.notes.append(
            f"{_ORIGINAL} of the rope is not stated: {longest} (max_position_embeddings) is "
            "taken, as transformers does."
        )
    try:
        extras = Rope.freeze(parameters)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            str(error), where=CONFIG, field=nested_key if nested else flat_key
        ) from None
    return Rope(kind=_kind(stated), theta=theta, extras=extras, partial_rotary_factor=factor)


def _agree_theta(
    cursor: ConfigCursor, prefix: str, nested: Mapping[str, Any], flat: Mapping[str, Any]
) -> float:
    top = cursor.agree("rope", f"{prefix}rope_theta")
    stated = [
        (name, value)
        for name, value in (
            (f"{prefix}rope_parameters.rope_theta", nested.get("rope_theta")),
            (f"{prefix}rope_theta", top),
            (f"{prefix}rope_scaling.rope_theta", flat.get("rope_theta")),
        )
        if value is not None
    ]
    if not stated:
        raise CheckpointError(
            "is not stated, and engines would fill in different values (10000 or 1000000)",
            where=CONFIG,
            field=f"{prefix}rope_theta",
            remedy=f"Pass --set {prefix}rope_theta=VALUE, the value the drafter was trained with",
        )
    for name, value in stated:
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise CheckpointError(f"{value!r} is not a positive number", where=CONFIG, field=name)
        if value != stated[0][1]:
            raise ContradictionError("rope_theta", stated[0], (name, value), where=CONFIG)
    return float(stated[0][1])


def _partial_factor(
    cursor: ConfigCursor, prefix: str, nested: Mapping[str, Any], flat: Mapping[str, Any]
) -> float:
    key = "partial_rotary_factor"
    stated = {
        f"{prefix}{key}": cursor.agree("rope", f"{prefix}{key}"),
        f"{prefix}rope_parameters.{key}": nested.get(key),
        f"{prefix}rope_scaling.{key}": flat.get(key),
    }
    for name, value in stated.items():
        if value not in (None, 1):
            raise CheckpointError(
                f"{value!r} is not clear: the Qwen3 code of transformers, which z-lab, SpecForge "
                "and Speculators train with, ignores it, and vLLM applies it",
                where=CONFIG,
                field=name,
                remedy=f"Pass --set {name}=1.0 if the drafter was trained without it",
            )
    return 1.0


def _kind(stated: Mapping[str, Any]) -> str:
    kind = stated.get("rope_type") or stated.get("type") or "default"
    return str(kind)


def _same_kind(
    nested_key: str, nested: Mapping[str, Any], flat_key: str, flat: Mapping[str, Any]
) -> None:
    def meaning(section: Mapping[str, Any]) -> dict[str, Any]:
        rest = {k: v for k, v in section.items() if k not in _NOT_EXTRAS and v is not None}
        return {"rope_type": _kind(section), **rest}

    if meaning(nested) != meaning(flat):
        raise ContradictionError(
            "rope", (nested_key, dict(nested)), (flat_key, dict(flat)), where=CONFIG
        )
