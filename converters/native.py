"""The native DFlash config, which most trainers write: one reader, told what each does its own way.

A trainer's module states a :class:`NativeDialect`; the rules that all share are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash_pack.accounting import LedgerBuilder, flatten
from dflash_pack.checkpoint import Contents
from dflash_pack.converters.attention import read_windows, windows_are_forced
from dflash_pack.converters.qwen3_fields import HeadSizeDefault, read_geometry, read_token_ids
from dflash_pack.converters.reading import CONFIG, ConfigCursor, Reading, rename_tensors
from dflash_pack.converters.rope import PartialRotary, read_rope
from dflash_pack.converters.side_files import account_side_files
from dflash_pack.converters.tensor_facts import (
    account_fused_rows,
    has_biases,
    has_relatives_tensors,
    is_drafter_tensor,
    is_quantised_part,
    read_dtype,
    read_quantization,
    read_vocabulary,
)
from dflash_pack.converters.training_state import with_training_state
from dflash_pack.drafter import Drafter, DraftLayer, Geometry, Parts
from dflash_pack.errors import CheckpointError, ContradictionError
from dflash_pack.schemas.parse import parse
from dflash_pack.schemas.zlab import HARMLESS, ZlabConfig

ARCHITECTURE = "DFlashDraftModel"
PREFIXES = ("draft_model.", "dflash_module.", "model.")
DROPPABLE: Mapping[str, str] = {"rotary_emb.inv_freq": "a buffer that engines compute"}
_LATER = "This version converts drafters without it only"


@dataclass(frozen=True)
class NativeDialect:
    """What one trainer does its own way.

    Attributes:
        name: Name of the reader.
        schema: Model of its config.json.
        harmless: Dotted config key -> reason, for keys without a meaning for decoding.
        sections: Config objects whose keys are accounted for one by one.
        architectures: Values of ``architectures`` that mean this family.
        model_types: Values of ``model_type`` whose parser adds no meaning of its own.
        renames: Start of a source tensor name -> start of the canonical one.
        droppable: End of a tensor name -> reason, for tensors without a meaning for decoding.
        mask_keys: Dotted keys that state the mask token, the most telling first.
        layer_id_keys: Dotted keys that state the captured layers, 0-based.
        next_layer_id_keys: Keys that state them plus one; they must agree with the former.
        block_keys: Keys that state the block size.
        depth_keys: Keys that state the target's number of layers.
        captured_count_keys: Keys that state how many layers are captured.
        draft_count_keys: Further keys that state the number of draft layers.
        causal_keys: Keys that state one causality for all layers.
        anchor_keys: All spellings of "the anchor row predicts too".
        head_size_default: Head size where none is stated.
        partial_rotary: What the trainer's code does with ``partial_rotary_factor``.
        keep_fused: Whether fused projections stay as they are.
        quantised: Whether exports may be quantised.
        dtype_checked: Whether the stated dtype must be that of the tensors.
        causal_default: Causality of all layers where none is stated; None = by layer type.
        absent_switch_slides: Whether layers slide by ``layer_types`` alone, without
            ``use_sliding_window``.
    """

    name: str
    schema: type[ZlabConfig] = ZlabConfig
    harmless: Mapping[str, str] = field(default_factory=lambda: HARMLESS)
    sections: tuple[str, ...] = ("dflash_config",)
    architectures: tuple[str, ...] = ("DFlashDraftModel",)
    model_types: tuple[str, ...] = ("qwen3",)
    renames: Mapping[str, str] = field(default_factory=dict)
    droppable: Mapping[str, str] = field(default_factory=lambda: DROPPABLE)
    mask_keys: tuple[str, ...] = ("dflash_config.mask_token_id", "mask_token_id")
    layer_id_keys: tuple[str, ...] = ("dflash_config.target_layer_ids", "target_layer_ids")
    next_layer_id_keys: tuple[str, ...] = ("eagle_aux_hidden_state_layer_ids",)
    block_keys: tuple[str, ...] = ("block_size", "dflash_config.block_size")
    depth_keys: tuple[str, ...] = ("num_target_layers", "dflash_config.num_target_layers")
    captured_count_keys: tuple[str, ...] = ()
    draft_count_keys: tuple[str, ...] = ()
    causal_keys: tuple[str, ...] = ("is_causal", "dflash_config.causal")
    anchor_keys: tuple[str, ...] = ("sample_from_anchor", "dflash_config.sample_from_anchor")
    head_size_default: HeadSizeDefault = "qwen3"
    partial_rotary: PartialRotary = "unclear"
    keep_fused: bool = False
    quantised: bool = True
    dtype_checked: bool = True
    causal_default: bool | None = None
    absent_switch_slides: bool = False


def is_native(contents: Contents) -> bool:
    """Return whether the config has a native DFlash form and no Speculators keys."""
    config = contents.config
    if "speculators_model_type" in config or "speculators_config" in config:
        return False
    return "dflash_config" in config or any("DFlash" in name for name in architectures(contents))


def architectures(contents: Contents) -> tuple[str, ...]:
    """Return the config's ``architectures``, empty where they are no list of names."""
    stated = contents.config.get("architectures")
    return tuple(str(name) for name in stated) if isinstance(stated, list) else ()


def is_plain(contents: Contents) -> bool:
    """Return whether the config is native plain DFlash, without marks of a relative."""
    section = contents.config.get("dflash_config")
    projector = section.get("projector_type") if isinstance(section, Mapping) else None
    return (
        is_native(contents)
        and all(name == ARCHITECTURE for name in architectures(contents))
        and projector in (None, "dflash")
        and not has_relatives_tensors(contents)
    )


def states(contents: Contents, dotted: str) -> bool:
    """Return whether the config has the key, null included."""
    section: Any = contents.config
    *path, last = dotted.split(".")
    for part in path:
        section = section.get(part) if isinstance(section, Mapping) else None
    return isinstance(section, Mapping) and last in section


def read_native(
    contents: Contents,
    dialect: NativeDialect,
    *,
    parts: Parts | None = None,
    cursor: ConfigCursor | None = None,
    sample_from_anchor: bool | None = None,
) -> Reading:
    """Return the meaning of a native drafter.

    Each DFlash key is looked up in ``dflash_config`` and at top level (dflash 0.1.0, model.py,
    _draft_value); two that differ are refused.

    Args:
        contents: The source.
        dialect: What its trainer does its own way.
        parts: What the family adds to plain DFlash, already read through ``cursor``.
        cursor: Cursor that ``parts`` were read with; None for plain DFlash.
        sample_from_anchor: The anchor layout, already read; None to require the DFlash one.

    Raises:
        CheckpointError: If a fact is missing, malformed or not carried by this converter.
        ContradictionError: If two places differ.
        UnaccountedError: If a key or tensor has no rule.
    """
    parsed = parse(dialect.schema, contents.config, where=CONFIG)
    dialect = with_training_state(dialect, contents)
    cursor = native_cursor(contents, dialect) if cursor is None else cursor
    ledger = cursor.ledger
    _check_type(cursor, parsed, dialect)
    if sample_from_anchor is None:
        for key in dialect.anchor_keys:
            cursor.neutral("sample_from_anchor", False, key, remedy=_LATER)
    if parts is None:
        cursor.neutral("projector_type", "dflash", "dflash_config.projector_type", remedy=_LATER)
    quantization = read_quantization(cursor, contents, allowed=dialect.quantised)
    geometry = read_geometry(
        cursor, parsed, biases=has_biases(contents), head_size=dialect.head_size_default
    )
    for key in dialect.draft_count_keys:
        cursor.same("num_hidden_layers", parsed.num_hidden_layers, "num_hidden_layers", key)
    names, splits = _tensors(contents, geometry, dialect, ledger, quantization is not None)
    mask_token_id = cursor.require(
        "mask_token_id", *dialect.mask_keys, why="published drafters are known to differ in it"
    )
    layer_ids = _layer_ids(cursor, dialect)
    drafter = Drafter(
        geometry=geometry,
        layers=_read_layers(cursor, parsed.num_hidden_layers, dialect),
        target_layer_ids=layer_ids,
        target_hidden_size=cursor.agree("target_hidden_size", "target_hidden_size")
        or geometry.hidden_size,
        block_size=cursor.require(
            "block_size", *dialect.block_keys, why="the defaults in use (8, 10, 16) differ"
        ),
        rope=read_rope(
            cursor, geometry.max_position_embeddings, partial_rotary=dialect.partial_rotary
        ),
        vocabulary=read_vocabulary(
            cursor,
            contents,
            names,
            size_key="vocab_size",
            draft_key="draft_vocab_size",
            mask_token_id=mask_token_id,
            parts=parts,
        ),
        dtype=read_dtype(
            cursor,
            contents,
            {**names, **{fused: parts_[0][0] for fused, parts_ in splits.items()}},
            "dtype",
            "torch_dtype",
            quantised=quantization is not None,
            checked=dialect.dtype_checked,
        ),
        sample_from_anchor=bool(sample_from_anchor),
        target_depth=cursor.agree("target_depth", *dialect.depth_keys),
        final_logit_softcapping=_either(cursor, "final_logit_softcapping"),
        token_ids=read_token_ids(cursor),
        parts=parts,
        attention_sinks=bool(_either(cursor, "attention_sink_bias")),
        attention_value_scale=_either(cursor, "attention_value_scale") or 1.0,
        input_embedding_scale=_either(cursor, "input_embedding_scale") or 1.0,
        output_multiplier=_either(cursor, "output_multiplier") or 1.0,
        quantization=quantization,
    )
    copied = account_side_files(contents.side_files, ledger, quantised=quantization is not None)
    cursor.drop_known(dialect.harmless)
    cursor.close(contents, (*dialect.schema.model_fields, *dialect.harmless))
    return Reading(
        dialect.name, drafter, ledger.build(), names, copied, tuple(cursor.notes), splits
    )


def native_cursor(contents: Contents, dialect: NativeDialect) -> ConfigCursor:
    """Return a fresh cursor over the config, with a ledger of its own.

    Raises:
        CheckpointError: If a known key has a value of the wrong type or range.
    """
    parse(dialect.schema, contents.config, where=CONFIG)
    sections = with_training_state(dialect, contents).sections
    return ConfigCursor(flatten(contents.config, sections), LedgerBuilder())


def _either(cursor: ConfigCursor, name: str) -> Any:
    """Return a value that may stand in ``dflash_config`` or at top level."""
    return cursor.agree(name, f"dflash_config.{name}", name)


def _check_type(cursor: ConfigCursor, parsed: ZlabConfig, dialect: NativeDialect) -> None:
    """Refuse architectures and model types whose parser would fill in meanings of its own."""
    cursor.agree("architecture", "architectures")
    kind = cursor.agree("architecture", "model_type")
    names = parsed.architectures or []
    if len(names) > 1 or any(name not in dialect.architectures for name in names):
        known = " or ".join(dialect.architectures)
        raise CheckpointError(
            f"{names} is not what {dialect.name} writes ({known})",
            where=CONFIG,
            field="architectures",
            remedy="Pass --from with the format it is in, or correct the file",
        )
    if kind is not None and kind not in dialect.model_types:
        raise CheckpointError(
            f"{kind!r} makes engines fill in defaults of another architecture",
            where=CONFIG,
            field="model_type",
            remedy="Pass --set model_type=qwen3 if the drafter was trained with Qwen3 layers",
        )


def _tensors(
    contents: Contents,
    geometry: Geometry,
    dialect: NativeDialect,
    ledger: LedgerBuilder,
    quantised: bool,
) -> tuple[dict[str, str | None], dict[str, tuple[tuple[str, int], ...]]]:
    """Return canonical names and the fused projections to split."""
    names = rename_tensors(
        tuple(contents.tensors),
        ledger,
        prefixes=PREFIXES,
        keep=lambda name: is_drafter_tensor(name) or (quantised and is_quantised_part(name)),
        droppable=dialect.droppable,
        renames=dialect.renames,
    )
    if dialect.keep_fused or quantised:
        return names, {}
    return names, account_fused_rows(names, geometry, ledger)


def _layer_ids(cursor: ConfigCursor, dialect: NativeDialect) -> tuple[int, ...]:
    """Return the captured layers, compared with every other key that states or counts them."""
    keys, shifted = dialect.layer_id_keys, dialect.next_layer_id_keys
    ids = cursor.agree("target_layer_ids", *keys)
    for key in shifted:
        stated = cursor.agree("target_layer_ids", key)
        if stated is None:
            continue
        if ids is None:
            ids = [index - 1 for index in stated]
        elif [index - 1 for index in stated] != list(ids):
            first = next(name for name in keys if cursor.flat.get(name) is not None)
            raise ContradictionError(
                "target_layer_ids (each plus one in the second)",
                (first, ids),
                (key, stated),
                where=CONFIG,
                remedy=f"Correct the file or pass --set {key}=null",
            )
    if ids is None:
        raise CheckpointError(
            "is not stated, and each engine would fill in its own default",
            where=CONFIG,
            field=keys[0],
            remedy=f"Pass --set {keys[0]}=VALUE",
        )
    for key in dialect.captured_count_keys:
        cursor.same("number of captured layers", len(ids), keys[0], key)
    return tuple(ids)


def _read_layers(
    cursor: ConfigCursor, count: int, dialect: NativeDialect
) -> tuple[DraftLayer, ...]:
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
        absent_switch_means_sliding=dialect.absent_switch_slides,
    )
    causal = cursor.agree("causality", *dialect.causal_keys)
    if causal is None:
        causal = dialect.causal_default
    forced = windows_are_forced(cursor, count)
    layers = []
    for window in windows:
        by_type = window is not None and not forced
        layers.append(DraftLayer(window, by_type if causal is None else causal))
    return tuple(layers)
