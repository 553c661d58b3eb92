"""Captured layers in ascending order, with the slices of fc that belong to them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import contents, native

from dflash_pack.converters.registry import read_drafter
from dflash_pack.drafter import Quantization
from dflash_pack.errors import CheckpointError, NotRepresentableError
from dflash_pack.layer_order import in_ascending_order, in_dtype

DRAFTER = read_drafter(contents(native())).drafter


@pytest.mark.parametrize("ids", [(0,), (0, 2), (1, 4, 9)])
def test_ascending_ids_stay(ids):
    drafter = replace(DRAFTER, target_layer_ids=ids)
    ordered = in_ascending_order(drafter, {"fc.weight": "fc.weight"})
    assert ordered.drafter == drafter
    assert ordered.column_orders == {}
    assert ordered.notes == ()


@pytest.mark.parametrize(
    ("ids", "ascending", "order"),
    [
        ((2, 0), (0, 2), (1, 0)),
        ((9, 1, 4), (1, 4, 9), (1, 2, 0)),
        ((1, 4, 3, 9), (1, 3, 4, 9), (0, 2, 1, 3)),
    ],
)
def test_slices_move_with_their_layers(ids, ascending, order):
    names = {f"n.{i}": f"aux_hidden_norms.{i}.weight" for i in range(len(ids))}
    ordered = in_ascending_order(replace(DRAFTER, target_layer_ids=ids), names)
    assert ordered.drafter.target_layer_ids == ascending
    assert ordered.column_orders == {"fc.weight": order}
    # The norm of a layer keeps to that layer.
    for index, layer in enumerate(ids):
        place = ascending.index(layer)
        assert ordered.names[f"n.{index}"] == f"aux_hidden_norms.{place}.weight"
    assert str(list(ascending)) in ordered.notes[0]


def test_a_layer_that_is_captured_twice_is_refused():
    with pytest.raises(CheckpointError, match=r"names \[1\] more than once"):
        in_ascending_order(replace(DRAFTER, target_layer_ids=(1, 3, 1)), {})


def test_quantised_columns_are_not_moved():
    quantised = replace(DRAFTER, quantization=Quantization.freeze({"bits": 4}))
    with pytest.raises(NotRepresentableError, match="before quantising"):
        in_ascending_order(replace(quantised, target_layer_ids=(2, 0)), {})
    with pytest.raises(NotRepresentableError, match="can't be cast"):
        in_dtype(quantised, "F16")


def test_a_cast_changes_the_dtype_only():
    assert in_dtype(DRAFTER, "F16") == replace(DRAFTER, dtype="F16")
    assert in_dtype(DRAFTER, None) is DRAFTER
