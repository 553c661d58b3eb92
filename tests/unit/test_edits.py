from __future__ import annotations

from pathlib import Path

import pytest

from dflash_pack.checkpoint import DTYPE_BITS, TensorInfo, TensorSpec
from dflash_pack.edits import MAX_SLICES, edited, split_rows
from dflash_pack.errors import CheckpointError
from dflash_pack.pieces import Edit, FileRange

FILE = Path("source.safetensors")
FLOATS = ("BF16", "F16", "F32", "F64")


def info(dtype: str, *shape: int, nbytes: int = 0) -> TensorInfo:
    """Return a tensor 1000 bytes into a file."""
    return TensorInfo("fused", TensorSpec(dtype, shape), FILE, 1000, nbytes)


def test_rows_are_ranges_one_after_the_other():
    found = split_rows(info("BF16", 7, 3), (("q", 4), ("k", 1), ("v", 2), ("none", 0)))
    assert [name for name, _ in found] == ["q", "k", "v", "none"]
    assert [part.spec.shape for _, part in found] == [(4, 3), (1, 3), (2, 3), (0, 3)]
    assert [(part.offset, part.nbytes) for _, part in found] == [
        (1000, 24),
        (1024, 6),
        (1030, 12),
        (1042, 0),
    ]
    assert {(part.name, part.path, part.spec.dtype) for _, part in found} == {
        ("fused", FILE, "BF16")
    }


@pytest.mark.parametrize("shape", [(6,), (6, 2), (6, 2, 3), (6, 0)])
def test_rows_of_any_shape(shape):
    (_, first), (_, second) = split_rows(info("F32", *shape), (("a", 2), ("b", 4)))
    assert (first.spec.shape, second.spec.shape) == ((2, *shape[1:]), (4, *shape[1:]))
    assert second.nbytes == 2 * first.nbytes == 2 * (second.offset - 1000)


@pytest.mark.parametrize(
    ("shape", "rows", "message"),
    [
        ((7, 3), (4, 4), r"has shape \[7, 3\], which 4 \+ 4 rows don't make up"),
        ((7, 3), (4, 2), r"which 4 \+ 2 rows don't"),
        ((7, 3), (8, -1), r"which 8 \+ -1 rows don't"),
        ((0, 3), (-1, 1), r"which -1 \+ 1 rows don't"),
        ((7, 3), (), "which no rows don't make up"),
        ((0, 3), (), "which no rows don't make up"),
        ((), (1,), r"has shape \[\], which 1 rows don't make up"),
        ((7,), (1,) * 9, r"which 1 \+ 1 \+ 1 \+ 1 \+ 1 \+ 1 \+ \.\.\. rows don't make up"),
        ((1 << 62, 0), (1 << 62, 1), r"rows don't make up"),
    ],
)
def test_rows_that_do_not_add_up_are_refused(shape, rows, message):
    parts = tuple((str(number), count) for number, count in enumerate(rows))
    with pytest.raises(CheckpointError, match=rf"^source\.safetensors: fused: .*{message}"):
        split_rows(info("BF16", *shape), parts)


def test_packed_rows_are_split_between_bytes_only():
    (_, first), (_, second) = split_rows(info("F4", 3, 4), (("a", 1), ("b", 2)))
    assert (first.nbytes, second.offset, second.nbytes) == (2, 1002, 4)
    (_, first), (_, second) = split_rows(info("F6_E2M3", 6, 2), (("a", 2), ("b", 4)))
    assert (first.nbytes, second.offset, second.nbytes) == (3, 1003, 6)
    for dtype, shape in (("F4", (2, 3)), ("F6_E3M2", (2, 2))):
        message = f"fused: 1 rows of packed {dtype} end within a byte .* before it is quantised"
        with pytest.raises(CheckpointError, match=message):
            split_rows(info(dtype, *shape), (("a", 1), ("b", 1)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nothing_to_do_is_a_plain_range(dtype):
    source = info(dtype, 2, 6, nbytes=12 * DTYPE_BITS[dtype] // 8)
    plain = FileRange(FILE, 1000, source.nbytes)
    assert edited(source, None, None) == (source.spec, plain)
    assert edited(source, (0, 1, 2), None) == (source.spec, plain)
    if dtype != "F64":
        assert edited(source, None, dtype) == (source.spec, plain)


def test_an_edit_knows_its_rows_and_the_size_of_its_output():
    source = info("F32", 2, 6, nbytes=48)
    spec, piece = edited(source, (2, 0, 1), "BF16")
    assert spec == TensorSpec("BF16", (2, 6))
    assert piece == Edit("fused", FileRange(FILE, 1000, 48), "F32", "BF16", 24, (2, 0, 1))
    assert piece.nbytes == 24


@pytest.mark.parametrize(
    ("tensor", "order", "message"),
    [
        (info("BF16", 2, 7), (1, 0), "its 7 columns are not 2 slices of one width"),
        (info("BF16", 2, 2), (2, 1, 0), "its 2 columns are not 3 slices of one width"),
        (info("BF16", 2, 7), (), "its 7 columns are not 0 slices of one width"),
        (info("BF16", 14), (1, 0), r"has shape \[14\], in which no column slices can be moved"),
        (info("BF16"), (1, 0), r"has shape \[\], in which no column slices"),
        (info("BF16", 1, 2, 4), (1, 0), r"has shape \[1, 2, 4\], in which no column slices"),
        (info("BF16", 2, 4), range(MAX_SLICES, -1, -1), "1025 column slices are more than any"),
    ],
)
def test_shape_that_the_order_does_not_fit_is_refused(tensor, order, message):
    with pytest.raises(CheckpointError, match=rf"^source\.safetensors: fused: {message}.*\. Corr"):
        edited(tensor, order, None)


@pytest.mark.parametrize("order", [(0, 0), (1, 2), (0, -1), (0, 2, 1, 1)])
def test_order_that_is_none_is_a_bug(order):
    with pytest.raises(ValueError, match="does not name each column slice once"):
        edited(info("BF16", 2, 4), order, None)


@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS.keys() - set(FLOATS)))
def test_columns_of_packed_or_scaled_numbers_are_not_moved(dtype):
    message = f"its columns are {dtype}, packed or scaled, and can't be moved. Order them before"
    with pytest.raises(CheckpointError, match=message):
        edited(info(dtype, 8, 16), (1, 0), None)
