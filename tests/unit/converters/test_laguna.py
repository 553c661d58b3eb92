"""Laguna's drafters: fused and gated attention, a norm per captured layer, native form only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from formats_table import tensors_of
from made import LAGUNA, REMOVED, native, target

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.conversion import comparable
from dflash_pack.converters.registry import WRITERS, read_drafter
from dflash_pack.drafter import DraftLayer, LagunaParts
from dflash_pack.engines import vllm
from dflash_pack.errors import CheckpointError, ContradictionError, NotRepresentableError

SEED = {"fc.weight": TensorSpec("BF16", (16, 32))}


def source(**changes):
    config = native(**LAGUNA | changes)
    drafter = read_drafter(Contents(config, SEED, frozenset())).drafter
    return Contents(config, tensors_of(drafter), frozenset())


@pytest.mark.parametrize(("gating", "rows"), [("per-head", 2), ("per-element", 16), (True, 2)])
def test_it_is_read_with_its_gates_and_norms(gating, rows):
    reading = read_drafter(source(gating=gating))
    assert reading.format == "laguna"
    assert isinstance(reading.drafter.parts, LagunaParts)
    assert reading.drafter.layers == (DraftLayer(32, True),) * 2
    tensors = tensors_of(reading.drafter)
    assert tensors["layers.0.self_attn.g_proj.weight"].shape == (rows, 16)
    assert tensors["layers.0.self_attn.qkv_proj.weight"].shape == (32, 16)
    assert tensors["aux_hidden_norms.1.weight"].shape == (16,)
    assert not reading.row_splits


def test_the_native_form_means_the_same_and_vllm_reads_it_so():
    drafter = read_drafter(source()).drafter
    config = WRITERS["native"](drafter, target()).config
    contents = Contents(config, tensors_of(drafter), frozenset())
    back = read_drafter(contents)
    assert back.format == "laguna"
    assert comparable(back.drafter) == comparable(drafter)
    meaning = vllm.derive(contents, target())
    assert meaning.refusals == ()
    assert (meaning.family, meaning.parts) == ("laguna", drafter.parts)
    assert meaning.layers == drafter.layers


@pytest.mark.parametrize("form", ["speculators", "universal"])
def test_other_forms_have_no_keys_for_it(form):
    with pytest.raises(NotRepresentableError, match="--format native"):
        WRITERS[form](read_drafter(source()).drafter, target())


def test_layers_of_two_kinds_are_refused():
    drafter = read_drafter(source()).drafter
    mixed = replace(drafter, layers=(DraftLayer(32, True), DraftLayer(None, True)))
    with pytest.raises(NotRepresentableError, match="one kind"):
        WRITERS["native"](mixed, target())


def test_ids_that_differ_are_refused():
    with pytest.raises(ContradictionError, match="target_layer_ids"):
        source(eagle_aux_hidden_state_layer_ids=[0, 2])


def test_gates_are_asked_for_and_split_projections_refused():
    with pytest.raises(CheckpointError, match="--set gating=per-head"):
        source(gating=REMOVED)
    split = SEED | {"layers.0.self_attn.q_proj.weight": TensorSpec("BF16", (16, 16))}
    with pytest.raises(CheckpointError, match="fused"):
        read_drafter(Contents(native(**LAGUNA), split, frozenset()))


@pytest.mark.parametrize(
    ("kinds", "words"),
    [(5, "mlp_layer_types: 5 is not accepted"), (["dense", "sparse"], "layers of experts")],
)
def test_layers_of_experts_are_refused(kinds, words):
    with pytest.raises(CheckpointError, match=words):
        source(mlp_layer_types=kinds)


def test_no_gates_is_a_contradiction():
    with pytest.raises(ContradictionError, match="gating says False"):
        source(gating=False)


@pytest.mark.parametrize("kinds", [[], ["dense"], ["dense"] * 7])
def test_another_number_of_mlps_is_a_contradiction(kinds):
    with pytest.raises(ContradictionError, match="num_hidden_layers says 2"):
        source(mlp_layer_types=kinds)


def test_there_is_one_native_form_only():
    with pytest.raises(NotRepresentableError, match="Use --format native"):
        WRITERS["native-new"](read_drafter(source()).drafter, target())
