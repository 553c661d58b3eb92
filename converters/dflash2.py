"""z-lab's DFlash2: convolutions around each sublayer and a candidate selector."""

from __future__ import annotations

from dflash_pack.checkpoint import Contents
from dflash_pack.converters.native import (
    NativeDialect,
    architectures,
    native_cursor,
    read_native,
)
from dflash_pack.converters.reading import ConfigCursor, Reading
from dflash_pack.converters.training_state import with_training_state
from dflash_pack.drafter import Dflash2Parts
from dflash_pack.schemas.dflash2 import HARMLESS, Dflash2Config

NAME = "dflash2"
ARCHITECTURE = "DFlash2DraftModel"
DIALECT = NativeDialect(
    name=NAME,
    schema=Dflash2Config,
    harmless=HARMLESS,
    architectures=(ARCHITECTURE,),
    # Some writers keep the suffix that z-lab's own loader adds (dflash 0.1.0, model.py).
    renames={
        f"candidate_selector.{name}.weight": f"candidate_selector.{name}"
        for name in ("predecessor_codebook", "successor_codebook")
    },
)
_SIZES = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_WHY = "engines can't build the drafter without it"


def detect(contents: Contents) -> bool:
    """Return whether the architecture or the tensors are DFlash2's."""
    if "speculators_model_type" in contents.config:
        return False
    return ARCHITECTURE in architectures(contents) or any(
        name.startswith("candidate_selector.") or "attention_conv." in name
        for name in contents.tensors
    )


def read(contents: Contents) -> Reading:
    """Return the meaning of a DFlash2 drafter.

    Raises:
        DflashPackError: As :func:`dflash_pack.converters.native.read_native`.
    """
    dialect = with_training_state(DIALECT, contents)
    cursor = native_cursor(contents, dialect)
    return read_native(contents, dialect, parts=read_parts(cursor), cursor=cursor)


def read_parts(cursor: ConfigCursor) -> Dflash2Parts:
    """Return the sizes of convolutions and selector, wherever a native config has them.

    Raises:
        CheckpointError: If one is stated nowhere.
        ContradictionError: If two places differ.
    """
    sizes = {
        name: int(
            cursor.require(
                name, f"dflash_config.{name}", name, f"training_state.dflash2_{name}", why=_WHY
            )
        )
        for name in _SIZES
    }
    cursor.neutral(
        "projector_type",
        "dflash2",
        "dflash_config.projector_type",
        remedy="This is no DFlash2: pass --from with the format it is in",
    )
    return Dflash2Parts(**sizes)
