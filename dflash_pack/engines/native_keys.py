"""What engines of the native form share in reading it: where keys stand, whose matrices count.

SGLang and TensorRT-LLM parse the file with transformers' Qwen3Config and then read DFlash's own
keys off it. Neither knows the Speculators keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_pack.drafter import Rope
from dflash_pack.engines.keys import Keys
from dflash_pack.engines.qwen3_defaults import Qwen3Fields, parse_qwen3
from dflash_pack.target import Target

_MODEL_TYPE = "qwen3"
# Qwen3Config's defaults are not those of Laguna's config class, so there each must be stated.
_LAGUNA_STATED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "hidden_act",
    "max_position_embeddings",
    "layer_types",
    "sliding_window",
)
# JSON may hold a whole number that no float can: it would stop the arithmetic.
_HUGE = 1e30


def not_native(config: Mapping[str, Any], engine: str, *, laguna: bool = False) -> str | None:
    """Return why ``engine`` can't parse ``config`` as a drafter's, None if it can.

    Args:
        config: The file.
        engine: Its name, for the sentence.
        laguna: Whether Laguna's drafter is to be built, which has a config class of its own.
    """
    kind = config.get("model_type")
    if kind is None and ("speculators_model_type" in config or "speculators_config" in config):
        return (
            f"{engine} does not read the Speculators format: it reads --format native or universal."
        )
    if kind is None:
        return f'model_type is missing, so {engine} can\'t parse the file: write "qwen3".'
    wanted = "laguna" if laguna else _MODEL_TYPE
    if kind != wanted:
        return (
            f"model_type is {kind!r}: {engine} would parse it with a class of other defaults, "
            f'which is not worked out here. Write "{wanted}" and every field explicitly.'
        )
    return None


def parse_backbone(root: Keys, *, laguna: bool) -> tuple[Qwen3Fields | None, tuple[str, ...]]:
    """Return the sizes and layers of the draft transformer, or sentences why there are none.

    Laguna's config class keeps the window whatever ``use_sliding_window`` says (sglang 0.5.23,
    configs/laguna.py).
    """
    if not laguna:
        return parse_qwen3(root)
    problems = tuple(
        f"{name} is not stated, and Laguna's config class has a default of its own."
        for name in _LAGUNA_STATED
        if root.config.get(name) is None
    )
    if problems:
        return None, problems
    windowed = Keys({**root.config, "use_sliding_window": True}, seen=root.seen)
    fields, problems = parse_qwen3(windowed)
    root.forget("use_sliding_window")
    return fields, problems


def nested_or_top(root: Keys, name: str, default: Any = None) -> Any:
    """Return ``dflash_config.name`` where it is present, null included, else the top-level key."""
    section = root.section("dflash_config")
    return section.get(name) if section.has(name) else root.get(name, default)


def whole(value: object) -> bool:
    """Return whether ``value`` is a whole number, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def number(value: object) -> bool:
    """Return whether ``value`` is a number that arithmetic can take, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _HUGE


def layer_ids(value: object) -> tuple[int, ...] | None:
    """Return ``value`` as layer ids, None where it is no list of whole numbers or is empty."""
    if not isinstance(value, list) or not value or not all(whole(item) for item in value):
        return None
    return tuple(value)


def captured_refusals(
    ids: tuple[int, ...], target: Target | None, *, engine: str
) -> tuple[str, ...]:
    """Return why ``engine`` can't capture these 0-based layers of the target."""
    if len(set(ids)) != len(ids):
        return (f"target_layer_ids names a layer twice, and {engine} captures it once.",)
    if min(ids) < 0:
        return (f"Captured layer {min(ids)} does not exist in any target.",)
    if target is not None and max(ids) >= target.num_hidden_layers:
        text = (
            f"Captured layer {max(ids)} does not exist: the target has "
            f"{target.num_hidden_layers} layers."
        )
        return (text,)
    return ()


def width_refusals(hidden_size: int, target: Target | None, *, engine: str) -> tuple[str, ...]:
    """Return why a drafter of ``hidden_size`` can't use the target's embedding and head."""
    if target is None or target.hidden_size == hidden_size:
        return ()
    text = (
        f"The target's embedding and head, which {engine} always uses, are {target.hidden_size} "
        f"wide, and the drafter is {hidden_size}."
    )
    return (text,)


def without_parameters(rope: Rope, names: frozenset[str]) -> Rope:
    """Return ``rope`` as an engine computes it that does not read the parameters ``names``."""
    kept = tuple((name, value) for name, value in rope.extras if name not in names)
    return Rope(rope.kind, rope.theta, kept, rope.partial_rotary_factor)


def skipped_parameters(rope: Rope, names: frozenset[str]) -> frozenset[str]:
    """Return those of ``names`` that ``rope`` states with an effect.

    ``truncate`` is true where it is not stated (transformers 5.19, modeling_rope_utils.py,
    _compute_yarn_parameters), so that stating it changes nothing.
    """
    return frozenset(
        name
        for name, value in rope.extras
        if name in names and not (name == "truncate" and value is True)
    )
