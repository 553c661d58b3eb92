"""What a torch pickle describes, told without unpickling: nothing that it names is ever called.

Of the opcodes that ``torch.save`` writes (those that torch 2.13 takes with ``weights_only``,
torch/_weights_only_unpickler.py) plain values are built; tensors become a description of where
their numbers lie, and every other object a marker.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Python takes about a microsecond for each; a tensor needs some forty.
MAX_OPCODES = 500_000
MAX_DIMENSIONS = 64
MAX_INDEX = 1 << 31

# Safetensors code of each storage class and of the dtypes that have none (torch/storage.py).
_STORAGES: Mapping[str, str] = {
    "torch BFloat16Storage": "BF16",
    "torch BoolStorage": "BOOL",
    "torch ByteStorage": "U8",
    "torch CharStorage": "I8",
    "torch ComplexFloatStorage": "C64",
    "torch DoubleStorage": "F64",
    "torch FloatStorage": "F32",
    "torch HalfStorage": "F16",
    "torch IntStorage": "I32",
    "torch LongStorage": "I64",
    "torch ShortStorage": "I16",
}
_BYTES = "torch.storage UntypedStorage"
_DTYPES: Mapping[str, str] = {
    "torch bfloat16": "BF16",
    "torch bool": "BOOL",
    "torch complex64": "C64",
    "torch float16": "F16",
    "torch float32": "F32",
    "torch float64": "F64",
    "torch float8_e4m3fn": "F8_E4M3",
    "torch float8_e4m3fnuz": "F8_E4M3FNUZ",
    "torch float8_e5m2": "F8_E5M2",
    "torch float8_e5m2fnuz": "F8_E5M2FNUZ",
    "torch float8_e8m0fnu": "F8_E8M0",
    "torch int16": "I16",
    "torch int32": "I32",
    "torch int64": "I64",
    "torch int8": "I8",
    "torch uint16": "U16",
    "torch uint32": "U32",
    "torch uint64": "U64",
    "torch uint8": "U8",
}
_V2, _V3 = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3"
_PARAMETERS = frozenset(
    {"torch._utils _rebuild_parameter", "torch._utils _rebuild_parameter_with_state"}
)
_DICT, _SHAPE = "collections OrderedDict", "torch Size"
# Everything that a checkpoint of tensors, numbers and texts names; torch.load(weights_only=True)
# takes all of it too.
HARMLESS: frozenset[str] = frozenset(
    {
        *_STORAGES,
        *_DTYPES,
        *_PARAMETERS,
        _BYTES,
        _V2,
        _V3,
        _DICT,
        _SHAPE,
        "torch device",
        "_codecs encode",
        "__builtin__ set",
        "__builtin__ complex",
    }
)


@dataclass(frozen=True)
class Storage:
    """A run of numbers in the archive.

    Attributes:
        key: Name of its record.
        dtype: Safetensors code; None for plain bytes.
        count: Number of elements, of bytes where ``dtype`` is None.
    """

    key: str
    dtype: str | None
    count: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor, described.

    Attributes:
        storage: What its numbers are part of.
        dtype: Safetensors code.
        start: Index of its first element in the storage.
        shape: Size of each dimension.
        stride: Elements from one index to the next, by dimension.
    """

    storage: Storage
    dtype: str
    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Unread:
    """Stands for an object that is neither a plain value nor a tensor."""


@dataclass(frozen=True)
class _Name:
    """A global, named and never looked up."""

    name: str


def named_globals(data: bytes) -> set[str]:
    """Return every global that the pickle names, as ``module name``.

    Raises:
        ValueError: If it is no pickle, or too long.
    """
    found: set[str] = set()
    for name, argument in _opcodes(data):
        if name in ("GLOBAL", "INST"):
            found.add(str(argument))
        elif name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4"):
            # torch.save never writes these, and their names can be hidden in the memo.
            found.add(f"a hidden name ({name})")
    return found


def describe_pickle(data: bytes) -> Any:
    """Return what the pickle builds, made of plain values, :class:`StoredTensor` and ``Unread``.

    Dictionaries, ordered or not, become ``dict``; a key that is no text or index an ``Unread``.

    Raises:
        ValueError: If it is malformed, too long, or uses an opcode that ``torch.save`` does not
            write.
    """
    machine = _Machine()
    try:
        for name, argument in _opcodes(data):
            if name == "STOP":
                return machine.pop()
            machine.run(name, argument)
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("its pickle is malformed") from error
    raise ValueError("its pickle has no end")


def _opcodes(data: bytes) -> Iterator[tuple[str, Any]]:
    for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if number >= MAX_OPCODES:
            raise ValueError("its pickle is too long")
        yield opcode.name, argument


class _Machine:
    """The pickle machine, less everything that looks up or calls."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._steps: Mapping[str, Callable[[Any], None]] = {
            "PROTO": lambda _: None,
            "NONE": self._push,
            "NEWTRUE": lambda _: self._push(True),
            "NEWFALSE": lambda _: self._push(False),
            "EMPTY_DICT": lambda _: self._push({}),
            "EMPTY_LIST": lambda _: self._push([]),
            "EMPTY_TUPLE": lambda _: self._push(()),
            "MARK": self._mark,
            "TUPLE": lambda _: self._push(tuple(self._to_mark())),
            "TUPLE1": lambda _: self._tuple(1),
            "TUPLE2": lambda _: self._tuple(2),
            "TUPLE3": lambda _: self._tuple(3),
            "APPEND": lambda _: self._extend([self.pop()]),
            "APPENDS": lambda _: self._extend(self._to_mark()),
            "SETITEM": lambda _: self._set_items(self._pop(2)),
            "SETITEMS": lambda _: self._set_items(self._to_mark()),
            "GLOBAL": lambda name: self._push(_Name(str(name))),
            "REDUCE": lambda _: self._reduce(),
            "BUILD": lambda _: self._build(),
            "BINPERSID": lambda _: self._push(_storage(self.pop())),
            **dict.fromkeys(("BINGET", "LONG_BINGET"), self._recall),
            **dict.fromkeys(("BINPUT", "LONG_BINPUT"), self._remember),
            **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1"), self._push),
            **dict.fromkeys(("BINFLOAT", "BINUNICODE"), self._push),
        }

    def run(self, name: str, argument: Any) -> None:
        """Do one step.

        Raises:
            ValueError: If it is none that ``torch.save`` writes.
        """
        step = self._steps.get(name)
        if step is None:
            raise ValueError(f"its pickle uses {name}, which torch.save does not write")
        step(argument)

    def pop(self) -> Any:
        """Return the value on top of the stack, taken off."""
        return self._stack.pop()

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _mark(self, _: Any) -> None:
        self._outer.append(self._stack)
        self._stack = []

    def _to_mark(self) -> list[Any]:
        items = self._stack
        self._stack = self._outer.pop()
        return items

    def _pop(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError
        items = self._stack[-count:]
        del self._stack[-count:]
        return items

    def _tuple(self, count: int) -> None:
        self._stack.append(tuple(self._pop(count)))

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise TypeError
        target.extend(items)

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise TypeError
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[key if _is_key(key) else Unread()] = value

    def _recall(self, number: int) -> None:
        self._stack.append(self._memo[number])

    def _remember(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def _reduce(self) -> None:
        made, arguments = self._pop(2)
        if not isinstance(made, _Name) or not isinstance(arguments, tuple):
            raise TypeError
        self._stack.append(_described(made.name, arguments))

    def _build(self) -> None:
        # The state of an OrderedDict is what modules add to it (versions), never its items.
        self.pop()
        if not isinstance(self._stack[-1], dict | Unread):
            raise TypeError


def _is_key(value: Any) -> bool:
    """Return whether a dict may have that key here: a text or a small number, as indices are.

    A few bytes can nest a tuple beyond any patience for its hash, and large numbers be chosen so
    that all have one hash, with which a dict takes quadratic time.
    """
    if isinstance(value, int):
        return abs(value) <= MAX_INDEX
    return value is None or isinstance(value, str)


def _described(name: str, arguments: tuple[Any, ...]) -> Any:
    """Return what stands for the object that ``name(*arguments)`` would make."""
    if name == _V2:
        storage, start, shape, stride = arguments[:4]
        _require_as_stored(arguments[6:])
        return _tensor(storage, storage.dtype, start, shape, stride)
    if name == _V3:
        storage, start, shape, stride = arguments[:4]
        _require_as_stored(arguments[7:])
        return _tensor(storage, _DTYPES[arguments[6].name], start, shape, stride)
    if name in _PARAMETERS:
        return arguments[0]
    if name == _SHAPE:
        return arguments[0]
    if name == _DICT and not arguments:
        return {}
    return Unread()


def _require_as_stored(metadata: tuple[Any, ...]) -> None:
    """Refuse a tensor whose numbers mean others: negated or conjugated when it is loaded.

    Source: torch 2.13, torch/_utils.py, ``set_tensor_metadata``.

    Raises:
        ValueError: If it carries any metadata.
    """
    if any(metadata):
        raise ValueError("it holds a tensor that is negated or conjugated on loading")


def _tensor(storage: Any, dtype: Any, start: Any, shape: Any, stride: Any) -> StoredTensor:
    sound = (
        isinstance(storage, Storage)
        and isinstance(dtype, str)
        and _are_sizes((start,))
        and _are_sizes(shape)
        and _are_sizes(stride)
        and len(shape) == len(stride)
    )
    if not sound:
        raise ValueError("it holds a tensor without a proper storage, shape or stride")
    return StoredTensor(storage, dtype, start, shape, stride)


def _storage(reference: Any) -> Storage:
    """Return the storage that a persistent id of torch (``persistent_id`` in torch.save) names."""
    kind, made, key, _, count = reference
    if kind != "storage" or not isinstance(key, str) or not _are_sizes((count,)):
        raise ValueError("it refers to something that is no storage")
    if made.name == _BYTES:
        return Storage(key, None, count)
    return Storage(key, _STORAGES[made.name], count)


def _are_sizes(values: Any) -> bool:
    return (
        isinstance(values, tuple)
        and len(values) <= MAX_DIMENSIONS
        and all(type(value) is int and 0 <= value < 1 << 63 for value in values)
    )
