from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peak_memory import peak_mib
from raw_safetensors import (
    raw,
    safetensors_bytes,
    with_header,
    write_checkpoint,
    write_index,
)
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from dflash_pack.checkpoint import (
    MAX_HEADER_BYTES,
    TensorSpec,
    open_checkpoint,
    read_bool,
    read_int64,
    read_shard,
    tensor_bytes,
)
from dflash_pack.errors import CheckpointError, MissingHereError

ONE = {"fc.weight": raw("BF16", 4, 6), "norm.weight": raw("F32", 4), "d2t": raw("I64", 3)}
FIRST = {"fc.weight": raw("BF16", 4, 6), "d2t": raw("I64", 3)}
SECOND = {"norm.weight": raw("F32", 4), "empty": raw("F16", 0, 5)}


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> bytes:
    """Return a header with one tensor ``a`` of those fields."""
    return json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()


def two(first: tuple[int, int], second: tuple[int, int]) -> bytes:
    """Return a header with tensors ``a`` and ``b`` of two floats at those offsets."""
    tensors = {"a": first, "b": second}
    return json.dumps(
        {n: {"dtype": "F32", "shape": [2], "data_offsets": at} for n, at in tensors.items()}
    ).encode()


A = b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
DATA = bytes(8)

# What is wrong -> the bytes of the file, and what the sentence has to say.
HOSTILE = {
    "empty file": (b"", "is truncated"),
    "half a length": (b"\x10\0\0", "is truncated"),
    "header cut off": (with_header(entry(), length=1000), "is truncated: its header ends"),
    "length beyond 2^63": (with_header(entry(), length=2**64 - 1), "is truncated"),
    "no header": (with_header(b""), "header that is not a JSON object"),
    "header is an array": (with_header(b"[]"), "header that is not a JSON object"),
    "header starts with a space": (with_header(b" " + entry(), DATA), "not a JSON object"),
    "header is no JSON": (with_header(b"{a}"), "is not valid JSON"),
    "trailing comma": (with_header(b"{" + A + b",}", DATA), "trailing comma"),
    "header is not UTF-8": (with_header(b'{"\xff":1}'), "is not UTF-8"),
    "duplicate tensor": (with_header(b"{" + A + b"," + A + b"}", DATA), "stands twice"),
    "duplicate field": (
        with_header(b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', DATA),
        "stands twice",
    ),
    "deep header": (with_header(b'{"a":' + b"[" * 100_000), "nested deeper"),
    "many values": (with_header(b'{"a":[' + b"[]," * 1_100_000 + b"1]}"), "1000000 values"),
    "NaN in the header": (with_header(b'{"a":NaN}'), "holds NaN"),
    "metadata is not an object": (with_header(b'{"__metadata__":[]}'), "__metadata__"),
    "metadata holds a number": (with_header(b'{"__metadata__":{"a":1}}'), "__metadata__"),
    "tensor is a number": (with_header(b'{"a":1}'), "other fields"),
    "field missing": (with_header(b'{"a":{"dtype":"F32","shape":[2]}}'), "other fields"),
    "field too many": (
        with_header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}', DATA),
        "other fields",
    ),
    "unknown dtype": (with_header(entry("F31"), DATA), "unknown dtype 'F31'"),
    "dtype is a list": (with_header(entry(["F32"]), DATA), "unknown dtype"),
    "negative size": (with_header(entry(shape=[-2]), DATA), "shape that is not a list"),
    "fractional size": (with_header(entry(shape=[2.0]), DATA), "shape that is not a list"),
    "size is true": (with_header(entry(shape=[True]), bytes(4)), "shape that is not a list"),
    "size of 2^70": (with_header(entry(shape=[2**70]), DATA), "shape that is not a list"),
    "sizes that multiply to 2^124": (
        with_header(entry(shape=[2**62, 2**62]), DATA),
        "does not fill",
    ),
    "sizes that wrap to the right bytes": (
        with_header(entry(shape=[2**62, 4, 1]), b""),
        "does not fill",
    ),
    "a thousand dimensions": (with_header(entry(shape=[1] * 1000), bytes(4)), "not a list"),
    "shape smaller than its bytes": (with_header(entry(shape=[1]), DATA), "does not fill"),
    "shape larger than its bytes": (with_header(entry(shape=[3]), DATA), "does not fill"),
    "half a byte": (with_header(entry("F4", [3], [0, 1]), bytes(1)), "does not fill"),
    "end before begin": (with_header(entry(offsets=[8, 0]), DATA), "not a begin and an end"),
    "one offset": (with_header(entry(offsets=[8]), DATA), "not a begin and an end"),
    "negative offset": (with_header(entry(offsets=[-8, 0]), DATA), "not a begin and an end"),
    "overlap": (with_header(two((0, 8), (4, 12)), bytes(12)), "b: overlaps"),
    "same bytes twice": (with_header(two((0, 8), (0, 8)), DATA), "b: overlaps"),
    "gap": (with_header(two((0, 8), (16, 24)), bytes(24)), "b: has a gap before it"),
    "gap at the start": (with_header(entry(offsets=[8, 16]), bytes(16)), "a: has a gap"),
    "data cut off": (with_header(entry(), bytes(7)), "is truncated: its header describes"),
    "bytes after the end": (with_header(entry(), bytes(9)), "has 1 bytes after its last tensor"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused_in_one_sentence(case, tmp_path: Path):
    data, said = HOSTILE[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        read_shard(path)
    message = str(caught.value)
    assert said in message
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 400


def test_the_hostile_cases_are_one_step_from_a_valid_file(tmp_path: Path):
    """The table above proves nothing if its common parts were already refused."""
    path = tmp_path / "model.safetensors"
    for data in (with_header(entry(), DATA), with_header(two((0, 8), (8, 16)), bytes(16))):
        path.write_bytes(data)
        assert read_shard(path).tensors[0].spec == TensorSpec("F32", (2,))
    path.write_bytes(with_header(b"{" + A + b"}", DATA))
    assert read_shard(path).size == 8 + len(A) + 2 + 8


def test_hundred_megabyte_header_is_refused_unread(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(with_header(b"{", length=100_000_000))
        file.truncate(100_000_008)
    with pytest.raises(CheckpointError, match="has a header of 100000000 bytes, more than 16 MiB"):
        read_shard(path)


def test_memory_stays_bounded_with_the_worst_header_that_is_read(tmp_path: Path):
    """16 MiB of empty lists, as a child so that the peak is its own."""
    path = tmp_path / "model.safetensors"
    inside = b"[]," * ((MAX_HEADER_BYTES - 20) // 3)
    path.write_bytes(with_header(b'{"a":[' + inside + b"1]}"))
    code = """
import sys
from pathlib import Path
from dflash_pack.checkpoint import read_shard
from dflash_pack.errors import CheckpointError
try:
    read_shard(Path(sys.argv[1]))
except CheckpointError:
    pass
else:
    raise SystemExit("was accepted")
"""
    assert peak_mib(code, str(path)) < 120


@given(st.data())
def test_a_damaged_header_is_read_right_or_refused(tmp_path_factory, data):
    """Property: whatever one byte is changed to, we read what safetensors reads or refuse."""
    path = tmp_path_factory.mktemp("damaged") / "model.safetensors"
    good = bytearray(safetensors_bytes(ONE, {"format": "pt"}))
    header_end = 8 + int.from_bytes(good[:8], "little")
    good[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(good)
    try:
        shard = read_shard(path)
    except CheckpointError:
        return
    with safe_open(path, framework="numpy") as file:
        theirs = {n: file.get_slice(n) for n in file.keys()}  # noqa: SIM118 - not a dict
        assert {t.name: t.spec for t in shard.tensors} == {
            n: TensorSpec(part.get_dtype(), tuple(part.get_shape())) for n, part in theirs.items()
        }
        assert shard.metadata == file.metadata()


def test_positions_are_those_that_safetensors_uses(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    arrays = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.arange(5, dtype=np.int64),
        "flag": np.array([True, False, True]),
        "scalar": np.array(7, dtype=np.int32),
    }
    save_file(arrays, path, metadata={"format": "pt", "note": "é"})
    shard = read_shard(path)
    assert shard.metadata == {"format": "pt", "note": "é"}
    assert [t.offset for t in shard.tensors] == sorted(t.offset for t in shard.tensors)
    for tensor in shard.tensors:
        assert tensor_bytes(tensor) == arrays[tensor.name].tobytes()
        assert tensor.spec.shape == arrays[tensor.name].shape
    assert load_file(path).keys() == {t.name for t in shard.tensors}


def test_single_file(tmp_path: Path):
    folder = write_checkpoint(tmp_path / "c", ONE, config={"block_size": 16}, metadata={"k": "v"})
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config == {"block_size": 16}
    assert [shard.name for shard in checkpoint.shards] == ["model.safetensors"]
    assert checkpoint.tensors["fc.weight"].spec == TensorSpec("BF16", (4, 6))
    assert checkpoint.weight_bytes == 48 + 16 + 24
    assert checkpoint.side_files == ()
    assert checkpoint.contents.tensors["d2t"] == TensorSpec("I64", (3,))


def test_the_only_safetensors_file_may_have_any_name(tmp_path: Path):
    folder = write_checkpoint(tmp_path, ONE)
    (folder / "model.safetensors").rename(folder / "drafter.safetensors")
    assert [s.name for s in open_checkpoint(folder).shards] == ["drafter.safetensors"]


def test_shards_of_an_index(tmp_path: Path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, FIRST, SECOND))
    assert [len(shard.tensors) for shard in checkpoint.shards] == [2, 2]
    assert checkpoint.tensors["empty"].nbytes == 0
    assert checkpoint.side_files == ()


def test_side_files_are_listed_with_size_and_never_opened(tmp_path: Path):
    folder = write_checkpoint(tmp_path, ONE)
    (folder / "README.md").write_text("hello")
    (folder / "dflash.py").write_text("raise SystemExit")
    (folder / "mask_embedding.pt").write_bytes(b"pickle")
    (folder / "assets" / "deep").mkdir(parents=True)
    (folder / "assets" / "deep" / "plot.png").write_bytes(b"png")
    for skipped in (".git", ".cache", ".dflash-pack"):
        (folder / skipped).mkdir()
        (folder / skipped / "x").write_text("x")
    os.chmod(folder / "dflash.py", 0)  # noqa: PTH101 - root may read it all the same
    found = {file.name: file.size for file in open_checkpoint(folder).side_files}
    assert found == {
        "README.md": 5,
        "assets/deep/plot.png": 3,
        "dflash.py": 16,
        "mask_embedding.pt": 6,
    }


def refusal(folder: Path) -> str:
    """Return the sentence with which the folder is refused."""
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_config(tmp_path: Path):
    folder = write_checkpoint(tmp_path, ONE)
    (folder / "config.json").unlink()
    assert refusal(folder) == f"{folder}/config.json: is missing. Give the drafter's folder."


def test_missing_folder_and_hub_name(tmp_path: Path):
    assert "does not exist" in refusal(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refusal(tmp_path / "file")
    with pytest.raises(MissingHereError, match="hf download z-lab/Qwen3-4B-DFlash --local-dir"):
        open_checkpoint(Path("z-lab/Qwen3-4B-DFlash"))


def test_pickles_alone(tmp_path: Path):
    folder = write_checkpoint(tmp_path, ONE)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    said = refusal(folder)
    assert "holds pickles only (pytorch_model.bin)" in said
    assert "Export the weights as safetensors first" in said
    assert f"convert {folder / 'pytorch_model.bin'} --draft-config {folder / 'config.json'}" in said
    # Of several it can't be said which holds the weights.
    (folder / "other.bin").touch()
    assert "--draft-config" not in refusal(folder)


def test_the_pointer_that_a_clone_without_lfs_leaves(tmp_path: Path):
    folder = write_checkpoint(tmp_path, ONE)
    (folder / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 16\n"
    )
    said = refusal(folder)
    assert f"{folder / 'model.safetensors'}: is a pointer of Git LFS" in said
    assert "git lfs pull" in said


def test_no_weights_at_all(tmp_path: Path):
    folder = write_checkpoint(tmp_path, ONE)
    (folder / "model.safetensors").unlink()
    assert "holds no weights" in refusal(folder)


def test_no_tensor_at_all(tmp_path: Path):
    assert "holds no tensor at all" in refusal(write_checkpoint(tmp_path, {}))


def test_several_files_without_index(tmp_path: Path):
    folder = write_checkpoint(tmp_path, FIRST, SECOND)
    (folder / "model.safetensors.index.json").unlink()
    said = refusal(folder)
    assert "model-00001-of-00002.safetensors, model-00002-of-00002.safetensors" in said
    assert "but no model.safetensors.index.json" in said


def test_stray_weights_beside_the_single_file(tmp_path: Path):
    folder = write_checkpoint(tmp_path, ONE)
    (folder / "old.safetensors").write_bytes(safetensors_bytes(ONE))
    assert "holds old.safetensors, which the presence of model.safetensors leaves" in refusal(
        folder
    )


def test_stray_weights_beside_an_index(tmp_path: Path):
    folder = write_checkpoint(tmp_path, FIRST, SECOND)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(ONE))
    assert "holds model.safetensors, which model.safetensors.index.json leaves" in refusal(folder)


def test_index_names_an_absent_shard(tmp_path: Path):
    folder = write_checkpoint(tmp_path, FIRST, SECOND)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "names the shard model-00002-of-00002.safetensors, which is not in" in refusal(folder)


@pytest.mark.parametrize(
    "shard",
    [
        "../model.safetensors",
        "/tmp/model.safetensors",
        "sub/model.safetensors",
        "..",
        ".",
        "",
        "a\\b.safetensors",
        "a\0.safetensors",
        "model.safetensors/",
    ],
)
def test_shard_outside_the_folder(shard, tmp_path: Path):
    folder = write_checkpoint(tmp_path / "c", ONE)
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(ONE))
    write_index(folder, {"fc.weight": shard})
    assert "is not a file name in the same folder" in refusal(folder)


def test_shard_that_is_no_safetensors(tmp_path: Path):
    folder = write_checkpoint(tmp_path, ONE)
    write_index(folder, {"fc.weight": "pytorch_model.bin"})
    assert "is not a safetensors file" in refusal(folder)


@pytest.mark.parametrize("weight_map", [{}, [], None, {"a": 1}, "x"])
def test_index_without_usable_map(weight_map, tmp_path: Path):
    folder = write_checkpoint(tmp_path, ONE)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert "weight_map: is not an object of strings" in refusal(folder)


def test_index_and_shards_disagree(tmp_path: Path):
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    right = {**dict.fromkeys(FIRST, names[0]), **dict.fromkeys(SECOND, names[1])}
    folder = write_checkpoint(tmp_path, FIRST, SECOND)
    write_index(folder, {**right, "extra": names[0]})
    assert f"extra: model.safetensors.index.json places it in {names[0]} but no" in refusal(folder)
    write_index(folder, {name: home for name, home in right.items() if name != "d2t"})
    assert f"d2t: model.safetensors.index.json lacks it but it stands in {names[0]}" in refusal(
        folder
    )
    write_index(folder, {**right, "d2t": names[1]})
    assert f"d2t: model.safetensors.index.json places it in {names[1]} but it" in refusal(folder)


def test_one_tensor_in_two_shards(tmp_path: Path):
    folder = write_checkpoint(tmp_path, FIRST, {**SECOND, "d2t": raw("I64", 3)})
    assert "d2t: stands in model-00001-of-00002.safetensors and in model-00002" in refusal(folder)


def test_truncated_shard(tmp_path: Path):
    folder = write_checkpoint(tmp_path, FIRST, SECOND)
    path = folder / "model-00002-of-00002.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    said = refusal(folder)
    assert f"{path}: is truncated" in said
    assert "Copy or download it again" in said


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "README.md"])
def test_link_that_leaves_the_folder(name, tmp_path: Path):
    folder = write_checkpoint(tmp_path / "c", ONE)
    (folder / "README.md").write_text("x")
    (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to("../outside")
    assert f"{name}: is a symbolic link that leaves the folder" in refusal(folder)


def test_link_inside_the_folder_is_followed(tmp_path: Path):
    folder = write_checkpoint(tmp_path / "c", ONE)
    (folder / "model.safetensors").rename(folder / "weights.real")
    (folder / "model.safetensors").symlink_to("weights.real")
    assert len(open_checkpoint(folder).tensors) == 3


def test_dangling_and_circular_links(tmp_path: Path):
    folder = write_checkpoint(tmp_path, ONE)
    (folder / "a.txt").symlink_to("nothing")
    assert "a.txt: is a link to nothing" in refusal(folder)
    (folder / "a.txt").unlink()
    (folder / "a.txt").symlink_to("a.txt")
    assert "a.txt: is a link to nothing" in refusal(folder)


def test_linked_folders_are_not_followed(tmp_path: Path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("x")
    folder = write_checkpoint(tmp_path / "c", ONE)
    (folder / "loop").symlink_to(".")
    (folder / "out").symlink_to("../secret")
    assert open_checkpoint(folder).side_files == ()


@pytest.mark.parametrize("shared", [False, True])
def test_snapshot_in_the_hub_cache(shared, tmp_path: Path):
    """Links of the Hub cache lead to its blobs; since huggingface_hub 2.4 links again."""
    repository = tmp_path / "hub" / "models--owner--name"
    snapshot = write_checkpoint(repository / "snapshots" / "0123abc", ONE)
    (repository / "blobs").mkdir()
    for path in list(snapshot.iterdir()):
        blob = repository / "blobs" / f"sha-{path.name}"
        path.rename(blob)
        path.symlink_to(f"../../blobs/{blob.name}")
        if shared:
            store = tmp_path / "hub" / "blobs" / "ab" / blob.name
            store.parent.mkdir(parents=True, exist_ok=True)
            blob.rename(store)
            blob.symlink_to(f"../../blobs/ab/{blob.name}")
    assert len(open_checkpoint(snapshot).tensors) == 3
    (tmp_path / "hub" / "token").write_text("secret")
    (snapshot / "README.md").symlink_to("../../../token")
    assert "README.md: is a symbolic link that leaves the folder" in refusal(snapshot)


@pytest.mark.timeout(10)
def test_named_pipe_in_the_folder(tmp_path: Path):
    folder = write_checkpoint(tmp_path, ONE)
    os.mkfifo(folder / "extra")
    assert "extra: is not a regular file" in refusal(folder)
    (folder / "extra").unlink()
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert "model.safetensors: is not a regular file" in refusal(folder)


def test_file_names_that_could_spoil_a_terminal(tmp_path: Path):
    folder = write_checkpoint(tmp_path, ONE)
    (folder / "\x1b[31mred").write_text("")
    assert r"\x1b[31mred: has a file name that is not plain text" in refusal(folder)


def test_absurd_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write_checkpoint(tmp_path, ONE)
    monkeypatch.setattr("dflash_pack.checkpoint.MAX_FILES", 5)
    for number in range(4):
        (folder / f"{number}.txt").write_text("")
    assert "holds more than 5 files" in refusal(folder)


def test_tensor_name_with_control_characters_stays_on_one_line(tmp_path: Path):
    folder = write_checkpoint(tmp_path, {"a\nb": raw("F32", 2)})
    (folder / "model.safetensors").write_bytes(
        with_header(entry(shape=[3]).replace(b'"a"', rb'"a\nb"'), DATA)
    )
    assert r"a\nb: has 8 bytes" in refusal(folder)


def test_hundred_shards_take_less_than_a_second(tmp_path: Path):
    shards = [{f"layers.{i}.{j}.weight": raw("BF16", 2) for j in range(60)} for i in range(100)]
    folder = write_checkpoint(tmp_path, *shards)
    open_checkpoint(write_checkpoint(tmp_path / "warm", ONE))
    started = time.process_time()
    assert len(open_checkpoint(folder).tensors) == 6000
    assert time.process_time() - started < 1


def test_small_tensors_are_read_within_a_limit(tmp_path: Path):
    folder = write_checkpoint(tmp_path, ONE)
    tensors = open_checkpoint(folder).tensors
    assert tensor_bytes(tensors["fc.weight"], limit=48) == ONE["fc.weight"][2]
    with pytest.raises(CheckpointError, match=r"fc\.weight: has 48 bytes where at most 47"):
        tensor_bytes(tensors["fc.weight"], limit=47)
    os.truncate(folder / "model.safetensors", 100)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        tensor_bytes(tensors["d2t"])


def test_int64_and_bool_tensors(tmp_path: Path):
    d2t = np.array([0, 5, -3], dtype=np.int64)
    tensors = {
        "d2t": ("I64", (3,), d2t.tobytes()),
        "t2d": ("BOOL", (4,), bytes([1, 0, 1, 1])),
        "bad": ("BOOL", (2,), bytes([1, 2])),
    }
    found = open_checkpoint(write_checkpoint(tmp_path, tensors)).tensors
    assert read_int64(found["d2t"]).tolist() == [0, 5, -3]
    assert read_bool(found["t2d"]).tolist() == [True, False, True, True]
    with pytest.raises(CheckpointError, match="has dtype BOOL where I64 belongs"):
        read_int64(found["t2d"])
    with pytest.raises(CheckpointError, match="bad: holds a bool that is neither 0 nor 1"):
        read_bool(found["bad"])


def test_reading_never_loads_torch():
    code = (
        "import sys; import dflash_pack.checkpoint, dflash_pack.tensors, dflash_pack.target\n"
        "assert not {'torch', 'transformers', 'numpy'} & sys.modules.keys(), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
