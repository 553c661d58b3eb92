"""config.json of z-lab's DFlash drafters, old style (2026-01) and new style (package 0.1.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dflash_pack.schemas.qwen3 import Qwen3Fields
from dflash_pack.schemas.types import (
    TRANSFORMERS_NOISE,
    BlockSize,
    LayerIds,
    Positive,
    Size,
    StrictModel,
    TokenId,
)


class DflashSection(StrictModel):
    """The ``dflash_config`` object."""

    block_size: BlockSize | None = Field(None, description="B: the anchor and B-1 masked slots.")
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
    num_target_layers: Size | None = Field(None, description="T: depth of the target.")


class ZlabConfig(Qwen3Fields):
    """A native DFlash config.json: a Qwen3 config with a ``dflash_config``."""

    architectures: list[str] | None = None
    dflash_config: DflashSection = Field(default_factory=DflashSection)
    block_size: BlockSize | None = None
    mask_token_id: TokenId | None = None
    target_layer_ids: LayerIds | None = None
    num_target_layers: Size | None = Field(None, description="T: depth of the target.")
    draft_vocab_size: Size | None = None
    eagle_aux_hidden_state_layer_ids: LayerIds | None = Field(
        None, description="target_layer_ids, each plus one."
    )
    sample_from_anchor: bool | None = None
    attention_sink_bias: bool | None = None
    attention_value_scale: Positive | None = None
    input_embedding_scale: Positive | None = None
    output_multiplier: Positive | None = None
    quantization_config: dict[str, Any] | None = None


# Keys without a meaning for decoding, each with the reason it may go.
HARMLESS: Mapping[str, str] = {
    **TRANSFORMERS_NOISE,
    "auto_map": "names remote code, which is never shipped",
    "dflash_config.loss_decay_gamma": "training only",
    "dflash_config.num_anchors": "training only",
}
