"""config.json of native DSpark drafters, as SpecForge, ModelOpt and DeepSpec write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from dflash_pack.schemas.specforge import TrainingState
from dflash_pack.schemas.types import BlockSize, Count, LayerIds, StrictModel, TokenId
from dflash_pack.schemas.zlab import HARMLESS as NATIVE_HARMLESS
from dflash_pack.schemas.zlab import DflashSection, ZlabConfig


class DsparkFields(StrictModel):
    """The Markov head, the confidence head and the anchor layout."""

    markov_rank: Count | None = Field(None, description="Rank of the transition bias.")
    markov_head_type: Literal["vanilla", "gated", "rnn"] | None = None
    enable_confidence_head: bool | None = None
    use_confidence_head: bool | None = Field(None, description="ModelOpt's name for it.")
    confidence_head_with_markov: bool | None = None
    sample_from_anchor: bool | None = None
    dspark_bonus_anchor: bool | None = Field(None, description="sample_from_anchor, inverted.")
    shift_label: bool | None = Field(None, description="sample_from_anchor, as trainers say it.")


class DsparkSection(DflashSection, DsparkFields):
    """The ``dflash_config`` object of DSpark."""

    attention_mode: str | None = None


class DsparkConfig(ZlabConfig, DsparkFields):
    """A native DSpark drafter."""

    dflash_config: DsparkSection = Field(default_factory=DsparkSection)
    dspark_block_size: BlockSize | None = None
    dspark_noise_token_id: TokenId | None = None
    dspark_target_layer_ids: LayerIds | None = None
    training_state: TrainingState | None = None


HARMLESS: Mapping[str, str] = {
    **NATIVE_HARMLESS,
    "dflash_config.confidence_head_alpha": "training objective only",
}
