"""What z-lab's own ``dflash`` package (torch) makes of a drafter's files.

Source: dflash 0.1.0, model.py, on transformers 5.19.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_pack.checkpoint import Contents
from dflash_pack.drafter import Dflash2Parts, DraftLayer
from dflash_pack.engines.families import dflash2_parts
from dflash_pack.engines.keys import Keys
from dflash_pack.engines.meaning import EngineMeaning
from dflash_pack.engines.qwen3_defaults import SLIDING, Qwen3Fields, parse_qwen3
from dflash_pack.engines.rope import qwen3_rope
from dflash_pack.engines.speculators import to_transformers_rope
from dflash_pack.engines.tensor_set import engine_shapes
from dflash_pack.engines.transformers_tensors import read_tensors
from dflash_pack.target import Target

_VERSION = "0.1.0"
_DEFAULT_BLOCK_SIZE = 16
# JSON may hold a whole number that no float can: it would stop the arithmetic.
_HUGE = 1e30


def derive(contents: Contents, target: Target | None) -> EngineMeaning:
    """Return what ``dflash.DFlashDraftModel.from_pretrained`` makes of ``contents``.

    Every DFlash key is looked up in ``dflash_config`` first, then at the top. Embedding and head
    are always the target's; ``dflash_config.causal`` and ``use_swa`` are not read.
    """
    root = Keys(contents.config)
    if "num_target_layers" not in contents.config:
        return EngineMeaning("zlab", _VERSION, "native", refusals=(_not_native(contents.config),))
    problems: list[str] = []
    if not isinstance(contents.config.get("dflash_config", {}), Mapping):
        problems.append("dflash_config is not an object.")
    fields, field_problems = parse_qwen3(root)
    problems += field_problems
    if fields is None or problems:
        return EngineMeaning("zlab", _VERSION, "native", refusals=tuple(problems))
    ids, id_problems = _layer_ids(root, fields)
    block_size, mask, value_problems = _block(root)
    geometry = fields.geometry
    reading = qwen3_rope(root, fields.layer_types, geometry.max_position_embeddings)
    rope, rope_problems = (
        (None, reading.problems)
        if reading.problems
        else to_transformers_rope(reading.parameters, fields, engine="z-lab's dflash")
    )
    columns = len(ids) * geometry.hidden_size
    parts, part_problems = _parts(root, geometry.hidden_size)
    skipped, tensor_refusals = read_tensors(
        contents,
        engine_shapes(
            geometry,
            fields.num_hidden_layers,
            columns,
            parts=parts,
            vocabulary=(fields.vocab_size, fields.vocab_size),
        ),
        {},
        engine="z-lab's dflash",
    )
    cap, scales, scale_problems = _logit_facts(root)
    layers = _layers(root, fields)
    return EngineMeaning(
        engine="zlab",
        versions=_VERSION,
        config_path="native",
        refusals=(
            *id_problems,
            *value_problems,
            *rope_problems,
            *scale_problems,
            *part_problems,
            *(tensor_refusals if not id_problems else ()),
            *_target_refusals(fields, ids, target),
        ),
        ignored=(*root.unread(), *skipped),
        notes=_last_layer_notes(root, ids),
        layers=layers,
        target_layer_ids=ids,
        fc_input_size=columns,
        mask_token_id=mask,
        speculative_tokens=None if block_size is None else block_size - 1,
        rope=rope,
        draft_vocab_size=fields.vocab_size,
        attention_bias=geometry.attention_bias,
        head_dim=geometry.head_dim,
        rms_norm_eps=geometry.rms_norm_eps,
        final_logit_softcapping=cap,
        hidden_act=geometry.hidden_act,
        family="dflash" if parts is None else "dflash2",
        parts=parts,
        input_embedding_scale=scales.get("input_embedding_scale", 1.0),
        output_multiplier=scales.get("output_multiplier", 1.0),
    )


def default_layer_ids(target_layers: int, draft_layers: int) -> tuple[int, ...]:
    """Return the layers that z-lab captures when a config names none.

    Evenly spaced from layer 1 to the third last; one draft layer takes the middle.
    """
    if draft_layers == 1:
        return (target_layers // 2,)
    span = target_layers - 4
    return tuple(round(1 + index * span / (draft_layers - 1)) for index in range(draft_layers))


def _not_native(config: Mapping[str, Any]) -> str:
    if "speculators_model_type" in config and config.get("model_type") is None:
        return (
            "z-lab's dflash does not read the Speculators format: it reads --format native or "
            "universal."
        )
    return (
        "num_target_layers is missing: z-lab's dflash fails without it, even with layer ids given."
    )


def _parts(root: Keys, hidden_size: int) -> tuple[Dflash2Parts | None, tuple[str, ...]]:
    """Return DFlash2's sizes where the architecture says so."""
    stated = root.get("architectures")
    if not isinstance(stated, list) or "DFlash2DraftModel" not in stated:
        return None, ()
    return dflash2_parts(
        lambda name: _value(root, name), hidden_size=hidden_size, engine="z-lab's dflash"
    )


def _value(root: Keys, name: str, default: Any = None) -> Any:
    nested = root.section("dflash_config")
    if nested.has(name):
        return nested.get(name)
    return root.get(name, default)


def _layer_ids(root: Keys, fields: Qwen3Fields) -> tuple[tuple[int, ...], tuple[str, ...]]:
    depth = root.get("num_target_layers")
    if not _whole(depth):
        return (), (f"num_target_layers is {depth!r}, not a whole number.",)
    stated = _value(
        root, "target_layer_ids", list(default_layer_ids(depth, fields.num_hidden_layers))
    )
    if not isinstance(stated, list) or not stated or not all(_whole(item) for item in stated):
        return (), (f"target_layer_ids is {stated!r}, not a list of layer ids.",)
    return tuple(stated), ()


def _block(root: Keys) -> tuple[int | None, int | None, tuple[str, ...]]:
    problems: list[str] = []
    size, mask = _value(root, "block_size", _DEFAULT_BLOCK_SIZE), _value(root, "mask_token_id")
    if not _number(size) or not 1 <= size < _HUGE:
        problems.append(f"block_size is {size!r}, not a whole number.")
        size = None
    if not _whole(mask):
        problems.append(f"mask_token_id is {mask!r}: z-lab's dflash can't fill masked slots.")
        mask = None
    return None if size is None else int(size), mask, tuple(problems)


def _layers(root: Keys, fields: Qwen3Fields) -> tuple[DraftLayer, ...]:
    override = root.get("is_causal")
    return tuple(
        DraftLayer(
            window=fields.sliding_window if kind == SLIDING else None,
            causal=kind == SLIDING if override is None else bool(override),
        )
        for kind in fields.layer_types
    )


def _last_layer_notes(root: Keys, ids: tuple[int, ...]) -> tuple[str, ...]:
    """Return the note on a captured last layer, whose states transformers gives normalised."""
    depth = root.get("num_target_layers")
    if not _whole(depth) or max(ids, default=-1) != depth - 1:
        return ()
    text = (
        "Takes the last target layer's states after the target's final norm; vLLM, SGLang and "
        "TensorRT-LLM take them before it."
    )
    return (text,)


def _logit_facts(root: Keys) -> tuple[float | None, dict[str, float], tuple[str, ...]]:
    numbers: dict[str, float | None] = {}
    problems: list[str] = []
    defaults = (
        ("final_logit_softcapping", None),
        ("output_multiplier", 1.0),
        ("input_embedding_scale", 1.0),
    )
    for name, default in defaults:
        value = _value(root, name, default)
        usable = _number(value) and abs(value) < _HUGE
        if not usable and not (value is None and default is None):
            problems.append(f"{name} is {value!r}, not a number.")
        numbers[name] = float(value) if usable else None
    cap = numbers["final_logit_softcapping"]
    scales = {
        name: value
        for name in ("output_multiplier", "input_embedding_scale")
        if (value := numbers[name]) is not None
    }
    return (cap if cap is not None and cap > 0 else None), scales, tuple(problems)


def _target_refusals(
    fields: Qwen3Fields, ids: tuple[int, ...], target: Target | None
) -> tuple[str, ...]:
    if target is None:
        return ()
    refusals: list[str] = []
    if target.hidden_size != fields.geometry.hidden_size:
        refusals.append(
            f"Captured states are {target.hidden_size} wide, and z-lab's dflash wants the "
            f"drafter's {fields.geometry.hidden_size}."
        )
    if ids and not -1 <= min(ids) <= max(ids) < target.num_hidden_layers:
        refusals.append(f"Captured layers must lie within 0 and {target.num_hidden_layers - 1}.")
    return tuple(refusals)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
