"""config.json of z-lab's DFlash drafters, old style (2026-01) and new style (package 0.1.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dflash_pack.schemas.types import (
    TRANSFORMERS_NOISE,
    Count,
    Depth,
    LayerIds,
    LayerTypes,
    Positive,
    Section,
    Size,
    StrictModel,
    TokenId,
)


class DflashSection(StrictModel):
    """The ``dflash_config`` object."""

    block_size: Size | None = Field(None, description="B: the anchor and B-1 masked slots.")
    mask_token_id: TokenId | None = Field(None, description="Token that fills the masked slots.")
    target_layer_ids: LayerIds | None = Field(
        None, description="0-based target layers whose output is captured, in the order of fc."
    )
    causal: bool | None = Field(None, description="Causality of all layers; vLLM only.")
    use_swa: bool | None = Field(
        None, description="Window on every layer although none is sliding."
    )
    swa_window_size: Size | None = Field(None, description="Window that goes with use_swa.")
    sample_from_anchor: bool | None = None
    attention_sink_bias: bool | None = None
    attention_value_scale: Positive | None = None
    input_embedding_scale: Positive | None = None
    output_multiplier: Positive | None = None
    final_logit_softcapping: Positive | None = None
    projector_type: str | None = None


class ZlabConfig(StrictModel):
    """A native DFlash config.json: a Qwen3 config with a ``dflash_config``."""

    architectures: list[str] | None = None
    model_type: str | None = None
    dflash_config: DflashSection = Field(default_factory=DflashSection)
    block_size: Size | None = None
    mask_token_id: TokenId | None = None
    target_layer_ids: LayerIds | None = None
    num_target_layers: Size | None = Field(None, description="T: depth of the target.")
    target_hidden_size: Size | None = None
    is_causal: bool | None = Field(None, description="Causality of all layers, where stated.")
    sample_from_anchor: bool | None = None
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Depth
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size | None = None
    vocab_size: Size
    draft_vocab_size: Size | None = None
    rms_norm_eps: Positive | None = None
    hidden_act: str | None = None
    attention_bias: bool | None = None
    max_position_embeddings: Size | None = None
    rope_theta: Positive | None = None
    rope_scaling: Section | None = None
    rope_parameters: Section | None = None
    partial_rotary_factor: Positive | None = None
    layer_types: LayerTypes | None = None
    sliding_window: Size | None = None
    use_sliding_window: bool | None = None
    max_window_layers: Count | None = None
    final_logit_softcapping: Positive | None = None
    input_embedding_scale: Positive | None = None
    output_multiplier: Positive | None = None
    bos_token_id: TokenId | None = None
    eos_token_id: TokenId | list[TokenId] | None = None
    pad_token_id: TokenId | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    quantization_config: dict[str, Any] | None = None


# Keys without a meaning for decoding, each with the reason it may go.
HARMLESS: Mapping[str, str] = {
    **TRANSFORMERS_NOISE,
    "auto_map": "names remote code, which is never shipped",
    "dflash_config.loss_decay_gamma": "training only",
    "dflash_config.num_anchors": "training only",
}
