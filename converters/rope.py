"""One rotary embedding out of the two styles that configs write it in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from dflash_pack.converters.reading import CONFIG, ConfigCursor
from dflash_pack.drafter import Rope
from dflash_pack.errors import CheckpointError, ContradictionError

# What a trainer's code does with partial_rotary_factor.
PartialRotary = Literal["applied", "ignored", "unclear"]
_NOT_EXTRAS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_ORIGINAL = "original_max_position_embeddings"
# Parameters that transformers (the trainers) and vLLM read alike, with the least value that both
# compute with (transformers 5.19, modeling_rope_utils.py; vllm 0.32, layers/rotary_embedding).
# Others are refused: what one reads and the other ignores would draft differently. So are dynamic
# (recomputed per length there, fixed here) and longrope (vLLM's DFlash can't load it).
_PARAMETERS: Mapping[str, Mapping[str, float]] = {
    "default": {},
    "linear": {"factor": 1.0},
    "llama3": {
        "factor": 1.0,
        _ORIGINAL: 1,
        "low_freq_factor": 0.0,
        "high_freq_factor": 0.0,
    },
    "yarn": {
        "factor": 1.0,
        _ORIGINAL: 1,
        "attention_factor": 0.0,
        "beta_fast": 0.0,
        "beta_slow": 0.0,
        "mscale": 0.0,
        "mscale_all_dim": 0.0,
    },
}
_SWITCHES: Mapping[str, frozenset[str]] = {"yarn": frozenset({"truncate"})}
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
_LEAST_THETA, _MOST = 1.0, 1e15
# Kinds whose training length transformers fills in from max_position_embeddings where absent
# (transformers 5.19, modeling_rope_utils.py, standardize_rope_params).
_NEED_ORIGINAL = frozenset({"llama3", "yarn", "longrope"})


def read_rope(
    cursor: ConfigCursor,
    longest: int,
    prefix: str = "",
    *,
    partial_rotary: PartialRotary = "unclear",
) -> Rope:
    """Return the rope stated as ``rope_parameters`` or as ``rope_theta`` and ``rope_scaling``.

    Where both styles are present they must agree (SpecForge exports mirror one in the other). A
    missing theta is refused: transformers' Qwen3Config, Speculators 0.9 and vLLM's native path take
    1e4, vLLM's Speculators path 1e6 (vllm 0.32, models/qwen3_dflash.py, set_default_rope_theta).

    Args:
        cursor: The config.
        longest: ``max_position_embeddings``, which stands in for the length before scaling.
        prefix: Dotted prefix of the section, e.g. ``transformer_layer_config.``.
        partial_rotary: What the trainer's code does with ``partial_rotary_factor``; ``unclear``
            refuses any but 1.

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
    factor = _partial_factor(cursor, prefix, nested, flat, partial_rotary)
    if nested and flat:
        _same_kind(nested_key, nested, flat_key, flat)
    stated, key = (nested, nested_key) if nested else (flat, flat_key)
    kind = _kind(stated, key)
    parameters = {k: v for k, v in stated.items() if k not in _NOT_EXTRAS and v is not None}
    if kind in _NEED_ORIGINAL and _ORIGINAL not in parameters:
        parameters[_ORIGINAL] = longest
        cursor.notes.append(
            f"{_ORIGINAL} of the rope is not stated: {longest} (max_position_embeddings) is "
            "taken, as transformers does."
        )
    _check_parameters(kind, parameters, key)
    return Rope(kind, theta, Rope.freeze(parameters), factor)


def _check_parameters(kind: str, parameters: Mapping[str, Any], key: str) -> None:
    """Refuse parameters that trainers and engines don't read alike.

    Raises:
        CheckpointError: For an unknown or missing parameter, or a value out of range.
    """
    known = _PARAMETERS[kind]
    for name in _REQUIRED.get(kind, ()):
        if name not in parameters:
            raise CheckpointError(
                f"a rope of kind {kind} needs it",
                where=CONFIG,
                field=f"{key}.{name}",
                remedy=f"Pass --set {key}.{name}=VALUE",
            )
    for name, value in parameters.items():
        field = f"{key}.{name}"
        if name in _SWITCHES.get(kind, ()):
            if not isinstance(value, bool):
                raise CheckpointError(f"{value!r} is not true or false", where=CONFIG, field=field)
        elif name not in known:
            raise CheckpointError(
                f"is no parameter of a {kind} rope that trainers and vLLM read alike",
                where=CONFIG,
                field=field,
                remedy=f"If it had no effect in training, state the rope by --set {key}='{{...}}'",
            )
        elif not _in_range(value, known[name], whole=name == _ORIGINAL):
            raise CheckpointError(
                f"{str(value)[:60]!r} is no number from {known[name]:g} on",
                where=CONFIG,
                field=field,
                remedy="Correct the file",
            )
    fast, slow = parameters.get("beta_fast", 32), parameters.get("beta_slow", 1)
    if kind == "yarn" and not 0 < slow < fast:
        raise CheckpointError(
            f"beta_slow {slow} and beta_fast {fast} are no range", where=CONFIG, field=key
        )


def _in_range(value: Any, least: float, *, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return False
    return least <= value <= _MOST and (value > 0 or least == 0)


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
        if not _in_range(value, _LEAST_THETA, whole=False):
            raise CheckpointError(
                f"{str(value)[:60]!r} is not a positive number", where=CONFIG, field=name
            )
        if value != stated[0][1]:
            raise ContradictionError("rope_theta", stated[0], (name, value), where=CONFIG)
    return float(stated[0][1])


def _partial_factor(
    cursor: ConfigCursor,
    prefix: str,
    nested: Mapping[str, Any],
    flat: Mapping[str, Any],
    meant: PartialRotary,
) -> float:
    key = "partial_rotary_factor"
    places = {
        f"{prefix}{key}": cursor.agree("rope", f"{prefix}{key}"),
        f"{prefix}rope_parameters.{key}": nested.get(key),
        f"{prefix}rope_scaling.{key}": flat.get(key),
    }
    stated = [(name, value) for name, value in places.items() if value is not None]
    for name, value in stated:
        if not _in_range(value, 0.0, whole=False) or value > 1:
            raise CheckpointError(
                f"{str(value)[:60]!r} is no share of a head, above 0 and up to 1",
                where=CONFIG,
                field=name,
                remedy="Correct the file",
            )
        if value != stated[0][1]:
            raise ContradictionError(key, stated[0], (name, value), where=CONFIG)
        if value != 1 and meant == "unclear":
            raise CheckpointError(
                f"{value!r} is not clear: the Qwen3 code of transformers, which z-lab, SpecForge "
                "and Speculators train with, ignores it, and vLLM applies it",
                where=CONFIG,
                field=name,
                remedy=f"Pass --set {name}=1.0 if the drafter was trained without it",
            )
    factor = float(stated[0][1]) if stated else 1.0
    if factor == 1.0 or meant == "applied":
        return factor
    cursor.notes.append(
        f"{stated[0][0]} {factor} is left out: the trainer's Qwen3 code ignores it, and vLLM would "
        "apply it."
    )
    return 1.0


def _kind(stated: Mapping[str, Any], key: str) -> str:
    """Return the rope's kind by its new or old name.

    Raises:
        CheckpointError: If it is not one that trainers and vLLM compute alike.
        ContradictionError: If both names are there and differ.
    """
    new, old = stated.get("rope_type"), stated.get("type")
    if new is not None and old is not None and new != old:
        raise ContradictionError(
            "rope", (f"{key}.rope_type", new), (f"{key}.type", old), where=CONFIG
        )
    kind = new if new is not None else old
    if kind is None:
        return "default"
    if not isinstance(kind, str) or kind not in _PARAMETERS:
        raise CheckpointError(
            f"{str(kind)[:60]!r} is no kind of rope that trainers and vLLM compute alike",
            where=CONFIG,
            field=f"{key}.rope_type",
            remedy=f"Known are {', '.join(_PARAMETERS)}",
        )
    return kind


def _same_kind(
    nested_key: str, nested: Mapping[str, Any], flat_key: str, flat: Mapping[str, Any]
) -> None:
    def meaning(section: Mapping[str, Any]) -> dict[str, Any]:
        rest = {k: v for k, v in section.items() if k not in _NOT_EXTRAS and v is not None}
        kind = section.get("rope_type") or section.get("type") or "default"
        return {"rope_type": kind, **rest}

    if meaning(nested) != meaning(flat):
        raise ContradictionError(
            "rope", (nested_key, dict(nested)), (flat_key, dict(flat)), where=CONFIG
        )
