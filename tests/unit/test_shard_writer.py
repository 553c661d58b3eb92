from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peak_memory import peak_mib
from plans import FIRST, ONE, SECOND, contents, write
from raw_safetensors import raw, safetensors_bytes, write_checkpoint
from safetensors.numpy import load_file, save_file

from dflash_pack import file_reading, shard_writer
from dflash_pack.checkpoint import DTYPE_BITS, TensorSpec, open_checkpoint
from dflash_pack.errors import CheckpointError, DflashPackError, MissingHereError
from dflash_pack.finite_scan import NonFinite, ScanResult
from dflash_pack.pieces import FileRange, Literal
from dflash_pack.shard_writer import WrittenFile, merged_scan, write_plan
from dflash_pack.tensors import OutputShard, PlannedTensor, TensorPlan, plan_tensors


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return an empty folder to write into."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a small file take many chunks."""
    monkeypatch.setattr(file_reading, "CHUNK_BYTES", 64)
    monkeypatch.setattr(shard_writer, "COPY_BYTES", 128)


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
        patch.setattr(file_reading, "CHUNK_BYTES", chunk)
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
        from dflash_pack.shard_writer import write_plan
        from dflash_pack.tensors import plan_tensors
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

    monkeypatch.setattr(shard_writer, "FLUSH_BYTES", 1)
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


SIZE = 1 << 28


@pytest.mark.parametrize(
    ("dtype", "shape", "edits"),
    [
        ("BF16", [SIZE // 2], {}),
        ("F32", [SIZE // 4], {"dtype": "BF16"}),
        ("BF16", [SIZE // 2], {"dtype": "F32"}),
        ("F64", [SIZE // 8], {"dtype": "F16"}),
        ("BF16", [1, SIZE // 2], {"column_orders": {"big": (1, 0)}}),
        ("BF16", [SIZE // 4, 2], {"column_orders": {"big": (1, 0)}}),
        ("F32", [SIZE // 48, 12], {"column_orders": {"big": (2, 0, 1)}, "dtype": "BF16"}),
        ("F32", [2, SIZE // 8], {"row_splits": {"big": (("a", 1), ("b", 1))}, "dtype": "F16"}),
    ],
    ids=str,
)
def test_memory_does_not_grow_with_the_size(dtype, shape, edits, tmp_path: Path, out: Path):
    """256 MiB of sparse zeros through the whole writer, as a child so that the peak is its own."""
    folder = write_checkpoint(tmp_path / "c", {"small": raw("F32", 2)})
    count = math.prod(shape) * DTYPE_BITS[dtype] // 8
    header = json.dumps(
        {"big": {"dtype": dtype, "shape": shape, "data_offsets": [0, count]}}
    ).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + count)
    code = "\n".join(
        [
            "import json, sys",
            "from pathlib import Path",
            "from dflash_pack.checkpoint import open_checkpoint",
            "from dflash_pack.shard_writer import write_plan",
            "from dflash_pack.tensors import plan_tensors",
            "edits = json.loads(sys.argv[3])",
            "plan = plan_tensors(open_checkpoint(Path(sys.argv[1])), {}, **edits)",
            "write_plan(plan, Path(sys.argv[2]))",
        ]
    )
    assert peak_mib(code + "\n", str(folder), str(out), json.dumps(edits)) < 100
    written = DTYPE_BITS[edits.get("dtype", dtype)] * math.prod(shape) // 8
    assert (out / "model.safetensors").stat().st_size - written < 300


def test_scans_of_several_files_are_merged():
    one = WrittenFile("a", 1, "0", ScanResult(2, (NonFinite("x", 1, 0),), ("p",)))
    two = WrittenFile("b", 1, "0", ScanResult(3, (), ("q",)))
    index = WrittenFile("i", 1, "0")
    merged = ScanResult(5, (NonFinite("x", 1, 0),), ("p", "q"))
    assert merged_scan([one, index, two]) == merged
    assert merged_scan([index]) is None
