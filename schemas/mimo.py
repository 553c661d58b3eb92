"""config.json of Xiaomi's MiMo DFlash drafters."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from dflash_pack.schemas.types import Size
from dflash_pack.schemas.zlab import HARMLESS as NATIVE_HARMLESS
from dflash_pack.schemas.zlab import ZlabConfig


class MimoConfig(ZlabConfig):
    """A MiMo drafter: z-lab's first style with sinks, a scale on values and a partial rope."""

    v_head_dim: Size | None = Field(None, description="Size of a value head; equals head_dim.")


HARMLESS: Mapping[str, str] = {
    **NATIVE_HARMLESS,
    "dflash_config.backbone_rotary_base": "the target's rope base; the drafter has its own",
}
