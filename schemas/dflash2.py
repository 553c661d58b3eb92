"""config.json of native DFlash2 drafters, as z-lab and SpecForge write it."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from dflash_pack.schemas.specforge import TrainingState
from dflash_pack.schemas.types import Size, StrictModel
from dflash_pack.schemas.zlab import HARMLESS as NATIVE_HARMLESS
from dflash_pack.schemas.zlab import DflashSection, ZlabConfig


class Dflash2Fields(StrictModel):
    """The sizes of convolutions and selector."""

    conv_kernel_size: Size | None = Field(None, description="Taps of each convolution.")
    conv_group_size: Size | None = Field(None, description="Channels that share a kernel.")
    selector_rank: Size | None = Field(None, description="Rank of the candidate selector.")
    selector_top_k: Size | None = Field(None, description="Candidates ranked per position.")


class Dflash2Section(DflashSection, Dflash2Fields):
    """The ``dflash_config`` object of DFlash2."""


class Dflash2Config(ZlabConfig, Dflash2Fields):
    """A DFlash2 drafter in z-lab's newer style."""

    dflash_config: Dflash2Section = Field(default_factory=Dflash2Section)
    training_state: TrainingState | None = None


HARMLESS: Mapping[str, str] = {**NATIVE_HARMLESS}
