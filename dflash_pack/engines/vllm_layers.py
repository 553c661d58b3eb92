"""What vLLM's DFlash reads out of its draft config: layers, captured layers, mask token.

Source: vllm 0.32.0 (run) and 0.33.0 (read): models/qwen3_dflash.py (_resolve_layer_attention,
_dflash_layer_causal), v1/worker/gpu/spec_decode/eagle/eagle3_utils.py, models/interfaces.py
(_maybe_add_hidden_state), v1/worker/gpu/spec_decode/utils.py, v1/spec_decode/llm_base_proposer.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from dflash_pack.drafter import DraftLayer
from dflash_pack.engines.qwen3_defaults import SLIDING
from dflash_pack.engines.vllm_config import DraftConfig

_MASK_FALLBACKS = ("dspark_noise_token_id", "pard_token", "ptd_token_id")


@dataclass(frozen=True)
class Captured:
    """The captured layers, 0-based by output, in the order in which vLLM concatenates them."""

    layer_ids: tuple[int, ...] = ()
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def resolve_layers(config: DraftConfig) -> tuple[tuple[DraftLayer, ...], tuple[str, ...]]:
    """Return window and causality per layer, or sentences why vLLM refuses.

    ``use_swa`` makes every layer sliding unless some layer already is. Causality: top-level
    ``is_causal``, else ``dflash_config.causal`` (both for all layers), else sliding layers causal.
    """
    types = config.layer_types
    use_swa = bool(config.dflash.get("use_swa", False))
    any_sliding = types is not None and SLIDING in types
    override = _causal_override(config)
    window: int | None = None
    layers: list[DraftLayer] = []
    for index in range(config.num_hidden_layers):
        stated = types[index] if types else None
        sliding = use_swa if types is None or (use_swa and not any_sliding) else stated == SLIDING
        if sliding and window is None:
            window = _window(config)
            if window is None:
                text = (
                    "Sliding layers have no window: vLLM finds neither "
                    "dflash_config.swa_window_size nor sliding_window"
                )
                nulled = config.attributes.config.get("sliding_window") is not None
                why = (
                    " (transformers' Qwen3Config nulls it unless use_sliding_window is true)"
                    if nulled and config.sliding_window is None
                    else ""
                )
                return (), (f"{text}{why}.",)
        causal = stated == SLIDING if override is None else override
        layers.append(DraftLayer(window=window if sliding else None, causal=causal))
    return tuple(layers), ()


def resolve_captured(config: DraftConfig) -> Captured:
    """Return the captured layers.

    The target appends its states in ascending layer order whatever the order of the ids, so ids
    that are not ascending meet the wrong slices of ``fc``: the answer is sorted.
    """
    found, source = _stated_ids(config)
    if not isinstance(found, list) or not found:
        text = (
            "No captured layers are stated (dflash_config.target_layer_ids): vLLM would capture "
            "the target's three default layers."
        )
        return Captured(refusals=(text,))
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in found):
        return Captured(refusals=(f"{source} holds something other than whole numbers.",))
    if len(set(found)) != len(found):
        return Captured(refusals=(f"{source} names a layer twice, and vLLM captures it once.",))
    notes: list[str] = []
    if source not in ("eagle_aux_hidden_state_layer_ids", "dflash_config.target_layer_ids"):
        notes.append(
            f"Captured layers come from {source}, which only vLLM's V2 model runner reads; V1 "
            "captures the target's default layers. State dflash_config.target_layer_ids."
        )
    elif source.startswith("dflash_config") and config.attributes.get("eagle_config") is not None:
        notes.append(
            "eagle_config makes vLLM's V1 model runner forget dflash_config.target_layer_ids."
        )
    return Captured(layer_ids=tuple(sorted(item - 1 for item in found)), notes=tuple(notes))


def resolve_mask(config: DraftConfig) -> tuple[int | None, bool, tuple[str, ...]]:
    """Return the mask token id, whether a ``mask_embedding.pt`` is looked for, and refusals."""
    attributes, dflash = config.attributes, config.dflash
    value: object = None
    own_embedding = True
    stated = True
    if dflash.has("mask_token_id"):
        value = dflash.get("mask_token_id")
    elif attributes.get("mask_token_id") is not None:
        value = attributes.get("mask_token_id")
    else:
        own_embedding = False
        name = next((name for name in _MASK_FALLBACKS if attributes.has(name)), None)
        stated = name is not None
        value = attributes.get(name) if name else None
    if not stated:
        return None, False, ("No mask token is stated (dflash_config.mask_token_id).",)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return None, False, (f"The mask token is {value!r}, not a token id.",)
    return value, own_embedding, ()


def _causal_override(config: DraftConfig) -> bool | None:
    is_causal = config.attributes.get("is_causal")
    nested = config.dflash.get("causal")
    if is_causal is not None:
        config.dflash.forget("causal")
        return bool(is_causal)
    return None if nested is None else bool(nested)


def causality_by(config: DraftConfig, *, speculators: bool) -> str | None:
    """Return the key and value that decide the causality of every layer; None = layer types do.

    Args:
        config: The draft config.
        speculators: Whether it was made of a Speculators file, whose flag becomes
            ``dflash_config.causal`` (vllm 0.32, configs/speculators/algos.py, update_dflash).
    """
    stated = config.attributes.get("is_causal")
    if stated is not None:
        return f"is_causal: {json.dumps(stated)}"
    nested = config.dflash.get("causal")
    if nested is None:
        return None
    if speculators:
        return f"sliding_window_non_causal: {json.dumps(not nested)}"
    return f"dflash_config.causal: {json.dumps(nested)}"


def _window(config: DraftConfig) -> int | None:
    # A null swa_window_size hides sliding_window: dict.get falls back only when the key is absent.
    if config.dflash.has("swa_window_size"):
        value = config.dflash.get("swa_window_size")
        config.attributes.forget("sliding_window")
    else:
        value = config.sliding_window
    usable = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if usable else None


def _stated_ids(config: DraftConfig) -> tuple[object, str]:
    """Return ids where 0 is the embedding output, and the key they came from."""
    attributes, dflash = config.attributes, config.dflash
    if config.aux_layer_ids:
        return config.aux_layer_ids, "eagle_aux_hidden_state_layer_ids"
    shifted = (
        (dflash.get("target_layer_ids"), "dflash_config.target_layer_ids"),
        (attributes.get("dspark_target_layer_ids"), "dspark_target_layer_ids"),
        (attributes.get("target_layer_ids"), "target_layer_ids"),
    )
    for ids, source in shifted:
        if ids:
            return _plus_one(ids), source
    plain = (
        (dflash.get("layer_ids"), "dflash_config.layer_ids"),
        (attributes.section("eagle_config").get("layer_ids"), "eagle_config.layer_ids"),
    )
    return next(((ids, source) for ids, source in plain if ids), (None, ""))


def _plus_one(ids: object) -> object:
    if not isinstance(ids, list):
        return ids
    return [
        item + 1 if isinstance(item, int) and not isinstance(item, bool) else item for item in ids
    ]
