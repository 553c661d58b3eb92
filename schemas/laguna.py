"""config.json of poolside's Laguna DFlash drafters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from dflash_pack.schemas.zlab import HARMLESS as NATIVE_HARMLESS
from dflash_pack.schemas.zlab import ZlabConfig


class LagunaConfig(ZlabConfig):
    """A Laguna drafter: gated attention with fused projections and a norm per captured layer."""

    mlp_layer_types: list[Literal["dense", "sparse"]] | None = None
    gating: bool | Literal["per-head", "per-element"] | None = Field(
        None, description="One gate a head (true means that too) or one a channel."
    )


_NO_EXPERTS = "about layers of experts, which the drafter has none of"
HARMLESS: Mapping[str, str] = {
    **NATIVE_HARMLESS,
    **dict.fromkeys(
        (
            "moe_apply_router_weight_on_input",
            "moe_intermediate_size",
            "moe_routed_scaling_factor",
            "moe_router_logit_softcapping",
            "num_experts",
            "num_experts_per_tok",
            "output_router_logits",
            "router_aux_loss_coef",
            "shared_expert_intermediate_size",
        ),
        _NO_EXPERTS,
    ),
}
