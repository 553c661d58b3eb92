"""Under which conditions vLLM serves a drafter: method, auto-serve, runner, context length.

Source: vllm 0.32.0 (run) and 0.33.0 (read): config/speculative.py, config/vllm.py,
transformers_utils/config.py (maybe_override_with_speculators), configs/speculators/base.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dflash_pack.drafter import DraftLayer, Family
from dflash_pack.engines.keys import Keys
from dflash_pack.engines.meaning import SCALED_KINDS
from dflash_pack.engines.vllm_config import DraftConfig
from dflash_pack.target import Target

Version = Literal["0.32", "0.33"]

_METHOD = (
    'Give vLLM method "dflash" explicitly: it otherwise goes by the path, and runs a folder '
    'without "dflash" in its name as an ordinary draft model, which accepts nothing and errors '
    "nowhere."
)
_REPO_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_REPO_LENGTH = 96


@dataclass(frozen=True)
class AutoServe:
    """Whether ``vllm serve FOLDER`` works on the folder alone, and k as it states it."""

    speculative_tokens: int | None
    notes: tuple[str, ...]


def auto_serve(root: Keys, version: Version) -> AutoServe:
    """Return what ``vllm serve FOLDER`` takes from ``speculators_config``, whatever the parser."""
    stated = root.config.get("speculators_config")
    if stated is None:
        tokens_note = "Give it num_speculative_tokens, block size - 1: it reads no k here."
        return AutoServe(None, (tokens_note, _METHOD))
    section = root.section("speculators_config")
    methods, verifier = section.get("proposal_methods"), section.get("verifier")
    tokens = _first_tokens(methods)
    kind = root.get("speculators_model_type")
    fault = _structure_fault(root, tokens, verifier, kind)
    if fault is not None:
        return AutoServe(
            tokens, (_explicit(f"vllm serve on this folder alone fails: {fault}"), _METHOD)
        )
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    notes = [f"{_METHOD} vllm serve on this folder alone takes it from the file."]
    if not isinstance(name, str):
        notes.append(_explicit("vllm serve on this folder alone fails: the verifier is not named"))
    elif version == "0.33" and not is_repository_id(name):
        notes.append(
            _explicit(
                f"vLLM 0.33 refuses vllm serve on this folder alone: its verifier {name!r} is no "
                "Hub id"
            )
        )
    return AutoServe(tokens, tuple(notes))


def is_repository_id(name: str) -> bool:
    """Return whether ``name`` reads as a Hub id: ``name`` or ``owner/name``, no path.

    Source: huggingface_hub 2.4, utils/_validators.py (validate_repo_id), which vLLM 0.33 calls.
    """
    parts = name.split("/")
    plain = len(parts) <= 2 and all(_REPO_PART.fullmatch(part) for part in parts)
    return (
        plain
        and len(parts[-1]) <= _REPO_LENGTH
        and "--" not in name
        and ".." not in name
        and not name.endswith(".git")
    )


def gpu_runner_need(layers: tuple[DraftLayer, ...], family: Family) -> str | None:
    """Return why only vLLM's V2 model runner, on a GPU, runs the drafter; None where any does.

    Source: vllm 0.32, config/vllm.py (mixed layers, DFlash2) and v1/worker/gpu/spec_decode.
    """
    runner = "vLLM's V2 model runner (a GPU with Triton)"
    if len({layer.sliding for layer in layers}) > 1:
        return f"sliding and full layers are mixed, which only {runner} runs"
    if family in ("dflash2", "dspark"):
        name = "DFlash2" if family == "dflash2" else "DSpark"
        return f"{name} runs in {runner} only"
    return None


def layer_notes(layers: tuple[DraftLayer, ...], config: DraftConfig) -> tuple[str, ...]:
    """Return notes on the runner that the layers need and on what the drafter's layers add."""
    need = gpu_runner_need(layers, config.family)
    notes = [] if need is None else [f"{need[0].upper()}{need[1:]}; its CPU backend refuses."]
    scale = config.attributes.get("logit_scale", 1.0)
    if scale != 1:
        notes.append(f"Multiplies draft logits by logit_scale {scale!r}.")
    if not config.attributes.get("is_neox_style", True):
        notes.append("Rotates neighbouring pairs of each head (is_neox_style is false).")
    return tuple(notes)


def context_notes(config: DraftConfig, target: Target | None, version: Version) -> tuple[str, ...]:
    """Return the note on a drafter that states a shorter context than its target."""
    limit = config.geometry.max_position_embeddings
    wanted = None if target is None else target.max_position_embeddings
    if wanted is None or limit >= wanted or config.rope is None:
        return ()
    scaled = config.rope.kind in SCALED_KINDS | {"dynamic"} and config.rope.kind != "llama3"
    if version == "0.32" and not scaled:
        text = (
            f"vLLM 0.32 sizes the draft's rope cache by max_position_embeddings {limit} and reads "
            f"outside it in longer contexts: raise it to the target's {wanted}, or serve with "
            f"--max-model-len {limit}."
        )
        return (text,)
    if version == "0.33" and scaled:
        text = (
            f"vLLM 0.33 limits the served context to the draft's {limit} tokens; the target "
            f"allows {wanted}."
        )
        return (text,)
    return ()


def _first_tokens(methods: Any) -> int | None:
    first = methods[0] if isinstance(methods, list) and methods else None
    tokens = first.get("speculative_tokens") if isinstance(first, Mapping) else None
    usable = isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0
    return tokens if usable else None


def _structure_fault(root: Keys, tokens: int | None, verifier: Any, kind: object) -> str | None:
    if tokens is None:
        return "proposal_methods[0].speculative_tokens is missing"
    if not isinstance(verifier, Mapping) or "name_or_path" not in verifier:
        return "speculators_config.verifier.name_or_path is missing"
    if not isinstance(root.config.get("transformer_layer_config"), Mapping):
        return "transformer_layer_config is missing"
    if kind not in ("dflash", "dflash2", "dspark"):
        return f"speculators_model_type is {kind!r}"
    return None


def _explicit(fault: str) -> str:
    return f"{fault}; naming target, method and drafter explicitly works."
