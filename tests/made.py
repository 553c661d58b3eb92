"""Small made-up drafters and targets: configs, headers and, on disk, random finite weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raw_safetensors import Raw, raw, write_checkpoint

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.target import Target

NATIVE: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "attention_bias": False,
    "block_size": 4,
    "dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 2]},
    "dtype": "bfloat16",
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 24,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 512,
    "max_window_layers": 2,
    "model_type": "qwen3",
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "num_target_layers": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 64,
}
LAYER_KEYS = (
    "attention_bias",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "max_window_layers",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "sliding_window",
    "use_sliding_window",
    "vocab_size",
)
SLIDING = {
    "layer_types": ["sliding_attention", "sliding_attention"],
    "sliding_window": 32,
    "use_sliding_window": True,
}
MIXED = SLIDING | {"layer_types": ["sliding_attention", "full_attention"]}
REMOVED = object()
# Changes that make a drafter of Laguna's; its tensors are those that the reader's result needs.
LAGUNA: dict[str, Any] = SLIDING | {
    "architectures": ["DFlashLagunaForCausalLM"],
    "block_size": REMOVED,
    "dflash_config": {
        "block_size": 4,
        "causal": True,
        "mask_token_id": 5,
        "num_target_layers": 4,
        "target_layer_ids": [0, 2],
    },
    "draft_vocab_size": 64,
    "eagle_aux_hidden_state_layer_ids": [1, 3],
    "gating": "per-head",
    "max_window_layers": REMOVED,
    "model_type": "laguna",
    "num_target_layers": REMOVED,
    "use_sliding_window": REMOVED,
}


def changed(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``config`` with dotted keys set, or removed where the value is ``REMOVED``."""
    result = copy.deepcopy(dict(config))
    for dotted, value in changes.items():
        section = result
        *path, last = dotted.split(".")
        for part in path:
            section = section.setdefault(part, {})
        if value is REMOVED:
            section.pop(last, None)
        else:
            section[last] = copy.deepcopy(value)
    return result


def native(**changes: Any) -> dict[str, Any]:
    """Return a native config; ``__`` in a keyword stands for the dot."""
    return changed(NATIVE, {key.replace("__", "."): value for key, value in changes.items()})


def speculators(**changes: Any) -> dict[str, Any]:
    """Return the Speculators config of the same drafter, as version 0.9 saves it."""
    layer = {key: NATIVE[key] for key in LAYER_KEYS}
    layer["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    config = {
        "architectures": ["DFlashDraftModel"],
        "aux_hidden_state_layer_ids": [1, 3],
        "block_size": 4,
        "draft_vocab_size": 64,
        "dtype": "bfloat16",
        "mask_token_id": 5,
        "sample_from_anchor": False,
        "sliding_window_non_causal": True,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "accept_tolerance": 0.0,
                    "proposal_type": "greedy",
                    "speculative_tokens": 3,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "owner/target"},
        },
        "speculators_model_type": "dflash",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        "transformers_version": "5.19.0",
    }
    return changed(config, {key.replace("__", "."): value for key, value in changes.items()})


def specs(config: Mapping[str, Any], *, dtype: str = "BF16") -> dict[str, TensorSpec]:
    """Return the tensors that a config of either form has, written out independently."""
    layer = config.get("transformer_layer_config", config)
    section = config.get("dflash_config", config)
    ids = config.get("aux_hidden_state_layer_ids") or section["target_layer_ids"]
    h, i, d = layer["hidden_size"], layer["intermediate_size"], layer.get("head_dim", 128)
    q, kv = layer["num_attention_heads"] * d, layer["num_key_value_heads"] * d
    width = config.get("target_hidden_size") or h
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (h, len(ids) * width),
        "hidden_norm.weight": (h,),
        "norm.weight": (h,),
    }
    for n in range(layer["num_hidden_layers"]):
        shapes[f"layers.{n}.input_layernorm.weight"] = (h,)
        shapes[f"layers.{n}.post_attention_layernorm.weight"] = (h,)
        shapes[f"layers.{n}.self_attn.q_proj.weight"] = (q, h)
        shapes[f"layers.{n}.self_attn.k_proj.weight"] = (kv, h)
        shapes[f"layers.{n}.self_attn.v_proj.weight"] = (kv, h)
        shapes[f"layers.{n}.self_attn.o_proj.weight"] = (h, q)
        shapes[f"layers.{n}.self_attn.q_norm.weight"] = (d,)
        shapes[f"layers.{n}.self_attn.k_norm.weight"] = (d,)
        shapes[f"layers.{n}.mlp.gate_proj.weight"] = (i, h)
        shapes[f"layers.{n}.mlp.up_proj.weight"] = (i, h)
        shapes[f"layers.{n}.mlp.down_proj.weight"] = (h, i)
        if layer.get("attention_bias"):
            shapes[f"layers.{n}.self_attn.q_proj.bias"] = (q,)
            shapes[f"layers.{n}.self_attn.k_proj.bias"] = (kv,)
            shapes[f"layers.{n}.self_attn.v_proj.bias"] = (kv,)
            shapes[f"layers.{n}.self_attn.o_proj.bias"] = (h,)
    return {name: TensorSpec(dtype, shape) for name, shape in shapes.items()}


def contents(
    config: Mapping[str, Any],
    *,
    extra: Mapping[str, TensorSpec] | None = None,
    side_files: tuple[str, ...] = (),
) -> Contents:
    """Return what a reader sees of a checkpoint with that config and fitting tensors."""
    return Contents(config, specs(config) | dict(extra or {}), frozenset(side_files))


def checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    *,
    extra: Mapping[str, Raw] | None = None,
    shards: int = 1,
) -> Path:
    """Write a checkpoint with random finite weights, over as many files as asked for."""
    tensors = {
        name: raw(spec.dtype, *spec.shape, seed=number)
        for number, (name, spec) in enumerate(specs(config).items())
    } | dict(extra or {})
    names = list(tensors)
    parts = [{name: tensors[name] for name in names[part::shards]} for part in range(shards)]
    return write_checkpoint(folder, *parts, config=config, metadata={"format": "pt"})


def target(**changes: Any) -> Target:
    """Return the target that the made-up drafters fit."""
    facts: dict[str, Any] = {
        "path": Path("target"),
        "identifier": "owner/target",
        "revision": None,
        "architectures": ("Qwen3ForCausalLM",),
        "model_type": "qwen3",
        "hidden_size": 16,
        "num_hidden_layers": 4,
        "vocab_size": 64,
        "max_position_embeddings": 512,
        "special_tokens": None,
        "tokenizer_size": None,
        "config": {},
    }
    return Target(**facts | changes)


def target_folder(folder: Path, **changes: Any) -> Path:
    """Write a target's config.json."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 16,
        "max_position_embeddings": 512,
        "model_type": "qwen3",
        "num_hidden_layers": 4,
        "vocab_size": 64,
    } | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
