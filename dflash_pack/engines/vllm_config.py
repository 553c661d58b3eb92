"""vLLM's two parsers of a drafter's config.json, and the one draft config that both end in.

Source: vllm 0.32.0 (run) and 0.33.0 (read, the files are the same), transformers_utils/config.py
(HFConfigParser), transformers_utils/configs/eagle.py and configs/speculators/*.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_pack.drafter import Geometry, Rope
from dflash_pack.engines.keys import Keys
from dflash_pack.engines.qwen3_defaults import MAX_LAYERS, check_layer_types, parse_qwen3
from dflash_pack.engines.rope import (
    VLLM_KINDS,
    RopeReading,
    to_rope,
    vllm_native_rope,
    vllm_speculators_rope,
)

DRAFT_CLASS = "DFlashDraftModel"

# Draft models of vLLM that run under method dflash but are not the plain drafter.
_OTHER_CLASSES = {
    "DFlash2DraftModel": "DFlash2",
    "DFlash2BeamDraftModel": "DFlash2 with beams",
    "DFlashLagunaForCausalLM": "Laguna's drafter",
    "DFlashQwen3XPressModel": "XPress",
    "LiLiCorrDraftModel": "LiLiCorr",
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


def parser_of(config: Mapping[str, Any]) -> str:
    """Return ``native`` or ``speculators``: which parser vLLM picks for this config.json."""
    # A null model_type counts as absent, and only then do the Speculators keys decide.
    absent = config.get("model_type") is None
    return "speculators" if absent and config.get("speculators_config") is not None else "native"


def parse_native(root: Keys) -> tuple[DraftConfig | None, tuple[str, ...]]:
    """Return the native path's draft config (HF class, then EAGLEConfig), or why there is none."""
    model_type = root.get("model_type")
    if model_type != "qwen3":
        return None, (_model_type_problem(model_type, root.has("speculators_model_type")),)
    problems: list[str] = []
    problems += _architecture_problems(root.get("architectures"))
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
    config = DraftConfig(
        attributes=root,
        dflash=root.section("dflash_config"),
        geometry=geometry,
        num_hidden_layers=fields.num_hidden_layers,
        vocab_size=fields.vocab_size,
        draft_vocab_size=draft_vocab,
        target_hidden_size=width,
        aux_layer_ids=root.get("eagle_aux_hidden_state_layer_ids"),
        layer_types=fields.layer_types,
        sliding_window=fields.sliding_window,
        rope=rope,
    )
    return config, (*rope_problems, *vocab_problems, *width_problems)


def parse_speculators(root: Keys) -> tuple[DraftConfig | None, tuple[str, ...]]:
    """Return the draft config of the Speculators path, or sentences why there is none.

    The keys of ``transformer_layer_config`` become attributes without any HF class: nothing is
    filled in, nothing nulled. ``architectures``, ``dflash_config``, ``draft_vocab_size`` and the
    captured layers are then overwritten from the top level.
    """
    kind = root.get("speculators_model_type")
    if kind != "dflash":
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
    config = DraftConfig(
        attributes=layer,
        dflash=Keys(_made_dflash_config(root)),
        geometry=geometry,
        num_hidden_layers=sizes["num_hidden_layers"],
        vocab_size=sizes["vocab_size"],
        draft_vocab_size=draft_vocab,
        target_hidden_size=width,
        aux_layer_ids=root.get("aux_hidden_state_layer_ids"),
        layer_types=names,
        sliding_window=layer.get("sliding_window"),
        rope=rope,
    )
    return config, (*rope_problems, *vocab_problems, *width_problems)


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


def _architecture_problems(stated: object) -> tuple[str, ...]:
    if (
        not isinstance(stated, list)
        or not all(isinstance(name, str) for name in stated)
        or not stated
    ):
        return (
            f'architectures is {stated!r}; vLLM finds no draft model without ["{DRAFT_CLASS}"].',
        )
    for name in stated:
        marked = (
            name.startswith("DFlash") or name.endswith("DFlash") or name == "LiLiCorrDraftModel"
        )
        renamed = name if marked else f"DFlash{name}"
        if renamed == DRAFT_CLASS:
            return ()
        if renamed in _OTHER_CLASSES:
            return (f"architectures names {name}: vLLM runs it as {_OTHER_CLASSES[renamed]}.",)
    text = (
        f"architectures is {stated}, which vLLM looks up as DFlash{stated[0]} and does not know: "
        f'write ["{DRAFT_CLASS}"].'
    )
    return (text,)
