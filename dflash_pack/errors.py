"""The errors a user can cause or meet: each builds one sentence from facts and knows its exit code.

Anything that is not a :class:`DflashPackError` is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

EXIT_DONE = 0
EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_MISSING_HERE = 3
EXIT_INTERRUPTED = 130


_CONFIG = "config.json"
_LONGEST_NAME = 100


class DflashPackError(Exception):
    """Base of every expected error: ``[where: ][field: ]what. [remedy.]`` in one line.

    Args:
        what: What is wrong, without a full stop.
        where: The file, folder or repository it is wrong in.
        field: The config key or tensor name.
        remedy: The next step for the user, without a full stop.
    """

    exit_code: ClassVar[int] = EXIT_REFUSED

    def __init__(
        self,
        what: str,
        *,
        where: str | Path | None = None,
        field: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.field = field
        self.remedy = remedy
        super().__init__(self.sentence())

    def locate(self, folder: Path, config_file: Path | None = None) -> None:
        """Name the folder too, where only a file in it (or nothing) is named so far.

        Args:
            folder: The checkpoint.
            config_file: What stands for its ``config.json``, where that lies elsewhere.
        """
        # What a training checkpoint states beside its weights is not the config's fault.
        beside = (self.field or "").startswith("training_state.")
        if config_file is not None and self.where == _CONFIG and not beside:
            self.where = str(config_file)
            self.args = (self.sentence(),)
        elif self.where is None or "/" not in self.where:
            known = self.where is not None and (folder / self.where).is_file()
            self.where = str(folder / str(self.where)) if known else str(folder)
            self.args = (self.sentence(),)

    def finding(self) -> str:
        """Return what is wrong and where, without remedy and full stop."""
        head = ": ".join(printable(part) for part in (self.where, self.field, self.what) if part)
        return head.rstrip(".")

    def sentence(self) -> str:
        """Return the message as one line: where, field, what, remedy."""
        tail = f" {printable(self.remedy)}." if self.remedy else ""
        return f"{self.finding()}.{tail}"

    def advise(self, remedy: str) -> None:
        """Give another next step, where a caller knows a better one."""
        self.remedy = remedy
        self.args = (self.sentence(),)


class CheckpointError(DflashPackError):
    """A file of a checkpoint is missing, broken or hostile."""


class ContradictionError(DflashPackError):
    """Two places of one checkpoint (or checkpoint and target) state different facts."""

    def __init__(
        self,
        field: str,
        first: tuple[str, object],
        second: tuple[str, object],
        *,
        where: str | Path | None = None,
        remedy: str | None = None,
    ) -> None:
        self.first = first
        self.second = second
        what = f"{first[0]} says {_short(first[1])} but {second[0]} says {_short(second[1])}"
        super().__init__(what, where=where, field=field, remedy=remedy)


class UnaccountedError(DflashPackError):
    """Config keys or tensors of the source that no rule of its format covers."""

    def __init__(
        self,
        kind: str,
        names: Sequence[str],
        known: Iterable[str] = (),
        *,
        where: str | Path | None = None,
        remedy: str | None = None,
    ) -> None:
        self.names = tuple(names)
        first = self.names[0]
        # Longer ones are no misspellings, and comparing them takes quadratic time.
        candidates = list(known) if len(first) <= _LONGEST_NAME else []
        nearest = difflib.get_close_matches(first, candidates, n=1)
        hint = f" (nearest known: {nearest[0]})" if nearest else ""
        listed = [name[:_LONGEST_NAME] for name in self.names[:6]]
        shown = ", ".join(listed) + (", ..." if len(self.names) > 6 else "")
        number = len(self.names)
        what = f"{number} unknown {kind if number > 1 else kind.removesuffix('s')}: {shown}{hint}"
        super().__init__(what, where=where, remedy=remedy)


class NotRepresentableError(DflashPackError):
    """The chosen output form can't carry what the source means."""


class TargetMismatchError(DflashPackError):
    """The drafter was not made for this target."""


class OutputExistsError(DflashPackError):
    """The result would overwrite something of the user's."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            "already exists and is not overwritten",
            where=path,
            remedy="Choose another --output or pass --overwrite",
        )


class CheckFailedError(DflashPackError):
    """A validation could not be completed or failed."""


class UsageError(DflashPackError):
    """The command line asks for something that makes no sense."""

    exit_code = EXIT_USAGE


class MissingHereError(DflashPackError):
    """Something needed is not on this machine; the remedy names the command that brings it."""

    exit_code = EXIT_MISSING_HERE


def printable(text: str) -> str:
    """Return ``text`` on one line with control characters escaped: names in it may be hostile."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
