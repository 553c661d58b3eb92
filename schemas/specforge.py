"""config.json of SpecForge's DFlash drafters, and what its training checkpoint states beside it."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from dflash_pack.schemas.types import (
    BlockSize,
    Depth,
    LayerIds,
    Size,
    StrictModel,
    TokenId,
)
from dflash_pack.schemas.zlab import DflashSection, ZlabConfig


class SpecForgeSection(DflashSection):
    """SpecForge's ``dflash_config`` object."""

    attention_mode: str | None = Field(
        None, description="Kind of attention; gqa and mha are plain DFlash."
    )


class TrainingState(StrictModel):
    """What SpecForge resolved at run time, as it names it in ``training_state.pt``."""

    strategy: str | None = Field(None, description="Algorithm: dflash, dspark, domino, ...")
    dflash_draft_num_hidden_layers: Depth | None = None
    dflash_target_layer_ids: LayerIds | None = None
    dflash_block_size: BlockSize | None = None
    dflash_mask_token_id: TokenId | None = None
    dspark_draft_num_hidden_layers: Depth | None = None
    dspark_target_layer_ids: LayerIds | None = None
    dspark_block_size: BlockSize | None = None
    dspark_mask_token_id: TokenId | None = None
    dflash2_conv_kernel_size: Size | None = None
    dflash2_conv_group_size: Size | None = None
    dflash2_selector_rank: Size | None = None
    dflash2_selector_top_k: Size | None = None


class WithTrainingState(StrictModel):
    """Any config that has a ``training_state`` section."""

    training_state: TrainingState


class SpecForgeConfig(ZlabConfig):
    """A SpecForge draft config, exported or as trained from."""

    dflash_config: SpecForgeSection = Field(default_factory=SpecForgeSection)
    training_state: TrainingState | None = None


_PROGRESS = "how far the training had come"
_RESUMING = "for resuming the training only"
_OBJECTIVE = "training objective only"
# Pattern of a key in training_state -> reason (SpecForge 0.2.0: training/controller.py, trainer.py
# and algorithms/*/providers.py, resume_contract). Whatever matches none stops the conversion.
TRAINING_ONLY: Mapping[str, str] = {
    **dict.fromkeys(("global_step", "epoch", "epoch_batch", "epoch_samples"), _PROGRESS),
    **dict.fromkeys(("run_id", "world_size", "dataset_size", "accumulation_steps"), _RESUMING),
    "strategy": "named the algorithm, which chose the reader",
    "replicated_optimizer_state": "the optimizer's state, which is not read",
    "specforge_*": _RESUMING,
    "d*_attention_backend": "the trainer's kernel; engines choose their own",
    "d*_num_anchors": _OBJECTIVE,
    "d*_loss_*": _OBJECTIVE,
    "d*_loss_alpha": _OBJECTIVE,
    "dflash_dpace_alpha": _OBJECTIVE,
    "dflash_lk_loss_type": _OBJECTIVE,
    "dflash_kl_*": _OBJECTIVE,
    "dspark_ce_loss_alpha": _OBJECTIVE,
    "dspark_l1_loss_alpha": _OBJECTIVE,
    "dspark_confidence_head_alpha": _OBJECTIVE,
    "dflash2_selector_*_ratio": _OBJECTIVE,
    "dflash2_selector_stop_gradient": _OBJECTIVE,
}
