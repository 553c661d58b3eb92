"""What a relative's config has beside plain DFlash's keys, in each written form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dflash_pack.drafter import Dflash2Parts, Drafter, DsparkParts


@dataclass(frozen=True)
class FamilyKeys:
    """Keys that a family adds.

    Attributes:
        architecture: Name that engines find its model by.
        top: Keys at top level.
        section: Keys of ``dflash_config``.
    """

    architecture: str
    top: Mapping[str, Any] = field(default_factory=dict)
    section: Mapping[str, Any] = field(default_factory=dict)


def native_keys(drafter: Drafter) -> FamilyKeys:
    """Return the family's keys in native files.

    DFlash2's are read from ``dflash_config`` only; DSpark's from the top by vLLM (vllm 0.32,
    models/qwen3_dspark.py) and SGLang.
    """
    match drafter.parts:
        case Dflash2Parts() as parts:
            section: dict[str, Any] = asdict(parts)
            if drafter.final_logit_softcapping is not None:
                section["final_logit_softcapping"] = drafter.final_logit_softcapping
            return FamilyKeys("DFlash2DraftModel", section=section)
        case DsparkParts() as parts:
            return FamilyKeys("Qwen3DSparkModel", top=_dspark(drafter, parts))
        case _:
            return FamilyKeys("DFlashDraftModel")


def speculators_keys(drafter: Drafter) -> FamilyKeys:
    """Return the family's keys in Speculators files, all at top level (speculators 0.9)."""
    match drafter.parts:
        case Dflash2Parts() as parts:
            return FamilyKeys("DFlash2DraftModel", top=asdict(parts))
        case DsparkParts() as parts:
            return FamilyKeys("Qwen3DSparkModel", top=_dspark(drafter, parts))
        case _:
            return FamilyKeys("DFlashDraftModel")


def _dspark(drafter: Drafter, parts: DsparkParts) -> dict[str, Any]:
    return {
        "markov_rank": parts.markov_rank,
        "markov_head_type": parts.markov_head_type,
        "enable_confidence_head": parts.confidence_head,
        "confidence_head_with_markov": parts.confidence_with_markov,
        "sample_from_anchor": drafter.sample_from_anchor,
    }
