"""The Speculators form of DFlash: read as versions 0.5 to 0.9 write it, written as 0.9 does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_pack.accounting import LedgerBuilder, flatten
from dflash_pack.checkpoint import Contents
from dflash_pack.converters import dspark
from dflash_pack.converters.attention import read_windows
from dflash_pack.converters.family_keys import speculators_keys
from dflash_pack.converters.qwen3_fields import read_geometry, read_token_ids
from dflash_pack.converters.reading import CONFIG, ConfigCursor, Reading, rename_tensors
from dflash_pack.converters.rope import PartialRotary, read_rope
from dflash_pack.converters.side_files import account_side_files
from dflash_pack.converters.tensor_facts import (
    has_biases,
    is_drafter_tensor,
    is_quantised_part,
    read_dtype,
    read_quantization,
    read_vocabulary,
)
from dflash_pack.converters.writing import WrittenForm, dtype_name, layer_config
from dflash_pack.drafter import Dflash2Parts, Drafter, DraftLayer, Parts
from dflash_pack.engines.limits import causal_by_type, speculators_form_problems
from dflash_pack.errors import CheckpointError, ContradictionError, NotRepresentableError
from dflash_pack.schemas.parse import parse
from dflash_pack.schemas.speculators import HARMLESS, LayerConfig, SpeculatorsConfig
from dflash_pack.target import Target

NAME = "speculators"
SECTIONS = (
    "transformer_layer_config",
    "speculators_config",
    "speculators_config.verifier",
)
LAYER = "transformer_layer_config."
WRITTEN_AS = "0.9.0"
# Of each speculators_model_type (speculators 0.5 to 0.9, models/*/core.py); where native keys stand
# beside them, DSpark's native name (vllm 0.32, models/registry.py).
_ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "dflash": ("DFlashDraftModel",),
    "dflash2": ("DFlash2DraftModel",),
    "dspark": ("DSparkDraftModel", "Qwen3DSparkModel"),
}
# What library and vLLM both take where the flag is absent; for dflash they differ.
_FLAG_WHERE_ABSENT: Mapping[str, bool] = {"dflash2": True, "dspark": False}
# Their trainer casts the weights to bf16 and leaves the model's own dtype in the config; since 0.7
# it corrects that (speculators 0.7, train/checkpointer.py, patch_config_dtype).
_DTYPE_UNCORRECTED = ("0.5.", "0.6.")
# Every top-level key that this form gives a fate.
TOP_LEVEL = frozenset({*SpeculatorsConfig.model_fields, *HARMLESS})


def detect(contents: Contents) -> bool:
    """Return whether the config has the Speculators keys."""
    config = contents.config
    stated = "speculators_model_type" in config or "speculators_config" in config
    # With model_type beside them the native keys count: the universal form.
    return stated and config.get("model_type") is None


def read(contents: Contents, *, partial_rotary: PartialRotary = "unclear") -> Reading:
    """Return the meaning of a Speculators DFlash checkpoint, as its trainer meant it.

    Sliding layers are causal unless ``sliding_window_non_causal``; full layers are bidirectional
    whatever the flag says (speculators 0.9, models/dflash/attention.py), unless the layer config
    states ``is_causal``, which vLLM obeys (vllm 0.32, models/qwen3_dflash.py).

    Raises:
        CheckpointError: If a fact is missing or malformed.
        ContradictionError: If two places differ.
        UnaccountedError: If a key or tensor has no rule.
    """
    parsed = parse(SpeculatorsConfig, contents.config, where=CONFIG)
    ledger = LedgerBuilder()
    cursor = ConfigCursor(flatten(contents.config, SECTIONS), ledger)
    _check_type(cursor)
    layer = parsed.transformer_layer_config
    geometry = read_geometry(cursor, layer, biases=has_biases(contents), prefix=LAYER)
    quantization = read_quantization(cursor, contents, allowed=True)
    packed = quantization is not None
    names = rename_tensors(
        tuple(contents.tensors),
        ledger,
        prefixes=(),
        keep=lambda name: is_drafter_tensor(name) or (packed and is_quantised_part(name)),
        droppable={
            "rotary_emb.inv_freq": "a buffer that engines compute",
            "verifier_norm.weight": "a copy of the target's norm, used in training only",
            "verifier_lm_head.weight": "a copy of the target's head, used in training only",
        },
    )
    cursor.agree("mask_token_id", "mask_token_id")
    cursor.agree("target_layer_ids", "aux_hidden_state_layer_ids")
    cursor.agree("block_size", "block_size")
    verifier = parsed.speculators_config.verifier
    cursor.agree("verifier", "speculators_config.verifier.name_or_path")
    cursor.agree("verifier_architectures", "speculators_config.verifier.architectures")
    width = cursor.agree("target_hidden_size", "target_hidden_size", f"{LAYER}target_hidden_size")
    anchor = _read_anchor(cursor, parsed)
    parts = _read_parts(cursor, parsed)
    drafter = Drafter(
        geometry=geometry,
        layers=_read_layers(cursor, parsed),
        target_layer_ids=tuple(index - 1 for index in parsed.aux_hidden_state_layer_ids),
        target_hidden_size=width or geometry.hidden_size,
        block_size=parsed.block_size,
        rope=read_rope(
            cursor,
            geometry.max_position_embeddings,
            LAYER,
            partial_rotary=partial_rotary,
        ),
        vocabulary=read_vocabulary(
            cursor,
            contents,
            names,
            size_key=f"{LAYER}vocab_size",
            draft_key="draft_vocab_size",
            mask_token_id=parsed.mask_token_id,
            parts=parts,
        ),
        dtype=read_dtype(
            cursor,
            contents,
            names,
            "dtype",
            "torch_dtype",
            f"{LAYER}dtype",
            f"{LAYER}torch_dtype",
            quantised=packed,
            checked=not (parsed.speculators_version or "").startswith(_DTYPE_UNCORRECTED),
        ),
        sample_from_anchor=anchor,
        proposal_tokens=_read_proposal(cursor, parsed, usable=parsed.block_size - (not anchor)),
        final_logit_softcapping=cursor.agree(
            "final_logit_softcapping", f"{LAYER}final_logit_softcapping"
        ),
        token_ids=read_token_ids(cursor, LAYER),
        verifier=verifier.name_or_path,
        verifier_architectures=tuple(verifier.architectures),
        parts=parts,
        quantization=quantization,
    )
    copied = account_side_files(contents.side_files, ledger, quantised=packed)
    cursor.drop_known(HARMLESS)
    known = (
        *SpeculatorsConfig.model_fields,
        *(LAYER + name for name in LayerConfig.model_fields),
        *HARMLESS,
    )
    cursor.close(contents, known)
    return Reading(NAME, drafter, ledger.build(), names, copied, tuple(cursor.notes))


def write(drafter: Drafter, target: Target) -> WrittenForm:
    """Return the Speculators form: speculators 0.9 reads it, vLLM 0.32 and 0.33 serve it.

    Raises:
        NotRepresentableError: If the form can't carry the drafter; names the form that can.
    """
    problems = speculators_form_problems(drafter)
    if problems:
        raise NotRepresentableError(problems[0].rstrip("."))
    return config_of(drafter, target)


def config_of(drafter: Drafter, target: Target) -> WrittenForm:
    """Return the Speculators keys of a ``drafter``, as the library means them.

    Of mixed layers the flag says what the sliding ones do: full layers are bidirectional there,
    which vLLM's Speculators path would not follow (``speculators_form_problems``).
    """
    longest, notes = _cache_length(drafter, target)
    layer = layer_config(drafter, max_position_embeddings=longest)
    if drafter.final_logit_softcapping is not None:
        layer["final_logit_softcapping"] = drafter.final_logit_softcapping
        notes.append(
            "final_logit_softcapping is kept in transformer_layer_config; vLLM 0.32/0.33 reads it "
            "in neither form, and greedy drafts don't depend on it."
        )
    slides = [layer_ for layer_ in drafter.layers if layer_.sliding] or drafter.layers
    non_causal = not slides[0].causal
    if drafter.family == "dspark" and not causal_by_type(drafter):
        # vLLM makes nothing of the flag for DSpark (configs/speculators/algos.py, update_dspark).
        layer["is_causal"] = drafter.causality
    elif drafter.causality and not all(layer_.sliding for layer_ in drafter.layers):
        # Full causal layers: the flag alone would rest on vLLM's reading of it for full layers.
        layer["is_causal"] = True
    width = drafter.target_hidden_size
    family = speculators_keys(drafter)
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "aux_hidden_state_layer_ids": [index + 1 for index in drafter.target_layer_ids],
        "block_size": drafter.block_size,
        "draft_vocab_size": drafter.vocabulary.draft_size,
        "dtype": dtype_name(drafter.dtype),
        "mask_token_id": drafter.vocabulary.mask_token_id,
        "sample_from_anchor": False,
        "sliding_window_non_causal": non_causal,
        "speculators_config": {
            "algorithm": drafter.family,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "accept_tolerance": 0.0,
                    "proposal_type": "greedy",
                    "speculative_tokens": drafter.speculative_tokens,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {
                "architectures": list(target.architectures),
                "name_or_path": target.identifier,
            },
        },
        "speculators_model_type": drafter.family,
        "speculators_version": WRITTEN_AS,
        "target_hidden_size": None if width == drafter.geometry.hidden_size else width,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        **family.top,
    }
    if drafter.quantization is not None and drafter.quantization.value():
        config["quantization_config"] = drafter.quantization.value()
    fields = {
        "target_layer_ids": "aux_hidden_state_layer_ids (each + 1)",
        "causality": "sliding_window_non_causal",
        "target_depth": "",
        "geometry": "transformer_layer_config",
        "rope": "transformer_layer_config.rope_parameters",
    }
    return WrittenForm(NAME, config, fields, tuple(notes))


def _check_type(cursor: ConfigCursor) -> None:
    cursor.agree("architecture", "speculators_model_type", "speculators_config.algorithm")
    stated = cursor.agree("architecture", "architectures")
    family = cursor.flat.get("speculators_model_type")
    names = _ARCHITECTURES.get(str(family), ())
    if stated is not None and names and stated not in [[name] for name in names]:
        raise ContradictionError(
            "architecture",
            ("architectures", stated),
            ("speculators_model_type", family),
            where=CONFIG,
            remedy=f"Correct the file or pass --set 'architectures=[\"{names[0]}\"]'",
        )
    kind = cursor.agree("architecture", f"{LAYER}model_type")
    if kind not in (None, "qwen3"):
        raise CheckpointError(
            f"{kind!r} makes the Speculators library fill in defaults of another architecture",
            where=CONFIG,
            field=f"{LAYER}model_type",
            remedy=f"Pass --set {LAYER}model_type=qwen3 if the draft layers are Qwen3 layers",
        )


def _read_anchor(cursor: ConfigCursor, parsed: SpeculatorsConfig) -> bool:
    """Return whether the anchor row predicts too; DSpark's absent value is open.

    Raises:
        CheckpointError: If DSpark doesn't state it, or plain DFlash states that it does.
    """
    stated = cursor.agree("sample_from_anchor", "sample_from_anchor")
    if parsed.speculators_model_type != "dspark":
        cursor.neutral(
            "sample_from_anchor",
            False,
            "sample_from_anchor",
            remedy="No engine runs DFlash that way; correct the file",
        )
        return False
    if stated is None:
        raise CheckpointError(
            "is not stated, and for DSpark the Speculators library takes true, vLLM false",
            where=CONFIG,
            field="sample_from_anchor",
            remedy="Pass --set sample_from_anchor=VALUE, as the drafter was trained",
        )
    return bool(stated)


def _read_parts(cursor: ConfigCursor, parsed: SpeculatorsConfig) -> Parts | None:
    """Return what the type adds; absent sizes are the library's own defaults."""
    kind = parsed.speculators_model_type

    def size(name: str, value: Any) -> Any:
        return cursor.default(name, name, value=value, source="the Speculators library's default")

    if kind == "dflash2":
        return Dflash2Parts(
            size("conv_kernel_size", 2),
            size("conv_group_size", 16),
            size("selector_rank", 256),
            size("selector_top_k", 16),
        )
    if kind == "dspark":
        return dspark.heads(
            size("markov_rank", 256),
            size("markov_head_type", "vanilla"),
            confidence=size("enable_confidence_head", True),
            with_markov=size("confidence_head_with_markov", True),
        )
    return None


def _read_layers(cursor: ConfigCursor, parsed: SpeculatorsConfig) -> tuple[DraftLayer, ...]:
    layer = parsed.transformer_layer_config
    windows = read_windows(
        cursor, layer.num_hidden_layers, prefix=LAYER, absent_switch_means_sliding=True
    )
    cursor.agree("causality", "sliding_window_non_causal")
    stated = cursor.agree("causality", f"{LAYER}is_causal")
    slides = any(window is not None for window in windows)
    flag = cursor.flat.get("sliding_window_non_causal")
    kind = parsed.speculators_model_type
    if flag is None and kind in _FLAG_WHERE_ABSENT:
        flag = _FLAG_WHERE_ABSENT[kind] if stated is None else not stated
    if slides and flag is None and stated is None:
        raise CheckpointError(
            "is not stated, and for sliding layers vLLM takes true, the Speculators library false",
            where=CONFIG,
            field="sliding_window_non_causal",
            remedy="Pass --set sliding_window_non_causal=VALUE, as the drafter was trained",
        )
    if slides and flag is not None and stated is not None and flag == stated:
        raise ContradictionError(
            "causality",
            ("sliding_window_non_causal", flag),
            (f"{LAYER}is_causal", stated),
            where=CONFIG,
            remedy=f"Pass --set {LAYER}is_causal=null if the flag is meant",
        )
    sliding_causal = not flag
    return tuple(
        DraftLayer(
            window, (window is not None and sliding_causal) if stated is None else bool(stated)
        )
        for window in windows
    )


def _read_proposal(cursor: ConfigCursor, parsed: SpeculatorsConfig, *, usable: int) -> int | None:
    """Return k where the source asks for fewer tokens than the ``usable`` ones of the block.

    Files written before speculators #456 (2026-04-21) state the block size itself.
    """
    cursor.agree("proposal", "speculators_config.proposal_methods")
    _refuse_other_proposals(parsed)
    stated = parsed.speculators_config.proposal_methods[0].speculative_tokens
    if stated == usable:
        return None
    if stated == parsed.block_size:
        cursor.notes.append(
            f"speculative_tokens {stated} is the block size, as speculators wrote it before #456: "
            f"{usable} is meant."
        )
        return None
    if stated > usable:
        raise CheckpointError(
            f"{stated} tokens can't come out of a block of {parsed.block_size}: it gives {usable}",
            where=CONFIG,
            field="speculators_config.proposal_methods[0].speculative_tokens",
            remedy="Correct it to block_size - 1",
        )
    return stated


def _refuse_other_proposals(parsed: SpeculatorsConfig) -> None:
    """Refuse what the one greedy proposal that is written would lose."""
    methods = parsed.speculators_config.proposal_methods
    first = methods[0]
    what = None
    if len(methods) > 1:
        what = f"{len(methods)} methods are stated, and engines use the first only"
    elif first.proposal_type != "greedy":
        what = f"proposal_type {first.proposal_type!r} is not greedy"
    elif first.verifier_accept_k not in (None, 1):
        what = f"verifier_accept_k {first.verifier_accept_k} is not 1"
    elif first.accept_tolerance not in (None, 0.0):
        what = f"accept_tolerance {first.accept_tolerance} is not 0"
    elif first.model_extra:
        what = f"unknown key {next(iter(first.model_extra))}"
    if what is not None:
        raise CheckpointError(
            f"{what}; no engine does that",
            where=CONFIG,
            field="speculators_config.proposal_methods",
            remedy="Correct it to one greedy method with speculative_tokens, or state it by --set",
        )


def _cache_length(drafter: Drafter, target: Target) -> tuple[int, list[str]]:
    """Return max_position_embeddings to write, raised to the target's where that is harmless.

    vllm 0.32 sizes the draft's rope cache by it for DFlash; scaled ropes read it as a parameter, so
    only the default kind may be raised.
    """
    stated = drafter.geometry.max_position_embeddings
    longest = target.max_position_embeddings or stated
    if drafter.rope.kind != "default" or longest <= stated:
        return stated, []
    note = (
        f"max_position_embeddings is raised from {stated} to {longest}, the target's: vLLM 0.32 "
        "sizes the draft's rope cache by it."
    )
    return longest, [note]
