"""How engines fill, validate and read the rope keys of a config.

Source: transformers 5.19, modeling_rope_utils.py (RotaryEmbeddingConfigMixin) and
configuration_utils.py; vllm 0.32.0 and 0.33.0, transformers_utils/config.py
(patch_rope_parameters, set_default_rope_theta) and layers/rotary_embedding/__init__.py (get_rope).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_pack.drafter import Rope
from dflash_pack.engines.keys import Keys
from dflash_pack.engines.meaning import SCALED_KINDS

TRANSFORMERS_THETA = 10_000.0
VLLM_SPECULATORS_THETA = 1_000_000.0

TRANSFORMERS_KINDS = frozenset({"default", "linear", "dynamic", "yarn", "longrope", "llama3"})
# vLLM's DFlash reads cos_sin_cache off the rotary module, which its longrope class does not have.
VLLM_KINDS = (TRANSFORMERS_KINDS | {"ntk"}) - {"longrope"}

_REQUIRED: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
    "llama3": (
        "factor",
        "original_max_position_embeddings",
        "low_freq_factor",
        "high_freq_factor",
    ),
}
_HUGE = 1e30
_LISTS = frozenset({"short_factor", "long_factor"})
_NOT_EXTRAS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor", "rope_dim"})
_THETA_NAMES = ("rope_theta", "rotary_emb_base")
_PARTIAL_NAMES = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")


@dataclass(frozen=True)
class RopeReading:
    """The rope dict an engine holds after its config classes ran; ``problems`` are sentences."""

    parameters: Mapping[str, Any]
    problems: tuple[str, ...] = ()


def qwen3_rope(keys: Keys, layer_types: Sequence[str], max_position: int) -> RopeReading:
    """Return the rope dict that transformers' Qwen3Config builds from ``keys``.

    ``rope_scaling``, when not empty, wins over ``rope_parameters``; ``rope_theta`` and
    ``partial_rotary_factor`` fill what the dict leaves open; theta defaults to 10000. A top-level
    ``original_max_position_embeddings`` overrides the dict's, because the functions that compute
    scaled frequencies standardise the config once more.
    """
    stated = keys.get("rope_scaling") or keys.get("rope_parameters") or {}
    if not isinstance(stated, Mapping):
        return RopeReading({}, ("The rope section of config.json is not an object.",))
    theta = keys.get("rope_theta") if keys.has("rope_theta") else TRANSFORMERS_THETA
    return _settle(
        stated,
        theta=theta,
        partial=keys.get("partial_rotary_factor"),
        layer_types=layer_types,
        max_position=max_position,
        original=keys.get("original_max_position_embeddings"),
    )


def vllm_native_rope(keys: Keys, layer_types: Sequence[str], max_position: int) -> RopeReading:
    """Return the rope dict of vLLM's native path: Qwen3Config's, then vLLM's legacy names."""
    reading = qwen3_rope(keys, layer_types, max_position)
    if reading.problems:
        return reading
    keys.get("rotary_emb_base")
    partial = _first(keys, _PARTIAL_NAMES)
    return _vllm_patch(reading.parameters, partial, layer_types, max_position)


def vllm_speculators_rope(keys: Keys, layer_types: Sequence[str], max_position: int) -> RopeReading:
    """Return the rope dict of vLLM's Speculators path, which has no Qwen3Config to fill gaps.

    ``rope_parameters`` and ``rope_scaling`` set the same attribute, so the later one in the file
    wins, a null included. With neither and no theta, the layers fall back to theta 1000000.
    """
    written = [name for name in keys.config if name in ("rope_parameters", "rope_scaling")]
    theta, partial = _first(keys, _THETA_NAMES), _first(keys, _PARTIAL_NAMES)
    for name in written:
        keys.get(name)
    stated = (keys.get(written[-1]) if written else None) or {}
    if not isinstance(stated, Mapping):
        return RopeReading({}, ("The rope section of transformer_layer_config is not an object.",))
    if not written and theta is None:
        return RopeReading({"rope_type": "default", "rope_theta": VLLM_SPECULATORS_THETA})
    if written:
        theta = keys.get("rope_theta") if keys.has("rope_theta") else TRANSFORMERS_THETA
    reading = _settle(
        stated,
        theta=theta,
        partial=partial,
        layer_types=layer_types,
        max_position=max_position,
        original=keys.get("original_max_position_embeddings"),
    )
    if reading.problems:
        return reading
    return _vllm_patch(reading.parameters, partial, layer_types, max_position)


def to_rope(
    parameters: Mapping[str, Any], head_dim: int, *, kinds: frozenset[str], engine: str
) -> tuple[Rope | None, tuple[str, ...]]:
    """Return the rotary embedding that ``parameters`` stand for, or sentences why there is none.

    Args:
        parameters: A dict for all layers, as one of the readers above returns it.
        head_dim: D, in elements.
        kinds: Rope kinds that the engine computes.
        engine: Its name, for the sentences.
    """
    kind = parameters.get("rope_type", "default")
    theta = parameters.get("rope_theta")
    if not isinstance(kind, str) or kind not in kinds:
        return None, (f"{engine} can't draft with a rope of type {kind!r}.",)
    if not isinstance(theta, int | float) or not _positive(theta):
        return None, (f"rope_theta is {theta!r}, so {engine} can't compute its rotation.",)
    partial = parameters.get("partial_rotary_factor", 1.0)
    rope_dim = parameters.get("rope_dim")
    if rope_dim:
        partial = rope_dim / head_dim if _positive(rope_dim) else rope_dim
    if not _positive(partial) or partial > 1:
        return None, (f"partial_rotary_factor is {partial!r}, not a share between 0 and 1.",)
    extras = {k: v for k, v in parameters.items() if k not in _NOT_EXTRAS and v is not None}
    try:
        frozen = Rope.freeze(extras)
    except (TypeError, ValueError, OverflowError) as error:
        return None, (f"The rope section is not usable: {error}.",)
    return Rope(str(kind), float(theta), frozen, float(partial)), ()


def nested_labels(parameters: Mapping[str, Any], layer_types: Sequence[str]) -> tuple[str, ...]:
    """Return the layer types that ``parameters`` holds one rope each for; empty = one for all."""
    return tuple(name for name in parameters if name in layer_types)


def _settle(
    stated: Mapping[str, Any],
    *,
    theta: object,
    partial: object,
    layer_types: Sequence[str],
    max_position: int,
    original: object,
) -> RopeReading:
    labels = nested_labels(stated, layer_types)
    if labels:
        inner = {
            name: _fill(value, theta, partial, max_position, None)
            for name, value in stated.items()
            if name in labels and isinstance(value, Mapping)
        }
        return RopeReading({**stated, **inner}, _problems(inner.values()))
    filled = _fill(stated, theta, partial, max_position, original)
    return RopeReading(filled, _problems([filled]))


def _fill(
    stated: Mapping[str, Any], theta: object, partial: object, max_position: int, original: object
) -> dict[str, Any]:
    filled = dict(stated)
    filled.setdefault("rope_theta", theta)
    if partial is not None:
        filled.setdefault("partial_rotary_factor", partial)
    filled.setdefault("rope_type", filled.get("type", "default"))
    kind = filled["rope_type"]
    if isinstance(kind, str) and kind in SCALED_KINDS:
        filled.setdefault("original_max_position_embeddings", max_position)
        if original is not None:
            filled["original_max_position_embeddings"] = original
    return filled


def _vllm_patch(
    parameters: Mapping[str, Any], partial: object, layer_types: Sequence[str], max_position: int
) -> RopeReading:
    if nested_labels(parameters, layer_types):
        text = "The rope section holds one rope per layer type, which vLLM's DFlash fails on."
        return RopeReading(parameters, (text,))
    patched = dict(parameters)
    legacy, kind = patched.get("type"), patched["rope_type"]
    if legacy not in (None, kind) and (legacy, kind) not in (
        ("su", "longrope"),
        ("mrope", "default"),
    ):
        text = f"The rope section says type {legacy!r} and rope_type {kind!r}, which vLLM refuses."
        return RopeReading(patched, (text,))
    if kind == "su":
        patched["rope_type"] = "longrope"
    elif kind == "mrope":
        patched["rope_type"] = "default"
    elif kind == "telechat3-yarn" and _positive(patched.get("factor")):
        patched |= {
            "rope_type": "yarn",
            "attention_factor": 0.07 * math.log(patched["factor"]) + 1.0,
        }
    if kind == "mrope" or patched.get("mrope_section") is not None:
        text = (
            "The rope section asks for M-RoPE, which vLLM does not support for a parallel drafter."
        )
        return RopeReading(patched, (text,))
    filled = _fill(patched, None, partial, max_position, None)
    return RopeReading(filled, _problems([filled]))


def _problems(ropes: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    found: list[str] = []
    for rope in ropes:
        kind = rope.get("rope_type")
        for name in _REQUIRED.get(kind, ()) if isinstance(kind, str) else ():
            value = rope.get(name)
            usable = isinstance(value, list) if name in _LISTS else _positive(value)
            if not usable:
                found.append(f"A rope of type {kind} needs {name}, and config.json has {value!r}.")
    return tuple(found)


def _first(keys: Keys, names: Sequence[str]) -> Any:
    # The first name that is present decides, even with a null (vllm config/utils.py, getattr_iter).
    present = [name for name in names if keys.has(name)]
    return keys.get(present[0]) if present else None


def _positive(value: object) -> bool:
    # JSON may hold a whole number that no float can: it would stop the arithmetic.
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and bool(0 < value < _HUGE)
    )


# What LagunaConfig fills in where no rope_parameters are stated, by layer type; a flat rope_theta
# is not read (transformers 5.19, models/laguna/configuration_laguna.py).
_LAGUNA: Mapping[str, Mapping[str, object]] = {
    "full_attention": {
        "rope_type": "default",
        "rope_theta": 500000.0,
        "partial_rotary_factor": 0.5,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}


def laguna_rope(keys: Keys, layer_type: str) -> dict[str, Any]:
    """Return the rope dict that vLLM's Laguna layers of one type compute with.

    Source: vllm 0.32, models/laguna.py: ``swa_rope_parameters`` for sliding layers, else the entry
    of the layer type, else the flat dict; a top-level ``partial_rotary_factor`` fills in.
    """
    stated = keys.get("rope_parameters")
    nested: Any = stated if isinstance(stated, Mapping) else _LAGUNA
    if any(isinstance(value, Mapping) for value in nested.values()):
        nested = nested.get(layer_type) or nested.get("full_attention") or {}
    own = keys.get("swa_rope_parameters")
    if layer_type == "sliding_attention" and isinstance(own, Mapping):
        nested = own
    chosen = dict(nested) if isinstance(nested, Mapping) else {}
    chosen.setdefault("rope_type", "default")
    partial = keys.get("partial_rotary_factor")
    if partial is not None:
        chosen.setdefault("partial_rotary_factor", partial)
    return chosen
