"""z-lab's native form, old style (2026-01) and new style (package dflash 0.1.0)."""

from __future__ import annotations

from typing import Any, Literal

from dflash_pack.accounting import LedgerBuilder, flatten
from dflash_pack.checkpoint import Contents
from dflash_pack.converters.attention import read_windows, windows_are_forced
from dflash_pack.converters.qwen3_fields import read_geometry, read_token_ids
from dflash_pack.converters.reading import CONFIG, ConfigCursor, Reading, rename_tensors
from dflash_pack.converters.rope import read_rope
from dflash_pack.converters.side_files import account_side_files
from dflash_pack.converters.tensor_facts import (
    has_biases,
    is_drafter_tensor,
    read_dtype,
    read_vocabulary,
)
from dflash_pack.converters.writing import WrittenForm, dtype_name, layer_config
from dflash_pack.drafter import Drafter, DraftLayer
from dflash_pack.engines.limits import native_form_problems
from dflash_pack.errors import CheckpointError, NotRepresentableError
from dflash_pack.schemas.parse import parse
from dflash_pack.schemas.zlab import HARMLESS, ZlabConfig
from dflash_pack.target import Target

NAME = "zlab"
SECTIONS = ("dflash_config",)
Style = Literal["old", "new"]

_LATER = "This version converts drafters without it only"


def detect(contents: Contents) -> bool:
    """Return whether the config has a native DFlash form and no Speculators keys."""
    config = contents.config
    if "speculators_model_type" in config or "speculators_config" in config:
        return False
    architectures = config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    return "dflash_config" in config or any("DFlash" in str(name) for name in names)


def read(contents: Contents) -> Reading:
    """Return the meaning of a native drafter.

    Each DFlash key is looked up in ``dflash_config`` and at top level (dflash 0.1.0, model.py,
    _draft_value); two that differ are refused.

    Raises:
        CheckpointError: If a fact is missing, malformed or not carried by this converter.
        ContradictionError: If two places differ.
        UnaccountedError: If a key or tensor has no rule.
    """
    parsed = parse(ZlabConfig, contents.config, where=CONFIG)
    ledger = LedgerBuilder()
    cursor = ConfigCursor(flatten(contents.config, SECTIONS), ledger)
    _check_type(cursor, parsed)
    _refuse_extras(cursor)
    geometry = read_geometry(cursor, parsed, biases=has_biases(contents))
    names = rename_tensors(
        tuple(contents.tensors),
        ledger,
        prefixes=("draft_model.", "dflash_module.", "model."),
        keep=is_drafter_tensor,
        droppable={"rotary_emb.inv_freq": "a buffer that engines compute"},
    )
    mask_token_id = cursor.require(
        "mask_token_id",
        "dflash_config.mask_token_id",
        "mask_token_id",
        why="published drafters are known to differ in it",
    )
    drafter = Drafter(
        geometry=geometry,
        layers=_read_layers(cursor, parsed.num_hidden_layers),
        target_layer_ids=tuple(
            cursor.require(
                "target_layer_ids",
                "dflash_config.target_layer_ids",
                "target_layer_ids",
                why="each engine would fill in its own default",
            )
        ),
        target_hidden_size=cursor.agree("target_hidden_size", "target_hidden_size")
        or geometry.hidden_size,
        block_size=cursor.require(
            "block_size",
            "block_size",
            "dflash_config.block_size",
            why="the defaults in use (8, 10, 16) differ",
        ),
        rope=read_rope(cursor, geometry.max_position_embeddings),
        vocabulary=read_vocabulary(
            cursor,
            contents,
            names,
            size_key="vocab_size",
            draft_key="draft_vocab_size",
            mask_token_id=mask_token_id,
        ),
        dtype=read_dtype(cursor, contents, names, "dtype", "torch_dtype"),
        target_depth=cursor.agree("target_depth", "num_target_layers"),
        final_logit_softcapping=cursor.agree(
            "final_logit_softcapping",
            "dflash_config.final_logit_softcapping",
            "final_logit_softcapping",
        ),
        token_ids=read_token_ids(cursor),
    )
    copied = account_side_files(contents.side_files, ledger)
    cursor.drop_known(HARMLESS)
    cursor.close(contents, (*ZlabConfig.model_fields, *HARMLESS))
    return Reading(NAME, drafter, ledger.build(), names, copied, tuple(cursor.notes))


def write(drafter: Drafter, target: Target, *, style: Style = "old") -> WrittenForm:
    """Return the native form of ``drafter``.

    ``old`` is the style that every native reader takes: block size at top level and in
    ``dflash_config``, rope in both spellings (formats: TensorRT-LLM reads only the top level).
    ``new`` is that of package dflash 0.1.0: block size only inside, ``rope_parameters`` only.

    Raises:
        NotRepresentableError: If the native form has no place for a fact.
    """
    _refuse_unrepresentable(drafter)
    section: dict[str, Any] = {
        "block_size": drafter.block_size,
        "mask_token_id": drafter.vocabulary.mask_token_id,
        "target_layer_ids": list(drafter.target_layer_ids),
    }
    config: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        **layer_config(drafter, max_position_embeddings=drafter.geometry.max_position_embeddings),
        "dtype": dtype_name(drafter.dtype),
        "num_target_layers": target.num_hidden_layers,
    }
    if drafter.target_hidden_size != drafter.geometry.hidden_size:
        config["target_hidden_size"] = drafter.target_hidden_size
    if drafter.final_logit_softcapping is not None:
        config["final_logit_softcapping"] = drafter.final_logit_softcapping
    if not _causality_by_layer_type(drafter):
        config["is_causal"] = drafter.causality
        section["causal"] = drafter.causality
    if style == "old":
        config["block_size"] = drafter.block_size
        config["rope_theta"] = drafter.rope.theta
        config["rope_scaling"] = _rope_scaling(drafter)
    config["dflash_config"] = section
    fields = {
        "block_size": "dflash_config.block_size",
        "mask_token_id": "dflash_config.mask_token_id",
        "target_layer_ids": "dflash_config.target_layer_ids",
        "rope": "rope_parameters",
    }
    return WrittenForm("native", dict(sorted(config.items())), fields)


def _check_type(cursor: ConfigCursor, parsed: ZlabConfig) -> None:
    """Refuse architectures and model types whose parser would fill in meanings of its own."""
    cursor.agree("architecture", "architectures")
    kind = cursor.agree("architecture", "model_type")
    names = parsed.architectures or []
    if names not in ([], ["DFlashDraftModel"]):
        raise CheckpointError(
            f"{names} is not plain DFlash (DFlashDraftModel)",
            where=CONFIG,
            field="architectures",
            remedy="This version converts plain DFlash only",
        )
    if kind not in (None, "qwen3"):
        raise CheckpointError(
            f"{kind!r} makes engines fill in defaults of another architecture",
            where=CONFIG,
            field="model_type",
            remedy="Pass --set model_type=qwen3 if the drafter was trained with z-lab's own class",
        )


def _refuse_extras(cursor: ConfigCursor) -> None:
    """Refuse what changes the computation and has no place in :class:`Drafter` yet."""
    for key in ("attention_sink_bias", "sample_from_anchor"):
        cursor.neutral(key, False, f"dflash_config.{key}", key, remedy=_LATER)
    cursor.neutral(
        "attention_value_scale", 1.0, "dflash_config.attention_value_scale", remedy=_LATER
    )
    for key in ("input_embedding_scale", "output_multiplier"):
        cursor.neutral(key, 1.0, f"dflash_config.{key}", key, remedy=_LATER)
    cursor.neutral("projector_type", "dflash", "dflash_config.projector_type", remedy=_LATER)
    cursor.neutral("quantization", None, "quantization_config", remedy=_LATER)


def _read_layers(cursor: ConfigCursor, count: int) -> tuple[DraftLayer, ...]:
    """Return window and causality per layer.

    Causality: ``is_causal`` or ``dflash_config.causal`` where stated (ModelOpt and JetSpec state
    the latter), else sliding layers are causal and full ones are not (dflash 0.1.0, model.py); a
    window by ``use_swa`` alone is bidirectional (vllm 0.32, models/qwen3_dflash.py).
    """
    windows = read_windows(
        cursor,
        count,
        use_swa_key="dflash_config.use_swa",
        swa_window_key="dflash_config.swa_window_size",
        absent_switch_means_sliding=False,
    )
    causal = cursor.agree("causality", "is_causal", "dflash_config.causal")
    forced = windows_are_forced(cursor, count)
    layers = []
    for window in windows:
        by_type = window is not None and not forced
        layers.append(DraftLayer(window, by_type if causal is None else causal))
    return tuple(layers)


def _causality_by_layer_type(drafter: Drafter) -> bool:
    """Return whether the layer types alone say the causality: sliding causal, full not."""
    return all(layer.causal == layer.sliding for layer in drafter.layers)


def _refuse_unrepresentable(drafter: Drafter) -> None:
    if -1 in drafter.target_layer_ids:
        raise NotRepresentableError(
            "the embedding output is captured (Speculators id 0), which the native form can't name",
            remedy="Use --format speculators",
        )
    if drafter.vocabulary.reduced or drafter.vocabulary.head == "own":
        raise NotRepresentableError(
            "the drafter has a head of its own over "
            f"{drafter.vocabulary.draft_size} of {drafter.vocabulary.size} tokens, and engines of "
            "the native form draft with the target's head",
            remedy="Use --format speculators",
        )
    if drafter.proposal_tokens is not None:
        raise NotRepresentableError(
            f"the source asks for {drafter.proposal_tokens} tokens of a block of "
            f"{drafter.block_size}, and the native form states no number",
            remedy="Use --format speculators, or state block_size - 1 by --set",
        )
    problems = native_form_problems(drafter)
    if problems:
        raise NotRepresentableError(problems[0].rstrip("."))


def _rope_scaling(drafter: Drafter) -> dict[str, Any] | None:
    if drafter.rope.kind == "default":
        return None
    scaling = drafter.rope.parameters()
    scaling.pop("rope_theta")
    return scaling
