from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash_pack.casting import CASTABLE, TARGETS, CastOverflowError, cast, cast_dtype, wide_enough
from dflash_pack.checkpoint import DTYPE_BITS

TORCH = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
}
NUMPY = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
# Bits of the significand, the hidden one included, and exponent of the smallest subnormal.
FORMATS = {"BF16": (8, -133), "F16": (11, -24), "F32": (24, -149)}


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the bit patterns of a tensor of floats."""
    width = tensor.element_size()
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    return tensor.view(kind).numpy().view(f"<u{width}")


def cast_bits(bits: np.ndarray, source: str, target: str) -> np.ndarray:
    """Return :func:`cast` from bit patterns to bit patterns."""
    return np.frombuffer(
        cast(memoryview(bits.tobytes()), source, target), f"<u{DTYPE_BITS[target] // 8}"
    )


def numbers(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Return bit patterns as float64."""
    kind = {2: "<i2", 4: "<i4", 8: "<i8"}[bits.itemsize]
    return torch.from_numpy(bits.view(kind).copy()).view(TORCH[dtype]).double().numpy()


def pattern(values: list[float], dtype: str) -> np.ndarray:
    """Return the bit patterns of values that ``dtype`` holds exactly."""
    bits = bits_of(torch.tensor(values, dtype=torch.float64).to(TORCH[dtype]))
    assert numbers(bits, dtype).tolist() == values
    return bits


def all_sixteen_bits() -> np.ndarray:
    """Return every pattern of 16 bits."""
    return np.arange(1 << 16, dtype="<u2")


def hard_float32() -> np.ndarray:
    """Return float32 patterns: each upper half with lower halves at, beside and far from ties."""
    upper = np.arange(1 << 16, dtype="<u4") << 16
    lower = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype="<u4")
    return (upper[:, None] | lower).ravel()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", ["BF16", "F16", "F32"])
def test_every_number_becomes_the_one_of_torch_bit_for_bit(source, target):
    bits = hard_float32() if source == "F32" else all_sixteen_bits()
    kind = {2: "<i2", 4: "<i4"}[bits.itemsize]
    expected = torch.from_numpy(bits.view(kind)).view(TORCH[source]).to(TORCH[target])
    before, after = numbers(bits, source), expected.double().numpy()
    kept = np.isfinite(after) | np.isinf(before)
    assert kept.sum() > len(bits) / 9
    found = cast_bits(bits[kept], source, target)
    assert (found == bits_of(expected)[kept]).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", sorted(CASTABLE))
def test_nan_stays_nan_with_its_sign_and_infinity_infinity(source, target):
    width = DTYPE_BITS[source]
    infinity = int(pattern([math.inf], source)[0])
    # The lowest and the highest payload: a cut-off or a carry would make them infinite or zero.
    nans = [infinity | 1, infinity | (1 << (infinity.bit_length() - 1)) - 1]
    nans = [nan for nan in nans if nan != infinity]
    values = [bits | sign for bits in [*nans, infinity] for sign in (0, 1 << (width - 1))]
    bits = np.array(values, dtype=f"<u{width // 8}")
    assert np.isnan(numbers(bits, source)[:-2]).all()
    found = numbers(cast_bits(bits, source, target), target)
    assert np.isnan(found[:-2]).all()
    assert found[-2:].tolist() == [math.inf, -math.inf]
    assert np.signbit(found).tolist() == [False, True] * (len(values) // 2)


def rounded(value: float, dtype: str) -> float:
    """Return ``value`` rounded once to the nearest number of ``dtype``, by exact arithmetic."""
    digits, smallest = FORMATS[dtype]
    exact = Fraction(value)
    if exact == 0:
        return value
    step = Fraction(2) ** max(math.frexp(value)[1] - digits, smallest)
    return math.copysign(float(round(exact / step) * step), value)


@given(
    st.sampled_from(sorted(TARGETS)),
    st.sampled_from(sorted(FORMATS)),
    st.floats(-60000, 60000, width=32),
    st.integers(-3, 3),
    st.integers(-60, -20),
)
def test_float64_is_rounded_once(target, near, value, steps, exponent):
    """Property: also just beside a tie of the target, where an in-between float32 would be it."""
    digits, smallest = FORMATS[near]
    half = 2.0 ** max(math.frexp(value)[1] - digits - 1, smallest - 1)
    values = [value, value + steps * half, (value + steps * half) * (1 + 2.0**exponent), 5e-324]
    bits = np.array(values, dtype="<f8").view("<u8")
    found = numbers(cast_bits(bits, "F64", target), target)
    expected = [rounded(v, target) for v in values]
    assert found.tolist() == expected
    assert np.signbit(found).tolist() == np.signbit(expected).tolist()


def test_float64_beside_a_tie_is_not_taken_for_the_tie():
    beside = np.array([1 + 2**-8 + 2**-40, 1 + 2**-8 - 2**-40, 1 + 2**-8, 1 + 3 * 2**-8])
    found = numbers(cast_bits(beside.view("<u8"), "F64", "BF16"), "BF16")
    assert found.tolist() == [1 + 2**-7, 1, 1, 1 + 2**-6]
    assert numbers(cast_bits(beside[:1].astype("<f4").view("<u4"), "F32", "BF16"), "BF16") == 1


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
def test_float64_of_a_float32_becomes_what_torch_makes_of_it(values):
    """Property: torch rounds by way of float32, which then changes nothing."""
    for target in TARGETS:
        expected = torch.tensor(values, dtype=torch.float64).to(TORCH[target])
        kept = [
            v for v, e in zip(values, expected.tolist(), strict=True) if math.isfinite(e) or v == e
        ]
        if kept:
            bits = np.array(kept, dtype="<f8").view("<u8")
            again = torch.tensor(kept, dtype=torch.float64).to(TORCH[target])
            assert (cast_bits(bits, "F64", target) == bits_of(again)).all()


# From half a step beyond the largest number on, the nearest one is infinity.
HALF, BRAIN, SINGLE = 65520.0, 2.0**128 - 2.0**119, 2.0**128 - 2.0**103


@pytest.mark.parametrize(
    ("source", "target", "fits", "too_large"),
    [
        ("BF16", "F16", 65280.0, (2.0**16, TARGETS["BF16"])),
        ("F32", "F16", HALF - 2.0**-8, (HALF, TARGETS["F32"])),
        ("F64", "F16", math.nextafter(HALF, 0), (HALF, 1e300)),
        ("F32", "BF16", BRAIN - 2.0**104, (BRAIN, TARGETS["F32"])),
        ("F64", "BF16", math.nextafter(BRAIN, 0), (BRAIN, SINGLE, 1e300)),
        ("F64", "F32", math.nextafter(SINGLE, 0), (SINGLE, 1e300)),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_number_too_large_for_the_target_is_refused(source, target, fits, too_large, sign):
    found = numbers(cast_bits(pattern([sign * fits, 1.0], source), source, target), target)
    assert found.tolist() == [sign * rounded(fits, target), 1.0]
    infinity = pattern([math.inf], source)
    for value in too_large:
        # Infinity and NaN that were there before neither hide it nor count.
        bits = np.concatenate([infinity, infinity | 1, pattern([1.0, sign * value], source)])
        message = re.escape(f"holds {sign * value:g}, which a cast")
        with pytest.raises(CastOverflowError, match=message) as caught:
            cast_bits(bits, source, target)
        assert caught.value.value == sign * value


def test_dtypes_that_hold_a_number():
    assert wide_enough(-65505.0) == ("bfloat16", "float32")
    assert wide_enough(TARGETS["F32"]) == ("float32",)
    assert wide_enough(-1e300) == ()


@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS))
def test_only_plain_floats_are_cast(dtype):
    cast_to = "BF16" if dtype in ("BF16", "F16", "F32", "F64") else dtype
    assert cast_dtype(dtype, "BF16") == cast_to
    assert cast_dtype(dtype, None) == dtype
