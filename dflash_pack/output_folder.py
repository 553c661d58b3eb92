"""The folder a command writes: absent or complete, whatever ends the process."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dflash_pack.checkpoint import MANIFEST_NAME, REPORT_NAMES, REPORTS_NAME
from dflash_pack.errors import DflashPackError, MissingHereError, OutputExistsError, UsageError
from dflash_pack.strict_json import read_json_object

# File systems take 255 bytes; the folder it is built in adds some.
_LONGEST_NAME = 240
_LOCK_NAME = "lock"
_OLD_NAME = "old"
_NEW_NAME = "new"
# Faults of the disk, never of our code, whoever writes into the folder.
_DISK_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG})


@contextmanager
def fresh_folder(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give an empty folder to build in, and make it ``out`` when the block succeeds.

    The folder lies in ``.{name}.partial`` beside ``out``, which a lock holds, so that a second run
    is refused and what a killed run left is cleared. After an exception, Ctrl-C included, it is
    removed. ``out`` appears by one rename, after everything in it is on the disk.

    Args:
        out: The folder to make; it may exist if it is empty.
        overwrite: Whether an existing folder that this tool made may be replaced.

    Raises:
        OutputExistsError: ``out`` exists and may not be replaced.
        DflashPackError: Another run is writing ``out``, or something else is in the way.
        MissingHereError: The file system refuses.
    """
    check_output(out, None, overwrite=overwrite)
    out = _absolute(out)
    partial = partial_path(out)
    with _os_errors(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(partial, out)
    try:
        with _os_errors(partial):
            _recover(partial, out)
            new = partial / _NEW_NAME
            new.mkdir()
        with _os_errors(out, only=_DISK_FAULTS):
            yield new
        with _os_errors(out):
            _sync_tree(new)
            _put_in_place(new, out, partial / _OLD_NAME, overwrite)
            _sync_folder(out.parent)
    finally:
        _remove(partial, lock)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is the old or the new one, whatever ends the process.

    It is renamed into place, so a link or pipe of that name is replaced and never written to.

    Raises:
        OSError: If it can't be written.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        # mkstemp makes the file private to its owner; what lies beside it follows the umask.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    # The umask can only be read by setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def check_output(
    out: Path, source: Path | None, *, overwrite: bool, keep: Sequence[Path] = ()
) -> None:
    """Refuse an output folder that could not be made at the end, before any work is done.

    Args:
        out: The folder to make.
        source: The folder that is read, which must be neither inside nor around ``out``.
        overwrite: Whether an existing folder that this tool made may be replaced.
        keep: What else is read, and must be neither ``out`` nor inside it.

    Raises:
        OutputExistsError: ``out`` exists and may not be replaced.
        UsageError: ``out`` and ``source`` overlap, or ``out`` names no folder.
        MissingHereError: The parent can't be written.
    """
    if out.name in ("", ".."):
        raise UsageError("names no folder that could be made", where=out, field="--output")
    if len(os.fsencode(out.name)) > _LONGEST_NAME:
        raise UsageError("has too long a name", where=str(out)[:80] + "...", field="--output")
    path = _absolute(out)
    if source is not None:
        real = source.resolve()
        if path == real:
            raise _misplaced(out, "is the source itself")
        if path.is_relative_to(real):
            raise _misplaced(out, "lies inside the source")
        if real.is_relative_to(path):
            raise _misplaced(out, "holds the source, which would be lost")
    for other in keep:
        if other.resolve().is_relative_to(path):
            raise _misplaced(out, f"is or holds {other}, which would be lost")
    _check_replaceable(path, overwrite)
    parent = next(folder for folder in path.parents if folder.exists())
    if not parent.is_dir():
        raise UsageError(f"can't be made: {parent} is not a folder", where=out, field="--output")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise MissingHereError(
            f"can't be made: no right to write in {parent}",
            where=out,
            remedy="Choose another --output",
        )


def _misplaced(out: Path, what: str) -> UsageError:
    return UsageError(what, where=out, field="--output", remedy="Choose another --output")


def partial_path(out: Path) -> Path:
    """Return the sibling in which ``out`` is built."""
    return out.with_name(f".{out.name}.partial")


def _absolute(out: Path) -> Path:
    """Return ``out`` with its parent resolved; the last part stays, even if it is a link."""
    return out.parent.resolve() / out.name


def _check_replaceable(out: Path, overwrite: bool) -> None:
    if out.is_symlink():
        raise DflashPackError(
            "is a symbolic link and is not replaced",
            where=out,
            remedy="Give the folder it leads to",
        )
    if not out.exists():
        return
    if not out.is_dir():
        raise DflashPackError("is a file", where=out, remedy="Choose another --output")
    if not any(out.iterdir()):
        return
    if not overwrite:
        raise OutputExistsError(out)
    foreign = _foreign(out)
    if foreign is not None:
        raise DflashPackError(
            f"{foreign}, so --overwrite leaves it alone",
            where=out,
            remedy="Remove it yourself or choose another --output",
        )


def _foreign(out: Path) -> str | None:
    """Return what in ``out`` dflash-pack did not put there, as a clause; None if it all did."""
    if not (out / MANIFEST_NAME).exists():
        return f"holds no {MANIFEST_NAME}, which convert writes (unless told --no-verify)"
    try:
        listed = read_json_object(out / MANIFEST_NAME).get("files")
    except DflashPackError:
        return f"was not made by dflash-pack (no sound {MANIFEST_NAME})"
    if not isinstance(listed, dict) or not listed:
        return f"was not made by dflash-pack ({MANIFEST_NAME} lists no file)"
    for path in out.iterdir():
        folder = path.is_dir() and not path.is_symlink()
        if path.name == REPORTS_NAME and folder:
            theirs = [inner.name for inner in path.iterdir() if not _is_report(inner)]
            if theirs:
                return f"holds {REPORTS_NAME}/{theirs[0]}, which dflash-pack did not put there"
            continue
        if folder or path.name not in (*listed, MANIFEST_NAME):
            return f"holds {path.name}, which dflash-pack did not put there"
    return None


def _is_report(path: Path) -> bool:
    """Return whether ``path`` is a report or log of ours, or what a killed run left of one."""
    plain = path.is_file() or path.is_symlink()
    # decode.2.log is the second of several engines.
    ours = path.name in REPORT_NAMES or path.match("decode.*.log")
    return plain and (ours or any(path.name.startswith(f".{name}.") for name in REPORT_NAMES))


def _locked(partial: Path, out: Path) -> int:
    """Create and lock ``partial``; return the descriptor that holds the lock."""
    while True:
        try:
            _check_ours(partial)
            partial.mkdir(exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock = os.open(partial / _LOCK_NAME, flags, 0o666)
        except FileNotFoundError:
            continue  # A run that ended just removed the folder.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise DflashPackError(
                "is being written by another run",
                where=out,
                remedy="Wait for it to end or choose another --output",
            ) from error
        if os.fstat(lock).st_nlink:
            return lock
        os.close(lock)  # A run that ended had removed the file before we locked it.


def _remove(partial: Path, lock: int) -> None:
    """Remove ``partial`` as far as possible, the lock last: until then nobody else enters."""
    try:
        for name in (_NEW_NAME, _OLD_NAME):
            shutil.rmtree(partial / name, ignore_errors=True)
        with suppress(OSError):
            (partial / _LOCK_NAME).unlink()
            partial.rmdir()
    finally:
        os.close(lock)


def _check_ours(partial: Path) -> None:
    """Refuse to clear a folder of that name which holds anything but what we put there."""
    if not os.path.lexists(partial):
        return
    ours = {_LOCK_NAME, _NEW_NAME, _OLD_NAME}
    if partial.is_symlink() or not partial.is_dir() or {p.name for p in partial.iterdir()} - ours:
        raise DflashPackError(
            "is in the way and was not made by dflash-pack",
            where=partial,
            remedy="Remove it or choose another --output",
        )


def _recover(partial: Path, out: Path) -> None:
    """Clear what a killed run left; put back the folder it was about to replace."""
    old = partial / _OLD_NAME
    if old.exists() and not os.path.lexists(out):
        old.rename(out)
    for name in (_NEW_NAME, _OLD_NAME):
        if (partial / name).exists():
            shutil.rmtree(partial / name)


def _put_in_place(new: Path, out: Path, old: Path, overwrite: bool) -> None:
    _check_replaceable(out, overwrite)
    if out.exists() and any(out.iterdir()):
        out.rename(old)
    try:
        new.rename(out)  # Replaces an empty folder, never a full one.
    except OSError as error:
        if old.exists():
            old.rename(out)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise OutputExistsError(out) from error
        raise


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_dir() or path.is_file():
            _sync_folder(path)
    _sync_folder(folder)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _os_errors(path: Path, *, only: frozenset[int] | None = None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if only is not None and error.errno not in only:
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "no space is left on the disk" if full else f"can't be made ({error.strerror})"
        remedy = "Free space there or choose another --output"
        raise MissingHereError(what, where=path, remedy=remedy) from error
