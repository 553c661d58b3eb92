"""Window and causality per draft layer as TensorRT-LLM's DFlash resolves them.

Source: NVIDIA/TensorRT-LLM main 2026-09, read and not run: _torch/models/modeling_dflash.py
(_get_attention_mask_args, dspark_layer_window_size) and _torch/pyexecutor/config_utils.py
(get_layer_attention_window).
"""

from __future__ import annotations

from dflash_pack.drafter import DraftLayer, Family
from dflash_pack.engines.keys import Keys
from dflash_pack.engines.native_keys import whole
from dflash_pack.engines.qwen3_defaults import SLIDING, Qwen3Fields


def resolve_layers(
    root: Keys, fields: Qwen3Fields, family: Family
) -> tuple[tuple[DraftLayer, ...], tuple[str, ...]]:
    """Return the layers, or sentences why it refuses.

    A layer with a window is causal, any other bidirectional; ``is_causal`` counts for DFlash2 only,
    ``dflash_config.causal`` for none. ``use_swa`` gives sliding layers its own window, and full
    ones none. Laguna's sliding layers are causal even without a window.
    """
    section = root.section("dflash_config")
    swa, problems = _swa_window(section)
    if root.config.get("use_sliding_window") is True and fields.sliding_window is None:
        problems = (
            *problems,
            "use_sliding_window is true without a sliding_window, which TensorRT-LLM refuses.",
        )
    if fields.sliding_window is not None and fields.sliding_window < 1:
        problems = (*problems, f"sliding_window is {fields.sliding_window}, not above 0.")
    if problems:
        return (), problems
    stated = root.get("is_causal") if family == "dflash2" else None
    layers: list[DraftLayer] = []
    for kind in fields.layer_types:
        sliding = kind == SLIDING
        window = fields.sliding_window if sliding else None
        causal = window is not None or (sliding and family == "laguna")
        if stated is not None:
            causal = bool(stated)
        layers.append(DraftLayer(window=swa if sliding and swa else window, causal=causal))
    return tuple(layers), ()


def _swa_window(section: Keys) -> tuple[int | None, tuple[str, ...]]:
    if not section.get("use_swa", False):
        return None, ()
    value = section.get("swa_window_size")
    if not whole(value) or value < 1:
        return None, (f"use_swa is true and swa_window_size is {value!r}: TensorRT-LLM refuses.",)
    return int(value), ()
