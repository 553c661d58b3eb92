from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from plans import FIRST, ONE, SECOND
from raw_safetensors import raw, write_checkpoint

from dflash_pack.checkpoint import DTYPE_BITS, TensorSpec, open_checkpoint
from dflash_pack.errors import CheckpointError
from dflash_pack.pieces import FileRange, Literal
from dflash_pack.tensors import (
    OutputShard,
    PlannedTensor,
    header_bytes,
    plan_tensors,
    verbatim_source,
)


def test_plan_keeps_names_that_the_mapping_leaves_out(tmp_path: Path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, ONE))
    plan = plan_tensors(checkpoint, {"fc.weight": "context_proj.weight", "t2d": None})
    assert list(plan.tensors) == [
        "context_proj.weight",
        "norm.weight",
        "d2t",
        "layers.0.q.weight",
        "empty",
    ]
    assert plan.tensors["context_proj.weight"] == TensorSpec("BF16", (64, 96))
    assert plan.total_bytes == checkpoint.weight_bytes - 13
    assert plan.index is None
    assert plan.shards[0].name == "model.safetensors"


def test_plan_keeps_shards_and_numbers_those_that_are_left(tmp_path: Path):
    third = {"lm_head.weight": raw("BF16", 2, 2)}
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, FIRST, third, SECOND))
    plan = plan_tensors(checkpoint, {"lm_head.weight": None})
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert [shard.name for shard in plan.shards] == names
    assert plan.index == {
        "metadata": {"total_size": plan.total_bytes},
        "weight_map": {
            "d2t": names[0],
            "empty": names[1],
            "fc.weight": names[0],
            "norm.weight": names[1],
            "t2d": names[1],
        },
    }
    one = plan_tensors(checkpoint, dict.fromkeys([*FIRST, "lm_head.weight"]))
    assert [shard.name for shard in one.shards] == ["model.safetensors"]
    assert one.index is None


def test_plan_refuses_two_tensors_under_one_name(tmp_path: Path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, FIRST, SECOND))
    with pytest.raises(CheckpointError, match=r"x: both d2t and t2d would be written"):
        plan_tensors(checkpoint, {"d2t": "x", "t2d": "x"})
    with pytest.raises(CheckpointError, match=r"fc\.weight: both fc\.weight and t2d"):
        plan_tensors(checkpoint, {"t2d": "fc.weight"})
    assert "d2t" in plan_tensors(checkpoint, {"d2t": "t2d", "t2d": "d2t"}).tensors


def test_plan_refuses_to_write_nothing_and_to_rename_what_is_not_there(tmp_path: Path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, ONE))
    with pytest.raises(CheckpointError, match="no tensor would be left"):
        plan_tensors(checkpoint, dict.fromkeys(ONE))
    with pytest.raises(ValueError, match="no such tensors to rename"):
        plan_tensors(checkpoint, {"fc.wieght": "x"})


def test_plan_splits_orders_and_casts_where_tensors_stand(tmp_path: Path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, FIRST, SECOND))
    plan = plan_tensors(
        checkpoint,
        {"norm.weight": "final.weight"},
        row_splits={"fc.weight": (("q", 40), ("k", 24))},
        column_orders={"k": (2, 1, 0)},
        dtype="F16",
        keep_dtype={"q", "not written"},
    )
    assert [[tensor.name for tensor in shard.tensors] for shard in plan.shards] == [
        ["q", "k", "d2t"],
        ["final.weight", "empty", "t2d"],
    ]
    assert plan.tensors == {
        "q": TensorSpec("BF16", (40, 96)),
        "k": TensorSpec("F16", (24, 96)),
        "d2t": TensorSpec("I64", (7,)),
        "final.weight": TensorSpec("F16", (64,)),
        "empty": TensorSpec("F16", (0, 4)),
        "t2d": TensorSpec("BOOL", (13,)),
    }
    assert plan.total_bytes == checkpoint.weight_bytes - 64 * 2
    assert plan.index is not None
    assert plan.index["weight_map"]["k"] == "model-00001-of-00002.safetensors"


def test_parts_in_order_are_copied_as_one_range(tmp_path: Path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, ONE))
    fused = {"fc.weight": (("q", 40), ("k", 24)), "norm.weight": (("a", 1), ("b", 63))}
    (shard,) = plan_tensors(checkpoint, {}, row_splits=fused).shards
    data = checkpoint.tensors["fc.weight"]
    assert shard.pieces == (FileRange(data.path, data.offset, checkpoint.weight_bytes),)


def test_plan_refuses_parts_under_the_name_of_another_tensor(tmp_path: Path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, ONE))
    with pytest.raises(CheckpointError, match=r"t2d: both norm\.weight and t2d would be written"):
        plan_tensors(checkpoint, {}, row_splits={"norm.weight": (("a", 32), ("t2d", 32))})
    with pytest.raises(CheckpointError, match=r"a: both norm\.weight and norm\.weight would be"):
        plan_tensors(checkpoint, {}, row_splits={"norm.weight": (("a", 32), ("a", 32))})


def test_plan_refuses_edits_that_the_tensor_does_not_fit(tmp_path: Path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, ONE))
    where = re.escape(f"{checkpoint.shards[0].path}: fc.weight: ")
    with pytest.raises(CheckpointError, match=where + "its 96 columns are not 7 slices"):
        plan_tensors(checkpoint, {}, column_orders={"fc.weight": (6, 5, 4, 3, 2, 1, 0)})
    with pytest.raises(CheckpointError, match=where + r"has shape \[64, 96\], which 60 rows don't"):
        plan_tensors(checkpoint, {}, row_splits={"fc.weight": (("q", 60),)})


@pytest.mark.parametrize(
    ("rename", "edits", "message"),
    [
        ({}, {"row_splits": {"x": (("q", 1),)}}, r"no such tensors to rename or split: \['x'\]"),
        (
            {"d2t": None},
            {"row_splits": {"d2t": (("q", 7),)}},
            r"both renamed and split: \['d2t'\]",
        ),
        ({}, {"column_orders": {"x": (0,)}}, r"no such tensors to order the columns of: \['x'\]"),
        ({"d2t": None}, {"column_orders": {"d2t": (0,)}}, "to order the columns of"),
        ({}, {"dtype": "F8_E4M3"}, "no dtype to cast to: F8_E4M3"),
        ({}, {"dtype": "bfloat16"}, "no dtype to cast to: bfloat16"),
        ({}, {"dtype": "F64"}, "no dtype to cast to: F64"),
    ],
)
def test_plan_of_what_is_not_there_is_a_bug(rename, edits, message, tmp_path: Path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, ONE))
    with pytest.raises(ValueError, match=message):
        plan_tensors(checkpoint, rename, **edits)


def test_numbers_stay_at_multiples_of_their_size(tmp_path: Path):
    """A cast of three numbers would leave those behind them askew; safetensors writes none so."""
    tensors = {
        "a": raw("F32", 3),
        "b": raw("F32", 4),
        "c": raw("I32", 2),
        "d": raw("BF16", 7),
        "e": raw("U8", 3),
    }
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, tensors))
    assert list(plan_tensors(checkpoint, {}).tensors) == [*"abcde"]
    assert list(plan_tensors(checkpoint, {}, dtype="BF16").tensors) == [*"cabde"]
    kept = plan_tensors(checkpoint, {}, dtype="BF16", keep_dtype={"b"})
    assert list(kept.tensors) == [*"bcade"]
    for plan in (kept, plan_tensors(checkpoint, {}, dtype="F32")):
        offset = 0
        for tensor in plan.shards[0].tensors:
            assert offset * 8 % DTYPE_BITS[tensor.spec.dtype] == 0
            offset += tensor.nbytes


def test_file_that_is_askew_but_unedited_stays_as_it_is(tmp_path: Path):
    tensors = {"odd": raw("U8", 3), "x": raw("F32", 4)}
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, tensors, metadata={"format": "pt"}))
    (shard,) = plan_tensors(checkpoint, {}).shards
    assert verbatim_source(shard) == tmp_path / "model.safetensors"
    assert list(plan_tensors(checkpoint, {}, dtype="F16").tensors) == ["x", "odd"]


def test_plan_whose_pieces_do_not_fill_the_tensor_is_a_bug():
    PlannedTensor("a", TensorSpec("F32", (2,)), (Literal(bytes(3)), Literal(bytes(5))))
    with pytest.raises(ValueError, match="7 bytes planned"):
        PlannedTensor("a", TensorSpec("F32", (2,)), (Literal(bytes(7)),))


def test_data_starts_at_a_multiple_of_eight():
    for length in range(1, 20):
        tensor = PlannedTensor("n" * length, TensorSpec("U8", (1,)), (Literal(b"x"),))
        header = header_bytes(OutputShard("model.safetensors", (tensor,), {}))
        assert len(header) % 8 == 0
        assert int.from_bytes(header[:8], "little") == len(header) - 8
        assert list(json.loads(header[8:])) == ["n" * length]


def test_verbatim_source(tmp_path: Path):
    folder = write_checkpoint(tmp_path / "c", ONE, metadata={"format": "pt"})
    checkpoint = open_checkpoint(folder)
    path = folder / "model.safetensors"

    def source(rename: dict[str, str | None]) -> Path | None:
        return verbatim_source(plan_tensors(checkpoint, rename).shards[0])

    assert source({}) == path
    assert source({"fc.weight": "fd.weight"}) is None
    assert source({"empty": None}) is None
    assert source({"fc.weight": None}) is None
    edits: list[dict[str, Any]] = [
        {"dtype": "F32"},
        {"column_orders": {"fc.weight": (1, 0)}},
        {"row_splits": {"norm.weight": (("norm.weight", 32), ("more", 32))}},
    ]
    for edit in edits:
        assert verbatim_source(plan_tensors(checkpoint, {}, **edit).shards[0]) is None
    unchanged = {
        "column_orders": {"fc.weight": (0, 1)},
        "row_splits": {"norm.weight": (("norm.weight", 64),)},
        "dtype": "F16",
        "keep_dtype": {"fc.weight", "norm.weight", "empty"},
    }
    assert verbatim_source(plan_tensors(checkpoint, {}, **unchanged).shards[0]) == path
    other = write_checkpoint(tmp_path / "d", ONE, metadata={"format": "pt", "by": "x"})
    assert verbatim_source(plan_tensors(open_checkpoint(other), {}).shards[0]) is not None
    bare = write_checkpoint(tmp_path / "e", ONE)
    assert verbatim_source(plan_tensors(open_checkpoint(bare), {}).shards[0]) is None
