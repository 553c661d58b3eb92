"""What TensorRT-LLM's DFlash (PyTorch backend) makes of a drafter's files.

Source: NVIDIA/TensorRT-LLM, the main branch of August and September 2026, read and not run; no
wheel was read. Under _torch: models/modeling_dflash.py, models/modeling_qwen3.py,
speculative/dflash.py, pyexecutor/config_utils.py, attention_backend/interface.py (RopeParams); and
llmapi/llm_args.py. Where older releases differ, a note says since when.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_pack.checkpoint import Contents
from dflash_pack.drafter import Family, LagunaParts, Parts, Rope
from dflash_pack.engines.families import dflash2_parts, laguna_parts
from dflash_pack.engines.keys import Keys
from dflash_pack.engines.meaning import EngineMeaning
from dflash_pack.engines.native_keys import (
    captured_refusals,
    layer_ids,
    nested_or_top,
    not_native,
    parse_backbone,
    skipped_parameters,
    whole,
    width_refusals,
    without_parameters,
)
from dflash_pack.engines.qwen3_defaults import FULL, Qwen3Fields
from dflash_pack.engines.rope import TRANSFORMERS_KINDS, nested_labels, qwen3_rope, to_rope
from dflash_pack.engines.tensor_set import is_quantised
from dflash_pack.engines.tensorrt_llm_layers import resolve_layers
from dflash_pack.engines.tensorrt_llm_tensors import read_tensors
from dflash_pack.target import Target

NAME = "tensorrt_llm"
VERSION = "main 2026-09"
_BACKBONE = "Qwen3ForCausalLM"
_ACTIVATION = "silu"
# RopeParams has no field for these.
_UNREAD_ROPE = frozenset({"attention_factor", "truncate"})
_DSPARK_KEYS = ("markov_rank", "shift_label", "use_confidence_head", "enable_confidence_head")


def derive(contents: Contents, target: Target | None) -> EngineMeaning:
    """Return what TensorRT-LLM will do with ``contents``.

    Args:
        contents: The files, written or planned.
        target: The target; without it, its sizes are taken to be the drafter's.
    """
    root = Keys(contents.config)
    laguna = _is_laguna(contents.config)
    foreign = not_native(contents.config, "TensorRT-LLM", laguna=laguna)
    if foreign is not None:
        return _refused((foreign,))
    root.get("model_type")
    fields, problems = parse_backbone(root, laguna=laguna)
    if fields is None:
        return _refused(problems)
    family, parts, family_problems = _family(root, fields, laguna=laguna)
    layers, layer_problems = resolve_layers(root, fields, family)
    ids = layer_ids(root.section("dflash_config").get("target_layer_ids"))
    refusals = [*family_problems, *layer_problems]
    if ids is None:
        refusals.append(
            "dflash_config.target_layer_ids is no list of layer ids: TensorRT-LLM would capture "
            "nothing unless it is told which by hand."
        )
    if ids is None or layer_problems or (family != "dflash" and parts is None):
        return _refused(tuple(refusals))
    mask, mask_problems = _mask(root, target)
    rope, rope_problems = _rope(root, fields)
    dropped, tensor_refusals = read_tensors(
        contents, fields.geometry, fields.num_hidden_layers, len(ids), parts, fields.vocab_size
    )
    notes = _notes(contents, root, family, sliding=any(layer.sliding for layer in layers))
    geometry = fields.geometry
    return EngineMeaning(
        engine=NAME,
        versions=VERSION,
        config_path="native",
        refusals=(
            *refusals,
            *mask_problems,
            *rope_problems,
            *tensor_refusals,
            *captured_refusals(ids, target, engine="TensorRT-LLM"),
            *width_refusals(geometry.hidden_size, target, engine="TensorRT-LLM"),
        ),
        ignored=(*root.unread(), *dropped),
        notes=notes,
        layers=layers,
        target_layer_ids=tuple(sorted(ids)),
        fc_input_size=len(ids) * geometry.hidden_size,
        mask_token_id=mask,
        rope=rope,
        embedding="target",
        head="target",
        draft_vocab_size=fields.vocab_size if target is None else target.vocab_size,
        attention_bias=geometry.attention_bias,
        head_dim=geometry.head_dim,
        rms_norm_eps=geometry.rms_norm_eps,
        hidden_act=_ACTIVATION,
        family=family,
        parts=parts,
    )


def _refused(sentences: tuple[str, ...]) -> EngineMeaning:
    return EngineMeaning(NAME, VERSION, "native", refusals=sentences)


def _architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    stated = config.get("architectures")
    return tuple(str(name) for name in stated) if isinstance(stated, list) else ()


def _is_laguna(config: Mapping[str, Any]) -> bool:
    return any("Laguna" in name for name in _architectures(config))


def _family(
    root: Keys, fields: Qwen3Fields, *, laguna: bool
) -> tuple[Family, Parts | None, tuple[str, ...]]:
    """Return the family: by architecture for Laguna, by sizes or architecture for DFlash2."""
    root.get("architectures")
    names = _architectures(root.config)
    problems = list(_architecture_problems(names))
    if _declares_dspark(root):
        problems.append(
            "The file declares DSpark heads: TensorRT-LLM's DFlash refuses them, and runs them "
            "under decoding_type DSpark, which is not worked out here."
        )
    if laguna:
        parts, part_problems = laguna_parts(lambda name: root.get(name, True))
        if isinstance(parts, LagunaParts) and parts.gating != "per-head":
            problems.append("gating is per element: TensorRT-LLM gates Laguna's heads only.")
        return "laguna", parts, (*problems, *part_problems)
    section = root.section("dflash_config")
    plain = [name.lower().replace("_", "").replace("-", "") for name in names]
    sized = any(
        isinstance(value, int) and value > 0
        for value in (section.get("conv_kernel_size"), section.get("selector_rank"))
    )
    if not sized and not any("dflash2" in name for name in plain):
        return "dflash", None, tuple(problems)
    found, part_problems = dflash2_parts(
        section.get, hidden_size=fields.geometry.hidden_size, engine="TensorRT-LLM"
    )
    if found is not None and found.selector_top_k < 2:
        problems.append("selector_top_k is 1, and TensorRT-LLM wants at least 2 candidates.")
    return "dflash2", found, (*problems, *part_problems)


def _architecture_problems(names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a name that the model registry may know; any other falls back to ``model_type``."""
    first = names[0] if names else None
    if first is not None and ("DFlash" in first or "DSpark" in first or first == _BACKBONE):
        return ()
    text = (
        f"architectures is {list(names)}, by which TensorRT-LLM may build another backbone. Write "
        '["DFlashDraftModel"].'
    )
    return (text,)


def _declares_dspark(root: Keys) -> bool:
    stated = [nested_or_top(root, name) for name in _DSPARK_KEYS]
    projector = nested_or_top(root, "projector_type")
    return any(stated) or (isinstance(projector, str) and projector.lower() == "dspark")


def _mask(root: Keys, target: Target | None) -> tuple[int | None, tuple[str, ...]]:
    value = nested_or_top(root, "mask_token_id")
    if value is None:
        text = (
            "No mask token is stated (dflash_config.mask_token_id): TensorRT-LLM would take "
            "vocab_size, which is no row of the embedding."
        )
        return None, (text,)
    if not whole(value) or value < 0:
        return None, (f"mask_token_id is {value!r}, not a token id.",)
    if target is not None and value >= target.vocab_size:
        text = f"The mask token {value} is outside the target's embedding of {target.vocab_size}."
        return value, (f"{text[:-1]} rows.",)
    return int(value), ()


def _rope(root: Keys, fields: Qwen3Fields) -> tuple[Rope | None, tuple[str, ...]]:
    """Return the one rotary embedding of all layers; of several, that of full layers is taken."""
    reading = qwen3_rope(root, fields.layer_types, fields.geometry.max_position_embeddings)
    if reading.problems:
        return None, reading.problems
    parameters = dict(reading.parameters)
    labels = nested_labels(parameters, fields.layer_types)
    if labels:
        inner = parameters.get(FULL, parameters[labels[0]])
        if not isinstance(inner, Mapping):
            return None, ("The rope section of config.json is not usable.",)
        parameters = dict(inner)
    parameters.pop("rope_dim", None)
    rope, problems = to_rope(
        parameters, fields.geometry.head_dim, kinds=TRANSFORMERS_KINDS, engine="TensorRT-LLM"
    )
    if rope is not None and rope.kind == "yarn":
        rope = without_parameters(rope, skipped_parameters(rope, _UNREAD_ROPE))
    return rope, problems


def _notes(contents: Contents, root: Keys, family: Family, *, sliding: bool) -> tuple[str, ...]:
    notes = ["Give it decoding_type DFlash and max_draft_len, block size - 1: it reads no k here."]
    section = root.section("dflash_config")
    if section.has("block_size") and "block_size" not in root.config:
        notes.append(
            "block_size stands in dflash_config only, which it reads since September 2026; before, "
            "a block was max_draft_len + 1."
        )
    nested_or_top(root, "block_size")
    if family == "dflash2":
        notes.append("DFlash2 works since PR 18155 (2026-09).")
    elif family == "laguna":
        notes.append("Laguna's drafter works since PR 15666.")
    elif sliding:
        notes.append("Windows and causality per layer work since PR 16914 (2026-07).")
    if is_quantised(contents):
        root.get("quantization_config")
        notes.append(
            "Weights are quantised: names and shapes of tensors were not compared, and fc and "
            "hidden_norm are taken as they are stored."
        )
    return tuple(notes)
