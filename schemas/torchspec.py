"""config.json of TorchSpec's DFlash drafters."""

from __future__ import annotations

from pydantic import Field

from dflash_pack.schemas.types import Size
from dflash_pack.schemas.zlab import ZlabConfig


class TorchSpecConfig(ZlabConfig):
    """A TorchSpec drafter: everything at top level, other counts under familiar names."""

    num_target_layers: Size | None = Field(None, description="Number of captured target layers.")
    target_num_hidden_layers: Size | None = Field(None, description="T: depth of the target.")
