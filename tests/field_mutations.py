"""Every field of a written config that bears meaning, a wrong value for it, and what catches that.

``static`` names a check of ``validate`` that fails on the folder without its record; ``decode``
means that nothing in the files gives it away and only the accepted tokens do; ``record`` that not
even they do, so that the record beside the weights is the only witness.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

REMOVED = object()
Mutation = tuple[str, Any, str]

_LAYER = "transformer_layer_config."
_QWEN3: tuple[Mutation, ...] = (
    ("attention_bias", True, "tensors.set"),
    ("head_dim", 16, "tensors.set"),
    ("hidden_act", "gelu", "engine.vllm"),
    ("hidden_size", 64, "tensors.set"),
    ("intermediate_size", 128, "tensors.set"),
    ("layer_types", ["full_attention"], "config.meaning"),
    ("layer_types", ["sliding_attention", "full_attention"], "config.meaning"),
    ("num_attention_heads", 8, "tensors.set"),
    ("num_hidden_layers", 3, "config.meaning"),
    ("num_key_value_heads", 1, "tensors.set"),
    ("rms_norm_eps", 0.1, "decode"),
    ("vocab_size", 600, "target.vocab_size"),
)
SPECULATORS: tuple[Mutation, ...] = (
    *((_LAYER + field, value, catcher) for field, value, catcher in _QWEN3),
    (_LAYER + "rope_parameters.rope_theta", 1e6, "decode"),
    (_LAYER + "rope_parameters.rope_type", "su", "config.meaning"),
    (
        _LAYER + "rope_parameters",
        {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
        "decode",
    ),
    (_LAYER + "rope_parameters", REMOVED, "config.meaning"),
    (_LAYER + "model_type", "gpt_oss", "config.meaning"),
    (_LAYER + "is_causal", True, "decode"),
    ("aux_hidden_state_layer_ids", [2, 3, 4], "decode"),
    ("aux_hidden_state_layer_ids", [1, 2], "tensors.set"),
    ("aux_hidden_state_layer_ids", [1, 2, 9], "target_layers.range"),
    ("aux_hidden_state_layer_ids", [3, 2, 1], "target_layers.order"),
    ("block_size", 6, "config.meaning"),
    ("block_size", 12, "record"),
    ("draft_vocab_size", 256, "tensors.set"),
    ("mask_token_id", 508, "decode"),
    ("mask_token_id", 300, "mask_token.unused"),
    ("mask_token_id", 600, "config.meaning"),
    ("sample_from_anchor", True, "config.meaning"),
    ("sliding_window_non_causal", False, "engine.vllm"),
    ("speculators_model_type", "dflash2", "config.meaning"),
    ("speculators_config.algorithm", "eagle3", "config.meaning"),
    (
        "speculators_config.proposal_methods",
        [{"proposal_type": "greedy", "speculative_tokens": 4}],
        "record",
    ),
    ("speculators_config.verifier.name_or_path", "some/other-model", "record"),
    ("target_hidden_size", 64, "tensors.set"),
)
NATIVE: tuple[Mutation, ...] = (
    *(case for case in _QWEN3 if case[0] != "hidden_act"),
    # z-lab's code would run it; vLLM knows no other activation and stops.
    ("hidden_act", "gelu", "decode"),
    ("block_size", 6, "config.meaning"),
    ("rope_parameters", {"rope_type": "default", "rope_theta": 1e6}, "config.meaning"),
    ("architectures", ["Qwen3ForCausalLM"], "config.meaning"),
    ("dflash_config.block_size", 6, "config.meaning"),
    ("dflash_config.mask_token_id", 508, "decode"),
    ("dflash_config.target_layer_ids", [1, 2, 3], "decode"),
    ("dflash_config.target_layer_ids", [2, 1, 0], "target_layers.order"),
    ("is_causal", True, "decode"),
    ("model_type", "llama", "config.meaning"),
    ("num_target_layers", 9, "target.depth"),
    ("rope_theta", 1e6, "config.meaning"),
    ("rope_scaling", {"rope_type": "linear", "factor": 8.0}, "config.meaning"),
)
# Both halves state almost everything: a change of one contradicts the other.
UNIVERSAL: tuple[Mutation, ...] = (
    *((field, value, "config.meaning") for field, value, _ in _QWEN3),
    *((_LAYER + field, value, "config.meaning") for field, value, _ in _QWEN3),
    ("aux_hidden_state_layer_ids", [2, 3, 4], "config.meaning"),
    ("dflash_config.target_layer_ids", [1, 2, 3], "config.meaning"),
    ("dflash_config.mask_token_id", 508, "config.meaning"),
    ("mask_token_id", 508, "config.meaning"),
    ("rope_theta", 1e6, "config.meaning"),
    (_LAYER + "rope_parameters.rope_theta", 1e6, "config.meaning"),
    ("is_causal", True, "config.meaning"),
    ("block_size", 6, "config.meaning"),
    ("dflash_config.block_size", 6, "config.meaning"),
    ("sample_from_anchor", True, "config.meaning"),
    ("draft_vocab_size", 256, "tensors.set"),
    ("speculators_model_type", "dflash2", "config.meaning"),
    ("speculators_config.algorithm", "eagle3", "config.meaning"),
    (
        "speculators_config.proposal_methods",
        [{"proposal_type": "greedy", "speculative_tokens": 4}],
        "record",
    ),
    ("rope_scaling", {"rope_type": "linear", "factor": 8.0}, "config.meaning"),
    ("rope_parameters", {"rope_type": "default", "rope_theta": 1e6}, "config.meaning"),
)
FORMS: Mapping[str, tuple[Mutation, ...]] = {
    "speculators": SPECULATORS,
    "native": NATIVE,
    "universal": UNIVERSAL,
}


def mutated(config: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    """Return ``config`` with the dotted ``field`` set to ``value``, or without it."""
    result = copy.deepcopy(dict(config))
    section = result
    *path, last = field.split(".")
    for part in path:
        section = section[part]
    if value is REMOVED:
        del section[last]
    else:
        section[last] = value
    if json.dumps(result, sort_keys=True) == json.dumps(config, sort_keys=True):
        raise ValueError(f"{field} already is {value!r}")
    return result
