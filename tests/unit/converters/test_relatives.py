"""Families that are not converted: recognised by config or tensors, refused with the reason."""

from __future__ import annotations

import pytest
from made import NATIVE, native, specs, speculators

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.converters.registry import read_drafter
from dflash_pack.errors import CheckpointError

ONE = TensorSpec("BF16", (1,))
KINDS = {
    "domino, architecture": (native(architectures=["DominoDraftModel"]), {}, "Domino"),
    "domino, projector": (native(dflash_config__projector_type="domino"), {}, "Domino"),
    "domino, tensors": (native(), {"prefix_gru.weight_ih_l0": ONE}, "Domino"),
    "domino, older tensors": (native(), {"logit_head.embed_proj.0.weight": ONE}, "Domino"),
    "xpress, type": (speculators(speculators_model_type="xpress"), {}, "XPress"),
    "xpress, tensors": (native(), {"refiner_head.readout": ONE}, "XPress"),
    "lilicorr": (native(architectures=["LiLiCorrDraftModel"]), {}, "LiLiCorr"),
    "beams": (native(architectures=["DFlash2BeamDraftModel"]), {}, "beams"),
    "latent attention": (native(), {"layers.0.self_attn.kv_a_proj.weight": ONE}, "MLA"),
    "latent DSpark": (native(architectures=["K3DSparkModel"]), {}, "MLA"),
    "gemma's DSpark": (native(architectures=["Gemma4DSparkModel"]), {}, "Gemma"),
    "omni's DSpark": (native(architectures=["Qwen3OmniDSparkModel"]), {}, "Omni"),
    "eagle3": (speculators(speculators_model_type="eagle3"), {}, "EAGLE"),
    "mtp": (speculators(speculators_model_type="mtp"), {}, "MTP"),
}


@pytest.mark.parametrize(("config", "extra", "words"), KINDS.values(), ids=KINDS)
def test_it_is_named_with_the_reason_and_the_next_step(config, extra, words):
    with pytest.raises(CheckpointError) as caught:
        read_drafter(Contents(config, specs(NATIVE) | extra, frozenset()))
    assert words in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "value", [None, 5, [], {}, [["eagle"]], {"projector_type": []}, "x" * 100_000]
)
def test_nonsense_where_names_belong_is_no_crash(value):
    config = native(architectures=value, dflash_config=value)
    with pytest.raises(CheckpointError):
        read_drafter(Contents(config, {}, frozenset()))
