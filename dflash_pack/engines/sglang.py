"""What SGLang's DFlash (and DSpark) makes of a drafter's files.

Source: sglang 0.5.23, its wheel read and not run: models/dflash.py, models/dspark.py,
speculative/dflash_utils.py, speculative/dflash_worker_v2.py, configs/model_config.py,
layers/rotary_embedding/factory.py, utils/hf_transformers/common.py. It parses with transformers
5.19, the version that it pins.
"""

from __future__ import annotations

from dflash_pack.checkpoint import Contents
from dflash_pack.drafter import DraftLayer, Family, Rope
from dflash_pack.engines.keys import Keys
from dflash_pack.engines.meaning import EngineMeaning
from dflash_pack.engines.native_keys import (
    captured_refusals,
    not_native,
    number,
    parse_backbone,
    skipped_parameters,
    width_refusals,
    without_parameters,
)
from dflash_pack.engines.qwen3_defaults import FULL, SLIDING, Qwen3Fields
from dflash_pack.engines.rope import TRANSFORMERS_KINDS, nested_labels, qwen3_rope, to_rope
from dflash_pack.engines.sglang_config import SglangConfig, family_of, parse
from dflash_pack.engines.sglang_targets import capture_refusals, captured_by_output
from dflash_pack.engines.sglang_tensors import read_tensors
from dflash_pack.engines.tensor_set import is_quantised
from dflash_pack.target import Target

NAME = "sglang"
VERSION = "0.5.23"
_MASK_EMBEDDING = "mask_embedding.pt"
_ACTIVATION = "silu"
# Parameters of a yarn rope that its factory does not hand on.
_UNREAD_ROPE = frozenset({"attention_factor"})


def derive(contents: Contents, target: Target | None) -> EngineMeaning:
    """Return what SGLang will do with ``contents``.

    Args:
        contents: The files, written or planned.
        target: The target; without it, its sizes are taken to be the drafter's.
    """
    root = Keys(contents.config)
    family, family_problems = family_of(root)
    laguna = family == "laguna"
    foreign = not_native(contents.config, "SGLang", laguna=laguna)
    if foreign is not None or family is None:
        return _refused((foreign,) if foreign is not None else family_problems)
    root.get("model_type")
    fields, problems = parse_backbone(root, laguna=laguna)
    if fields is None:
        return _refused(problems)
    config, config_problems = parse(
        root,
        family,
        layers=fields.num_hidden_layers,
        hidden_size=fields.geometry.hidden_size,
    )
    layers, layer_problems = _layers(root, fields)
    if not config.layer_ids or (family != "dflash" and config.parts is None) or layer_problems:
        return _refused((*config_problems, *layer_problems))
    rope, rope_problems = _rope(root, fields)
    dropped, tensor_refusals = read_tensors(
        contents, fields.geometry, fields.num_hidden_layers, config, fields.vocab_size
    )
    notes = (*_notes(contents, root, config, layers), *_context_notes(fields, target))
    geometry = fields.geometry
    return EngineMeaning(
        engine=NAME,
        versions=VERSION,
        config_path="native",
        refusals=(
            *config_problems,
            *rope_problems,
            *_activation_problems(geometry.hidden_act),
            *tensor_refusals,
            *_target_refusals(fields, config, target),
        ),
        ignored=(*root.unread(), *dropped),
        notes=notes,
        layers=layers,
        target_layer_ids=captured_by_output(
            config.layer_ids, target, root.config.get("architectures")
        ),
        fc_input_size=len(config.layer_ids) * geometry.hidden_size,
        mask_token_id=config.mask_token_id,
        speculative_tokens=config.block_size - (0 if family == "dspark" else 1),
        rope=rope,
        embedding="own" if config.own_embedding else "target",
        head="target",
        draft_vocab_size=fields.vocab_size if target is None else target.vocab_size,
        mask_embedding=_MASK_EMBEDDING in contents.side_files,
        attention_bias=geometry.attention_bias,
        head_dim=geometry.head_dim,
        rms_norm_eps=geometry.rms_norm_eps,
        final_logit_softcapping=config.softcap,
        hidden_act=geometry.hidden_act,
        sample_from_anchor=config.sample_from_anchor,
        family=family,
        parts=config.parts,
        attention_sinks=config.sinks,
        attention_value_scale=config.value_scale,
        output_multiplier=config.output_multiplier,
    )


def _refused(sentences: tuple[str, ...]) -> EngineMeaning:
    return EngineMeaning(NAME, VERSION, "native", refusals=sentences)


def _layers(root: Keys, fields: Qwen3Fields) -> tuple[tuple[DraftLayer, ...], tuple[str, ...]]:
    """Return window and causality per layer: by layer type, unless top-level ``is_causal`` says.

    ``dflash_config.causal``, ``use_swa`` and ``swa_window_size`` are not read.
    """
    override = root.get("is_causal")
    strange = sorted(set(fields.layer_types) - {FULL, SLIDING})
    if strange:
        return (), (f"layer_types holds {strange[0]!r}, which SGLang's DFlash refuses.",)
    if SLIDING in fields.layer_types and fields.sliding_window is None:
        nulled = root.config.get("sliding_window") is not None
        why = (
            " (transformers' Qwen3Config nulls it unless use_sliding_window is true)"
            if nulled
            else ""
        )
        return (), (f"Sliding layers have no window: SGLang finds no sliding_window{why}.",)
    layers = tuple(
        DraftLayer(
            window=fields.sliding_window if kind == SLIDING else None,
            causal=kind == SLIDING if override is None else bool(override),
        )
        for kind in fields.layer_types
    )
    return layers, ()


def _rope(root: Keys, fields: Qwen3Fields) -> tuple[Rope | None, tuple[str, ...]]:
    """Return the rotary embedding: of the partial factors, the top-level one alone counts.

    ``rope_dim`` in the rope section wins over it.
    """
    reading = qwen3_rope(root, fields.layer_types, fields.geometry.max_position_embeddings)
    if reading.problems:
        return None, reading.problems
    parameters = dict(reading.parameters)
    if nested_labels(parameters, fields.layer_types) or "rope_type" not in parameters:
        text = "The rope section holds one rope per layer type, which SGLang's DFlash fails on."
        return None, (text,)
    parameters.pop("partial_rotary_factor", None)
    partial = root.config.get("partial_rotary_factor", 1.0)
    if not number(partial):
        return None, (f"partial_rotary_factor is {partial!r}, which SGLang fails on.",)
    if partial < 1:
        parameters["partial_rotary_factor"] = partial
    rope, problems = to_rope(
        parameters, fields.geometry.head_dim, kinds=TRANSFORMERS_KINDS, engine="SGLang"
    )
    if rope is not None and rope.kind == "yarn":
        rope = without_parameters(rope, skipped_parameters(rope, _UNREAD_ROPE))
    return rope, problems


def _activation_problems(name: str) -> tuple[str, ...]:
    if name == _ACTIVATION:
        return ()
    return (f"hidden_act is {name!r}: SGLang's DFlash knows silu, and swigluoai with its sizes.",)


def _target_refusals(
    fields: Qwen3Fields, config: SglangConfig, target: Target | None
) -> tuple[str, ...]:
    refusals = [
        *captured_refusals(config.layer_ids, target, engine="SGLang"),
        *width_refusals(fields.geometry.hidden_size, target, engine="SGLang"),
    ]
    if target is None:
        return tuple(refusals)
    if config.family != "dspark":
        refusals += capture_refusals(config.layer_ids, target)
    if config.mask_token_id is not None and config.mask_token_id >= target.vocab_size:
        refusals.append(
            f"The mask token {config.mask_token_id} is outside the target's vocabulary of "
            f"{target.vocab_size}."
        )
    return tuple(refusals)


def _notes(
    contents: Contents, root: Keys, config: SglangConfig, layers: tuple[DraftLayer, ...]
) -> tuple[str, ...]:
    notes = [_start(config.family, config.block_size)]
    if is_quantised(contents):
        root.get("quantization_config")
    if any(layer.sliding and not layer.causal for layer in layers):
        notes.append(
            "Sliding layers are bidirectional: keep the draft off --attention-backend trtllm_mha, "
            "which narrows their window (sgl-project/sglang#35209)."
        )
    if _MASK_EMBEDDING in contents.side_files:
        notes.append(
            "mask_embedding.pt is looked for only where the drafter is given as a folder, and must "
            "be a dict of embedding and mask_token_id. It overwrites the target's row."
        )
    if config.sinks and config.own_embedding:
        notes.append("Sinks need --speculative-draft-attention-backend trtllm_mha.")
    if is_quantised(contents) and not config.own_embedding:
        notes.append(
            "Weights are quantised: names and shapes of tensors were not compared, fc stays plain, "
            "and lists of modules that are left out don't match, as layers are built nameless."
        )
    neox = root.get("rope_is_neox_style", root.get("is_neox_style", True))
    if not neox:
        notes.append("Rotates neighbouring pairs of each head (rope_is_neox_style is false).")
    if root.get("use_gemma_norm", False):
        notes.append("Adds 1 to the weight of each norm (use_gemma_norm is true).")
    return tuple(notes)


def _start(family: Family, block_size: int) -> str:
    if family == "dspark":
        return (
            f"Start it with --speculative-algorithm DSPARK; it drafts block_size = {block_size} "
            "tokens, whatever the anchor does."
        )
    return (
        "Start it with --speculative-algorithm DFLASH; --speculative-num-draft-tokens is the block "
        f"size, {block_size}, and no k: the anchor counts."
    )


def _context_notes(fields: Qwen3Fields, target: Target | None) -> tuple[str, ...]:
    limit = fields.geometry.max_position_embeddings
    longest = None if target is None else target.max_position_embeddings
    if longest is None or limit >= longest:
        return ()
    text = (
        f"The drafter's context of {limit} tokens is shorter than the target's {longest}: SGLang "
        f"stops unless it serves at most {limit} (--context-length) or "
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 is set."
    )
    return (text,)
