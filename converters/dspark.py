"""DSpark: DFlash with a Markov head over the block's own tokens and a confidence head."""

from __future__ import annotations

from dflash_pack.checkpoint import Contents
from dflash_pack.converters.native import (
    NativeDialect,
    architectures,
    native_cursor,
    read_native,
)
from dflash_pack.converters.reading import CONFIG, ConfigCursor, Reading
from dflash_pack.converters.training_state import training_strategy, with_training_state
from dflash_pack.drafter import DsparkParts, MarkovHead
from dflash_pack.errors import CheckpointError, ContradictionError
from dflash_pack.schemas.dspark import HARMLESS, DsparkConfig

NAME = "dspark"
ARCHITECTURES = ("DSparkDraftModel", "Qwen3DSparkModel")
DIALECT = NativeDialect(
    name=NAME,
    schema=DsparkConfig,
    harmless=HARMLESS,
    architectures=(*ARCHITECTURES, "DFlashDraftModel"),
    # ModelOpt keeps the heads' tensors at the root.
    renames={
        "markov_w1.": "markov_head.markov_w1.",
        "markov_w2.": "markov_head.markov_w2.",
        "gate_proj.": "markov_head.gate_proj.",
        "joint_proj.": "markov_head.joint_proj.",
        "confidence_proj.": "confidence_head.proj.",
    },
    mask_keys=("dflash_config.mask_token_id", "mask_token_id", "dspark_noise_token_id"),
    layer_id_keys=(
        "dflash_config.target_layer_ids",
        "target_layer_ids",
        "dspark_target_layer_ids",
    ),
    block_keys=("block_size", "dflash_config.block_size", "dspark_block_size"),
    partial_rotary="ignored",
    dtype_checked=False,
)
# All spellings of "the anchor row predicts too"; True where the value is inverted.
ANCHOR_KEYS = {
    "sample_from_anchor": False,
    "dflash_config.sample_from_anchor": False,
    "dspark_bonus_anchor": True,
    "dflash_config.dspark_bonus_anchor": True,
    "shift_label": False,
    "dflash_config.shift_label": False,
}
_PLAIN_ATTENTION = frozenset({"gqa", "mha"})


def detect(contents: Contents) -> bool:
    """Return whether architecture, projector, training or tensors are DSpark's."""
    if "speculators_model_type" in contents.config:
        return False
    section = contents.config.get("dflash_config")
    projector = section.get("projector_type") if isinstance(section, dict) else None
    named = any(name in ARCHITECTURES for name in architectures(contents))
    headed = any("markov_" in name or "confidence_" in name for name in contents.tensors)
    return named or headed or projector == NAME or training_strategy(contents) == NAME


def read(contents: Contents) -> Reading:
    """Return the meaning of a DSpark drafter.

    Raises:
        CheckpointError: If the anchor layout is stated nowhere, or attention is latent.
        ContradictionError: If two spellings of it differ.
        DflashPackError: As :func:`dflash_pack.converters.native.read_native`.
    """
    dialect = with_training_state(DIALECT, contents)
    cursor = native_cursor(contents, dialect)
    mode = cursor.agree("attention", "dflash_config.attention_mode")
    if mode is not None and str(mode).lower() not in _PLAIN_ATTENTION:
        raise CheckpointError(
            f"{str(mode)[:40]!r} attention has other projections than DFlash's",
            where=CONFIG,
            field="dflash_config.attention_mode",
            remedy="Serve it in the engine that its trainer names",
        )
    cursor.neutral(
        "projector_type",
        NAME,
        "dflash_config.projector_type",
        remedy="This is no DSpark: pass --from with the format it is in",
    )
    return read_native(
        contents,
        dialect,
        parts=read_parts(cursor),
        cursor=cursor,
        sample_from_anchor=read_anchor(cursor),
    )


def read_anchor(cursor: ConfigCursor) -> bool:
    """Return whether the anchor row predicts too, out of all spellings.

    Raises:
        CheckpointError: If none states it: published drafters differ, and so do the defaults (true
            in vLLM's native path and the Speculators library, false in vLLM's Speculators path).
        ContradictionError: If two differ.
    """
    stated: list[tuple[str, bool]] = []
    for key, inverted in ANCHOR_KEYS.items():
        value = cursor.agree("sample_from_anchor", key)
        if value is not None:
            stated.append((key, bool(value) != inverted))
    if not stated:
        raise CheckpointError(
            "is not stated, and published DSpark drafters and engines' defaults differ in it",
            where=CONFIG,
            field="sample_from_anchor",
            remedy="Pass --set sample_from_anchor=true or =false, as the drafter was trained",
        )
    for key, value in stated[1:]:
        if value != stated[0][1]:
            first = stated[0][0]
            raise ContradictionError(
                "anchor layout",
                (first, cursor.flat[first]),
                (key, cursor.flat[key]),
                where=CONFIG,
                remedy=f"Pass --set {key}=VALUE",
            )
    return stated[0][1]


def read_parts(cursor: ConfigCursor) -> DsparkParts:
    """Return the sizes of the heads, wherever a native config has them.

    Raises:
        CheckpointError: If the rank is stated nowhere.
        ContradictionError: If two places differ.
    """

    def both(name: str) -> tuple[str, str]:
        return f"dflash_config.{name}", name

    rank = cursor.require(
        "markov_rank", *both("markov_rank"), why="engines can't build the drafter without it"
    )
    head = cursor.default(
        "markov_head_type",
        *both("markov_head_type"),
        value="vanilla",
        source="the plain head that engines build",
    )
    confidence = cursor.agree(
        "confidence head", *both("enable_confidence_head"), *both("use_confidence_head")
    )
    with_markov = cursor.agree("confidence head", *both("confidence_head_with_markov"))
    return heads(rank, head, confidence=bool(confidence), with_markov=bool(with_markov))


def heads(rank: int, head: MarkovHead, *, confidence: bool, with_markov: bool) -> DsparkParts:
    """Return DSpark's parts; a confidence head that is off takes nothing in.

    Raises:
        ContradictionError: If the confidence head takes in a Markov head that is not there
            (refused by speculators 0.9 too, models/dspark/core.py).
    """
    if rank == 0 and confidence and with_markov:
        raise ContradictionError(
            "Markov head (rank 0 = none)",
            ("markov_rank", rank),
            ("confidence_head_with_markov", with_markov),
            where=CONFIG,
            remedy="Correct the file or pass --set confidence_head_with_markov=false",
        )
    return DsparkParts(rank, head, confidence, confidence and with_markov)
