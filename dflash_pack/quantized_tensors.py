"""The exact tensor set of a quantised drafter: each weight plain, or packed with its companions.

Sources: nvidia-modelopt 0.47 (export/quant_utils.py: fp8, NVFP4), compressed-tensors as vllm 0.32
loads it (model_executor/layers/quantization), AWQ and GPTQ (qweight, qzeros, scales).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from dflash_pack.checkpoint import TensorSpec
from dflash_pack.drafter import Drafter, core_tensor_shapes

_FLOATS = frozenset({"BF16", "F16", "F32", "F64"})
_FP8 = frozenset({"F8_E4M3", "F8_E5M2"})


@dataclass(frozen=True)
class _Scheme:
    """How one module's weight is packed.

    Attributes:
        main: Part that holds the packed numbers.
        dtypes: Dtypes it may have.
        per_byte: Weights in one byte; None where that depends on a bit width stated elsewhere.
        needs: Companions, of each group at least one.
        may: Further companions.
    """

    main: str
    dtypes: frozenset[str]
    per_byte: float | None
    needs: tuple[tuple[str, ...], ...]
    may: frozenset[str] = frozenset()


_SCHEMES = (
    _Scheme(
        "weight",
        _FP8,
        1,
        (("weight_scale", "weight_scale_inv"),),
        frozenset({"input_scale", "k_scale", "v_scale", "q_scale", "pre_quant_scale"}),
    ),
    _Scheme("weight", frozenset({"I8"}), 1, (("weight_scale",),), frozenset({"input_scale"})),
    _Scheme(
        "weight",
        frozenset({"U8", "F4"}),
        2,
        (("weight_scale",),),
        frozenset({"weight_scale_2", "input_scale", "pre_quant_scale", "k_scale", "v_scale"}),
    ),
    _Scheme(
        "weight_packed",
        frozenset({"I32", "U8"}),
        None,
        (("weight_scale",),),
        frozenset(
            {
                "weight_shape",
                "weight_zero_point",
                "weight_g_idx",
                "weight_global_scale",
                "input_global_scale",
                "input_scale",
            }
        ),
    ),
    _Scheme("qweight", frozenset({"I32"}), None, (("scales",),), frozenset({"qzeros", "g_idx"})),
)
_PARTS = frozenset(
    part
    for scheme in _SCHEMES
    for part in (scheme.main, *scheme.may, *(name for group in scheme.needs for name in group))
)


def quantised_problems(drafter: Drafter, tensors: Mapping[str, TensorSpec]) -> tuple[str, ...]:
    """Return one sentence per tensor that is missing, too many or of an impossible shape.

    Args:
        drafter: A drafter whose weights are quantised, some or all of them.
        tensors: Canonical name -> spec.
    """
    expected = core_tensor_shapes(drafter)
    problems: list[str] = []
    used: set[str] = set()
    any_packed = False
    for name, shape in expected.items():
        spec = tensors.get(name)
        if spec is not None and (spec.dtype in _FLOATS or not name.endswith(".weight")):
            used.add(name)
            if spec.shape != shape:
                problems.append(
                    f"{name} has shape {list(spec.shape)}, but the config means {list(shape)}"
                )
            continue
        module = name.removesuffix(".weight") if name.endswith(".weight") else None
        found = None if module is None else _packed(module, tensors)
        if module is None or found is None:
            problems.append(f"{name} is missing, plain and packed")
            continue
        scheme, parts = found
        any_packed = True
        used |= {f"{module}.{part}" for part in parts}
        problems += _scheme_problems(module, scheme, parts, shape, tensors)
    if not any_packed:
        problems.append("quantised weights are stated, but every weight is plain")
    stray = sorted(set(tensors) - used)
    if stray:
        shown = ", ".join(stray[:4]) + (", ..." if len(stray) > 4 else "")
        problems.append(f"{len(stray)} tensors belong to no packed weight: {shown}")
    return tuple(problems)


def _packed(
    module: str, tensors: Mapping[str, TensorSpec]
) -> tuple[_Scheme, frozenset[str]] | None:
    """Return the scheme that ``module`` is packed by and which of its parts are there."""
    present = frozenset(part for part in _PARTS if f"{module}.{part}" in tensors)
    for scheme in _SCHEMES:
        main = tensors.get(f"{module}.{scheme.main}")
        if main is not None and main.dtype in scheme.dtypes:
            known = {scheme.main, *scheme.may, *(n for group in scheme.needs for n in group)}
            return scheme, present & known
    return None


def _scheme_problems(
    module: str,
    scheme: _Scheme,
    parts: frozenset[str],
    shape: tuple[int, ...],
    tensors: Mapping[str, TensorSpec],
) -> list[str]:
    problems = [
        f"{module}.{' or '.join(group)} is missing beside {module}.{scheme.main}"
        for group in scheme.needs
        if parts.isdisjoint(group)
    ]
    spec = tensors[f"{module}.{scheme.main}"]
    per_byte = 1 if spec.dtype == "F4" else scheme.per_byte
    if per_byte is not None:
        rows = shape[:-1]
        packed = (*rows, int(shape[-1] // per_byte))
        if spec.shape != packed:
            problems.append(
                f"{module}.{scheme.main} has shape {list(spec.shape)}, but packed it is "
                f"{list(packed)}"
            )
    elif not _plausible(spec, shape):
        problems.append(
            f"{module}.{scheme.main} has shape {list(spec.shape)}, which holds no whole number of "
            f"bits for each weight of {list(shape)}"
        )
    return problems


def _plausible(spec: TensorSpec, shape: tuple[int, ...]) -> bool:
    """Return whether the packed tensor has 2, 3, 4 or 8 bits for each weight."""
    bits = prod(spec.shape) * (32 if spec.dtype == "I32" else 8)
    weights = prod(shape)
    return weights > 0 and bits % weights == 0 and bits // weights in (2, 3, 4, 8)
