"""The engine's log: kept within bounds, and searched for the line that tells what went wrong."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from pathlib import Path
from typing import BinaryIO, Self

from dflash_pack.errors import printable

HEAD_BYTES = 4 << 20
TAIL_BYTES = 512 << 10
TELLING_CHARS = 600
CONTINUATION_LINES = 3

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# "(EngineCore pid=12) ERROR 12-01 15:33:04 [core.py:133] " in front of what was logged.
_PREFIX = re.compile(
    r"^(?:\([\w ]{1,40} pid=\d+\) ?)?"
    r"(?:(DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:.]+ \[[^\]]{1,80}\] ?)?"
)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.){0,12}[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure)\b(?:: .*)?$"
)
_FATAL = re.compile(r"^(?:Fatal Python error: |terminate called |OMP: Error ).*")
_COUNT = re.compile(r"ValidationError: \d+ validation errors? for ")
# Said by processes that only pass on what another one met.
_SECOND_HAND = ("see root cause", "initialization failed", "enginedeaderror", "failed to start")


class BoundedLog:
    """A pipe whose text goes to a file: the beginning as it comes, the end when it ends.

    ::

        with BoundedLog(path) as log:
            process = subprocess.Popen(command, stdout=log.fileno())
            log.hand_over()
            process.wait()

    Args:
        path: The log; its folder is made. What has its name is replaced, and a link not followed.
        head_bytes: How much of the beginning is kept.
        tail_bytes: How much of the end is kept; what lies between is counted and dropped.
    """

    def __init__(
        self, path: Path, *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _new_file(path)
        self._room = head_bytes
        self._tail_bytes = tail_bytes
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._dropped = 0
        self._lock = threading.Lock()
        self._read_end, self._write_end = os.pipe()
        self._handed_over = False
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the end of the pipe that the engine's process writes to."""
        return self._write_end

    def hand_over(self) -> None:
        """Close our own writing end, so that the log ends with the last process that holds it."""
        if not self._handed_over:
            self._handed_over = True
            os.close(self._write_end)

    def close(self, *, patience_s: float = 2.0) -> None:
        """Write the end and close; waits ``patience_s`` for writers that outlive the engine."""
        self.hand_over()
        self._thread.join(patience_s)
        with self._lock:
            if self._dropped:
                self._file.write(f"\n[{self._dropped} bytes left out]\n".encode())
            for chunk in self._tail:
                self._file.write(chunk)
            self._tail.clear()
            self._file.close()

    def _copy(self) -> None:
        while chunk := os.read(self._read_end, 65536):
            with self._lock:
                if not self._file.closed:
                    self._keep(chunk)
        os.close(self._read_end)

    def _keep(self, chunk: bytes) -> None:
        head, rest = chunk[: self._room], chunk[self._room :]
        if head:
            self._room -= len(head)
            self._file.write(head)
            self._file.flush()
        if not rest:
            return
        self._tail.append(rest)
        self._tail_size += len(rest)
        while self._tail_size - len(self._tail[0]) >= self._tail_bytes:
            gone = len(self._tail.popleft())
            self._tail_size -= gone
            self._dropped += gone


def _new_file(path: Path) -> BinaryIO:
    """Return a new file of that name, never one that a hostile checkpoint's link leads to."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def telling(text: str) -> str:
    """Return the part of an engine's output that says why it failed, on one bounded line.

    That is the last exception, with the lines that continue it, which isn't only second hand
    ("see root cause above"); else the last three lines. Control characters are escaped.
    """
    lines = [_plain(line) for line in text.splitlines()]
    found = [index for index, line in enumerate(lines) if _tells(line)]
    first_hand = [index for index in found if not _second_hand(lines[index])]
    if first_hand or found:
        start = (first_hand or found)[-1]
        more = _continuation(lines[start + 1 :])
        # Pydantic's first line only counts its errors.
        counts = _COUNT.search(lines[start]) is not None and bool(more)
        picked = more if counts else [lines[start], *more]
        if ":" not in lines[start]:  # a bare assertion: the line of code says more
            picked += _code_before(lines[:start])
    else:
        picked = [line for line in lines if line.strip()][-3:]
    line = printable(" ".join(" ".join(part.split()) for part in picked))
    return line if len(line) <= TELLING_CHARS else line[: TELLING_CHARS - 3] + "..."


def _plain(line: str) -> str:
    return _PREFIX.sub("", _COLOUR.sub("", line[:4096]), count=1).rstrip()


def _tells(line: str) -> bool:
    return bool(_EXCEPTION.match(line) or _FATAL.match(line))


def _second_hand(line: str) -> bool:
    return any(phrase in line.lower() for phrase in _SECOND_HAND)


def _code_before(lines: list[str]) -> list[str]:
    for line in reversed(lines[-3:]):
        if line.startswith("    ") and line.strip(" ^~"):
            return [f"({line.strip()})"]
    return []


def _continuation(lines: list[str]) -> list[str]:
    picked: list[str] = []
    for line in lines[:CONTINUATION_LINES]:
        if not line.startswith("  ") or line.lstrip().startswith(("File ", "For further ")):
            break
        picked.append(line)
    return picked
