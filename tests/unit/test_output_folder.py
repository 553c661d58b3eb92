from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_pack.errors import DflashPackError, MissingHereError, OutputExistsError, UsageError
from dflash_pack.output_folder import check_output, fresh_folder, partial_path

# Only a folder whose record lists all that it holds may be replaced.
OLD_RECORD = '{"files": {"stale.safetensors": {}}}'
NEW_RECORD = '{"files": {"b": {}}}'


def snapshot(folder: Path) -> dict[str, str]:
    """Return the text of every file below ``folder``."""
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def made_by_us(out: Path) -> Path:
    """Make a folder as an earlier run would have."""
    out.mkdir()
    (out / "dflash_pack.json").write_text(OLD_RECORD)
    (out / "stale.safetensors").write_text("old")
    return out


def test_folder_appears_complete_at_the_end(tmp_path: Path):
    out = tmp_path / "deep" / "out"
    with fresh_folder(out, overwrite=False) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "a").write_text("1")
        (folder / "b").write_text("2")
        assert not out.exists()
        assert folder.is_relative_to(partial_path(out))
    assert snapshot(out) == {"sub/a": "1", "b": "2"}
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_after_an_error(error, tmp_path: Path):

    def run() -> None:
        with fresh_folder(tmp_path / "out", overwrite=False) as folder:
            (folder / "a").write_text("1")
            raise error

    with pytest.raises(error):
        run()
    assert list(tmp_path.iterdir()) == []


def test_earlier_output_survives_an_error(tmp_path: Path):
    out = made_by_us(tmp_path / "out")
    before = snapshot(out)
    with pytest.raises(ValueError, match="x"), fresh_folder(out, overwrite=True):
        raise ValueError("x")
    assert snapshot(out) == before
    assert list(tmp_path.iterdir()) == [out]


def test_overwrite_replaces_all_of_an_earlier_output(tmp_path: Path):
    out = made_by_us(tmp_path / "out")
    with fresh_folder(out, overwrite=True) as folder:
        (folder / "new").write_text("1")
        assert (out / "stale.safetensors").exists()
    assert snapshot(out) == {"new": "1"}
    assert list(tmp_path.iterdir()) == [out]


def test_existing_output_needs_overwrite(tmp_path: Path):
    out = made_by_us(tmp_path / "out")
    with pytest.raises(OutputExistsError, match="already exists and is not overwritten"):
        check_output(out, None, overwrite=False)
    check_output(out, None, overwrite=True)


def test_foreign_folder_is_never_replaced(tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputExistsError):
        check_output(out, None, overwrite=False)
    with pytest.raises(DflashPackError, match=r"holds no dflash_pack\.json, which convert writes"):
        check_output(out, None, overwrite=True)
    with pytest.raises(DflashPackError), fresh_folder(out, overwrite=True):
        pytest.fail("no work may be done")
    assert snapshot(out) == {"thesis.tex": "years of work"}


def test_empty_folder_is_used(tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    with fresh_folder(out, overwrite=False) as folder:
        (folder / "a").write_text("1")
    assert snapshot(out) == {"a": "1"}


def test_what_appears_meanwhile_is_not_overwritten(tmp_path: Path):
    out = tmp_path / "out"

    def run() -> None:
        with fresh_folder(out, overwrite=False) as folder:
            (folder / "a").write_text("1")
            out.mkdir()
            (out / "theirs").write_text("2")

    with pytest.raises(OutputExistsError):
        run()
    assert snapshot(out) == {"theirs": "2"}
    assert list(tmp_path.iterdir()) == [out]


def test_file_or_link_in_the_way(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DflashPackError, match="is a file"):
        check_output(tmp_path / "file", None, overwrite=True)
    with pytest.raises(UsageError, match=r"file is not a folder"):
        check_output(tmp_path / "file" / "out", None, overwrite=False)
    (tmp_path / "real").mkdir()
    for target in ("real", "nothing"):
        link = tmp_path / f"to-{target}"
        link.symlink_to(target)
        with pytest.raises(DflashPackError, match="is a symbolic link and is not replaced"):
            check_output(link, None, overwrite=True)


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("source", "is the source itself"),
        ("source/", "is the source itself"),
        ("source/out", "lies inside the source"),
        ("source/../source/out", "lies inside the source"),
        ("link/out", "lies inside the source"),
        (".", "names no folder"),
        ("..", "names no folder"),
        ("source/..", "names no folder"),
        ("", "names no folder"),
        ("/", "names no folder"),
    ],
)
def test_output_and_source_may_not_overlap(
    out, said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    made_by_us(tmp_path / "source")
    (tmp_path / "link").symlink_to("source")
    with pytest.raises(UsageError, match=said):
        check_output(Path(out), Path("source"), overwrite=True)
    check_output(Path("source-2"), Path("source"), overwrite=True)


def test_output_around_the_source_would_lose_it(tmp_path: Path):
    out = made_by_us(tmp_path / "out")
    (out / "source").mkdir()
    with pytest.raises(UsageError, match="holds the source, which would be lost"):
        check_output(out, out / "source", overwrite=True)


def test_parent_without_right_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tmp_path.chmod(0o500)
    if os.geteuid() == 0:  # Root may write everywhere, so the answer has to be made up.
        monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(MissingHereError, match="no right to write in"):
        check_output(tmp_path / "new" / "out", None, overwrite=False)


def test_second_run_is_refused_while_the_first_writes(tmp_path: Path):
    out = tmp_path / "out"
    with fresh_folder(out, overwrite=False) as folder:
        (folder / "a").write_text("1")
        with pytest.raises(DflashPackError, match="out: is being written by another run"):
            fresh_folder(out, overwrite=False).__enter__()
        with fresh_folder(tmp_path / "other", overwrite=False):
            pass
    assert snapshot(out) == {"a": "1"}


def test_folder_of_that_name_which_is_not_ours_is_left_alone(tmp_path: Path):
    partial = partial_path(tmp_path / "out")
    partial.mkdir()
    (partial / "thesis.tex").write_text("x")
    with (
        pytest.raises(DflashPackError, match="is in the way and was not made by dflash-pack"),
        fresh_folder(tmp_path / "out", overwrite=False),
    ):
        pytest.fail("no work may be done")
    assert snapshot(partial) == {"thesis.tex": "x"}
    (partial / "thesis.tex").unlink()
    partial.rmdir()
    partial.symlink_to(tmp_path)
    with (
        pytest.raises(DflashPackError, match="is in the way"),
        fresh_folder(tmp_path / "out", overwrite=False),
    ):
        pytest.fail("no work may be done")


def test_disk_full_while_the_caller_writes_is_a_sentence_and_other_errors_are_bugs(tmp_path: Path):
    out = tmp_path / "out"
    with (
        pytest.raises(MissingHereError, match="no space is left on the disk"),
        fresh_folder(out, overwrite=False),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(FileNotFoundError), fresh_folder(out, overwrite=False) as folder:
        (folder / "missing").read_text()
    assert list(tmp_path.iterdir()) == []


# A run that stops and waits at each stage, so that it can be killed exactly there.
CHILD = """
import os, sys
from pathlib import Path
from dflash_pack.output_folder import fresh_folder

out, stop = Path(sys.argv[1]), sys.argv[2]

def stage(name):
    if name == stop:
        print(name, flush=True)
        sys.stdin.read()

def before(function, name):
    def call(*arguments, **options):
        stage(name)
        return function(*arguments, **options)
    return call

os.fsync = before(os.fsync, "syncing")
Path.mkdir = before(Path.mkdir, "making")
rename = Path.rename
def renamed(self, target):
    if self.name == "new":
        stage("before the folder appears")
    result = rename(self, target)
    if self.name == "new":
        stage("after the folder appeared")
    else:
        stage("earlier output moved away")
    return result
Path.rename = renamed

with fresh_folder(out, overwrite=True) as folder:
    stage("empty")
    with (folder / "dflash_pack.json").open("w") as file:
        file.write('{"files": {"b": {}}}')
        stage("open file")
    (folder / "b").write_text("2")
    stage("written")
stage("done")
print("end", flush=True)
"""
NEW = {"dflash_pack.json": NEW_RECORD, "b": "2"}
STAGES = [
    "making",
    "empty",
    "open file",
    "written",
    "syncing",
    "earlier output moved away",
    "before the folder appears",
    "after the folder appeared",
    "done",
]


def start(out: Path, stop: str) -> subprocess.Popen[str]:
    """Start a run and return when it waits at that stage or has ended."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(out), stop],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


def finish(child: subprocess.Popen[str]) -> int:
    """Wait for the end and close the pipes."""
    code = child.wait()
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        pipe.close()
    return code


@pytest.mark.parametrize(
    ("stage", "existing"),
    [(s, True) for s in STAGES] + [(s, False) for s in STAGES if "earlier" not in s],
)
def test_kill_9_leaves_the_output_absent_or_complete(stage, existing, tmp_path: Path):
    out = tmp_path / "out"
    old = snapshot(made_by_us(out)) if existing else None
    child = start(out, stage)
    child.send_signal(signal.SIGKILL)
    assert finish(child) == -signal.SIGKILL
    # Absent, or one of the two complete states; never a mixture or a part.
    now = snapshot(out) if out.exists() else None
    absent_is_right = not existing or stage in STAGES[5:7]
    assert now in ([NEW, old] if not absent_is_right else [NEW, old, None])
    if stage in STAGES[-2:]:
        assert now == NEW
    # The next run clears up after it and succeeds.
    assert finish(start(out, "never")) == 0
    assert snapshot(out) == NEW
    assert list(tmp_path.iterdir()) == [out]


def test_next_run_restores_the_earlier_output_before_it_fails(tmp_path: Path):
    """Killed between the two renames, the earlier output lies aside; it must not be lost."""
    out = made_by_us(tmp_path / "out")
    old = snapshot(out)
    child = start(out, "earlier output moved away")
    child.kill()
    finish(child)
    assert not out.exists()
    with pytest.raises(ValueError, match="x"), fresh_folder(out, overwrite=True):
        raise ValueError("x")
    assert snapshot(out) == old
    assert list(tmp_path.iterdir()) == [out]


def test_run_in_another_process_is_seen(tmp_path: Path):
    out = tmp_path / "out"
    child = start(out, "written")
    with pytest.raises(DflashPackError, match="is being written by another run"):
        fresh_folder(out, overwrite=False).__enter__()
    assert child.stdin is not None
    child.stdin.close()
    child.stdin = None
    assert child.wait() == 0
    assert child.stdout is not None
    child.stdout.close()
    assert snapshot(out) == NEW


def test_lock_taken_on_a_removed_file_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Between opening and locking, the run before may end and remove the lock file."""
    out = tmp_path / "out"
    lock = fcntl.flock
    removed: list[Path] = []

    def lose_the_race(descriptor: int, operation: int) -> None:
        lock(descriptor, operation)
        if not removed:
            removed.append(partial_path(out) / "lock")
            removed[0].unlink()
            partial_path(out).rmdir()

    monkeypatch.setattr(fcntl, "flock", lose_the_race)
    with fresh_folder(out, overwrite=False) as folder:
        (folder / "a").write_text("1")
        assert removed[0].exists()
    assert snapshot(out) == {"a": "1"}
