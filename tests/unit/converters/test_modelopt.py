"""ModelOpt's exports: explicit causality, windows by use_swa, quantised weights."""

from __future__ import annotations

import pytest
from made import REMOVED, contents, native

from dflash_pack.converters import modelopt
from dflash_pack.converters.registry import read_drafter
from dflash_pack.drafter import DraftLayer
from dflash_pack.errors import ContradictionError

EXPORT = {"dflash_config__causal": False, "dtype": REMOVED, "torch_dtype": "bfloat16"}
SWA = {"dflash_config__use_swa": True, "dflash_config__swa_window_size": 8, "sliding_window": 8}


def read(changes, **given):
    return read_drafter(contents(native(**EXPORT | changes), **given))


@pytest.mark.parametrize(
    ("changes", "layer"),
    [
        ({}, DraftLayer(None, False)),
        ({"dflash_config__causal": True}, DraftLayer(None, True)),
        (SWA, DraftLayer(8, False)),
        (SWA | {"dflash_config__causal": True}, DraftLayer(8, True)),
        (SWA | {"sliding_window": None}, DraftLayer(8, False)),
        ({"dflash_config__use_swa": False, "sliding_window": 8}, DraftLayer(None, False)),
    ],
)
def test_windows_and_causality(changes, layer):
    reading = read(changes)
    assert reading.format == "modelopt"
    assert reading.drafter.layers == (layer, layer)


def test_a_window_that_is_stated_twice_must_be_one():
    with pytest.raises(ContradictionError, match="attention window"):
        read(SWA | {"sliding_window": 9})


def test_a_partial_rope_is_left_out_as_its_code_does():
    reading = read({"partial_rotary_factor": 0.5})
    assert reading.drafter.rope.partial_rotary_factor == 1.0
    assert any("partial_rotary_factor" in note for note in reading.notes)


def test_sinks_in_both_places_must_agree():
    both = {"attention_sink_bias": True, "dflash_config__attention_sink_bias": True}
    assert read(both).drafter.attention_sinks
    with pytest.raises(ContradictionError, match="attention_sink_bias"):
        read(both | {"attention_sink_bias": False})


def test_quantisation_is_carried():
    config = {"quant_method": "modelopt", "quant_algo": "FP8"}
    reading = read({"quantization_config": config}, side_files=("hf_quant_config.json",))
    assert reading.drafter.quantization is not None
    assert reading.drafter.quantization.value() == config
    assert reading.copied_files == ("hf_quant_config.json",)


@pytest.mark.parametrize(
    "changes",
    [
        {"dflash_config__causal": REMOVED},
        {"auto_map": {}},
        {"torch_dtype": REMOVED},
        {"architectures": ["DFlash2DraftModel"]},
        {"dflash_config__projector_type": "domino"},
    ],
)
def test_what_is_not_its_own_is_left_to_others(changes):
    assert not modelopt.detect(contents(native(**EXPORT | changes)))


def test_a_window_on_every_layer_beside_full_layers_is_a_contradiction():
    """vllm 0.32 then goes by the types, its own documentation by use_swa."""
    kinds = ["sliding_attention", "full_attention"]
    with pytest.raises(ContradictionError, match="use_swa says True") as caught:
        read_drafter(contents(native(**SWA, layer_types=kinds, use_sliding_window=True)))
    assert "--set dflash_config.use_swa=false" in str(caught.value.remedy)
