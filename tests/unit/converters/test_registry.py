"""Which format a source is, and how the ones that are not converted are named."""

from __future__ import annotations

import pytest
from made import NATIVE, contents, native, specs, speculators

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.converters.registry import read_drafter, writer
from dflash_pack.errors import CheckpointError, UsageError


def test_each_form_is_detected():
    assert read_drafter(contents(native())).format == "zlab"
    assert read_drafter(contents(speculators())).format == "speculators"


def test_a_target_is_no_drafter():
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    with pytest.raises(CheckpointError, match="no DFlash drafter"):
        read_drafter(Contents(config, specs(NATIVE), frozenset()))


@pytest.mark.parametrize(
    ("changes", "tensor", "family"),
    [
        ({"architectures": ["DFlash2DraftModel"]}, None, "DFlash2"),
        ({"architectures": ["Qwen3DSparkModel"]}, None, "DSpark"),
        ({"architectures": ["DFlashLagunaForCausalLM"]}, None, "Laguna"),
        ({"dflash_config__projector_type": "domino"}, None, "domino"),
        ({"model_type": "dflash", "target_num_hidden_layers": 4}, None, "TorchSpec"),
        ({"has_embed_tokens": True}, None, "Nemotron"),
        ({"speculators_model_type": "dflash"}, None, "hybrid"),
        ({"speculators_model_type": "eagle3"}, None, "Speculators eagle3"),
        ({}, "candidate_selector.hidden_projection.weight", "DFlash2"),
        ({}, "markov_head.markov_w1.weight", "DSpark"),
        ({}, "prefix_gru.weight_ih_l0", "Domino"),
        ({}, "refiner_head.readout", "XPress"),
        ({}, "layers.0.self_attn.qkv_proj.weight", "Laguna"),
        ({}, "encoder.fc.weight", "Muse Glimmer"),
        ({}, "context_proj.weight", "TorchSpec"),
        ({}, "layers.0.self_attn.attention_sink_bias", "MiMo"),
    ],
)
def test_relatives_are_refused_by_their_name(changes, tensor, family):
    tensors = specs(NATIVE) | ({tensor: TensorSpec("BF16", (1,))} if tensor else {})
    with pytest.raises(CheckpointError, match=f"this is a {family}"):
        read_drafter(Contents(native(**changes), tensors, frozenset()))


@pytest.mark.parametrize("value", [1, None, {"a": 1}, [[]]])
def test_nonsense_where_names_belong_is_no_crash(value):
    config = {"architectures": value, "speculators_model_type": value, "dflash_config": value}
    with pytest.raises(CheckpointError):
        read_drafter(Contents(config, {}, frozenset()))


def test_unknown_names_on_the_command_line():
    with pytest.raises(UsageError, match="--from nemo is no known format"):
        read_drafter(contents(native()), source_format="nemo")
    with pytest.raises(UsageError, match="--format universal is no form"):
        writer("universal")
