"""Drafters of other families: recognised by name and refused with the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dflash_pack.checkpoint import Contents
from dflash_pack.converters.native import architectures
from dflash_pack.converters.reading import CONFIG
from dflash_pack.errors import CheckpointError, DflashPackError

_NATIVE = "Serve it in the form that its trainer exports"
# Mark in architecture, projector or Speculators type -> what it is and why it is not converted.
_BY_NAME: Mapping[str, tuple[str, str, str]] = {
    "domino": (
        "Domino",
        "its recurrent prefix head has no place in the Speculators format or in vLLM",
        "Serve its export in SGLang, which runs Domino heads",
    ),
    "xpress": (
        "XPress",
        "vLLM 0.32 and 0.33 accept no Speculators type of that name",
        "Serve it with the Speculators library",
    ),
    "lilicorr": ("LiLiCorr", "its correction head has no place in the Speculators format", _NATIVE),
    "beam": (
        "DFlash2 with beams",
        "its beam search has no place in the Speculators format",
        _NATIVE,
    ),
    "k3dspark": ("Kimi K3's DSpark", "its attention is latent (MLA)", _NATIVE),
    "gemma4dspark": ("Gemma 4's DSpark", "its layers are Gemma's, not Qwen3's", _NATIVE),
    "omnidspark": ("Qwen3-Omni's DSpark", "its contract with the target is its own", _NATIVE),
    "eagle": ("EAGLE", "it drafts token by token", "Convert it with `speculators convert`"),
    "peagle": ("P-EAGLE", "it is no DFlash", "Convert it with `speculators convert`"),
    "mtp": ("MTP", "it is no DFlash", "Convert it with `speculators convert`"),
}
_BY_TENSOR: tuple[tuple[str, str], ...] = (
    (r"^(logit_head\.)?(prefix_gru|embed_proj)\.", "domino"),
    (r"^refiner_head\.", "xpress"),
)
_LATENT = re.compile(r"self_attn\.(kv_a_proj|kv_b_proj|q_a_proj|kv_a_layernorm)")


def refusal(contents: Contents) -> DflashPackError | None:
    """Return why this drafter is of a family that is not converted, None where it may be."""
    if any(_LATENT.search(name) for name in contents.tensors):
        return CheckpointError(
            "holds latent attention (MLA), which plain DFlash and its engines have no layers for",
            where="the weights",
            remedy=_NATIVE,
        )
    for pattern, mark in _BY_TENSOR:
        if any(re.search(pattern, name) for name in contents.tensors):
            return _refused(mark, "the weights", None)
    for name, value in _named(contents):
        text = value.lower().replace("_", "").replace("-", "")
        found = next((mark for mark in _BY_NAME if mark in text), None)
        if found is not None:
            return _refused(found, CONFIG, name)
    return None


def _named(contents: Contents) -> list[tuple[str, str]]:
    """Return the config fields that name a family, and what they say."""
    config = contents.config
    section = config.get("dflash_config")
    projector = section.get("projector_type") if isinstance(section, Mapping) else None
    named = [("architectures", name) for name in architectures(contents)]
    named.append(("dflash_config.projector_type", str(projector or "")))
    named.append(("speculators_model_type", str(config.get("speculators_model_type") or "")))
    return named


def _refused(mark: str, where: str, field: str | None) -> CheckpointError:
    name, why, remedy = _BY_NAME[mark]
    return CheckpointError(
        f"this is a {name} drafter: {why}", where=where, field=field, remedy=remedy
    )
