"""poolside's Laguna drafters, which vLLM, SGLang and TensorRT-LLM run by models of their own."""

from __future__ import annotations

from typing import Any

from dflash_pack.checkpoint import Contents
from dflash_pack.converters.native import (
    NativeDialect,
    architectures,
    native_cursor,
    read_native,
)
from dflash_pack.converters.reading import CONFIG, Reading
from dflash_pack.converters.writing import WrittenForm, dtype_name, layer_config
from dflash_pack.converters.zlab import Style, require_whole_block, section_extras, top_extras
from dflash_pack.drafter import Drafter, Gating, LagunaParts
from dflash_pack.engines.limits import native_form_problems
from dflash_pack.errors import CheckpointError, ContradictionError, NotRepresentableError
from dflash_pack.schemas.laguna import HARMLESS, LagunaConfig
from dflash_pack.target import Target

NAME = "laguna"
ARCHITECTURE = "DFlashLagunaForCausalLM"
MODEL_TYPE = "laguna"
DIALECT = NativeDialect(
    name=NAME,
    schema=LagunaConfig,
    harmless=HARMLESS,
    architectures=(ARCHITECTURE,),
    model_types=(MODEL_TYPE,),
    # Its config class has no such switch: layer_types alone say it.
    absent_switch_slides=True,
    # vLLM's loader takes the projections fused (vllm 0.32, models/laguna_dflash.py).
    keep_fused=True,
)


def detect(contents: Contents) -> bool:
    """Return whether the architecture, the gates or the norms are Laguna's."""
    if "speculators_model_type" in contents.config:
        return False
    named = any("DFlashLaguna" in name for name in architectures(contents))
    return named or any(
        name.endswith("self_attn.g_proj.weight") or "aux_hidden_norms." in name
        for name in contents.tensors
    )


def read(contents: Contents) -> Reading:
    """Return the meaning of a Laguna drafter.

    Raises:
        CheckpointError: If the kind of its gates is not stated, or its projections are split.
        ContradictionError: If it says that it has no gates, or names another number of layers.
        DflashPackError: As :func:`dflash_pack.converters.native.read_native`.
    """
    cursor = native_cursor(contents, DIALECT)
    stated = cursor.agree("gating", "gating")
    if stated is False:
        raise ContradictionError(
            "gating",
            ("gating", False),
            ("its kind", "Laguna, whose drafters have gates"),
            where=CONFIG,
            remedy="Pass --set gating=per-head or --set gating=per-element",
        )
    if stated is None:
        raise CheckpointError(
            "is not stated, and the drafter's attention is gated per head or per element",
            where=CONFIG,
            field="gating",
            remedy="Pass --set gating=per-head or --set gating=per-element",
        )
    if any(name.endswith("self_attn.q_proj.weight") for name in contents.tensors):
        raise CheckpointError(
            "is split from its fused qkv_proj, which engines of Laguna's drafter load whole",
            where="the weights",
            field="self_attn.q_proj.weight",
            remedy="Use the checkpoint with fused projections",
        )
    kinds = cursor.agree("kind of MLP", "mlp_layer_types")
    layers = cursor.flat.get("num_hidden_layers")
    if kinds is not None and len(kinds) != layers:
        raise ContradictionError(
            "number of draft layers",
            ("num_hidden_layers", layers),
            ("mlp_layer_types", len(kinds)),
            where=CONFIG,
            remedy="Correct the file or pass --set mlp_layer_types=null",
        )
    if kinds is not None and any(kind != "dense" for kind in kinds):
        raise CheckpointError(
            "names layers of experts, which drafters don't have",
            where=CONFIG,
            field="mlp_layer_types",
            remedy="Give the folder of the drafter, not of the target",
        )
    gating: Gating = "per-element" if stated == "per-element" else "per-head"
    return read_native(contents, DIALECT, parts=LagunaParts(gating), cursor=cursor)


def write(drafter: Drafter, target: Target, *, style: Style = "old") -> WrittenForm:
    """Return the native form, in the keys that vLLM's Laguna drafter reads.

    Raises:
        NotRepresentableError: If layers are of two kinds, no form carries the drafter, or
            ``style`` is new: there is one only.
    """
    require_whole_block(drafter)
    problems = list(native_form_problems(drafter))
    if len({layer.window for layer in drafter.layers}) > 1:
        problems.append("Laguna's drafter needs layers of one kind.")
    if problems or not isinstance(drafter.parts, LagunaParts):
        raise NotRepresentableError((problems or ["It is no Laguna drafter."])[0].rstrip("."))
    if style == "new":
        raise NotRepresentableError(
            "Laguna's drafter has one native form", remedy="Use --format native"
        )
    ids = list(drafter.target_layer_ids)
    layer = layer_config(drafter, max_position_embeddings=drafter.geometry.max_position_embeddings)
    for name in ("use_sliding_window", "max_window_layers"):
        del layer[name]
    config: dict[str, Any] = {
        **layer,
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "gating": drafter.parts.gating,
        # Left out, the config class makes all but the first layer one of experts.
        "mlp_layer_types": ["dense"] * len(drafter.layers),
        "draft_vocab_size": drafter.vocabulary.draft_size,
        "dtype": dtype_name(drafter.dtype),
        "eagle_aux_hidden_state_layer_ids": [index + 1 for index in ids],
        "num_target_layers": target.num_hidden_layers,
        "rope_theta": drafter.rope.theta,
        "dflash_config": {
            "block_size": drafter.block_size,
            "causal": drafter.causality,
            "mask_token_id": drafter.vocabulary.mask_token_id,
            "target_layer_ids": ids,
            **section_extras(drafter),
        },
        **top_extras(drafter),
    }
    fields = {
        "block_size": "dflash_config.block_size",
        "mask_token_id": "dflash_config.mask_token_id",
        "target_layer_ids": "dflash_config.target_layer_ids",
        "causality": "dflash_config.causal",
        "parts": "gating",
        "rope": "rope_parameters",
    }
    return WrittenForm("native", dict(sorted(config.items())), fields)
