"""config.json of poolside's Laguna DFlash drafters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from dflash_pack.schemas.zlab import HARMLESS as NATIVE_HARMLESS
from dflash_pack.schemas.zlab import ZlabConfig


class LagunaConfig(ZlabConfig):
    """A Laguna drafter: gated attention with fused projections and a norm per captured layer."""

    gating: bool | Literal["per-head", "per-element"] | None = Field(
        None, description="One gate a head (true means that too) or one a channel."
    )


HARMLESS: Mapping[str, str] = {**NATIVE_HARMLESS}
