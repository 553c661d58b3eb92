"""The ledger: every config key, tensor and side file of a source, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dflash_pack.errors import UnaccountedError

Kind = Literal["config key", "tensor", "file"]
Fate = Literal["mapped", "dropped", "lossy", "stated"]

PLURAL: Mapping[Kind, str] = {"config key": "config keys", "tensor": "tensors", "file": "files"}


@dataclass(frozen=True)
class Entry:
    """What became of one item of the source.

    Attributes:
        kind: Config key, tensor or file.
        name: Dotted key, tensor name or path.
        fate: ``mapped`` (its meaning is in the result), ``dropped`` (it has none, for the reason
            given), ``lossy`` (it has one, and the user accepted its loss) or ``stated`` (the user
            stated the value, whatever the source says).
        detail: Where it went, or the reason.
    """

    kind: Kind
    name: str
    fate: Fate
    detail: str


@dataclass(frozen=True)
class Ledger:
    """All entries of one conversion."""

    entries: tuple[Entry, ...]

    def of(self, fate: Fate) -> tuple[Entry, ...]:
        """Return the entries with that fate."""
        return tuple(entry for entry in self.entries if entry.fate == fate)


class LedgerBuilder:
    """Collects fates while a source is read, then proves that nothing is left over."""

    def __init__(self) -> None:
        self._entries: dict[tuple[Kind, str], Entry] = {}

    def map(self, kind: Kind, name: str, to: str) -> None:
        """Record that the meaning of ``name`` went to ``to``."""
        self._entries[kind, name] = Entry(kind, name, "mapped", to)

    def drop(self, kind: Kind, name: str, reason: str) -> None:
        """Record that ``name`` carries no meaning for the result, and why."""
        self._entries[kind, name] = Entry(kind, name, "dropped", reason)

    def lose(self, kind: Kind, name: str, reason: str) -> None:
        """Record a loss that the user accepted by name."""
        self._entries[kind, name] = Entry(kind, name, "lossy", reason)

    def state(self, kind: Kind, name: str, detail: str) -> None:
        """Record a value that the user stated, and what the source says instead."""
        self._entries[kind, name] = Entry(kind, name, "stated", detail)

    def knows(self, kind: Kind, name: str) -> bool:
        """Return whether ``name`` has a fate."""
        return (kind, name) in self._entries

    def close(
        self, kind: Kind, names: Iterable[str], *, where: str, known: Iterable[str], remedy: str
    ) -> None:
        """Check that each of ``names`` has a fate.

        Args:
            kind: What the names are.
            names: Everything of that kind in the source.
            where: File or folder for the message.
            known: Names that the format does know, to suggest a near one.
            remedy: Next step for the user.

        Raises:
            UnaccountedError: If any has none.
        """
        left = sorted(name for name in names if not self.knows(kind, name))
        if left:
            raise UnaccountedError(PLURAL[kind], left, known, where=where, remedy=remedy)

    def build(self) -> Ledger:
        """Return the finished ledger, sorted by kind and name."""
        return Ledger(tuple(sorted(self._entries.values(), key=lambda e: (e.kind, e.name))))


def flatten(config: Mapping[str, Any], sections: Iterable[str] = ()) -> dict[str, Any]:
    """Return dotted key -> value, opening only the objects named in ``sections``.

    Args:
        config: A parsed ``config.json``.
        sections: Dotted names of objects whose keys are accounted for one by one; any other
            object counts as one value.
    """
    opened = frozenset(sections)
    flat: dict[str, Any] = {}
    pending: list[tuple[str, Mapping[str, Any]]] = [("", config)]
    while pending:
        prefix, section = pending.pop()
        for key, value in section.items():
            name = f"{prefix}{key}"
            if name in opened and isinstance(value, Mapping):
                pending.append((f"{name}.", value))
            else:
                flat[name] = value
    return flat
