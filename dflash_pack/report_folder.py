"""Where a validation leaves its report and the engine's logs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dflash_pack.errors import MissingHereError
from dflash_pack.hub.manifest import MANIFEST_NAME

INSIDE = ".dflash-pack"


@contextmanager
def report_folder(asked: Path | None, checkpoint: Path) -> Iterator[Path]:
    """Yield the folder for report and logs.

    ``asked`` where given; else ``.dflash-pack`` inside a checkpoint that this tool wrote. Any other
    checkpoint is the user's own: nothing is put there, and the folder is temporary.

    Raises:
        MissingHereError: If the folder can't be made.
    """
    if asked is None and not (checkpoint / MANIFEST_NAME).is_file():
        with tempfile.TemporaryDirectory(prefix="dflash-pack-") as folder:
            yield Path(folder)
        return
    folder_path = asked or checkpoint / INSIDE
    try:
        folder_path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingHereError(
            f"can't be made: {error.strerror}",
            where=folder_path,
            remedy="Give a folder that can be written to with --report",
        ) from None
    yield folder_path
