"""config.json of a Speculators DFlash checkpoint, as versions 0.5 to 0.9 write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from dflash_pack.schemas.qwen3 import Qwen3Fields
from dflash_pack.schemas.types import (
    TRANSFORMERS_NOISE,
    BlockSize,
    Count,
    LayerIds,
    Size,
    StrictModel,
    TokenId,
)


class ProposalMethod(StrictModel):
    """One entry of ``proposal_methods``."""

    proposal_type: str = "greedy"
    speculative_tokens: Size
    verifier_accept_k: Count | None = None
    accept_tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class Verifier(StrictModel):
    """The target that the drafter was made for."""

    name_or_path: str | None = None
    architectures: list[str] = Field(default_factory=list)


class SpeculatorsSection(StrictModel):
    """The ``speculators_config`` object."""

    algorithm: str = "dflash"
    default_proposal_method: str = "greedy"
    proposal_methods: Annotated[list[ProposalMethod], Field(min_length=1, max_length=16)]
    verifier: Verifier


class LayerConfig(Qwen3Fields):
    """The ``transformer_layer_config`` object: a Qwen3 config of the draft layers."""


class SpeculatorsConfig(StrictModel):
    """A Speculators config.json of type ``dflash``, ``dflash2`` or ``dspark``."""

    speculators_model_type: Literal["dflash", "dflash2", "dspark"]
    speculators_version: str | None = None
    speculators_config: SpeculatorsSection
    architectures: list[str] | None = None
    transformer_layer_config: LayerConfig
    draft_vocab_size: Size | None = None
    block_size: BlockSize
    target_hidden_size: Size | None = None
    aux_hidden_state_layer_ids: LayerIds
    mask_token_id: TokenId
    sliding_window_non_causal: bool = Field(
        False, description="Whether sliding layers see the whole draft block."
    )
    sample_from_anchor: bool = Field(
        False, description="Whether the anchor row predicts too (DSpark)."
    )
    conv_kernel_size: Size | None = Field(None, description="DFlash2; 2 where absent.")
    conv_group_size: Size | None = Field(None, description="DFlash2; 16 where absent.")
    selector_rank: Size | None = Field(None, description="DFlash2; 256 where absent.")
    selector_top_k: Size | None = Field(None, description="DFlash2; 16 where absent.")
    markov_rank: Count | None = Field(None, description="DSpark; 256 where absent.")
    markov_head_type: Literal["vanilla", "gated", "rnn"] | None = None
    enable_confidence_head: bool | None = None
    confidence_head_with_markov: bool | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    quantization_config: dict[str, Any] | None = None


# Keys without a meaning for decoding, each with the reason it may go.
HARMLESS: Mapping[str, str] = {
    **TRANSFORMERS_NOISE,
    **{f"transformer_layer_config.{key}": reason for key, reason in TRANSFORMERS_NOISE.items()},
    "auto_map": "names remote code, which is never shipped",
    "max_anchors": "training only (0.5 and 0.6)",
    "speculators_config.default_proposal_method": "greedy is the only method that is written",
    "speculators_version": "version of the library that wrote the file",
    "transformer_layer_config.architectures": "the top level names the architecture",
}


# Top-level keys that native readers know nothing of.
SPECULATORS_ONLY = frozenset(
    {
        "aux_hidden_state_layer_ids",
        "max_anchors",
        "sliding_window_non_causal",
        "speculators_config",
        "speculators_model_type",
        "speculators_version",
        "transformer_layer_config",
    }
)
