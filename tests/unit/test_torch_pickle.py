"""Torch pickles: described as torch loads them, and nothing that they name ever happens."""

from __future__ import annotations

import collections
import io
import pickle
import struct
import time
import zipfile
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peak_memory import peak_mib
from torch_files import Runs, StorageMade, TensorMade, pickled, training_state

from dflash_pack.torch_pickle import (
    HARMLESS,
    MAX_OPCODES,
    Storage,
    StoredTensor,
    Unread,
    describe_pickle,
    named_globals,
)


def saved(value) -> bytes:
    """Return the pickle that torch.save writes of ``value``."""
    stream = io.BytesIO()
    torch.save(value, stream)
    with zipfile.ZipFile(stream) as archive:
        return archive.read("archive/data.pkl")


PLAIN = {
    "numbers": [0, 1, 255, 256, 65536, -1, 2**40, -(2**40), 2**300, 0.5, -1e300],
    "texts": ["", "dflash", "é", "\U0001f600", "x" * 300],
    "others": [None, True, False],
    "nested": {"a": [1, (2, 3), {"b": ()}], 5: {}, None: [[]]},
    "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), tuple(range(1000))),
    "long": list(range(3000)),
    "ordered": collections.OrderedDict(b=1, a=2),
    "repeated": [["x"]] * 3,
}


@pytest.mark.parametrize("value", PLAIN.values(), ids=PLAIN)
def test_plain_values_are_as_torch_loads_them(value):
    assert describe_pickle(saved(value)) == value


def test_the_size_of_a_tensor_is_a_tuple():
    assert describe_pickle(saved(torch.zeros(2, 3).shape)) == (2, 3)


@pytest.mark.parametrize(
    "value", [torch.device("cpu"), b"bytes", {1, 2}, 1j], ids=["device", "bytes", "set", "complex"]
)
def test_other_objects_are_named_harmless_and_not_read(value):
    data = saved([value, 7])
    assert named_globals(data) <= HARMLESS
    unread, number = describe_pickle(data)
    assert isinstance(unread, Unread)
    assert number == 7


CODES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}


@pytest.mark.parametrize(("dtype", "code"), CODES.items(), ids=map(str, CODES))
def test_a_tensor_is_described_whatever_its_dtype(dtype, code):
    data = saved(torch.zeros(2, 3, dtype=dtype))
    assert named_globals(data) <= HARMLESS
    tensor = describe_pickle(data)
    assert (tensor.dtype, tensor.start, tensor.shape, tensor.stride) == (code, 0, (2, 3), (3, 1))


@pytest.mark.parametrize(
    "make",
    [lambda t: t[1:], lambda t: t.T, lambda t: t[:, 1:2], lambda t: t.expand(2, 3, 4), torch.clone],
)
def test_views_keep_their_place_in_the_storage(make):
    view = make(torch.arange(12.0).reshape(3, 4))
    described = describe_pickle(saved(view))
    assert described.start == view.storage_offset()
    assert described.shape == tuple(view.shape)
    assert described.stride == view.stride()
    assert described.storage == Storage("0", "F32", 12)


def test_parameters_and_module_states_are_their_tensors():
    module = torch.nn.Linear(2, 3)
    module.weight.mark = "set by a trainer"
    state = describe_pickle(saved(module.state_dict()))
    assert {name: tensor.shape for name, tensor in state.items()} == {
        "weight": (3, 2),
        "bias": (3,),
    }
    described = describe_pickle(saved(dict(module.named_parameters())))
    assert all(isinstance(tensor, StoredTensor) for tensor in described.values())


def test_a_training_state_names_only_what_is_harmless():
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))])
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
    optimizer.step()
    state = training_state(replicated_optimizer_state=optimizer.state_dict())
    data = saved(state)
    assert named_globals(data) <= HARMLESS
    described = describe_pickle(data)
    assert described["dflash_target_layer_ids"] == (0, 2)
    assert described["replicated_optimizer_state"]["param_groups"][0]["lr"] == 1e-3


def test_nothing_that_a_pickle_names_runs(tmp_path):
    mark = tmp_path / "ran"
    data = pickled({"a": Runs(f"touch {mark}")})
    assert named_globals(data) == {"posix system"}
    assert isinstance(describe_pickle(data)["a"], Unread)
    assert not mark.exists()
    pickle.loads(data)
    assert mark.exists()


HIDDEN = {
    "protocol 4": pickled(Runs(), protocol=4),
    "an extension": b"\x80\x02\x82\x01.",
    "an old instance": b"(iposix\nsystem\n.",
}


@pytest.mark.parametrize("data", HIDDEN.values(), ids=HIDDEN)
def test_names_that_could_hide_are_found_and_refused(data):
    assert named_globals(data) - HARMLESS
    with pytest.raises(ValueError, match=r"which torch\.save does not write"):
        describe_pickle(data)


MALFORMED = {
    "empty": b"",
    "no end": b"\x80\x02N",
    "nothing on the stack": b"\x80\x02.",
    "a mark left open": b"\x80\x02(",
    "no mark": b"\x80\x02t.",
    "a tuple of nothing": b"\x80\x02\x85.",
    "an unknown memo": b"\x80\x02h\x05.",
    "an item without a key": b"\x80\x02}(Nu.",
    "an item of a list": b"\x80\x02](NNu.",
    "appending to a dict": b"\x80\x02}Na.",
    "calling a number": b"\x80\x02K\x01)R.",
    "calling with a number": b"\x80\x02ctorch\nSize\nK\x01R.",
    "a size of nothing": b"\x80\x02ctorch\nSize\n)R.",
    "state of a number": b"\x80\x02K\x01}b.",
    "a class made anew": b"\x80\x02ctorch\nTensor\n)\x81.",
    "a persistent number": b"\x80\x02K\x05Q.",
    "not utf-8": b"\x80\x02X\x01\x00\x00\x00\xff.",
    "an unknown opcode": b"\x80\x02\xff.",
    "a text cut": b"\x80\x02X\xff\xff\xff\x7fabc",
    "a tensor without arguments": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
    "a newer tensor without dtype": b"\x80\x02ctorch._utils\n_rebuild_tensor_v3\n)R.",
    "no storage": pickled(TensorMade(storage=5)),
    "a storage that is none": pickled(StorageMade(word="module")),
    "a storage class unknown": pickled(StorageMade(kind=torch.Tensor)),
    "a storage named by a number": pickled(StorageMade(key=5)),
    "a storage of half a number": pickled(StorageMade(count=0.5)),
    "a storage of less than nothing": pickled(StorageMade(count=-1)),
    "a storage counted by a truth": pickled(StorageMade(count=True)),
    "a negative start": pickled(TensorMade(start=-1)),
    "a negative size": pickled(TensorMade(shape=(-4,))),
    "a size of text": pickled(TensorMade(shape=("4",))),
    "a size as a list": pickled(TensorMade(shape=[4])),
    "an absurd size": pickled(TensorMade(shape=(1 << 63,))),
    "fewer strides than sizes": pickled(TensorMade(shape=(2, 2))),
    "too many dimensions": pickled(TensorMade(shape=(1,) * 65, stride=(1,) * 65)),
    "bytes without a dtype": pickled(
        TensorMade(storage=StorageMade(kind=torch.storage.UntypedStorage))
    ),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_pickles_are_a_value_error(data):
    with pytest.raises(ValueError, match=r"\w"):
        describe_pickle(data)


SOUND = saved(training_state())


@given(st.integers(0, len(SOUND) - 1), st.integers(0, 255))
def test_any_changed_byte_gives_a_value_or_a_value_error(place, byte):
    changed = SOUND[:place] + bytes([byte]) + SOUND[place + 1 :]
    try:
        named_globals(changed)
        describe_pickle(changed)
    except ValueError:
        pass


def test_a_pickle_of_too_many_steps_is_refused_at_once():
    data = b"\x80\x02" + b"]" * MAX_OPCODES + b"."
    started = time.process_time()
    with pytest.raises(ValueError, match="too long"):
        describe_pickle(data)
    assert time.process_time() - started < 10


def colliding_keys(count: int = 40_000) -> Iterator[bytes]:
    """Yield dicts whose keys, integers or floats, all have one hash: of the prime of Python's."""
    prime = (1 << 61) - 1
    for code in ("integer", "float"):
        keys = bytearray()
        for number in range(1, count):
            if code == "integer":
                digits = (number * prime).to_bytes(11, "little")
                keys += b"\x8a" + bytes([len(digits)]) + digits + b"N"
            else:
                # 2 ** 61 is 1 to that prime, so that powers of it all have one hash.
                keys += b"G" + struct.pack(">d", 2.0 ** (61 * (number % 16))) + b"N"
        yield b"\x80\x02}(" + keys + b"u."


def test_nested_keys_and_cycles_cost_nothing():
    """Each step doubles the tuple: hashing or printing it would take for ever."""
    nested = b"N" + b"".join(b"q%cq%ch%c\x86" % (n, n, n) for n in range(1, 90))
    (key,) = describe_pickle(b"\x80\x02}" + nested + b"Ns.")
    assert isinstance(key, Unread)
    for chosen in colliding_keys():
        assert all(isinstance(key, Unread) for key in describe_pickle(chosen))
    cycle = describe_pickle(b"\x80\x02]q\x01h\x01a.")
    assert cycle[0] is cycle


def test_memory_stays_small_whatever_the_pickle_builds():
    code = f"""if True:
        from dflash_pack.torch_pickle import describe_pickle
        describe_pickle(b"\\x80\\x02" + b"}}" * {MAX_OPCODES - 2} + b".")
    """
    assert peak_mib(code) < 150
