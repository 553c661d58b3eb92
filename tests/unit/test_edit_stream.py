"""Edited tensors, through plan and writer, against the same edits made by torch."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import threading
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plans import contents, write
from raw_safetensors import Raw, raw, with_header, write_checkpoint
from safetensors import SafetensorError, deserialize

from dflash_pack import file_reading, shard_writer
from dflash_pack.checkpoint import DTYPE_BITS, open_checkpoint
from dflash_pack.errors import CheckpointError
from dflash_pack.finite_scan import NonFinite, ScanResult, scan_finite
from dflash_pack.shard_writer import write_plan
from dflash_pack.tensors import plan_tensors

TORCH = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
}
WEIGHTS = ("BF16", "F16", "F32")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return an empty folder to write into."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def weights(dtype: str, *shape: int, seed: int = 0) -> torch.Tensor:
    """Return random numbers; those of F64 are ones of F32, since torch rounds by way of that."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(TORCH[dtype])


def stored(tensor: torch.Tensor) -> Raw:
    """Return dtype code, shape and bytes of a tensor."""
    code = next(code for code, dtype in TORCH.items() if dtype == tensor.dtype)
    data = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return code, tuple(tensor.shape), data


def moved(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Return ``tensor`` with its column slices in another order."""
    slices = tensor.reshape(len(tensor), len(order), tensor.shape[1] // len(order))
    return slices[:, list(order)].reshape(tensor.shape)


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, tuple[int, int], tuple[int, ...], list[int], str | None]:
    """Draw dtype, shape, order of the column slices, rows of each part, dtype to cast to."""
    order = draw(st.integers(1, 7).flatmap(lambda count: st.permutations(range(count))))
    rows = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    shape = sum(rows), len(order) * draw(st.integers(0, 9))
    return (
        draw(st.sampled_from(sorted(TORCH))),
        shape,
        tuple(order),
        rows,
        draw(st.sampled_from([None, *WEIGHTS])),
    )


@given(
    edit=edits(),
    before=st.integers(0, 9),
    chunk=st.sampled_from([8, 16, 24, 64, 200, 1 << 20]),
    copy=st.sampled_from([1, 7, 64, 1 << 20]),
    verify=st.booleans(),
)
def test_any_edit_gives_what_torch_makes(tmp_path_factory, edit, before, chunk, copy, verify):
    """Property: split, moved and cast at once, whatever the shapes and sizes of the buffers."""
    dtype, shape, order, rows, target = edit
    folder = tmp_path_factory.mktemp("edit")
    fused = weights(dtype, *shape)
    flags = raw("BOOL", before)
    write_checkpoint(folder, {"flags": flags, "fused": stored(fused), "last": flags})
    names = [f"part {number}" for number in range(len(rows))]
    expected = {}
    for number, (begin, end) in enumerate(pairwise(accumulate(rows, initial=0))):
        part = fused[begin:end]
        # Every other part keeps its columns, every third its dtype.
        part = moved(part, order) if number % 2 == 0 else part
        kept = target is None or number % 3 == 2
        expected[names[number]] = stored(part if kept else part.to(TORCH[target]))
    (folder / "out").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_reading, "CHUNK_BYTES", chunk)
        patch.setattr(shard_writer, "COPY_BYTES", copy)
        steps: list[int] = []
        (file,) = write(
            folder,
            folder / "out",
            {},
            verify=verify,
            progress=steps.append,
            row_splits={"fused": tuple(zip(names, rows, strict=True))},
            column_orders=dict.fromkeys(names[::2], order),
            dtype=target,
            keep_dtype=names[2::3],
        )
    assert contents(folder / "out") == {"flags": flags, "last": flags, **expected}
    data = (folder / "out" / "model.safetensors").read_bytes()
    assert file.size == sum(steps) == len(data)
    assert file.sha256 == (hashlib.sha256(data).hexdigest() if verify else None)
    if verify:
        assert file.scan == scan_finite(open_checkpoint(folder / "out"))
        assert file.scan.clean


def test_every_dtype_of_safetensors_is_known():
    """Its own list of them, from the message that refuses another one."""
    header = json.dumps({"x": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}})
    with pytest.raises(SafetensorError, match="unknown variant") as caught:
        deserialize(with_header(header.encode(), bytes(4)))
    assert {*re.findall(r"`(\w+)`", str(caught.value))} - {"F31"} == DTYPE_BITS.keys()


@pytest.mark.parametrize("target", [None, *WEIGHTS])
@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS.keys() - TORCH.keys()))
def test_numbers_that_are_no_plain_floats_keep_every_byte(dtype, target, tmp_path: Path, out: Path):
    data = bytes(range(256)) * 3 if dtype != "BOOL" else bytes([0, 1, 1]) * 256
    whole = (dtype, (32, len(data) * 8 // DTYPE_BITS[dtype] // 32), data)
    folder = write_checkpoint(
        tmp_path / "c", {"a": stored(weights("F32", 3)), "x": whole, "y": whole}
    )
    write(folder, out, {"x": "z"}, row_splits={"y": (("y", 8), ("rest", 24))}, dtype=target)
    found = contents(out)
    assert found["z"] == whole
    quarter = len(data) // 4
    assert found["y"] == (dtype, (8, whole[1][1]), data[:quarter])
    assert found["rest"] == (dtype, (24, whole[1][1]), data[quarter:])
    assert found["a"][0] == (target or "F32")


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((3, 3 * 40_000), (2, 0, 1)),
        ((1, 2 * 300_000), (1, 0)),
        ((200_000, 2), (1, 0)),
        ((5, 1024), tuple(reversed(range(1024)))),
        ((700, 6 * 128), (5, 0, 4, 1, 3, 2)),
        ((1, 1024 * 600), tuple(reversed(range(1024)))),
    ],
)
def test_rows_of_any_length_through_real_chunks(verify, shape, order, tmp_path: Path, out: Path):
    """Longer than a chunk, as long as thousands of them, and with the most slices allowed."""
    tensor = weights("F32", *shape)
    folder = write_checkpoint(tmp_path / "c", {"fc": stored(tensor)})
    edit = {"column_orders": {"fc": order}, "dtype": "BF16"}
    write(folder, out, {}, verify=verify, **edit)
    assert contents(out) == {"fc": stored(moved(tensor, order).bfloat16())}


def test_all_else_is_still_copied_by_the_kernel(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
):
    copied = 0
    real = os.copy_file_range

    def count(*arguments: int) -> int:
        nonlocal copied
        moved = real(*arguments)
        copied += moved
        return moved

    tensors = {"a": raw("I64", 500), "fc": stored(weights("BF16", 8, 6)), "z": raw("BF16", 90, 9)}
    folder = write_checkpoint(tmp_path / "c", tensors)
    monkeypatch.setattr(os, "copy_file_range", count)
    write(folder, out, {}, column_orders={"fc": (1, 0)}, dtype="BF16")
    assert copied == 500 * 8 + 90 * 9 * 2
    assert contents(out)["z"] == tensors["z"]


# Casts that must not happen


WIDER = "Pass --dtype bfloat16 or --dtype float32"


@pytest.mark.parametrize(
    ("dtype", "value", "shown", "target", "said", "remedy"),
    [
        ("F32", -70000.0, "-70000", "F16", ("float16", "65504"), WIDER),
        ("BF16", 2.0**100, "1.26765e+30", "F16", ("float16", "65504"), WIDER),
        ("F32", 3.4e38, "3.4e+38", "BF16", ("bfloat16", "3.38953e+38"), "Pass --dtype float32"),
        ("F64", -1e300, "-1e+300", "F32", ("float32", "3.40282e+38"), "Leave --dtype out"),
    ],
)
@pytest.mark.parametrize("verify", [True, False])
def test_overflow_names_tensor_and_remedy(
    verify, dtype, value, shown, target, said, remedy, tmp_path: Path, out: Path
):
    tensor = weights(dtype, 1000, 700)
    tensor[-1, -3] = value
    folder = write_checkpoint(
        tmp_path / "c", {"fine": stored(weights(dtype, 4)), "big": stored(tensor)}
    )
    with pytest.raises(CheckpointError) as caught:
        write(folder, out, {"big": "renamed"}, verify=verify, dtype=target)
    assert str(caught.value) == (
        f"{folder / 'model.safetensors'}: big: holds {shown}, which a cast to {said[0]} would make "
        f"infinite (its largest number is {said[1]}). {remedy}."
    )
    assert not [thread for thread in threading.enumerate() if thread.name in ("sha256", "flush")]
    kept = write(folder, _emptied(out), {"big": "renamed"}, dtype=target, keep_dtype={"renamed"})
    assert kept[0].scan is not None
    assert kept[0].scan.clean
    assert contents(out)["renamed"] == stored(tensor)


def _emptied(folder: Path) -> Path:
    for path in folder.iterdir():
        path.unlink()
    return folder


@pytest.mark.parametrize("target", WEIGHTS)
def test_nan_and_infinity_of_the_source_are_found_after_a_cast(target, tmp_path: Path, out: Path):
    tensor = weights("F64", 64, 9)
    tensor[3, :4] = torch.tensor([math.nan, math.inf, -math.inf, -math.nan])
    folder = write_checkpoint(tmp_path / "c", {"x": stored(tensor)})
    (file,) = write(folder, out, {}, dtype=target, column_orders={"x": (2, 1, 0)})
    assert file.scan == ScanResult(1, (NonFinite("x", 2, 2),), ())


def test_source_that_shrinks_under_an_edit_is_noticed(tmp_path: Path, out: Path):
    for number, edit in enumerate(({"dtype": "F16"}, {"column_orders": {"x": (1, 0)}})):
        folder = write_checkpoint(tmp_path / str(number), {"x": stored(weights("F32", 100, 40))})
        plan = plan_tensors(open_checkpoint(folder), {}, **edit)
        os.truncate(folder / "model.safetensors", 2000)
        with pytest.raises(CheckpointError, match="changed while it was read"):
            write_plan(plan, _emptied(out))


def test_full_precision_of_small_numbers(tmp_path: Path, out: Path):
    """Subnormals of the target are rounded, not flushed."""
    values = torch.tensor([2.0**-24, 2.0**-25, 1.5 * 2.0**-24, -(2.0**-14), 0.0, -0.0])
    folder = write_checkpoint(tmp_path / "c", {"x": stored(values)})
    write(folder, out, {}, dtype="F16")
    found = np.frombuffer(contents(out)["x"][2], "<f2").tolist()
    assert found == [2.0**-24, 0.0, 2.0**-23, -(2.0**-14), 0.0, 0.0]
