"""Where a validation leaves its report and the engine's logs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dflash_pack.checkpoint import MANIFEST_NAME, REPORT_NAME, REPORTS_NAME, VALIDATION_NAMES
from dflash_pack.errors import DflashPackError, MissingHereError
from dflash_pack.output_folder import write_whole
from dflash_pack.strict_json import read_json_object


@dataclass(frozen=True)
class ReportFolder:
    """The folder for report and logs, and whether it outlives the command."""

    path: Path
    kept: bool


@contextmanager
def report_folder(asked: Path | None, checkpoint: Path) -> Iterator[ReportFolder]:
    """Yield the folder for report and logs.

    ``asked`` where given; else ``.dflash-pack`` inside a checkpoint that this tool wrote, if it can
    be written to. Any other checkpoint is the user's own: nothing is put there, and the folder is
    temporary.

    Raises:
        MissingHereError: If ``asked`` can't be made or written to.
        DflashPackError: If it holds a file of the user's where report or log belong.
    """
    if asked is not None:
        if not _writable(asked):
            raise MissingHereError(
                "can't be made or written to",
                where=asked,
                remedy="Give another folder with --report",
            )
        _require_ours(asked)
        yield ReportFolder(asked, kept=True)
        return
    inside = checkpoint / REPORTS_NAME
    if (checkpoint / MANIFEST_NAME).is_file() and _writable(inside):
        yield ReportFolder(inside, kept=True)
        return
    with tempfile.TemporaryDirectory(prefix="dflash-pack-") as folder:
        yield ReportFolder(Path(folder), kept=False)


def _writable(folder: Path) -> bool:
    """Make ``folder`` and return whether files can be made in it.

    A link is not followed: a hostile checkpoint could lead it to the user's own files.
    """
    if folder.is_symlink():
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK) and not any(
        (folder / name).is_dir() for name in VALIDATION_NAMES
    )


def _require_ours(folder: Path) -> None:
    """Check that report and log of the same names in ``folder`` are of a former validation.

    Raises:
        DflashPackError: If they are anything else.
    """
    found = [name for name in VALIDATION_NAMES if os.path.lexists(folder / name)]
    if not found:
        return
    try:
        ours = read_json_object(folder / REPORT_NAME).get("document") == "validation"
    except DflashPackError:
        ours = False
    if not ours:
        raise DflashPackError(
            f"holds a {found[0]} that is no report's, and is not overwritten",
            where=folder,
            remedy="Give another folder with --report",
        )


def write_report(path: Path, text: str) -> None:
    """Write a report.

    Raises:
        MissingHereError: If the file can't be written.
    """
    try:
        write_whole(path, (text + "\n").encode())
    except OSError as error:
        raise MissingHereError(
            f"can't be written: {error.strerror}",
            where=path,
            remedy="Give another folder with --report",
        ) from None
