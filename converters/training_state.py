"""What a SpecForge training checkpoint states beside its weights, for any reader of its drafters.

The trainer resolves block size, mask token, depth and captured layers at run time, from overrides
too, and writes them into ``training_state.pt`` alone (SpecForge 0.2.0, algorithms/*/providers.py,
resume_contract): the draft config may lack them or state what was not trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from dflash_pack.checkpoint import Contents
from dflash_pack.converters.reading import CONFIG
from dflash_pack.schemas.parse import parse
from dflash_pack.schemas.specforge import TRAINING_ONLY, WithTrainingState
from dflash_pack.training_state import SECTION

if TYPE_CHECKING:
    from dflash_pack.converters.native import NativeDialect

DEPTH = "num_hidden_layers"
_FACTS = {
    "draft_num_hidden_layers": "draft_count_keys",
    "target_layer_ids": "layer_id_keys",
    "block_size": "block_keys",
    "mask_token_id": "mask_keys",
}


def training_section(contents: Contents) -> Mapping[str, Any] | None:
    """Return the section that the training checkpoint became, None where it is none."""
    section = contents.config.get(SECTION)
    return section if isinstance(section, Mapping) else None


def training_strategy(contents: Contents) -> str | None:
    """Return the algorithm that a training checkpoint names; None where nothing names one."""
    section = training_section(contents)
    return None if section is None or section.get("strategy") is None else str(section["strategy"])


def with_training_state(dialect: NativeDialect, contents: Contents) -> NativeDialect:
    """Return ``dialect`` with what the training checkpoint states, ahead of the config; once.

    Every fact that both state must then agree. Keys of the section without a meaning for decoding
    get their reason; others are left for the ledger to stop at.

    Raises:
        CheckpointError: If a fact is of the wrong type or range.
    """
    section = training_section(contents)
    if section is None or SECTION in dialect.sections:
        return dialect
    parse(WithTrainingState, contents.config, where=CONFIG)
    family = training_strategy(contents) or "dflash"
    stated: dict[str, Any] = {}
    for fact, field in _FACTS.items():
        if section.get(f"{family}_{fact}") is not None:
            stated[field] = (f"{SECTION}.{family}_{fact}", *getattr(dialect, field))
    reasons = ((key, _reason(key)) for key in section)
    harmless = {f"{SECTION}.{key}": reason for key, reason in reasons if reason is not None}
    return replace(
        dialect,
        sections=(*dialect.sections, SECTION),
        harmless={**dialect.harmless, **harmless},
        **stated,
    )


def with_trained_depth(contents: Contents) -> Contents:
    """Return ``contents`` with the trained number of draft layers where the config has none."""
    section = training_section(contents) or {}
    depth = section.get(f"{training_strategy(contents) or 'dflash'}_draft_{DEPTH}")
    if depth is None or DEPTH in contents.config:
        return contents
    return replace(contents, config={**contents.config, DEPTH: depth})


def _reason(key: str) -> str | None:
    return next((why for mark, why in TRAINING_ONLY.items() if fnmatchcase(key, mark)), None)
