"""A progress bar on a terminal, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dflash_pack.console import Output


@contextmanager
def byte_progress(talk: Output, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the number of bytes done since its last call.

    Args:
        talk: Output settings; the bar goes to stderr, and only on a terminal.
        total: Bytes in all.
    """
    if talk.quiet or not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = ("writing", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=talk.console(stderr=True), transient=True) as bar:
        task = bar.add_task("writing", total=total)
        yield lambda count: bar.update(task, advance=count)
