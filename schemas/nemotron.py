"""config.json of NVIDIA's Nemotron DFlash drafters."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from dflash_pack.schemas.types import Count, Size, TokenId
from dflash_pack.schemas.zlab import HARMLESS as NATIVE_HARMLESS
from dflash_pack.schemas.zlab import ZlabConfig


class NemotronConfig(ZlabConfig):
    """A Nemotron drafter: a native config that says what it brings along."""

    has_embed_tokens: bool | None = Field(None, description="Whether embed_tokens is its own.")
    has_lm_head: bool | None = Field(None, description="Whether lm_head is its own.")
    num_aux_layers: Size | None = Field(None, description="Number of captured target layers.")
    pard_token: TokenId | None = Field(None, description="The mask token once more.")
    dflash_query_causal: bool | None = Field(None, description="Causality of all layers.")
    dspark_markov_rank: Count | None = None
    dspark_fixup_head_type: str | None = None


HARMLESS: Mapping[str, str] = {
    **NATIVE_HARMLESS,
    "train_embed_tokens": "training only",
}
