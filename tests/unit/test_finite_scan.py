from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from plans import ONE, write
from raw_safetensors import Raw, raw, write_checkpoint

from dflash_pack import file_reading
from dflash_pack.checkpoint import (
    DTYPE_BITS,
    Checkpoint,
    Shard,
    TensorInfo,
    TensorSpec,
    open_checkpoint,
)
from dflash_pack.errors import CheckpointError
from dflash_pack.finite_scan import NonFinite, ScanResult, scan_finite


def patterns(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return all bit patterns of 8 or 16 bits, and the same as numbers."""
    bits = np.arange(1 << DTYPE_BITS[dtype], dtype=f"<u{DTYPE_BITS[dtype] // 8}")
    if dtype == "BF16":  # The upper half of a float32.
        return bits, (bits.astype("<u4") << 16).view(np.float32)
    if dtype == "F16":
        return bits, bits.view(np.float16)
    if dtype == "F8_E5M2":  # The upper half of a float16.
        return bits, (bits.astype("<u2") << 8).view(np.float16)
    return bits, np.where(bits & 0x7F == 0x7F, np.nan, 1.0)  # OCP FP8: one NaN, no infinity.


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F8_E4M3", "F8_E5M2"])
def test_every_bit_pattern_is_judged_right(dtype, tmp_path: Path):
    bits, values = patterns(dtype)
    nan, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    assert nan > 1
    finite = bits[np.isfinite(values)]
    tensors: dict[str, Raw] = {
        "all": (dtype, bits.shape, bits.tobytes()),
        "finite": (dtype, finite.shape, finite.tobytes()),
    }
    for index, pattern in enumerate(bits[~np.isfinite(values)][:300]):
        one = np.concatenate([finite[:3], [pattern]]).astype(bits.dtype)
        tensors[f"one {index}"] = (dtype, (4,), one.tobytes())
    scan = scan_finite(open_checkpoint(write_checkpoint(tmp_path, tensors)))
    assert scan.scanned == len(tensors)
    found = {f.name: (f.nan, f.infinite) for f in scan.non_finite}
    assert found.pop("all") == (nan, infinite)
    assert found.keys() == tensors.keys() - {"all", "finite"}
    assert all(nan + infinite == 1 for nan, infinite in found.values())


@pytest.mark.parametrize(("dtype", "kind"), [("F32", np.float32), ("F64", np.float64)])
def test_wide_floats(dtype, kind, tmp_path: Path):
    top = np.finfo(kind)
    fine = np.array([0.0, -0.0, top.max, top.min, top.tiny, top.smallest_subnormal], dtype=kind)
    tensors = {"fine": (dtype, fine.shape, fine.tobytes())}
    expected = {}
    for name, value, counts in (
        ("nan", np.nan, (1, 0)),
        ("-nan", -np.nan, (1, 0)),
        ("inf", np.inf, (0, 1)),
        ("-inf", -np.inf, (0, 1)),
    ):
        array = np.append(fine, kind(value))
        tensors[name] = (dtype, array.shape, array.tobytes())
        expected[name] = counts
    scan = scan_finite(open_checkpoint(write_checkpoint(tmp_path, tensors)))
    assert {f.name: (f.nan, f.infinite) for f in scan.non_finite} == expected
    assert not scan.clean


def test_scan_while_writing_finds_what_a_scan_of_the_result_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Odd offsets and chunks that end inside tensors must neither hide nor invent a value."""
    monkeypatch.setattr(file_reading, "CHUNK_BYTES", 64)
    out = tmp_path / "out"
    out.mkdir()
    data = np.zeros(500, dtype="<u2")
    data[[0, 1, 77, 499]] = [0x7F80, 0xFF80, 0x7FC1, 0xFFFF]
    tensors = {
        "odd": raw("U8", 3),
        "bad": ("BF16", (500,), data.tobytes()),
        "odd again": raw("U8", 1),
        "half": ("F16", (2,), np.array([0x7BFF, 0xFC00], dtype="<u2").tobytes()),
        "good": raw("F64", 40),
        "packed": raw("F8_E8M0", 4),
    }
    folder = write_checkpoint(tmp_path / "c", tensors)
    expected = ScanResult(3, (NonFinite("b", 2, 2), NonFinite("half", 0, 1)), ("packed",))
    written = write(folder, out, {"bad": "b"})
    assert written[0].scan == expected
    assert scan_finite(open_checkpoint(out)) == expected


def test_scan_reports_progress_and_notices_a_short_file(tmp_path: Path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, ONE))
    steps: list[int] = []
    assert scan_finite(checkpoint, steps.append).clean
    assert sum(steps) == checkpoint.weight_bytes
    os.truncate(checkpoint.shards[0].path, 2000)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        scan_finite(checkpoint)


def test_tensors_with_gaps_between_them_in_several_files(tmp_path: Path):
    """As in an archive: what lies between tensors is not looked at."""
    bad = np.array([np.nan, np.inf], dtype="<f4").tobytes()
    good = np.arange(40, dtype="<f4").tobytes()
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(bad + good + bad + b"?" + good[:8] + bad)
    two.write_bytes(bad + good)
    empty = TensorInfo("none", TensorSpec("F32", (0,)), one, 3, 0)
    infos = (
        TensorInfo("a", TensorSpec("F32", (40,)), one, 8, 160),
        empty,
        TensorInfo("b", TensorSpec("F32", (2,)), one, 177, 8),
        TensorInfo("c", TensorSpec("F32", (40,)), two, 8, 160),
        TensorInfo("d", TensorSpec("F32", (2,)), two, 0, 8),
    )
    shard = Shard("one", one, one.stat().st_size, infos, {})
    checkpoint = Checkpoint(tmp_path, {}, (shard,), ())
    steps: list[int] = []
    scan = scan_finite(checkpoint, steps.append)
    assert scan == ScanResult(5, (NonFinite("d", 1, 1),), ())
    assert sum(steps) == checkpoint.weight_bytes
