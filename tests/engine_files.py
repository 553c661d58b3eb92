"""A tiny drafter's files in both forms, as plain data: what the engine tests vary."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.target import Target

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 4, 2, 16
VOCAB, TARGET_LAYERS, BLOCK_SIZE, MASK = 128, 6, 8, 127
ABSENT: Any = object()

SIZES: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
}
TARGET_CONFIG: dict[str, Any] = SIZES | {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": TARGET_LAYERS,
    "tie_word_embeddings": False,
}


def native(**changes: Any) -> dict[str, Any]:
    """Return z-lab's form; a change to ABSENT removes the key."""
    config = SIZES | {
        "architectures": ["DFlashDraftModel"],
        "block_size": BLOCK_SIZE,
        "num_target_layers": TARGET_LAYERS,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 3]},
    }
    return _changed(config, changes)


def dflash(**changes: Any) -> dict[str, Any]:
    """Return a ``dflash_config`` section."""
    return _changed({"mask_token_id": MASK, "target_layer_ids": [1, 3]}, changes)


def speculators(
    layer: Mapping[str, Any] | None = None, verifier: str = "owner/target", **changes: Any
) -> dict[str, Any]:
    """Return the Speculators form; ``layer`` changes ``transformer_layer_config``."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_version": "0.9.0",
        "transformer_layer_config": _changed(SIZES, layer or {}),
        "draft_vocab_size": VOCAB,
        "block_size": BLOCK_SIZE,
        "aux_hidden_state_layer_ids": [2, 4],
        "mask_token_id": MASK,
        "sliding_window_non_causal": True,
        "sample_from_anchor": False,
        "target_hidden_size": None,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": BLOCK_SIZE - 1}],
            "verifier": {"name_or_path": verifier, "architectures": ["Qwen3ForCausalLM"]},
        },
    }
    return _changed(config, changes)


def universal(verifier: str = "owner/target", **changes: Any) -> dict[str, Any]:
    """Return native and Speculators keys in one config."""
    return _changed(speculators(verifier=verifier) | native(), changes)


def shapes(
    captured: int = 2, draft_vocab: int | None = None, layers: int = LAYERS, *, bias: bool = False
) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of the drafter's tensors, apart from the package's own rule."""
    query, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    result: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, captured * HIDDEN),
        "hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
    }
    for index in range(layers):
        layer = f"layers.{index}."
        result |= {
            f"{layer}input_layernorm.weight": (HIDDEN,),
            f"{layer}post_attention_layernorm.weight": (HIDDEN,),
            f"{layer}self_attn.q_proj.weight": (query, HIDDEN),
            f"{layer}self_attn.k_proj.weight": (kv, HIDDEN),
            f"{layer}self_attn.v_proj.weight": (kv, HIDDEN),
            f"{layer}self_attn.o_proj.weight": (HIDDEN, query),
            f"{layer}self_attn.q_norm.weight": (HEAD_DIM,),
            f"{layer}self_attn.k_norm.weight": (HEAD_DIM,),
            f"{layer}mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{layer}mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{layer}mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
        if bias:
            result |= {f"{layer}self_attn.{part}_proj.bias": (kv,) for part in "kv"}
            result[f"{layer}self_attn.q_proj.bias"] = (query,)
            result[f"{layer}self_attn.o_proj.bias"] = (HIDDEN,)
    if draft_vocab is not None:
        result |= {"lm_head.weight": (draft_vocab, HIDDEN), "d2t": (draft_vocab,), "t2d": (VOCAB,)}
    return result


def contents(
    config: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, ...]] | None = None,
    side_files: frozenset[str] = frozenset(),
) -> Contents:
    """Return the view that engines take; ``tensors`` defaults to the complete set."""
    return Contents(
        config=json.loads(json.dumps(config)),
        tensors={
            name: TensorSpec(dtype_of(name), shape)
            for name, shape in (shapes() if tensors is None else tensors).items()
        },
        side_files=side_files,
    )


def dtype_of(name: str) -> str:
    """Return the safetensors dtype code of a tensor of these drafters."""
    return {"d2t": "I64", "t2d": "BOOL"}.get(name, "F32")


def target(**changes: Any) -> Target:
    """Return the facts of the target the drafter was made for."""
    facts: dict[str, Any] = {
        "path": Path("target"),
        "identifier": "owner/target",
        "revision": None,
        "architectures": ("Qwen3ForCausalLM",),
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "num_hidden_layers": TARGET_LAYERS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        "special_tokens": None,
        "tokenizer_size": None,
        "config": TARGET_CONFIG,
    }
    return Target(**(facts | changes))


def _changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(base)) | dict(changes)
    return {name: value for name, value in merged.items() if value is not ABSENT}
