"""SpecForge's DFlash drafters: its exports, and its training checkpoints with their config."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_pack.checkpoint import Contents
from dflash_pack.converters.native import (
    NativeDialect,
    architectures,
    is_native,
    native_cursor,
    read_native,
)
from dflash_pack.converters.reading import CONFIG, ConfigCursor, Reading
from dflash_pack.converters.tensor_facts import has_relatives_tensors, has_sinks
from dflash_pack.converters.training_state import (
    DEPTH,
    training_section,
    training_strategy,
    with_trained_depth,
    with_training_state,
)
from dflash_pack.errors import CheckpointError
from dflash_pack.schemas.specforge import SpecForgeConfig
from dflash_pack.training_state import SECTION

NAME = "specforge"
ARCHITECTURE = "DFlashDraftModel"
STRATEGY = "dflash"
# Trained by strategies that readers of their own families take.
_OTHER_READERS = frozenset({"dspark"})
# Query, key and value projections as in Qwen3 (SpecForge 0.2.0, modeling/draft/dflash.py).
_PLAIN_ATTENTION = frozenset({"gqa", "mha"})

DIALECT = NativeDialect(
    name=NAME,
    schema=SpecForgeConfig,
    # Older checkpoints hold the whole training model: draft_model.*, embed_tokens, lm_head.
    renames={"draft_model.": ""},
    # Its rotary embedding is transformers' Qwen3 one, which knows no such factor.
    partial_rotary="ignored",
    quantised=False,
    # The config says bfloat16 whatever the weights are.
    dtype_checked=False,
)


def detect(contents: Contents) -> bool:
    """Return whether SpecForge trained this plain DFlash drafter, or nobody else reads it.

    Its export (0.2.0, export/to_hf.py) saves the draft config through Qwen3Config, which adds the
    draft vocabulary and the new rope style beside the old one.
    """
    if training_section(contents) is not None:
        strategy = training_strategy(contents)
        if strategy in (None, STRATEGY):
            return _is_plain(contents)
        return strategy not in _OTHER_READERS
    config = contents.config
    mirrored = "rope_parameters" in config and "rope_theta" in config
    whole = config.get("draft_vocab_size") == config.get("vocab_size") is not None
    return mirrored and whole and is_native(contents) and _is_plain(contents)


def read(contents: Contents) -> Reading:
    """Return the meaning of a SpecForge drafter.

    Raises:
        CheckpointError: If it was trained by a strategy that is no plain DFlash.
        ContradictionError: If config and training checkpoint state different facts.
        DflashPackError: As :func:`dflash_pack.converters.native.read_native`.
    """
    strategy = training_strategy(contents)
    if strategy not in (None, STRATEGY):
        raise CheckpointError(
            f"{strategy[:40]!r} is a strategy whose drafters this version does not convert",
            where=CONFIG,
            field=f"{SECTION}.strategy",
            remedy="It converts SpecForge's dflash, and dspark",
        )
    contents = with_trained_depth(contents)
    dialect = with_training_state(DIALECT, contents)
    cursor = native_cursor(contents, dialect)
    # Before the shared rules, so that a contradiction names the config as what to correct.
    cursor.agree(DEPTH, *dialect.draft_count_keys, DEPTH)
    _require_plain_attention(cursor)
    section = training_section(contents)
    if section is not None:
        step, run = (str(section.get(key))[:80] for key in ("global_step", "run_id"))
        cursor.notes.append(
            f"The weights are those of the training checkpoint at step {step} of {run}."
        )
    return read_native(contents, dialect, cursor=cursor)


def _is_plain(contents: Contents) -> bool:
    method = contents.config.get("dflash_config")
    projector = method.get("projector_type") if isinstance(method, Mapping) else None
    plain = all(name == ARCHITECTURE for name in architectures(contents))
    foreign = has_relatives_tensors(contents) or has_sinks(contents)
    return plain and projector in (None, STRATEGY) and not foreign


def _require_plain_attention(cursor: ConfigCursor) -> None:
    """Refuse attention that has other projections than DFlash's.

    Raises:
        CheckpointError: If the config names any.
    """
    key = "dflash_config.attention_mode"
    mode = cursor.agree("attention", key)
    if mode is not None and str(mode).lower() not in _PLAIN_ATTENTION:
        raise CheckpointError(
            f"{str(mode)[:40]!r} attention has other projections than DFlash's",
            where=CONFIG,
            field=key,
            remedy="Engines have no such DFlash drafter; train one with gqa or mha",
        )
