"""The exact tensor set of a quantised drafter: each weight plain, or packed with its companions.

Which companions a packed weight has is in :mod:`dflash_pack.quantized_schemes`, with the sources.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from dflash_pack.checkpoint import DTYPE_NAMES, TensorSpec
from dflash_pack.drafter import Drafter, core_tensor_shapes
from dflash_pack.quantized_schemes import (
    SCALAR,
    SCALE_DTYPES,
    Axis,
    PackedLinear,
    Part,
    packing_problems,
)

_FLOATS = tuple(DTYPE_NAMES)
# speculators 0.9, model.py: engines add d2t to draft ids, t2d marks the target ids that have one.
_MAP_DTYPES: Mapping[str, tuple[str, ...]] = {"d2t": ("I64",), "t2d": ("BOOL",)}
_WEIGHT = ".weight"
# Scales of queries, keys and values that stand beside a projection's weight.
_PROJECTION_SCALES = (
    *("k_proj.k_scale", "v_proj.v_scale", "qkv_proj.k_scale", "qkv_proj.v_scale"),
    *("q_proj.output_scale", "k_proj.output_scale", "v_proj.output_scale"),
)


def quantised_problems(drafter: Drafter, tensors: Mapping[str, TensorSpec]) -> tuple[str, ...]:
    """Return one sentence per tensor that is missing, too many or of an impossible dtype or shape.

    Only matrices named ``weight`` are packed; all else is plain: floats, d2t int64 and t2d bool.

    Args:
        drafter: A drafter whose weights are quantised, some or all of them.
        tensors: Canonical name -> spec.
    """
    expected = core_tensor_shapes(drafter)
    cache_scales = _cache_scales(drafter, expected)
    problems = [
        problem
        for name, part in cache_scales.items()
        if name in tensors
        if (problem := part.problem(name, tensors[name], "for the KV cache"))
    ]
    used = tensors.keys() & (expected.keys() | cache_scales.keys())
    around = _by_module(tensors, used)
    any_packed = False
    for name, shape in expected.items():
        spec = tensors.get(name)
        if not _may_be_packed(name, shape) or (spec is not None and spec.dtype in _FLOATS):
            problems += _plain_problems(name, shape, spec)
            continue
        module = name.removesuffix(_WEIGHT)
        found = around.get(module, {}) | ({} if spec is None else {"weight": spec})
        packing = packing_problems(PackedLinear(module, shape[0], shape[1], found))
        if packing is None:
            problems.append(_missing(name))
            continue
        any_packed = True
        used |= {f"{module}.{part}" for part in found}
        problems += packing
    if not any_packed:
        problems.append("quantised weights are stated, but every weight is plain")
    stray = sorted(tensors.keys() - used)
    if stray:
        shown = ", ".join(stray[:4]) + (", ..." if len(stray) > 4 else "")
        problems.append(f"{len(stray)} tensors belong to no packed weight: {shown}")
    return tuple(problems)


def _may_be_packed(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether engines read that tensor packed: linear and embedding weights, no norms."""
    return name.endswith(_WEIGHT) and len(shape) == 2


def _plain_problems(name: str, shape: tuple[int, ...], spec: TensorSpec | None) -> list[str]:
    if spec is None:
        return [_missing(name)]
    part = Part(_MAP_DTYPES.get(name, _FLOATS), (tuple(Axis(size) for size in shape),))
    problem = part.problem(name, spec, "unquantised")
    return [] if problem is None else [problem]


def _missing(name: str) -> str:
    return f"{name} is missing, plain and packed"


def _by_module(
    tensors: Mapping[str, TensorSpec], used: Container[str]
) -> dict[str, dict[str, TensorSpec]]:
    """Return module -> part -> spec of all tensors that are not ``used`` for something else."""
    modules: dict[str, dict[str, TensorSpec]] = {}
    for name, spec in tensors.items():
        if name not in used:
            module, _, part = name.rpartition(".")
            modules.setdefault(module, {})[part] = spec
    return modules


def _cache_scales(drafter: Drafter, expected: Container[str]) -> dict[str, Part]:
    """Return the scales of queries, keys and values that a layer may have, packed or not.

    modelopt 0.47, torch/export/quant_utils.py, writes k_proj.k_scale and v_proj.v_scale. vllm 0.32,
    quantization/base_config.py, get_cache_scale_mapper, reads them there, on a fused qkv_proj and
    on the attention itself, where compressed-tensors has them per tensor or [heads, 1, 1], beside
    zero points that vllm does not use; its fp8.py and quark.py read output_scale of a projection.
    q_proj.q_scale is none of them: no one writes it, and vllm stops at it.
    """
    g = drafter.geometry
    heads = {"q": g.num_attention_heads, "k": g.num_key_value_heads, "v": g.num_key_value_heads}
    parts: dict[str, Part] = {}
    for index in range(len(drafter.layers)):
        attention = f"layers.{index}.self_attn."
        for letter, count in heads.items():
            shapes = (*SCALAR, (Axis(count),), (Axis(count), Axis(1), Axis(1)))
            zeros = ("I8", "F8_E4M3", *SCALE_DTYPES)
            parts[f"{attention}{letter}_scale"] = Part(SCALE_DTYPES, shapes)
            parts[f"{attention}{letter}_zero_point"] = Part(zeros, shapes)
        for scale in _PROJECTION_SCALES:
            if attention + scale.partition(".")[0] + _WEIGHT in expected:
                parts[attention + scale] = Part(SCALE_DTYPES, SCALAR)
    return parts
