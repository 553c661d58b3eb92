"""The tensors and keys that we expect of DFlash's relatives, against vLLM's own model classes.

vLLM runs DFlash2 and DSpark in its V2 model runner on a GPU only, so nothing decodes here: each
model is built from a config of ours, its parameters are spoilt, and loading exactly the tensors of
our list must mend every one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_files import HIDDEN, VOCAB, contents, dflash, native
from vllm_lab import VllmLab, vllm_lab, write

from dflash_pack.drafter import (
    Dflash2Parts,
    DsparkParts,
    LagunaParts,
)
from dflash_pack.engines import vllm as vllm_engine

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]

CONV = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 4}
MARKOV = {
    "markov_rank": 8,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "sample_from_anchor": True,
}
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "dflash2": (
        native(architectures=["DFlash2DraftModel"], dflash_config=dflash(**CONV)),
        Dflash2Parts(2, 16, 8, 4),
    ),
    "dspark": (
        native(architectures=["Qwen3DSparkModel"], **MARKOV),
        DsparkParts(8, "vanilla", True, True),
    ),
    "dspark without Markov in its confidence": (
        native(
            architectures=["Qwen3DSparkModel"], **MARKOV | {"confidence_head_with_markov": False}
        ),
        DsparkParts(8, "vanilla", True, False),
    ),
    "dspark without confidence": (
        native(architectures=["Qwen3DSparkModel"], **MARKOV | {"enable_confidence_head": False}),
        DsparkParts(8, "vanilla", False, False),
    ),
}
LAGUNA = {
    "architectures": ["DFlashLagunaForCausalLM"],
    "model_type": "laguna",
    "layer_types": ["sliding_attention"] * 2,
    "sliding_window": 32,
    "draft_vocab_size": VOCAB,
    "mlp_layer_types": ["dense"] * 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
}
CASES |= {
    f"laguna {gating}": (native(**LAGUNA, gating=gating), LagunaParts(gating))
    for gating in ("per-head", "per-element")
}
CLASSES = {
    "DFlashLagunaForCausalLM": ("laguna_dflash", "DFlashLagunaForCausalLM"),
    "DFlash2DraftModel": ("qwen3_dflash2", "DFlash2Qwen3ForCausalLM"),
    "Qwen3DSparkModel": ("qwen3_dspark", "Qwen3DSparkForCausalLM"),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmLab]:
    """One vLLM for the whole module."""
    with vllm_lab(tmp_path_factory.mktemp("vllm")) as made:
        yield made


def wanted(config: dict[str, Any], parts: Any) -> dict[str, tuple[int, ...]]:
    """Return the tensors that a drafter of these parts must have."""
    from dflash_pack.engines.keys import Keys
    from dflash_pack.engines.tensor_set import engine_shapes
    from dflash_pack.engines.vllm_config import parse_native

    parsed, problems = parse_native(Keys(config))
    assert parsed is not None, problems
    return engine_shapes(
        parsed.geometry,
        parsed.num_hidden_layers,
        2 * HIDDEN,
        parts=parts,
        vocabulary=(VOCAB, VOCAB),
        captured=2,
    )


def built(lab: VllmLab, config: dict[str, Any], folder: Path) -> Any:
    """Return vLLM's own model for ``config``, every parameter NaN."""
    import importlib

    module, name = CLASSES[config["architectures"][0]]
    kind = getattr(importlib.import_module(f"vllm.model_executor.models.{module}"), name)
    draft = lab.vllm_config.speculative_config.draft_model_config
    before = draft.hf_config
    try:
        draft.hf_config = lab.config(write(folder, config, {}))
        lab.vllm_config.compilation_config.static_forward_context.clear()
        with lab.use(lab.vllm_config):
            model = kind(vllm_config=lab.vllm_config)
    finally:
        draft.hf_config = before
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data.fill_(float("nan"))
    return model


@pytest.mark.parametrize(("config", "parts"), CASES.values(), ids=CASES)
def test_exactly_our_tensors_fill_vllms_model(lab, tmp_path, config, parts):
    shapes = wanted(config, parts)
    model = built(lab, config, tmp_path / "draft")
    with lab.use(lab.vllm_config):
        model.load_weights(iter({n: lab.torch.ones(s) for n, s in shapes.items()}.items()))
    # The target's where a drafter brings none, and the place for mask_embedding.pt.
    shared = ("embed_tokens", "lm_head", "mask_embedding")
    left = [
        name
        for name, parameter in model.named_parameters()
        if not any(part in name for part in shared)
        and parameter.is_floating_point()
        and bool(parameter.isnan().any())
    ]
    assert left == []


@pytest.mark.parametrize(("config", "parts"), CASES.values(), ids=CASES)
def test_a_tensor_more_is_refused_by_both(lab, tmp_path, config, parts):
    shapes = wanted(config, parts) | {"layers.0.extra.weight": (1,)}
    model = built(lab, config, tmp_path / "draft")
    with pytest.raises(Exception), lab.use(lab.vllm_config):  # noqa: B017, PT011 - vLLM's own choice
        model.load_weights(iter({n: lab.torch.ones(s) for n, s in shapes.items()}.items()))
    assert any("no parameter" in text for text in derived(config, shapes).refusals)


@pytest.mark.parametrize(("config", "parts"), CASES.values(), ids=CASES)
def test_the_derived_parts_are_those(config, parts):
    found = derived(config, wanted(config, parts))
    assert found.refusals == ()
    assert found.parts == parts
    kinds = {Dflash2Parts: "dflash2", DsparkParts: "dspark", LagunaParts: "laguna"}
    assert found.family == kinds[type(parts)]


def derived(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Any:
    """Return our derivation of files with these tensors."""
    return vllm_engine.derive(contents(config, shapes), None, version="0.32")
