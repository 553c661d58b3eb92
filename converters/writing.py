"""What every writer returns, and the parts of a Qwen3 layer config that both forms share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_pack.checkpoint import DTYPE_NAMES
from dflash_pack.converters.attention import FULL, SLIDING
from dflash_pack.drafter import Drafter
from dflash_pack.errors import CheckpointError


@dataclass(frozen=True)
class WrittenForm:
    """A drafter in one output form, before any byte is written.

    Attributes:
        format: Name of the form.
        config: The ``config.json`` to write.
        fields: Field of :class:`Drafter` -> config key that carries it, for the report.
        notes: Sentences the user should know about this form.
    """

    format: str
    config: Mapping[str, Any]
    fields: Mapping[str, str]
    notes: tuple[str, ...] = ()


def dtype_name(code: str) -> str:
    """Return the config's name of a safetensors dtype code.

    Raises:
        CheckpointError: For a dtype that no engine takes unquantised weights in.
    """
    try:
        return DTYPE_NAMES[code]
    except KeyError:
        raise CheckpointError(
            f"weights of dtype {code} are not carried",
            remedy="Export the drafter in bfloat16, float16 or float32",
        ) from None


def layer_config(drafter: Drafter, *, max_position_embeddings: int) -> dict[str, Any]:
    """Return the Qwen3 keys of the draft transformer, everything explicit, rope in the new style.

    ``model_type`` is always qwen3: another type would let transformers fill in windows and rope of
    its own (gpt_oss: alternating windows of 128 and yarn factor 32).
    """
    geometry, layers = drafter.geometry, drafter.layers
    windows = {layer.window for layer in layers if layer.window is not None}
    if len(windows) > 1:
        raise CheckpointError(
            f"layers with different windows {sorted(windows)} have no config form"
        )
    return {
        "attention_bias": geometry.attention_bias,
        **{n: list(v) if isinstance(v, tuple) else v for n, v in drafter.token_ids},
        "head_dim": geometry.head_dim,
        "hidden_act": geometry.hidden_act,
        "hidden_size": geometry.hidden_size,
        "intermediate_size": geometry.intermediate_size,
        "layer_types": [SLIDING if layer.sliding else FULL for layer in layers],
        "max_position_embeddings": max_position_embeddings,
        "max_window_layers": len(layers),
        "model_type": "qwen3",
        "num_attention_heads": geometry.num_attention_heads,
        "num_hidden_layers": len(layers),
        "num_key_value_heads": geometry.num_key_value_heads,
        "rms_norm_eps": geometry.rms_norm_eps,
        "rope_parameters": drafter.rope.parameters(),
        "sliding_window": windows.pop() if windows else None,
        "tie_word_embeddings": False,
        "use_sliding_window": any(layer.sliding for layer in layers),
        "vocab_size": drafter.vocabulary.size,
    }
