"""vLLM's two parsers of a drafter's config.json, and the one draft config that both end in.

Source: vllm 0.32.0 (run) and 0.33.0 (read, the files are the same), transformers_utils/config.py
(HFConfigParser), transformers_utils/configs/eagle.py and configs/speculators/*.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_pack.drafter import Family, Geometry, Parts, Rope
from dflash_pack.engines.families import dflash2_parts, dspark_parts, laguna_parts
from dflash_pack.engines.keys import Keys
from dflash_pack.engines.qwen3_defaults import MAX_LAYERS, check_layer_types, parse_qwen3
from dflash_pack.engines.rope import (
    VLLM_KINDS,
    RopeReading,
    laguna_rope,
    to_rope,
    vllm_native_rope,
    vllm_speculators_rope,
)

DRAFT_CLASS = "DFlashDraftModel"
_SPECULATORS_TYPES: Mapping[str, Family] = {
    "dflash": "dflash",
    "dflash2": "dflash2",
    "dspark": "dspark",
}

# Draft models of vLLM that run under method dflash but are not the plain drafter.
_OTHER_CLASSES = {
    "DFlash2BeamDraftModel": "DFlash2 with beams",
    "DFlashQwen3XPressModel": "XPress",
    "LiLiCorrDraftModel": "LiLiCorr",
}
# Architecture as vLLM looks it up -> family; DSparkDraftModel is rewritten for model_type qwen3
# (vllm 0.32, config/speculative.py).
_FAMILIES: Mapping[str, Family] = {
    DRAFT_CLASS: "dflash",
    "DFlash2DraftModel": "dflash2",
    "DFlashLagunaForCausalLM": "laguna",
    "Qwen3DSparkModel": "dspark",
    "DSparkDraftModel": "dspark",
}
_MODEL_TYPE_TRAPS = {
    "gpt_oss": (
        "fills in alternating sliding layers with window 128, rope type yarn with factor 32 and "
        "theta 150000"
    ),
}
_INTS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "vocab_size",
)


@dataclass(frozen=True)
class DraftConfig:
    """What vLLM's draft model is built from.

    Attributes:
        attributes: Attributes of the draft config: top-level keys (native) or those of
            ``transformer_layer_config``.
        dflash: The ``dflash_config`` attribute, from the file or made by the Speculators parser.
        geometry: Sizes.
        num_hidden_layers: L.
        vocab_size: Rows of the embedding.
        draft_vocab_size: Rows of the head.
        target_hidden_size: Width of one captured state.
        aux_layer_ids: ``eagle_aux_hidden_state_layer_ids`` as stated, unchecked.
        layer_types: One name per layer; None where there is no such attribute.
        sliding_window: The attribute, unchecked.
        rope: Rotary embedding; None when it can't be computed (a problem says why).
        family: Which draft model vLLM builds.
        parts: Sizes of what that family adds.
    """

    attributes: Keys
    dflash: Keys
    geometry: Geometry
    num_hidden_layers: int
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    aux_layer_ids: Any
    layer_types: tuple[str, ...] | None
    sliding_window: Any
    rope: Rope | None
    family: Family = "dflash"
    parts: Parts | None = None


def parser_of(config: Mapping[str, Any]) -> str:
    """Return ``native`` or ``speculators``: which parser vLLM picks for this config.json."""
    # A null model_type counts as absent, and only then do the Speculators keys decide.
    absent = config.get("model_type") is None
    return "speculators" if absent and config.get("speculators_config") is not None else "native"


def parse_native(root: Keys) -> tuple[DraftConfig | None, tuple[str, ...]]:
    """Return the native path's draft config (HF class, then EAGLEConfig), or why there is none."""
    model_type = root.get("model_type")
    family, architecture_problems = _family(root.get("architectures"))
    if family == "laguna":
        return _parse_laguna(root, model_type)
    if model_type != "qwen3":
        return None, (_model_type_problem(model_type, root.has("speculators_model_type")),)
    problems: list[str] = [*architecture_problems]
    if not isinstance(root.config.get("dflash_config", {}), Mapping):
        problems.append("dflash_config is not an object, which vLLM fails on.")
    fields, field_problems = parse_qwen3(root)
    if fields is None or problems:
        return None, (*problems, *field_problems)
    geometry = fields.geometry
    rope, rope_problems = _rope(
        vllm_native_rope(root, fields.layer_types, geometry.max_position_embeddings),
        geometry.head_dim,
    )
    draft_vocab, vocab_problems = _optional_int(root, "draft_vocab_size", fields.vocab_size)
    width, width_problems = _optional_int(root, "target_hidden_size", geometry.hidden_size)
    nested = root.section("dflash_config")
    get = nested.get if family == "dflash2" else root.get
    parts, part_problems = _parts(family, get, geometry.hidden_size)
    config = DraftConfig(
        attributes=root,
        dflash=nested,
        geometry=geometry,
        num_hidden_layers=fields.num_hidden_layers,
        vocab_size=fields.vocab_size,
        draft_vocab_size=draft_vocab,
        target_hidden_size=width,
        aux_layer_ids=root.get("eagle_aux_hidden_state_layer_ids"),
        layer_types=fields.layer_types,
        sliding_window=fields.sliding_window,
        rope=rope,
        family=family,
        parts=parts,
    )
    return config, (*rope_problems, *vocab_problems, *width_problems, *part_problems)


def _parse_laguna(root: Keys, model_type: object) -> tuple[DraftConfig | None, tuple[str, ...]]:
    """Return the config of Laguna's drafter; what its class would fill in counts as missing."""
    if model_type != "laguna":
        return None, (f"model_type is {model_type!r}: vLLM builds Laguna's drafter from laguna.",)
    geometry, sizes, problems = _plain_geometry(root)
    names, type_problems = check_layer_types(
        root.get("layer_types"), root.get("num_hidden_layers"), ""
    )
    problems = (*problems, *type_problems)
    if len(set(names)) > 1:
        problems = (*problems, "Laguna's drafter needs layers of one kind.")
    if geometry is None or problems:
        return None, tuple(problems)
    rope, rope_problems = to_rope(
        laguna_rope(root, names[0] if names else ""),
        geometry.head_dim,
        kinds=VLLM_KINDS,
        engine="vLLM",
    )
    parts, part_problems = laguna_parts(root.get)
    part_problems += _laguna_layer_problems(root, sizes)
    draft_vocab = root.get("draft_vocab_size")
    vocab_problems: tuple[str, ...] = ()
    if draft_vocab != sizes["vocab_size"]:
        text = f"draft_vocab_size is {draft_vocab!r}, and Laguna's drafter needs vocab_size there."
        vocab_problems = (text,)
    config = DraftConfig(
        attributes=root,
        dflash=root.section("dflash_config"),
        geometry=geometry,
        num_hidden_layers=sizes["num_hidden_layers"],
        vocab_size=sizes["vocab_size"],
        draft_vocab_size=sizes["vocab_size"],
        target_hidden_size=geometry.hidden_size,
        aux_layer_ids=root.get("eagle_aux_hidden_state_layer_ids"),
        layer_types=names,
        sliding_window=root.get("sliding_window"),
        rope=rope,
        family="laguna",
        parts=parts,
    )
    return config, (*rope_problems, *vocab_problems, *part_problems)


def _laguna_layer_problems(root: Keys, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return why vLLM would build other layers than the drafter has (models/laguna.py)."""
    problems: list[str] = []
    kinds = root.get("mlp_layer_types")
    if not isinstance(kinds, list) or any(kind != "dense" for kind in kinds):
        problems.append(
            f"mlp_layer_types is {kinds!r}: vLLM would build layers of experts. Write dense for "
            "each layer."
        )
    heads = root.get("num_attention_heads_per_layer")
    if heads is not None and heads != [sizes["num_attention_heads"]] * sizes["num_hidden_layers"]:
        problems.append(f"num_attention_heads_per_layer {heads!r} is not one number for all.")
    return tuple(problems)


def _parts(
    family: Family, get: Callable[[str], object], hidden_size: int
) -> tuple[Parts | None, tuple[str, ...]]:
    if family == "dflash2":
        return dflash2_parts(get, hidden_size=hidden_size, engine="vLLM")
    if family == "dspark":
        return dspark_parts(get, engine="vLLM")
    return None, ()


def parse_speculators(root: Keys) -> tuple[DraftConfig | None, tuple[str, ...]]:
    """Return the draft config of the Speculators path, or sentences why there is none.

    The keys of ``transformer_layer_config`` become attributes without any HF class: nothing is
    filled in, nothing nulled. ``architectures``, ``dflash_config``, ``draft_vocab_size`` and the
    captured layers are then overwritten from the top level.
    """
    kind = root.get("speculators_model_type")
    family = _SPECULATORS_TYPES.get(str(kind))
    if family is None:
        return None, (f"speculators_model_type is {kind!r}: vLLM would not run it as DFlash.",)
    section = root.config.get("transformer_layer_config")
    if not isinstance(section, Mapping):
        return None, ("transformer_layer_config is missing or not an object.",)
    layer = root.section("transformer_layer_config")
    problems = [
        f"{name} is missing, and vLLM's Speculators parser requires it."
        for name in ("aux_hidden_state_layer_ids", "mask_token_id")
        if not root.has(name)
    ]
    geometry, sizes, size_problems = _plain_geometry(layer)
    problems += size_problems
    stated = layer.get("layer_types")
    names: tuple[str, ...] | None = None
    if stated is not None:
        names, type_problems = check_layer_types(
            stated, layer.get("num_hidden_layers"), layer.prefix
        )
        problems += type_problems
    if geometry is None or problems:
        return None, tuple(problems)
    rope, rope_problems = _rope(
        vllm_speculators_rope(layer, names or (), geometry.max_position_embeddings),
        geometry.head_dim,
    )
    draft_vocab, vocab_problems = _optional_int(root, "draft_vocab_size", sizes["vocab_size"])
    holder = root if root.get("target_hidden_size") is not None else layer
    width, width_problems = _optional_int(holder, "target_hidden_size", geometry.hidden_size)
    parts, part_problems = _parts(family, root.get, geometry.hidden_size)
    made = _made_dspark_config(root) if family == "dspark" else _made_dflash_config(root)
    config = DraftConfig(
        attributes=layer,
        dflash=Keys(made),
        geometry=geometry,
        num_hidden_layers=sizes["num_hidden_layers"],
        vocab_size=sizes["vocab_size"],
        draft_vocab_size=draft_vocab,
        target_hidden_size=width,
        aux_layer_ids=root.get("aux_hidden_state_layer_ids"),
        layer_types=names,
        sliding_window=layer.get("sliding_window"),
        rope=rope,
        family=family,
        parts=parts,
    )
    return config, (*rope_problems, *vocab_problems, *width_problems, *part_problems)


def _made_dspark_config(root: Keys) -> dict[str, Any]:
    # No causality is made out of the flag here (configs/speculators/algos.py, update_dspark).
    return {
        "mask_token_id": root.get("mask_token_id"),
        "sample_from_anchor": root.get("sample_from_anchor", False),
    }


def _made_dflash_config(root: Keys) -> dict[str, Any]:
    # An absent flag counts as non-causal, a null one as causal (configs/speculators/algos.py).
    flag = root.get("sliding_window_non_causal", True)
    return {
        "mask_token_id": root.get("mask_token_id"),
        "sample_from_anchor": root.get("sample_from_anchor", False),
        "causal": not flag,
    }


def _plain_geometry(layer: Keys) -> tuple[Geometry | None, dict[str, int], tuple[str, ...]]:
    problems: list[str] = []
    sizes: dict[str, int] = {}
    for name in _INTS:
        value = layer.get(name)
        if not _is_size(value):
            problems.append(f"{layer.prefix}{name} is {value!r}; vLLM fills in no default here.")
        else:
            sizes[name] = value
    if sizes.get("num_hidden_layers", 0) > MAX_LAYERS:
        problems.append(f"{layer.prefix}num_hidden_layers is more than {MAX_LAYERS}.")
    eps, act = layer.get("rms_norm_eps"), layer.get("hidden_act")
    if not isinstance(eps, int | float) or isinstance(eps, bool):
        problems.append(f"{layer.prefix}rms_norm_eps is {eps!r}; vLLM fills in no default here.")
    if not isinstance(act, str):
        problems.append(f"{layer.prefix}hidden_act is {act!r}; vLLM fills in no default here.")
    head_dim = layer.get("head_dim")
    if head_dim is not None and not _is_size(head_dim):
        problems.append(f"{layer.prefix}head_dim is {head_dim!r}, not a positive whole number.")
    if problems:
        return None, sizes, tuple(problems)
    geometry = Geometry(
        hidden_size=sizes["hidden_size"],
        intermediate_size=sizes["intermediate_size"],
        num_attention_heads=sizes["num_attention_heads"],
        num_key_value_heads=sizes["num_key_value_heads"],
        head_dim=head_dim or sizes["hidden_size"] // sizes["num_attention_heads"],
        rms_norm_eps=eps,
        hidden_act=act,
        max_position_embeddings=sizes["max_position_embeddings"],
        attention_bias=bool(layer.get("attention_bias", False)),
    )
    return geometry, sizes, ()


def _rope(reading: RopeReading, head_dim: int) -> tuple[Rope | None, tuple[str, ...]]:
    if reading.problems:
        return None, reading.problems
    return to_rope(reading.parameters, head_dim, kinds=VLLM_KINDS, engine="vLLM")


def _optional_int(keys: Keys, name: str, default: int) -> tuple[int, tuple[str, ...]]:
    value = keys.get(name)
    if value is None:
        return default, ()
    if not _is_size(value):
        return default, (f"{keys.prefix}{name} is {value!r}, not a positive whole number.",)
    return value, ()


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _model_type_problem(model_type: object, speculators: bool) -> str:
    if model_type is None:
        hint = (
            "speculators_config is missing, without which vLLM does not see the Speculators format"
            if speculators
            else 'write model_type "qwen3"'
        )
        return f"model_type is missing, so vLLM can't parse the file: {hint}."
    trap = _MODEL_TYPE_TRAPS.get(str(model_type), "has defaults of its own, or is unknown")
    return (
        f"model_type is {model_type!r}: transformers' class of that name {trap}. "
        'Write model_type "qwen3" and every field explicitly.'
    )


def _family(stated: object) -> tuple[Family, tuple[str, ...]]:
    """Return the family that vLLM builds, and why it builds none."""
    if (
        not isinstance(stated, list)
        or not all(isinstance(name, str) for name in stated)
        or not stated
    ):
        text = f'architectures is {stated!r}; vLLM finds no draft model without ["{DRAFT_CLASS}"].'
        return "dflash", (text,)
    for name in stated:
        marked = (
            name.startswith("DFlash")
            or name.endswith("DFlash")
            or name == "LiLiCorrDraftModel"
            or name in _FAMILIES
        )
        renamed = name if marked else f"DFlash{name}"
        if renamed in _FAMILIES:
            return _FAMILIES[renamed], ()
        if renamed in _OTHER_CLASSES:
            text = f"architectures names {name}: vLLM runs it as {_OTHER_CLASSES[renamed]}."
            return "dflash", (text,)
    text = (
        f"architectures is {stated}, which vLLM looks up as DFlash{stated[0]} and does not know: "
        f'write ["{DRAFT_CLASS}"].'
    )
    return "dflash", (text,)
