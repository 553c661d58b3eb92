from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peak_memory import peak_mib
from raw_safetensors import Raw, raw, safetensors_bytes, write_checkpoint
from safetensors.numpy import load_file, save_file

from dflash_pack import tensors as tensors_module
from dflash_pack.checkpoint import DTYPE_BITS, TensorSpec, open_checkpoint, tensor_bytes
from dflash_pack.errors import CheckpointError, DflashPackError, MissingHereError
from dflash_pack.tensors import (
    FileRange,
    Literal,
    NonFinite,
    OutputShard,
    PlannedTensor,
    ScanResult,
    TensorPlan,
    WrittenFile,
    header_bytes,
    merged_scan,
    plan_tensors,
    same_bytes,
    scan_finite,
    sha256_file,
    verbatim_source,
    write_plan,
)

ONE = {
    "fc.weight": raw("BF16", 64, 96, seed=1),
    "norm.weight": raw("F32", 64, seed=2),
    "d2t": raw("I64", 7, seed=3),
    "t2d": raw("BOOL", 13, seed=4),
    "layers.0.q.weight": raw("F16", 33, 5, seed=5),
    "empty": raw("F32", 0, 4),
}
FIRST = {name: ONE[name] for name in ("fc.weight", "d2t")}
SECOND = {name: ONE[name] for name in ("t2d", "norm.weight", "empty")}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return an empty folder to write into."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a small file take many chunks."""
    monkeypatch.setattr(tensors_module, "CHUNK_BYTES", 64)
    monkeypatch.setattr(tensors_module, "COPY_BYTES", 128)


def contents(folder: Path) -> dict[str, Raw]:
    """Return dtype, shape and bytes of every tensor of a checkpoint."""
    tensors = open_checkpoint(folder).tensors
    return {n: (t.spec.dtype, t.spec.shape, tensor_bytes(t)) for n, t in tensors.items()}


def write(folder: Path, out: Path, rename: Mapping[str, str | None], **options) -> tuple:
    """Plan, write and complete the output so that it can be opened."""
    written = write_plan(plan_tensors(open_checkpoint(folder), rename), out, **options)
    (out / "config.json").write_text("{}")
    return written


# Planning


def test_plan_keeps_names_that_the_mapping_leaves_out(tmp_path: Path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, ONE))
    plan = plan_tensors(checkpoint, {"fc.weight": "context_proj.weight", "d2t": None})
    assert list(plan.tensors) == [
        "context_proj.weight",
        "norm.weight",
        "t2d",
        "layers.0.q.weight",
        "empty",
    ]
    assert plan.tensors["context_proj.weight"] == TensorSpec("BF16", (64, 96))
    assert plan.total_bytes == checkpoint.weight_bytes - 7 * 8
    assert plan.index is None
    assert plan.shards[0].name == "model.safetensors"


def test_plan_keeps_shards_and_numbers_those_that_are_left(tmp_path: Path):
    third = {"lm_head.weight": raw("BF16", 2, 2)}
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, FIRST, third, SECOND))
    plan = plan_tensors(checkpoint, {"lm_head.weight": None})
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert [shard.name for shard in plan.shards] == names
    assert plan.index == {
        "metadata": {"total_size": plan.total_bytes},
        "weight_map": {
            "d2t": names[0],
            "empty": names[1],
            "fc.weight": names[0],
            "norm.weight": names[1],
            "t2d": names[1],
        },
    }
    one = plan_tensors(checkpoint, dict.fromkeys([*FIRST, "lm_head.weight"]))
    assert [shard.name for shard in one.shards] == ["model.safetensors"]
    assert one.index is None


def test_plan_refuses_two_tensors_under_one_name(tmp_path: Path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, FIRST, SECOND))
    with pytest.raises(CheckpointError, match=r"x: both d2t and t2d would be written"):
        plan_tensors(checkpoint, {"d2t": "x", "t2d": "x"})
    with pytest.raises(CheckpointError, match=r"fc\.weight: both fc\.weight and t2d"):
        plan_tensors(checkpoint, {"t2d": "fc.weight"})
    assert "d2t" in plan_tensors(checkpoint, {"d2t": "t2d", "t2d": "d2t"}).tensors


def test_plan_refuses_to_write_nothing_and_to_rename_what_is_not_there(tmp_path: Path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, ONE))
    with pytest.raises(CheckpointError, match="no tensor would be left"):
        plan_tensors(checkpoint, dict.fromkeys(ONE))
    with pytest.raises(ValueError, match="no such tensors to rename"):
        plan_tensors(checkpoint, {"fc.wieght": "x"})


def test_plan_whose_pieces_do_not_fill_the_tensor_is_a_bug():
    PlannedTensor("a", TensorSpec("F32", (2,)), (Literal(bytes(3)), Literal(bytes(5))))
    with pytest.raises(ValueError, match="7 bytes planned"):
        PlannedTensor("a", TensorSpec("F32", (2,)), (Literal(bytes(7)),))


# Writing


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.usefixtures("small_chunks")
def test_names_change_and_bytes_stay(verify, tmp_path: Path, out: Path):
    folder = write_checkpoint(tmp_path / "c", ONE)
    written = write(folder, out, {"fc.weight": "a", "t2d": None}, verify=verify)
    expected = {("a" if n == "fc.weight" else n): v for n, v in ONE.items() if n != "t2d"}
    assert contents(out) == expected
    path = out / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if verify else None
    scan = ScanResult(3 + 1, (), ()) if verify else None
    assert written == (WrittenFile("model.safetensors", path.stat().st_size, digest, scan),)


@pytest.mark.parametrize("verify", [True, False])
def test_shards_and_index(verify, tmp_path: Path, out: Path):
    folder = write_checkpoint(tmp_path / "c", FIRST, SECOND)
    written = write(folder, out, {"d2t": "draft_to_target"}, verify=verify)
    assert contents(out)["draft_to_target"] == ONE["d2t"]
    assert contents(out).keys() == {*FIRST, *SECOND, "draft_to_target"} - {"d2t"}
    assert [file.name for file in written] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    for file in written:
        data = (out / file.name).read_bytes()
        assert file.size == len(data)
        assert file.sha256 == (hashlib.sha256(data).hexdigest() if verify else None)
    assert not list(out.glob("*.partial"))


def test_output_is_byte_for_byte_what_safetensors_writes(tmp_path: Path, out: Path):
    """Our header equals that of safetensors, so an unchanged checkpoint is an identical file."""
    arrays = {
        "z": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.arange(5, dtype=np.float32),
        "größe": np.arange(3, dtype=np.int64),
        "flag": np.array([True, False, True]),
    }
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    write(folder, out, {})
    assert (out / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    renamed = {name: f"layers.{name}" for name in arrays}
    again = tmp_path / "again"
    again.mkdir()
    write(folder, again, renamed)
    save_file({renamed[n]: a for n, a in arrays.items()}, out / "expected", {"format": "pt"})
    assert (again / "model.safetensors").read_bytes() == (out / "expected").read_bytes()
    assert load_file(again / "model.safetensors")["layers.z"].tolist() == arrays["z"].tolist()


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (None, {"format": "pt"}),
        ({"format": "pt"}, {"format": "pt"}),
        ({"step": "9"}, {"format": "pt", "step": "9"}),
        ({"format": "mlx"}, {"format": "mlx"}),
    ],
)
def test_metadata_is_kept_and_names_a_format(metadata, expected, tmp_path: Path, out: Path):
    write(write_checkpoint(tmp_path / "c", ONE, metadata=metadata), out, {})
    assert dict(open_checkpoint(out).shards[0].metadata) == expected


def test_data_starts_at_a_multiple_of_eight():
    for length in range(1, 20):
        tensor = PlannedTensor("n" * length, TensorSpec("U8", (1,)), (Literal(b"x"),))
        header = header_bytes(OutputShard("model.safetensors", (tensor,), {}))
        assert len(header) % 8 == 0
        assert int.from_bytes(header[:8], "little") == len(header) - 8
        assert list(json.loads(header[8:])) == ["n" * length]


dtypes = st.sampled_from(["BF16", "F16", "F32", "F64", "I64", "BOOL", "F8_E4M3", "U8"])
shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)


@given(
    specs=st.lists(st.tuples(dtypes, shapes), min_size=1, max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    chunk=st.sampled_from([8, 16, 24, 64, 1 << 20]),
    by_hand=st.booleans(),
    verify=st.booleans(),
)
def test_any_plan_writes_its_pieces_in_order(tmp_path_factory, specs, cuts, chunk, by_hand, verify):
    """Property: whatever the pieces, chunks and way of copying, the file holds them in order."""
    folder = tmp_path_factory.mktemp("plan")
    source = folder / "source"
    planned, whole, sources = [], {}, b""
    for number, (dtype, shape) in enumerate(specs):
        data = raw(dtype, *shape, seed=number)[2]
        marks = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        pieces: list[FileRange | Literal] = []
        for index, (begin, end) in enumerate(pairwise(marks)):
            if (index + number) % 3 == 2:
                pieces.append(Literal(data[begin:end]))
            else:
                sources += b"?" * (number % 2)  # Adjoining ranges in some, gaps in others.
                pieces.append(FileRange(source, len(sources), end - begin))
                sources += data[begin:end]
        planned.append(PlannedTensor(f"t{number}", TensorSpec(dtype, shape), tuple(pieces)))
        whole[f"t{number}"] = (dtype, shape, data)
    source.write_bytes(sources)
    plan = TensorPlan((OutputShard("model.safetensors", tuple(planned), {"format": "pt"}),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors_module, "CHUNK_BYTES", chunk)
        if by_hand:
            patch.setattr(os, "copy_file_range", refuse(errno.EXDEV))
        (file,) = write_plan(plan, folder, verify=verify)
    data = (folder / "model.safetensors").read_bytes()
    assert data == safetensors_bytes(whole, {"format": "pt"})
    assert file.sha256 == (hashlib.sha256(data).hexdigest() if verify else None)
    assert file.scan is None or file.scan.clean


def refuse(code: int):
    """Return a copy_file_range of a kernel that answers with an error, or with 0 bytes."""

    def answer(*arguments: int) -> int:
        if code:
            raise OSError(code, os.strerror(code))
        return 0

    return answer


@pytest.mark.parametrize(
    "code", [errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, 0]
)
def test_kernel_that_cannot_copy_is_replaced_by_reading_and_writing(
    code, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "copy_file_range", refuse(code))
    write(write_checkpoint(tmp_path / "c", ONE), out, {"fc.weight": "a"})
    assert contents(out)["a"] == ONE["fc.weight"]


def test_other_file_system(tmp_path: Path):
    """The same with a real kernel, where the machine has a second file system to write to."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK) or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system here")
    out = Path(subprocess.check_output(["mktemp", "-d", "-p", shm], text=True).strip())
    try:
        write(write_checkpoint(tmp_path / "c", ONE), out, {"fc.weight": "a"})
        assert contents(out)["a"] == ONE["fc.weight"]
    finally:
        for path in out.iterdir():
            path.unlink()
        out.rmdir()


def test_progress_adds_up(tmp_path: Path, out: Path):
    folder = write_checkpoint(tmp_path / "c", FIRST, SECOND)
    for verify in (True, False):
        steps: list[int] = []
        files = write(folder, out, {"d2t": "x"}, verify=verify, progress=steps.append)
        assert sum(steps) == sum(file.size for file in files[:-1])
        for path in out.iterdir():
            path.unlink()


def test_disk_full_is_one_sentence(tmp_path: Path):
    """A limit on the size of files stands in for a full disk: the kernel refuses the write."""
    folder = write_checkpoint(tmp_path, {"big": ("U8", (1 << 20,), bytes(1 << 20))})
    code = """if True:
        import resource, signal, sys
        from pathlib import Path
        from dflash_pack.checkpoint import open_checkpoint
        from dflash_pack.errors import MissingHereError
        from dflash_pack.tensors import plan_tensors, write_plan
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        folder = Path(sys.argv[1])
        plan = plan_tensors(open_checkpoint(folder), {"big": "b"})
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        out = folder / "out"
        out.mkdir()
        try:
            write_plan(plan, out, verify=sys.argv[2] == "True")
        except MissingHereError as error:
            print(error)
    """
    for verify in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder), str(verify)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "model.safetensors: can't be written (File too large). Choose" in done.stdout
        (folder / "out" / "model.safetensors").unlink()
        (folder / "out").rmdir()


@pytest.mark.parametrize("verify", [True, False])
def test_no_space_left(verify, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "copy_file_range", refuse(errno.ENOSPC))
    with pytest.raises(MissingHereError, match=r"no space is left on the disk\. Free space there"):
        write(write_checkpoint(tmp_path / "c", ONE), out, {}, verify=verify)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.usefixtures("small_chunks")
def test_disk_that_fails_while_storing_is_not_forgotten(
    verify, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
):
    """The kernel tells of a failed write once, perhaps to the flush in the background."""
    asked = threading.Event()

    def fail(descriptor: int) -> None:
        asked.set()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(tensors_module, "FLUSH_BYTES", 1)
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(MissingHereError, match=r"can't be written \(Input/output error\)"):
        write(
            write_checkpoint(tmp_path / "c", ONE),
            out,
            {},
            verify=verify,
            progress=lambda count: asked.wait(10),
        )


def test_source_that_shrinks_is_noticed(tmp_path: Path, out: Path):
    folder = write_checkpoint(tmp_path / "c", ONE)
    plan = plan_tensors(open_checkpoint(folder), {"fc.weight": "a"})
    os.truncate(folder / "model.safetensors", 2000)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        write_plan(plan, out)


def test_source_that_is_written_meanwhile_is_noticed(tmp_path: Path, out: Path):
    folder = write_checkpoint(tmp_path / "c", ONE)
    plan = plan_tensors(open_checkpoint(folder), {"fc.weight": "a"})
    path = folder / "model.safetensors"

    def meddle(count: int) -> None:
        os.utime(path, (1, 1))

    with pytest.raises(CheckpointError, match=r"c/model\.safetensors: changed while it was read"):
        write_plan(plan, out, progress=meddle)


def test_source_that_vanished(tmp_path: Path, out: Path):
    folder = write_checkpoint(tmp_path / "c", ONE)
    plan = plan_tensors(open_checkpoint(folder), {"fc.weight": "a"})
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        write_plan(plan, out)


def test_existing_file_is_not_overwritten(tmp_path: Path, out: Path):
    (out / "model.safetensors").write_text("mine")
    with pytest.raises(DflashPackError, match="already exists"):
        write(write_checkpoint(tmp_path / "c", ONE), out, {})
    assert (out / "model.safetensors").read_text() == "mine"


def test_error_in_the_middle_ends_the_threads(tmp_path: Path, out: Path):
    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(write_checkpoint(tmp_path / "c", ONE), out, {}, progress=stop)
    assert not [thread for thread in threading.enumerate() if thread.name in ("sha256", "flush")]


def test_memory_does_not_grow_with_the_size(tmp_path: Path, out: Path):
    """256 MiB of sparse zeros through the whole writer, as a child so that the peak is its own."""
    folder = write_checkpoint(tmp_path / "c", {"small": raw("F32", 2)})
    size = 1 << 28
    header = json.dumps(
        {"big": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}
    ).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    code = """
import sys
from pathlib import Path
from dflash_pack.checkpoint import open_checkpoint
from dflash_pack.tensors import plan_tensors, write_plan
write_plan(plan_tensors(open_checkpoint(Path(sys.argv[1])), {}), Path(sys.argv[2]))
"""
    assert peak_mib(code, str(folder), str(out)) < 100


# Verbatim copies


def test_verbatim_source(tmp_path: Path):
    folder = write_checkpoint(tmp_path / "c", ONE, metadata={"format": "pt"})
    checkpoint = open_checkpoint(folder)
    path = folder / "model.safetensors"

    def source(rename: dict[str, str | None]) -> Path | None:
        return verbatim_source(plan_tensors(checkpoint, rename).shards[0])

    assert source({}) == path
    assert source({"fc.weight": "fd.weight"}) is None
    assert source({"empty": None}) is None
    assert source({"fc.weight": None}) is None
    other = write_checkpoint(tmp_path / "d", ONE, metadata={"format": "pt", "by": "x"})
    assert verbatim_source(plan_tensors(open_checkpoint(other), {}).shards[0]) is not None
    bare = write_checkpoint(tmp_path / "e", ONE)
    assert verbatim_source(plan_tensors(open_checkpoint(bare), {}).shards[0]) is None


# Comparing and hashing


@pytest.mark.usefixtures("small_chunks")
def test_same_bytes(tmp_path: Path):
    dtype, shape, data = ONE["fc.weight"]
    changed = bytearray(data)
    changed[-1] ^= 1
    tensors = {
        "shift": raw("F32", 3),
        "fc": (dtype, shape, data),
        "last byte": (dtype, shape, bytes(changed)),
        "other shape": (dtype, shape[::-1], data),
        "other dtype": ("F16", shape, data),
    }
    one = open_checkpoint(write_checkpoint(tmp_path / "a", ONE)).tensors["fc.weight"]
    two = open_checkpoint(write_checkpoint(tmp_path / "b", tensors)).tensors
    assert same_bytes(one, two["fc"])
    assert same_bytes(two["fc"], two["fc"])
    assert not same_bytes(one, two["last byte"])
    assert not same_bytes(one, two["other shape"])
    assert not same_bytes(one, two["other dtype"])


def test_same_bytes_of_a_file_that_shrank(tmp_path: Path):
    info = open_checkpoint(write_checkpoint(tmp_path, ONE)).tensors["layers.0.q.weight"]
    os.truncate(info.path, info.offset + 10)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        same_bytes(info, info)


def test_sha256_file(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256_file(tmp_path / "x").startswith("ba7816bf8f01cfea")
    with pytest.raises(CheckpointError, match="is missing"):
        sha256_file(tmp_path / "y")


# The search for NaN and infinity


def patterns(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return all bit patterns of 8 or 16 bits, and the same as numbers."""
    bits = np.arange(1 << DTYPE_BITS[dtype], dtype=f"<u{DTYPE_BITS[dtype] // 8}")
    if dtype == "BF16":  # The upper half of a float32.
        return bits, (bits.astype("<u4") << 16).view(np.float32)
    if dtype == "F16":
        return bits, bits.view(np.float16)
    if dtype == "F8_E5M2":  # The upper half of a float16.
        return bits, (bits.astype("<u2") << 8).view(np.float16)
    return bits, np.where(bits & 0x7F == 0x7F, np.nan, 1.0)  # OCP FP8: one NaN, no infinity.


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F8_E4M3", "F8_E5M2"])
def test_every_bit_pattern_is_judged_right(dtype, tmp_path: Path):
    bits, values = patterns(dtype)
    nan, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    assert nan > 1
    finite = bits[np.isfinite(values)]
    tensors: dict[str, Raw] = {
        "all": (dtype, bits.shape, bits.tobytes()),
        "finite": (dtype, finite.shape, finite.tobytes()),
    }
    for index, pattern in enumerate(bits[~np.isfinite(values)][:300]):
        one = np.concatenate([finite[:3], [pattern]]).astype(bits.dtype)
        tensors[f"one {index}"] = (dtype, (4,), one.tobytes())
    scan = scan_finite(open_checkpoint(write_checkpoint(tmp_path, tensors)))
    assert scan.scanned == len(tensors)
    found = {f.name: (f.nan, f.infinite) for f in scan.non_finite}
    assert found.pop("all") == (nan, infinite)
    assert found.keys() == tensors.keys() - {"all", "finite"}
    assert all(nan + infinite == 1 for nan, infinite in found.values())


@pytest.mark.parametrize(("dtype", "kind"), [("F32", np.float32), ("F64", np.float64)])
def test_wide_floats(dtype, kind, tmp_path: Path):
    top = np.finfo(kind)
    fine = np.array([0.0, -0.0, top.max, top.min, top.tiny, top.smallest_subnormal], dtype=kind)
    tensors = {"fine": (dtype, fine.shape, fine.tobytes())}
    expected = {}
    for name, value, counts in (
        ("nan", np.nan, (1, 0)),
        ("-nan", -np.nan, (1, 0)),
        ("inf", np.inf, (0, 1)),
        ("-inf", -np.inf, (0, 1)),
    ):
        array = np.append(fine, kind(value))
        tensors[name] = (dtype, array.shape, array.tobytes())
        expected[name] = counts
    scan = scan_finite(open_checkpoint(write_checkpoint(tmp_path, tensors)))
    assert {f.name: (f.nan, f.infinite) for f in scan.non_finite} == expected
    assert not scan.clean


@pytest.mark.usefixtures("small_chunks")
def test_scan_while_writing_finds_what_a_scan_of_the_result_finds(tmp_path: Path, out: Path):
    """Odd offsets and chunks that end inside tensors must neither hide nor invent a value."""
    data = np.zeros(500, dtype="<u2")
    data[[0, 1, 77, 499]] = [0x7F80, 0xFF80, 0x7FC1, 0xFFFF]
    tensors = {
        "odd": raw("U8", 3),
        "bad": ("BF16", (500,), data.tobytes()),
        "odd again": raw("U8", 1),
        "half": ("F16", (2,), np.array([0x7BFF, 0xFC00], dtype="<u2").tobytes()),
        "good": raw("F64", 40),
        "packed": raw("F8_E8M0", 4),
    }
    folder = write_checkpoint(tmp_path / "c", tensors)
    expected = ScanResult(3, (NonFinite("b", 2, 2), NonFinite("half", 0, 1)), ("packed",))
    written = write(folder, out, {"bad": "b"})
    assert written[0].scan == expected
    assert scan_finite(open_checkpoint(out)) == expected


def test_scan_reports_progress_and_notices_a_short_file(tmp_path: Path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, ONE))
    steps: list[int] = []
    assert scan_finite(checkpoint, steps.append).clean
    assert sum(steps) == checkpoint.weight_bytes
    os.truncate(checkpoint.shards[0].path, 2000)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        scan_finite(checkpoint)


def test_scans_of_several_files_are_merged():
    one = WrittenFile("a", 1, "0", ScanResult(2, (NonFinite("x", 1, 0),), ("p",)))
    two = WrittenFile("b", 1, "0", ScanResult(3, (), ("q",)))
    index = WrittenFile("i", 1, "0")
    merged = ScanResult(5, (NonFinite("x", 1, 0),), ("p", "q"))
    assert merged_scan([one, index, two]) == merged
    assert merged_scan([index]) is None
