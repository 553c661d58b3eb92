"""DFlash2 and DSpark as we write them, in the real Speculators library.

Each folder comes out of our own writer; the library's config class has to take it, and the model
that the library builds from it has to have exactly our tensors. The verifier is a target on disk:
the library reads its config for the norm's kind while it builds the drafter, and afterwards its
embedding, head and norm, which checkpoints leave out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from formats_table import tensors_of
from made import MIXED, SLIDING, native

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.converters.registry import read_drafter, writer
from dflash_pack.drafter import Dflash2Parts, Drafter, DraftLayer, DsparkParts, Vocabulary
from dflash_pack.engines import speculators as engine
from dflash_pack.target import read_target

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]

TARGET = Path(__file__).parents[2] / "examples" / "tiny" / "target"
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 48,
    "num_target_layers": 4,
    "vocab_size": 512,
    "dflash_config__mask_token_id": 511,
}
DFLASH2 = SIZES | {
    "architectures": ["DFlash2DraftModel"],
    "is_causal": False,
    "dflash_config__conv_kernel_size": 3,
    "dflash_config__conv_group_size": 8,
    "dflash_config__selector_rank": 4,
    "dflash_config__selector_top_k": 5,
}
DSPARK = SIZES | {
    "architectures": ["Qwen3DSparkModel"],
    "markov_rank": 4,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "sample_from_anchor": True,
}
SERVED: dict[str, dict[str, Any]] = {
    "dflash2": DFLASH2,
    "dflash2 with windows": DFLASH2 | SLIDING,
    "dflash2 with causal windows": DFLASH2 | SLIDING | {"is_causal": True},
    "dspark": DSPARK,
    "dspark with mixed layers": DSPARK | MIXED,
    "dspark whose anchor does not predict": DSPARK | {"sample_from_anchor": False},
    "dspark with biases": DSPARK | {"attention_bias": True},
    "dspark gated": DSPARK | {"markov_head_type": "gated"},
    "dspark recurrent": DSPARK | {"markov_head_type": "rnn"},
    "dspark without Markov in its confidence": DSPARK | {"confidence_head_with_markov": False},
    "dspark without confidence": DSPARK | {"enable_confidence_head": False},
    "dspark without Markov": DSPARK | {"markov_rank": 0, "confidence_head_with_markov": False},
}


def drafter_of(changes: dict[str, Any]) -> Drafter:
    """Return the drafter of a native config."""
    seed = {"fc.weight": TensorSpec("BF16", (128, 256))}
    if changes.get("attention_bias"):
        seed["layers.0.self_attn.q_proj.bias"] = TensorSpec("BF16", (16,))
    return read_drafter(Contents(native(**changes), seed, frozenset())).drafter


def with_reduced_vocabulary(drafter: Drafter) -> Drafter:
    """Return ``drafter`` with a head of its own for some of the tokens."""
    return replace(drafter, vocabulary=Vocabulary(512, 64, 511, head="own"))


def written(drafter: Drafter, folder: Path) -> tuple[Contents, dict[str, Any]]:
    """Write what our Speculators writer makes of ``drafter``; return it and its weights."""
    import torch
    from safetensors.torch import save_file

    target = read_target(str(TARGET), identifier=None)
    config = dict(writer("speculators")(drafter, target).config)
    specs = tensors_of(drafter)
    weights = {name: torch.randn(spec.shape).to(torch.bfloat16) for name, spec in specs.items()}
    if drafter.vocabulary.reduced:
        weights["t2d"] = torch.zeros(512, dtype=torch.bool)
        weights["t2d"][::8] = True
        weights["d2t"] = weights["t2d"].nonzero().flatten() - torch.arange(64)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return Contents(config, specs, frozenset()), weights


def library_class(config: dict[str, Any]) -> Any:
    """Return the library's model class for the config's type."""
    from speculators.model import SpeculatorModel

    return SpeculatorModel.registry[config["speculators_model_type"]]


def all_cases() -> dict[str, Drafter]:
    """Return every drafter that the library builds."""
    cases = {name: drafter_of(changes) for name, changes in SERVED.items()}
    reduced = with_reduced_vocabulary(drafter_of(DSPARK))
    return cases | {"dspark with a reduced vocabulary": reduced}


CASES = all_cases()


@pytest.mark.parametrize("drafter", CASES.values(), ids=CASES)
def test_the_librarys_config_keeps_every_value(drafter, tmp_path):
    from speculators import SpeculatorModelConfig

    made, _ = written(drafter, tmp_path)
    parsed = SpeculatorModelConfig.from_pretrained(str(tmp_path))
    assert type(parsed) is library_class(made.config).config_class
    kept = json.loads(parsed.to_json_string())
    layer = kept.pop("transformer_layer_config")
    for key in made.config.keys() - {"transformer_layer_config", "speculators_version"}:
        assert kept[key] == made.config[key], key
    for key, value in made.config["transformer_layer_config"].items():
        # transformers leaves out what its class has as default.
        assert layer.get(key, value) == value, key


@pytest.mark.parametrize("drafter", CASES.values(), ids=CASES)
def test_the_librarys_model_has_exactly_our_tensors(drafter, tmp_path):
    from speculators import SpeculatorModelConfig

    made, weights = written(drafter, tmp_path)
    model = library_class(made.config)(SpeculatorModelConfig.from_pretrained(str(tmp_path)))
    left = model.load_state_dict(weights, strict=False)
    assert left.unexpected_keys == []
    # What the library itself says it takes from the verifier.
    verifiers = {*model._keys_to_ignore_on_load_missing, *model._keys_to_ignore_on_save}
    assert {name for name in left.missing_keys if name not in verifiers} == set()
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert {name: shapes[name] for name in weights} == {n: s.shape for n, s in made.tensors.items()}


@pytest.mark.parametrize("drafter", CASES.values(), ids=CASES)
def test_it_loads_as_meant_and_our_derivation_says_so(drafter, tmp_path):
    import torch
    from speculators.model import SpeculatorModel

    made, weights = written(drafter, tmp_path)
    model = SpeculatorModel.from_pretrained(str(tmp_path))
    loaded = model.state_dict()
    for name, tensor in weights.items():
        assert torch.equal(loaded[name].to(tensor.dtype), tensor), name
    target = read_target(str(TARGET), identifier=None)
    derived = engine.derive(made, target)
    assert derived.refusals == ()
    assert (derived.family, derived.parts) == (drafter.family, drafter.parts)
    assert derived.layers == drafter.layers
    config = model.config
    assert derived.sample_from_anchor == config.sample_from_anchor == drafter.sample_from_anchor
    method = config.speculators_config.proposal_methods[0]
    assert derived.speculative_tokens == method.speculative_tokens == drafter.speculative_tokens
    sliding = tuple(index for index, layer in enumerate(drafter.layers) if layer.sliding)
    assert tuple(model.sliding_window_indices) == sliding
    causal = {layer.causal for layer in drafter.layers if layer.sliding}
    assert causal in (set(), {not model.sliding_window_non_causal})


REFUSED: dict[str, Drafter] = {
    "dflash2 with a reduced vocabulary": with_reduced_vocabulary(drafter_of(DFLASH2)),
    "dflash2 with more candidates than tokens": replace(
        drafter_of(DFLASH2), parts=Dflash2Parts(3, 8, 4, 513)
    ),
    "dspark whose confidence sees no Markov head": replace(
        drafter_of(DSPARK), parts=DsparkParts(0, "vanilla", True, True)
    ),
}


@pytest.mark.parametrize("drafter", REFUSED.values(), ids=REFUSED)
def test_what_the_library_refuses_to_build_our_derivation_refuses(drafter, tmp_path):
    from speculators.model import SpeculatorModel

    assert drafter.layers == (DraftLayer(None, False),) * 2
    made, _ = written(drafter, tmp_path)
    with pytest.raises(ValueError, match=r"vocab|markov"):
        SpeculatorModel.from_pretrained(str(tmp_path))
    derived = engine.derive(made, read_target(str(TARGET), identifier=None))
    assert derived.refusals != ()
