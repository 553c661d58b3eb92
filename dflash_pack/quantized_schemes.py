"""How linear weights [out, in] are packed: dtype and shape of each part, scheme by scheme.

Sources: vllm 0.32 (files below model_executor/layers/quantization), which says what is loaded;
nvidia-modelopt 0.47 (torch/export/unified_export_hf.py, quant_utils.py) and compressed-tensors 0.17
(compressors), which say what is written. vllm leaves a parameter that the files lack as it was
allocated, so a part that it registers is needed here unless its kernels ignore it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from dflash_pack.checkpoint import TensorSpec

SCALE_DTYPES = ("F32", "BF16", "F16")
_E8M0 = ("F8_E8M0",)
# vllm keeps E8M0 exponents in bytes, and so do modelopt and compressed-tensors.
_EXPONENTS = ("U8", "F8_E8M0")
_FP8 = ("F8_E4M3",)
_MX_GROUP = 32
_INT32_BITS = 32


@dataclass(frozen=True)
class Axis:
    """Sizes that one axis of a part may have.

    Attributes:
        size: Size of the axis that is covered.
        per: How much of it one entry covers, where the split is even; it must divide ``size``.
        split: ``even``; ``groups``, any number that divides ``size``; ``blocks``, the number of
            blocks of any one length over 1, the last of which may be short.
    """

    size: int
    per: int = 1
    split: Literal["even", "groups", "blocks"] = "even"

    def holds(self, entries: int) -> bool:
        """Return whether the axis may have that many entries."""
        if self.split == "even":
            return entries * self.per == self.size
        if not 0 < entries <= self.size:
            return False
        if self.split == "groups":
            return self.size % entries == 0
        length = _blocks(self.size, entries)
        return _blocks(self.size, length) == entries and (length > 1 or self.size == 1)

    def __str__(self) -> str:
        if self.split != "even":
            return f"{self.split} of {self.size}"
        whole, rest = divmod(self.size, self.per)
        return f"{self.size}/{self.per}" if rest else str(whole)


Shape = tuple[Axis, ...]
_ONE = Axis(1)
SCALAR: tuple[Shape, ...] = ((), (_ONE,))


@dataclass(frozen=True)
class Part:
    """What one tensor must be.

    Attributes:
        dtypes: Dtypes it may have.
        shapes: Shapes it may have.
        needed: Whether the set is incomplete without it.
    """

    dtypes: tuple[str, ...]
    shapes: tuple[Shape, ...]
    needed: bool = True

    def problem(self, name: str, spec: TensorSpec, where: str) -> str | None:
        """Return what is wrong with ``spec`` as a sentence, None if nothing is.

        Args:
            name: Name of the tensor.
            spec: What it has.
            where: Words for what asks for the part, e.g. ``in NVFP4``.
        """
        shape_fits = any(_matches(shape, spec.shape) for shape in self.shapes)
        dtypes = _alternatives(self.dtypes)
        shapes = _alternatives([f"[{', '.join(map(str, shape))}]" for shape in self.shapes])
        if spec.dtype not in self.dtypes and not shape_fits:
            has, must = f"dtype {spec.dtype} and shape {list(spec.shape)}", f"{dtypes} of {shapes}"
        elif spec.dtype not in self.dtypes:
            has, must = f"dtype {spec.dtype}", dtypes
        elif not shape_fits:
            has, must = f"shape {list(spec.shape)}", shapes
        else:
            return None
        return f"{name} has {has}, but {where} it must be {must}"


@dataclass(frozen=True)
class PackedLinear:
    """One linear layer as the files have it.

    Attributes:
        name: Its name, to which the names of the parts are added.
        out_features: Rows of the weight before packing.
        in_features: Its columns.
        found: Part -> spec of every tensor that is there for this weight.
    """

    name: str
    out_features: int
    in_features: int
    found: Mapping[str, TensorSpec]

    @property
    def rows(self) -> Axis:
        """One entry per output."""
        return Axis(self.out_features)

    @property
    def columns(self) -> Axis:
        """One entry per input."""
        return Axis(self.in_features)

    def groups(self, scale: str, position: int) -> Axis:
        """Return the groups of inputs that the part ``scale`` has, any where it is no guide.

        Args:
            scale: The part that says how many groups there are.
            position: Which axis of it runs over the groups.
        """
        free = Axis(self.in_features, split="groups")
        spec = self.found.get(scale)
        if spec is None or len(spec.shape) <= position or not free.holds(spec.shape[position]):
            return free
        return Axis(spec.shape[position])


@dataclass(frozen=True)
class Scheme:
    """One way of packing.

    Attributes:
        name: Its name in messages.
        main: Part that holds the numbers.
        parts: Part -> what it must be, for one layer.
    """

    name: str
    main: str
    parts: Callable[[PackedLinear], Mapping[str, Part]]

    def takes(self, linear: PackedLinear) -> bool:
        """Return whether the numbers of ``linear`` have this scheme's name and dtype."""
        spec = linear.found.get(self.main)
        return spec is not None and spec.dtype in self.parts(linear)[self.main].dtypes

    def problems(self, linear: PackedLinear) -> tuple[str, ...]:
        """Return one sentence per part that is missing, wrong or too many."""
        parts = self.parts(linear)
        problems: list[str] = []
        for name, part in parts.items():
            spec = linear.found.get(name)
            if spec is not None:
                problem = part.problem(f"{linear.name}.{name}", spec, f"in {self.name}")
                problems += [] if problem is None else [problem]
            elif part.needed:
                problems.append(f"{linear.name}.{name} is missing beside {linear.name}.{self.main}")
        problems += [
            f"{linear.name}.{name} has no place beside {linear.name}.{self.main} in {self.name}"
            for name in sorted(linear.found.keys() - parts.keys())
        ]
        return tuple(problems)


def packing_problems(linear: PackedLinear) -> tuple[str, ...] | None:
    """Return what is wrong with ``linear`` in the scheme that it comes nearest to.

    Returns:
        One sentence per part, none if all parts fit one scheme; None where nothing is there that
        could hold the numbers.
    """
    found = [scheme.problems(linear) for scheme in SCHEMES if scheme.takes(linear)]
    if found:
        return min(found, key=len)
    mains = dict.fromkeys(scheme.main for scheme in SCHEMES if scheme.main in linear.found)
    unreadable = tuple(
        f"{linear.name}.{main} has dtype {linear.found[main].dtype}, in which no weight is packed"
        for main in mains
    )
    return unreadable or None


def _blocks(size: int, length: int) -> int:
    return -(-size // length)


def _matches(shape: Shape, found: tuple[int, ...]) -> bool:
    return len(shape) == len(found) and all(
        axis.holds(size) for axis, size in zip(shape, found, strict=True)
    )


def _alternatives(words: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(words))
    return " or ".join([", ".join(distinct[:-1]), distinct[-1]] if distinct[1:] else distinct)


def _optional(dtypes: tuple[str, ...], *shapes: Shape) -> Part:
    return Part(dtypes, shapes, needed=False)


def _of_inputs(linear: PackedLinear) -> dict[str, Part]:
    """Return the static scale of the inputs and the smoothing factors that modelopt keeps.

    modelopt, unified_export_hf.py: input_scale is squeezed, pre_quant_scale has one entry per
    input; compressed-tensors, quantization/lifecycle/initialize.py: [1].
    """
    return {
        "input_scale": _optional(SCALE_DTYPES, *SCALAR),
        "pre_quant_scale": _optional(SCALE_DTYPES, (linear.columns,)),
    }


def _block_grids(linear: PackedLinear) -> tuple[Shape, ...]:
    """Return the grids of block scales: [out blocks, in blocks], in modelopt with 1s between.

    vllm, utils/fp8_utils.py, create_fp8_scale_parameter; modelopt.py, KFp8Block128.
    """
    rows = Axis(linear.out_features, split="blocks")
    columns = Axis(linear.in_features, split="blocks")
    return ((rows, columns), (rows, _ONE, columns, _ONE))


def _fp8(linear: PackedLinear) -> dict[str, Part]:
    """Scales per tensor, per output or per block: vllm, fp8.py, modelopt.py, w8a8_fp8 schemes."""
    per_output = ((linear.rows,), (linear.rows, _ONE))
    return {
        "weight": Part(_FP8, ((linear.rows, linear.columns),)),
        "weight_scale": Part(SCALE_DTYPES, (*SCALAR, *per_output, *_block_grids(linear))),
        **_of_inputs(linear),
    }


def _fp8_exponents(linear: PackedLinear) -> dict[str, Part]:
    """Block scales that are powers of two: vllm, quark/schemes/quark_w8a8_fp8.py."""
    return {
        "weight": Part(_FP8, ((linear.rows, linear.columns),)),
        "weight_scale": Part(_E8M0, _block_grids(linear)),
    }


def _fp8_inverse(linear: PackedLinear) -> dict[str, Part]:
    """Block scales under DeepSeek's name: vllm, fp8.py, which has it for blocks only."""
    grid, _ = _block_grids(linear)
    return {
        "weight": Part(_FP8, ((linear.rows, linear.columns),)),
        "weight_scale_inv": Part((*SCALE_DTYPES, *_E8M0), (grid,)),
        **_of_inputs(linear),
    }


def _mxfp8(linear: PackedLinear) -> dict[str, Part]:
    """One exponent per 32 inputs and per row, or per R rows: vllm, modelopt.py, KMxfp8Static."""
    rows = Axis(linear.out_features, split="groups")
    columns = Axis(linear.in_features, _MX_GROUP)
    return {
        "weight": Part(_FP8, ((linear.rows, linear.columns),)),
        "weight_scale": Part(_EXPONENTS, ((rows, columns),)),
    }


def _int8(linear: PackedLinear) -> dict[str, Part]:
    """vllm, compressed_tensors_w8a8_int8.py, w4a8_int.py, wNa8o8.py, quark_w8a8_int8.py.

    Scales per tensor, per output or per group of inputs; modelopt's INT8 has them per output.
    """
    groups = linear.groups("weight_scale", 1)
    scales = (*SCALAR, (linear.rows,), (linear.rows, groups))
    return {
        "weight": Part(("I8",), ((linear.rows, linear.columns),)),
        "weight_scale": Part(SCALE_DTYPES, scales),
        "weight_zero_point": _optional(("I8",), *_same_shape(linear, "weight_scale", scales)),
        "weight_g_idx": _optional(("I32",), (linear.columns,)),
        "input_zero_point": _optional(("I8",), *SCALAR),
        "output_scale": _optional(SCALE_DTYPES, *SCALAR),
        **_of_inputs(linear),
    }


def _same_shape(
    linear: PackedLinear, other: str, otherwise: tuple[Shape, ...]
) -> tuple[Shape, ...]:
    spec = linear.found.get(other)
    if spec is None:
        return otherwise
    return (tuple(Axis(size) for size in spec.shape),)


def _fp4_numbers(linear: PackedLinear, main: str) -> Part:
    """Two numbers a byte along the inputs, or each an element of safetensors' 4-bit dtype."""
    spec = linear.found.get(main)
    if spec is not None and spec.dtype == "F4":
        return Part(("F4",), ((linear.rows, linear.columns),))
    return Part(("U8",), ((linear.rows, Axis(linear.in_features, 2)),))


def _nvfp4(linear: PackedLinear) -> dict[str, Part]:
    """vllm, modelopt.py, KNvfp4Static; quark/schemes/quark_nvfp4.py, which adds input_scale_2.

    Groups of 16; of 32 in modelopt's W4A8_NVFP4_FP8 (recipes, configs/numerics/nvfp4_bs32.yaml).
    """
    groups = tuple((linear.rows, Axis(linear.in_features, size)) for size in (16, 32))
    return {
        "weight": _fp4_numbers(linear, "weight"),
        "weight_scale": Part(_FP8, groups),
        "weight_scale_2": Part(("F32",), SCALAR),
        "input_scale_2": _optional(("F32",), *SCALAR),
        **_of_inputs(linear),
    }


def _mxfp4(linear: PackedLinear) -> dict[str, Part]:
    """modelopt, MXFP4 and W4A8_MXFP4_FP8; vllm, quark/schemes/quark_ocp_mx.py. No second scale."""
    return {
        "weight": _fp4_numbers(linear, "weight"),
        "weight_scale": Part(_EXPONENTS, ((linear.rows, Axis(linear.in_features, _MX_GROUP)),)),
        **_of_inputs(linear),
    }


def _modelopt_int4(linear: PackedLinear) -> dict[str, Part]:
    """W4A16_AWQ and W4A8_AWQ pack pairs of outputs: modelopt, quant_utils.py, pack_int4_in_uint8.

    W4A8_AWQ has weight_scale_2 and input_scale.
    """
    return {
        "weight": Part(("U8",), ((Axis(linear.out_features, 2), linear.columns),)),
        "weight_scale": Part(SCALE_DTYPES, ((linear.rows, linear.groups("weight_scale", 1)),)),
        "weight_scale_2": _optional(SCALE_DTYPES, *SCALAR),
        **_of_inputs(linear),
    }


def _compressed_nvfp4(linear: PackedLinear) -> dict[str, Part]:
    """vllm, compressed_tensors_w4a4_nvfp4.py, with input_global_scale unless weights only."""
    return {
        "weight_packed": _fp4_numbers(linear, "weight_packed"),
        "weight_scale": Part(_FP8, ((linear.rows, Axis(linear.in_features, 16)),)),
        "weight_global_scale": Part(("F32",), SCALAR),
        "input_global_scale": _optional(("F32",), *SCALAR),
    }


def _compressed_mxfp4(linear: PackedLinear) -> dict[str, Part]:
    """vllm, compressed_tensors_w4a4_mxfp4.py and w4a8_mxfp4.py: no global scale."""
    return {
        "weight_packed": _fp4_numbers(linear, "weight_packed"),
        "weight_scale": Part(_EXPONENTS, ((linear.rows, Axis(linear.in_features, _MX_GROUP)),)),
    }


def _packed_lengths(size: int, bits: int) -> tuple[Axis, ...]:
    """Return the int32s that ``size`` numbers take.

    compressed-tensors, pack_quantized/helpers.py, leaves the bits of an int32 that hold no whole
    number unused; vllm, compressed_tensors_wNa16.py, allocates none for them.
    """
    return Axis(_blocks(size, _INT32_BITS // bits)), Axis(_blocks(size * bits, _INT32_BITS))


def _compressed_int(bits: int, linear: PackedLinear) -> dict[str, Part]:
    """vllm, compressed_tensors_wNa16.py, wNa8.py, wNa8o8.py; compressed-tensors, pack_quantized.

    weight_zero_point is packed along the outputs, weight_g_idx orders inputs by activation.
    """
    groups = linear.groups("weight_scale", 1)
    numbers = tuple((linear.rows, n) for n in _packed_lengths(linear.in_features, bits))
    zeros = tuple((n, groups) for n in _packed_lengths(linear.out_features, bits))
    return {
        "weight_packed": Part(("I32",), numbers),
        "weight_scale": Part(SCALE_DTYPES, ((linear.rows, groups),)),
        "weight_shape": Part(("I64", "I32"), ((Axis(2),),)),
        "weight_zero_point": _optional(("I32",), *zeros),
        "weight_g_idx": _optional(("I32",), (linear.columns,)),
        "input_scale": _optional(SCALE_DTYPES, *SCALAR),
        "input_global_scale": _optional(("F32",), *SCALAR),
        "output_scale": _optional(SCALE_DTYPES, *SCALAR),
    }


def _awq(linear: PackedLinear) -> dict[str, Part]:
    """8 outputs in an int32: vllm, auto_awq.py, which takes 4 bits only."""
    groups, packed = linear.groups("scales", 0), Axis(linear.out_features, 8)
    return {
        "qweight": Part(("I32",), ((linear.columns, packed),)),
        "scales": Part(SCALE_DTYPES, ((groups, linear.rows),)),
        "qzeros": Part(("I32",), ((groups, packed),)),
    }


def _gptq(bits: int, linear: PackedLinear) -> dict[str, Part]:
    """Inputs packed: vllm, auto_gptq.py, whose kernels ignore qzeros, as its loader does g_idx."""
    groups = linear.groups("scales", 0)
    packed = Axis(linear.in_features * bits, _INT32_BITS)
    zeros = Axis(linear.out_features * bits, _INT32_BITS)
    return {
        "qweight": Part(("I32",), ((packed, linear.rows),)),
        "scales": Part(SCALE_DTYPES, ((groups, linear.rows),)),
        "qzeros": _optional(("I32",), (groups, zeros)),
        "g_idx": _optional(("I32",), (linear.columns,)),
    }


# Of schemes that fit equally badly the first one words the problems.
SCHEMES = (
    Scheme("FP8", "weight", _fp8),
    Scheme("FP8 with exponents as block scales", "weight", _fp8_exponents),
    Scheme("FP8 with weight_scale_inv", "weight", _fp8_inverse),
    Scheme("MXFP8", "weight", _mxfp8),
    Scheme("INT8", "weight", _int8),
    Scheme("NVFP4", "weight", _nvfp4),
    Scheme("MXFP4", "weight", _mxfp4),
    Scheme("ModelOpt's INT4", "weight", _modelopt_int4),
    Scheme("packed NVFP4", "weight_packed", _compressed_nvfp4),
    Scheme("packed MXFP4", "weight_packed", _compressed_mxfp4),
    *(
        Scheme(f"packed INT{bits}", "weight_packed", partial(_compressed_int, bits))
        for bits in (4, 8, 2, 3, 5, 6, 7)
    ),
    Scheme("AWQ", "qweight", _awq),
    *(Scheme(f"GPTQ of {bits} bits", "qweight", partial(_gptq, bits)) for bits in (4, 8, 2, 3)),
)
