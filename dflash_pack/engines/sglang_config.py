"""What SGLang's DFlash and DSpark read out of a drafter's config.json, beside the Qwen3 part.

Source: sglang 0.5.23 (wheel read, not run): speculative/dflash_utils.py (parse_dflash_draft_config,
is_nemotron_35_draft_config), speculative/dspark_components/dspark_config.py, models/dflash.py,
models/dspark.py, arg_groups/speculative_hook.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_pack.drafter import DsparkParts, Family, Parts
from dflash_pack.engines.families import dflash2_parts, dspark_parts, laguna_parts
from dflash_pack.engines.keys import Keys
from dflash_pack.engines.native_keys import layer_ids, nested_or_top, number, whole
from dflash_pack.engines.zlab import default_layer_ids

_FAMILIES: Mapping[str, Family] = {
    "DFlashDraftModel": "dflash",
    "MuseGlimmerAssistantModel": "dflash",
    "DFlash2DraftModel": "dflash2",
    "DFlash2BeamDraftModel": "dflash2",
    "MiniMaxDFlash2DraftModel": "dflash2",
    "Qwen3DSparkModel": "dspark",
    "LingDSparkModel": "dspark",
    "DSparkDraftModel": "dspark",
    "DFlashLagunaForCausalLM": "laguna",
}
_OTHERS = {
    "LiLiCorrDraftModel": "LiLiCorr",
    "DSparkMiniMaxDraftModel": "MiniMax's DSpark",
    "BeamDFlash2DraftModel": "DFlash2 with beams",
}
_DEFAULT_BLOCK_SIZE = 16
_DEFAULT_GAMMA = 7
_MASK_NAME = "<|MASK|>"
_MAX_SIZE = 2**31


@dataclass(frozen=True)
class SglangConfig:
    """DFlash's own facts as SGLang takes them.

    Attributes:
        family: Which of its draft models it builds.
        block_size: B, or gamma for DSpark.
        layer_ids: Captured layers, 0-based by output, as stated or spread by default.
        mask_token_id: The mask token; None when SGLang would look one up in the tokenizer.
        parts: What the family adds.
        sinks: Whether each head has a learned sink.
        value_scale: Factor on attention values.
        output_multiplier: Factor on draft logits; DFlash2 only.
        softcap: Cap on draft logits; DFlash2 only.
        sample_from_anchor: Whether the anchor row predicts too; DSpark only.
        own_embedding: Whether the drafter's own embedding is used (Nemotron 3.5's layout only).
    """

    family: Family
    block_size: int
    layer_ids: tuple[int, ...]
    mask_token_id: int | None
    parts: Parts | None = None
    sinks: bool = False
    value_scale: float = 1.0
    output_multiplier: float = 1.0
    softcap: float | None = None
    sample_from_anchor: bool = False
    own_embedding: bool = False


class _Problems(list[str]):
    """Collects sentences while values are read."""

    def size(self, name: str, value: Any, default: int, minimum: int) -> int:
        """Return ``value`` as ``int()`` takes it, the default where it is null."""
        if value is None:
            return default
        try:
            parsed = int(value)
        except (TypeError, ValueError, OverflowError):
            parsed = minimum - 1
        if minimum <= parsed < _MAX_SIZE:
            return parsed
        self.append(f"{name} is {value!r}, and SGLang wants a whole number of at least {minimum}.")
        return default

    def factor(self, name: str, value: Any) -> float:
        """Return ``value`` as a float."""
        if number(value):
            return float(value)
        self.append(f"{name} is {value!r}, not a number, which SGLang fails on.")
        return 1.0


def family_of(root: Keys) -> tuple[Family | None, tuple[str, ...]]:
    """Return which draft model SGLang builds, or a sentence why none that is modelled here."""
    stated = root.get("architectures")
    first = stated[0] if isinstance(stated, list) and stated else None
    if isinstance(first, str) and first in _FAMILIES:
        return _FAMILIES[first], ()
    if isinstance(first, str) and first in _OTHERS:
        text = (
            f"architectures names {first}: SGLang runs it as {_OTHERS[first]}, which is not worked "
            "out here."
        )
        return None, (text,)
    text = (
        f'architectures is {stated!r}: SGLang has no draft model for it. Write "DFlashDraftModel".'
    )
    return None, (text,)


def parse(
    root: Keys, family: Family, *, layers: int, hidden_size: int
) -> tuple[SglangConfig, tuple[str, ...]]:
    """Return DFlash's own facts, and sentences on what SGLang refuses.

    Each key is looked up in ``dflash_config`` first, then at the top; conv, selector, sink, scale
    and cap keys only in ``dflash_config``.

    Args:
        root: The config.
        family: The draft model, as :func:`family_of` tells.
        layers: L, number of draft layers.
        hidden_size: H.
    """
    problems = _Problems()
    section = root.section("dflash_config")
    default = _DEFAULT_GAMMA if family == "dspark" else _DEFAULT_BLOCK_SIZE
    block = problems.size("block_size", nested_or_top(root, "block_size"), default, 1)
    if nested_or_top(root, "projector_type") == "domino":
        problems.append(
            "projector_type is 'domino': SGLang runs it as Domino, which is not worked out here."
        )
    sinks = section.get("attention_sink_bias", False)
    if not isinstance(sinks, bool):
        problems.append(
            f"dflash_config.attention_sink_bias is {sinks!r}: SGLang wants true or false."
        )
    scale = section.get("attention_value_scale")
    parts, part_problems = _parts(root, family, hidden_size)
    problems += part_problems
    multiplier, softcap = 1.0, None
    if family == "dflash2":
        multiplier, softcap = _logit_facts(section, problems)
    elif family == "dspark":
        block = problems.size("dspark_block_size", root.get("dspark_block_size"), block, 1)
    config = SglangConfig(
        family=family,
        block_size=block,
        layer_ids=_layer_ids(root, layers, problems),
        mask_token_id=_mask(root, problems),
        parts=parts,
        sinks=bool(sinks),
        value_scale=1.0
        if scale is None
        else problems.factor("dflash_config.attention_value_scale", scale),
        output_multiplier=multiplier,
        softcap=softcap,
        sample_from_anchor=family == "dspark" and bool(root.get("sample_from_anchor", True)),
        own_embedding=_is_nemotron(root),
    )
    return config, tuple(problems)


def _parts(root: Keys, family: Family, hidden_size: int) -> tuple[Parts | None, tuple[str, ...]]:
    section = root.section("dflash_config")
    if family == "dflash2":
        return dflash2_parts(section.get, hidden_size=hidden_size, engine="SGLang")
    if family == "laguna":
        return laguna_parts(lambda name: root.get(name, True))
    if family == "dspark":
        return _dspark_parts(root)
    if section.config.get("conv_kernel_size") or section.config.get("selector_rank"):
        text = (
            "dflash_config has sizes of DFlash2, parts of which SGLang would build into a drafter "
            "that architectures calls plain."
        )
        return None, (text,)
    return None, ()


def _dspark_parts(root: Keys) -> tuple[DsparkParts | None, tuple[str, ...]]:
    """Return DSpark's sizes, which its heads are built from at top level only.

    The confidence head is built for ragged verification only, which is off by default, and then
    whatever ``enable_confidence_head`` says.
    """
    section = root.section("dflash_config")
    problems = [
        f"{name} is {section.get(name)!r} in dflash_config and {root.config.get(name)!r} at top "
        "level, which SGLang builds from."
        for name in ("markov_rank", "markov_head_type")
        if section.has(name) and section.get(name) != root.config.get(name)
    ]
    defaults = {"confidence_head_with_markov": True}
    parts, part_problems = dspark_parts(
        lambda name: root.get(name, defaults.get(name)), engine="SGLang"
    )
    return parts, (*problems, *part_problems)


def _mask(root: Keys, problems: list[str]) -> int | None:
    value = nested_or_top(root, "mask_token_id")
    token = nested_or_top(root, "mask_token")
    if value is None:
        name = token if isinstance(token, str) and token else _MASK_NAME
        problems.append(
            f"No mask token id is stated: SGLang would look {name} up in the target's tokenizer, "
            "or add it."
        )
        return None
    if not whole(value) or value < 0:
        problems.append(f"mask_token_id is {value!r}, not a token id.")
        return None
    return int(value)


def _layer_ids(root: Keys, layers: int, problems: _Problems) -> tuple[int, ...]:
    depth = nested_or_top(root, "num_target_layers")
    stated = nested_or_top(root, "target_layer_ids")
    if depth is not None:
        depth = problems.size("num_target_layers", depth, 1, 1)
    if stated is None:
        if depth is None or depth < 4:
            problems.append(
                "No captured layers are stated (dflash_config.target_layer_ids), and "
                "num_target_layers is too small to spread some."
            )
            return ()
        return default_layer_ids(depth, layers)
    ids = layer_ids(stated)
    if ids is None:
        problems.append(f"target_layer_ids is {stated!r}, not a list of layer ids.")
        return ()
    if depth is not None and max(ids) >= depth:
        problems.append(f"Captured layer {max(ids)} lies outside num_target_layers {depth}.")
    return ids


def _logit_facts(section: Keys, problems: _Problems) -> tuple[float, float | None]:
    multiplier = problems.factor(
        "dflash_config.output_multiplier", section.get("output_multiplier", 1.0)
    )
    if multiplier <= 0:
        problems.append(f"dflash_config.output_multiplier is {multiplier}, not above 0.")
    cap = problems.factor(
        "dflash_config.final_logit_softcapping", section.get("final_logit_softcapping") or 0.0
    )
    return multiplier, cap if cap > 0 else None


def _is_nemotron(root: Keys) -> bool:
    """Return whether this is the one layout whose own embedding SGLang uses."""
    config = root.config
    quantization = config.get("quantization_config")
    algorithm = quantization.get("quant_algo") if isinstance(quantization, Mapping) else None
    if not config.get("has_embed_tokens") or config.get("has_lm_head"):
        return False
    ids, shifted = (
        nested_or_top(root, "target_layer_ids"),
        config.get("eagle_aux_hidden_state_layer_ids"),
    )
    if algorithm != "W4A16_NVFP4" or not isinstance(ids, list) or not isinstance(shifted, list):
        return False
    aligned = len(ids) == len(shifted) and all(
        whole(a) and whole(b) and a + 1 == b for a, b in zip(ids, shifted, strict=True)
    )
    found = aligned and nested_or_top(root, "sample_from_anchor", True) is False
    if found:
        for name in ("has_embed_tokens", "has_lm_head", "eagle_aux_hidden_state_layer_ids"):
            root.get(name)
    return found
