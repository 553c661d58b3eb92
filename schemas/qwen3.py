"""The keys of a Qwen3 config, which every DFlash form states its draft layers with."""

from __future__ import annotations

from dflash_pack.schemas.types import (
    Count,
    Depth,
    Epsilon,
    LayerTypes,
    Positive,
    Section,
    Size,
    StrictModel,
    TokenId,
)


class Qwen3Fields(StrictModel):
    """Sizes, rope, windows and token ids of the draft transformer."""

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Depth
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size | None = None
    vocab_size: Size
    rms_norm_eps: Epsilon | None = None
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
    is_causal: bool | None = None
    target_hidden_size: Size | None = None
    final_logit_softcapping: Positive | None = None
    bos_token_id: TokenId | None = None
    eos_token_id: TokenId | list[TokenId] | None = None
    pad_token_id: TokenId | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    model_type: str | None = None
