"""Torch files: what they may name, and tensors that are copied out of them bit by bit."""

from __future__ import annotations

import collections
import io
import pickle
import tempfile
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_files import Runs, StorageMade, TensorMade, entries_of, zipped

from dflash_pack.checkpoint import TensorInfo, tensor_bytes
from dflash_pack.errors import CheckpointError
from dflash_pack.torch_file import read_plain_tensors, read_torch_file, tensor_shard

PLAIN = [
    torch.zeros(4),
    torch.zeros(4, dtype=torch.bfloat16),
    torch.nn.Parameter(torch.zeros(4)),
    {"embedding": torch.zeros(4), "mask_token_id": 3},
    collections.OrderedDict(embedding=torch.zeros(4)),
]


@pytest.mark.parametrize("value", PLAIN)
def test_plain_tensors_pass(tmp_path, value):
    torch.save(value, tmp_path / "file.pt")
    read_plain_tensors(tmp_path / "file.pt")


def only(data: bytes) -> bytes:
    return zipped({"archive/data.pkl": data})


def saved() -> bytes:
    buffer = io.BytesIO()
    torch.save({"embedding": torch.zeros(4)}, buffer)
    return buffer.getvalue()


def zipped_entries(*entries: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, data in entries:
            archive.writestr(name, data)
    return buffer.getvalue()


def patched(data: bytes, offset: int, value: int) -> bytes:
    """Return a zip with one byte of its first directory entry changed."""
    at = data.index(b"PK\x01\x02") + offset
    assert data[at] != value
    return data[:at] + bytes([value]) + data[at + 1 :]


GOOD = pickle.dumps({"mask_token_id": 5}, protocol=2)
BAD = pickle.dumps(Runs(), protocol=2)


HOSTILE = {
    "a pickle before the archive": BAD + saved(),
    "a decoy in a deeper folder": zipped_entries(("a/x/data.pkl", GOOD), ("a/data.pkl", BAD)),
    "two of one name": zipped_entries(("a/data.pkl", GOOD), ("a/data.pkl", BAD)),
    "two folders": zipped_entries(("a/data.pkl", GOOD), ("b/data.pkl", BAD)),
    "another pickle": zipped_entries(("a/data.pkl", GOOD), ("a/code.pkl", BAD)),
    "encrypted": patched(only(GOOD), 8, 1),
    "unknown compression": patched(only(GOOD), 10, 77),
    "protocol 2": only(pickle.dumps(Runs(), protocol=2)),
    "protocol 4, names on the stack": only(pickle.dumps(Runs(), protocol=4)),
    "no zip": pickle.dumps(Runs()),
    "zip without pickle": only(b""),
    "empty": b"",
    "truncated pickle": only(b"cos"),
    "text": b"hello",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_anything_else_is_refused(tmp_path, data):
    path = tmp_path / "file.pt"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"file\.pt"):
        read_plain_tensors(path)


def test_what_is_patched_was_sound_before(tmp_path):
    (tmp_path / "file.pt").write_bytes(only(GOOD))
    read_plain_tensors(tmp_path / "file.pt")


def test_a_pickle_that_unpacks_to_much_more_is_refused(tmp_path):
    path = tmp_path / "file.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(64 << 20))
    with pytest.raises(CheckpointError, match="compressed"):
        read_plain_tensors(path)


def shard_of(path, value=None, *, write=True):
    """Save ``value`` and return the shard of its tensors, by name."""
    if write:
        torch.save(value, path)
    file = read_torch_file(path, remedy="Do this")
    return tensor_shard(file.archive, file.value, remedy="Do this")


def numbers(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


VIEWS = {
    "whole": torch.arange(12.0).reshape(3, 4),
    "rows": torch.arange(12.0).reshape(3, 4)[1:],
    "one row": torch.arange(12.0).reshape(3, 4)[2],
    "one column of one": torch.arange(3.0).reshape(3, 1)[:, 0],
    "transposed single": torch.arange(4.0).reshape(1, 4).T,
    "scalar": torch.tensor(3.0),
    "empty": torch.zeros(0, 4),
    "empty and transposed": torch.zeros(4, 0).T,
    "parameter": torch.nn.Parameter(torch.arange(3.0)),
    "bool": torch.tensor([True, False]),
    "bfloat16": torch.arange(5).to(torch.bfloat16),
    "float8": torch.arange(5.0).to(torch.float8_e4m3fn),
    "uint16": torch.arange(5).to(torch.uint16),
}


@pytest.mark.parametrize("tensor", VIEWS.values(), ids=VIEWS)
def test_the_bytes_in_the_file_are_those_of_the_tensor(tmp_path, tensor):
    (info,) = shard_of(tmp_path / "file.pt", {"t": tensor}).tensors
    assert tensor_bytes(info) == numbers(tensor)
    assert info.spec.shape == tuple(tensor.shape)


MEANT_OTHERWISE = {
    "negated": torch._neg_view(torch.arange(3.0)),
    "negated integers": torch._neg_view(torch.arange(3)),
    "conjugated": torch.zeros(3, dtype=torch.complex64).conj(),
    "a parameter of these": torch.nn.Parameter(torch._neg_view(torch.arange(3.0))),
    "sparse": torch.eye(3).to_sparse(),
    "without numbers": torch.zeros(3, device="meta"),
}


@pytest.mark.parametrize("tensor", MEANT_OTHERWISE.values(), ids=MEANT_OTHERWISE)
def test_stored_numbers_are_the_tensors_or_it_is_refused(tmp_path, tensor):
    """What torch computes on loading (a sign, a conjugate, an index) is in no stored byte."""
    try:
        (info,) = shard_of(tmp_path / "file.pt", {"t": tensor}).tensors
    except CheckpointError:
        return
    assert tensor_bytes(info) == numbers(torch.load(tmp_path / "file.pt", weights_only=True)["t"])


def test_a_negated_tensor_is_named_as_what_it_is(tmp_path):
    with pytest.raises(CheckpointError, match="negated or conjugated"):
        shard_of(tmp_path / "file.pt", {"t": MEANT_OTHERWISE["negated"]})


def test_all_tensors_of_a_file_come_out_as_torch_loads_them(tmp_path):
    path = tmp_path / "file.pt"
    shard = shard_of(path, dict(VIEWS))
    loaded = torch.load(path, weights_only=True)
    assert {info.name: tensor_bytes(info) for info in shard.tensors} == {
        name: numbers(tensor) for name, tensor in loaded.items()
    }
    assert [info.offset for info in shard.tensors] == sorted(i.offset for i in shard.tensors)
    assert (shard.name, shard.size) == ("file.pt", path.stat().st_size)


def test_views_of_one_flat_storage_and_tied_tensors_are_in_order(tmp_path):
    """FSDP's flat parameters, and a head tied to an embedding."""
    flat = torch.arange(10.0)
    tied = torch.arange(3.0)
    tensors = {"a": flat[:4], "b": flat[4:], "embedding": tied, "head": tied.view(3, 1)}
    shard = shard_of(tmp_path / "file.pt", tensors)
    assert {i.name: tensor_bytes(i) for i in shard.tensors} == {
        name: numbers(tensor) for name, tensor in tensors.items()
    }


GAPS = {
    "transposed": lambda: {"t": torch.zeros(2, 3).T},
    "every other": lambda: {"t": torch.zeros(6)[::2]},
    "expanded": lambda: {"t": torch.zeros(1).expand(4)},
    "columns": lambda: {"t": torch.zeros(4, 4)[:, :2]},
}


@pytest.mark.parametrize("make", GAPS.values(), ids=GAPS)
def test_a_tensor_that_is_no_run_of_numbers_is_refused_by_name(tmp_path, make):
    with pytest.raises(CheckpointError, match=r"file\.pt: t: is stored with gaps.*Do this\.$"):
        shard_of(tmp_path / "file.pt", make())


SIXTEEN = bytes(16)
WRONG = {
    "no record": ({"t": TensorMade()}, {}, "not in the file"),
    "another record": ({"t": TensorMade()}, {"1": SIXTEEN}, "not in the file"),
    "a record outside data": ({"t": TensorMade(StorageMade("../version"))}, {}, "not in the file"),
    "a record too short": ({"t": TensorMade()}, {"0": bytes(15)}, "storage of 15 bytes"),
    "a record too long": ({"t": TensorMade()}, {"0": bytes(17)}, "storage of 17 bytes"),
    "a shape too large": ({"t": TensorMade(shape=(5,))}, {"0": SIXTEEN}, "reaches beyond"),
    "a start too late": ({"t": TensorMade(start=1)}, {"0": SIXTEEN}, "reaches beyond"),
    "an absurd shape": (
        {"t": TensorMade(shape=(1 << 62, 1 << 62), stride=(1 << 62, 1))},
        {"0": SIXTEEN},
        "reaches beyond",
    ),
    "an absurd start": ({"t": TensorMade(start=1 << 62)}, {"0": SIXTEEN}, "reaches beyond"),
    "an absurd stride": (
        {"t": TensorMade(shape=(2, 2), stride=(1 << 62, 1))},
        {"0": SIXTEEN},
        "gaps",
    ),
    "a stride of zero": ({"t": TensorMade(stride=(0,))}, {"0": SIXTEEN}, "gaps"),
    "overlapping": (
        {"s": TensorMade(shape=(3,)), "t": TensorMade(start=1, shape=(3,))},
        {"0": SIXTEEN},
        "t: overlaps another tensor in part",
    ),
    "one inside the other": (
        {"s": TensorMade(), "t": TensorMade(start=1, shape=(1,))},
        {"0": SIXTEEN},
        "overlaps another tensor in part",
    ),
    "one the start of the other": (
        {"t": TensorMade(), "s": TensorMade(shape=(1,))},
        {"0": SIXTEEN},
        "overlaps another tensor in part",
    ),
}


@pytest.mark.parametrize(("value", "storages", "words"), WRONG.values(), ids=WRONG)
def test_a_tensor_that_does_not_lie_in_its_storage_is_refused(tmp_path, value, storages, words):
    path = tmp_path / "file.pt"
    path.write_bytes(zipped(entries_of(value, storages)))
    with pytest.raises(CheckpointError, match=r"file\.pt") as caught:
        shard_of(path, write=False)
    assert words in str(caught.value)


def test_a_made_tensor_is_sound_before_it_is_spoilt(tmp_path):
    path = tmp_path / "file.pt"
    path.write_bytes(zipped(entries_of({"t": TensorMade()}, {"0": SIXTEEN})))
    (info,) = shard_of(path, write=False).tensors
    assert isinstance(info, TensorInfo)
    assert info.nbytes == 16


def test_a_file_that_would_run_something_is_refused_and_runs_nothing(tmp_path):
    mark, path = tmp_path / "ran", tmp_path / "file.pt"
    torch.save({"t": torch.zeros(2), "extra": Runs(f"touch {mark}")}, path)
    with pytest.raises(CheckpointError, match=r"names posix\.system, .*run anything\. Do th"):
        read_torch_file(path, remedy="Do this")
    assert not mark.exists()


def test_a_long_foreign_name_stays_one_line(tmp_path):
    path = tmp_path / "file.pt"
    path.write_bytes(only(b"\x80\x02c" + b"x" * 100_000 + b"\ny\n."))
    with pytest.raises(CheckpointError) as caught:
        read_torch_file(path, remedy="Do this")
    assert len(str(caught.value)) < 500 + len(str(path))


SMALL = {"draft_state_dict": {"a": torch.zeros(3), "b": torch.ones(2, 2)}, "step": 3}
SAVED = io.BytesIO()
torch.save(SMALL, SAVED)


@given(st.integers(0, len(SAVED.getvalue()) - 1), st.integers(0, 255))
def test_a_file_with_any_byte_changed_is_read_or_refused(place, byte):
    data = SAVED.getvalue()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.pt"
        path.write_bytes(data[:place] + bytes([byte]) + data[place + 1 :])
        try:
            file = read_torch_file(path, remedy="Do this")
            shard = tensor_shard(file.archive, file.value["draft_state_dict"], remedy="Do this")
        except CheckpointError:
            return
        assert all(len(tensor_bytes(info)) == info.nbytes for info in shard.tensors)
