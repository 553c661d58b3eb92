"""Casts of floating-point numbers, rounded once to nearest even, with numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dflash_pack.checkpoint import DTYPE_NAMES
from dflash_pack.finite_scan import all_finite

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Dtypes that weights can be cast to, and the largest finite number of each.
TARGETS: Mapping[str, float] = {
    "BF16": float.fromhex("0x1.fep127"),
    "F16": 65504.0,
    "F32": float.fromhex("0x1.fffffep127"),
}
# Codes that can be cast; all others are integers, scaled or packed, and are no plain numbers.
CASTABLE = frozenset({*TARGETS, "F64"})

_UNSIGNED = {"BF16": "<u2", "F16": "<u2", "F32": "<u4", "F64": "<u8"}
_FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


class CastOverflowError(ArithmeticError):
    """A finite number would become infinite.

    Args:
        value: The number.
        target: Code of the dtype that can't hold it.
    """

    def __init__(self, value: float, target: str) -> None:
        self.value = value
        super().__init__(
            f"holds {value:g}, which a cast to {DTYPE_NAMES[target]} would make infinite (its "
            f"largest number is {TARGETS[target]:g})"
        )


def cast_dtype(dtype: str, target: str | None) -> str:
    """Return what becomes of the dtype code ``dtype`` when weights are cast to ``target``."""
    return target if target is not None and dtype in CASTABLE else dtype


def wide_enough(value: float) -> tuple[str, ...]:
    """Return the names of the dtypes that can be cast to and hold ``value``."""
    return tuple(DTYPE_NAMES[code] for code, largest in TARGETS.items() if abs(value) <= largest)


def cast(data: memoryview, source: str, target: str) -> memoryview:
    """Return the numbers in ``data`` as little-endian bytes of another dtype.

    Each number is rounded once, to the nearest and to even on a tie. NaN stays NaN (its sign and
    the upper bits of its payload too, where both have a place), infinity stays infinity.

    Args:
        data: Little-endian numbers, at least one.
        source: Their dtype code, one of :data:`CASTABLE`.
        target: Code of the result, one of :data:`TARGETS`.

    Raises:
        CastOverflowError: A finite number is beyond the largest one of ``target``.
    """
    import numpy as np

    bits = np.frombuffer(data, dtype=_UNSIGNED[source])
    with np.errstate(all="ignore"):
        result = _cast(bits, source, target)
        if not all_finite(result, target):
            _require_no_overflow(bits, source, result, target)
    return result.view(np.uint8).data


def _cast(bits: NDArray[Any], source: str, target: str) -> NDArray[Any]:
    """Return the bit patterns of ``target``, infinite where a number is too large."""
    values = _numbers(bits, source)
    if target != "BF16":
        return values.astype(_FLOATS[target]).view(_UNSIGNED[target])
    if source == "F64":
        return _to_bfloat16(_to_odd_float32(values))
    return _to_bfloat16(values.astype("<f4", copy=False))


def _numbers(bits: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return bit patterns as numpy's floats; BF16, which it lacks, as float32: its upper half."""
    if dtype == "BF16":
        return (bits.astype("<u4") << 16).view("<f4")
    return bits.view(_FLOATS[dtype])


def _to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return float32 numbers rounded to the nearest BF16, to even on a tie, as bit patterns."""
    import numpy as np

    bits = values.view("<u4")
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    result = rounded.astype("<u2")
    if not all_finite(bits, "F32"):
        nan = np.isnan(values)
        # The sum may have carried into the sign; the highest bit of the payload keeps a NaN one.
        result[nan] = (bits[nan] >> 16) | 0x0040
    return result


def _to_odd_float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return float64 numbers cut to float32, the last bit set wherever anything was cut off.

    Rounding that to BF16 gives what rounding once would: the last bit stands for all that lay
    below, so that a number beside a tie never looks like the tie (rounding to odd).
    """
    import numpy as np

    nearest = values.astype("<f4")
    back = nearest.astype("<f8")
    bits = nearest.view("<u4")
    # One step towards zero where rounding went away from it; infinity becomes the largest number.
    bits -= np.abs(back) > np.abs(values)
    bits |= back != values
    return nearest


def _require_no_overflow(
    bits: NDArray[Any], source: str, result: NDArray[Any], target: str
) -> None:
    import numpy as np

    values = _numbers(bits, source)
    lost = np.isfinite(values) & np.isinf(_numbers(result, target))
    if lost.any():
        raise CastOverflowError(float(values[lost.argmax()]), target)
