"""What every reader returns, and the cursor that reads config keys and keeps the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_pack.accounting import Ledger, LedgerBuilder
from dflash_pack.checkpoint import CONFIG_NAME, Contents, TensorSpec
from dflash_pack.drafter import Drafter
from dflash_pack.errors import CheckpointError, ContradictionError

CONFIG = CONFIG_NAME


@dataclass(frozen=True)
class Reading:
    """One source, understood.

    Attributes:
        format: Name of the reader.
        drafter: What the source means.
        ledger: Fate of every config key, tensor and side file.
        tensor_names: Source tensor name -> name in this project's terms; None = not carried on.
        copied_files: Side files that belong to the drafter and go along unchanged.
        notes: Sentences the user should know: repaired quirks, defaults that were taken.
        row_splits: Fused source tensor -> (canonical name, rows) of each part, in order; such a
            tensor is not in ``tensor_names``.
    """

    format: str
    drafter: Drafter
    ledger: Ledger
    tensor_names: Mapping[str, str | None]
    copied_files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    row_splits: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)

    def canonical(self, contents: Contents) -> dict[str, TensorSpec]:
        """Return canonical name -> spec of every tensor that is carried on, fused ones split."""
        tensors = contents.tensors
        found = {to: tensors[name] for name, to in self.tensor_names.items() if to is not None}
        for name, parts in self.row_splits.items():
            spec = tensors[name]
            found |= {to: TensorSpec(spec.dtype, (rows, *spec.shape[1:])) for to, rows in parts}
        return found


class ConfigCursor:
    """Reads values out of a flat config; each key that is read gets its fate in the ledger."""

    def __init__(self, flat: Mapping[str, Any], ledger: LedgerBuilder) -> None:
        self.flat = flat
        self.ledger = ledger
        self.notes: list[str] = []

    def agree(self, field: str, *names: str) -> Any:
        """Return the one value that all stated ``names`` agree on, None where none states any.

        Args:
            field: What the value means, for ledger and message.
            names: Dotted keys, the most telling first. A null counts as not stated.

        Raises:
            ContradictionError: If two of them differ.
        """
        stated = [(name, self.flat[name]) for name in names if self.flat.get(name) is not None]
        for name in names:
            if name in self.flat:
                self.ledger.map("config key", name, field)
        for other in stated[1:]:
            if other[1] != stated[0][1]:
                raise ContradictionError(
                    field,
                    stated[0],
                    other,
                    where=CONFIG,
                    remedy=f"Correct the file or pass --set {other[0]}=VALUE",
                )
        return stated[0][1] if stated else None

    def require(self, field: str, *names: str, why: str) -> Any:
        """Return :meth:`agree`, or refuse where nothing states the value.

        Raises:
            CheckpointError: With ``why`` it is not guessed, and the option that gives it.
            ContradictionError: As :meth:`agree`.
        """
        value = self.agree(field, *names)
        if value is None:
            raise CheckpointError(
                f"is not stated, and {why}",
                where=CONFIG,
                field=names[0],
                remedy=f"Pass --set {names[0]}=VALUE",
            )
        return value

    def same(self, field: str, value: Any, stated_by: str, *names: str) -> None:
        """Check that each of ``names`` that is stated has the ``value`` that ``stated_by`` gives.

        Raises:
            ContradictionError: If one differs.
        """
        for name in names:
            other = self.agree(field, name)
            if other is not None and other != value:
                raise ContradictionError(
                    field,
                    (stated_by, value),
                    (name, other),
                    where=CONFIG,
                    remedy=f"Correct the file or pass --set {name}=VALUE",
                )

    def default(self, field: str, *names: str, value: Any, source: str) -> Any:
        """Return :meth:`agree`, or ``value`` with a note that ``source`` supplies it."""
        stated = self.agree(field, *names)
        if stated is not None:
            return stated
        self.notes.append(f"{names[0]} is not stated: {value} is taken, {source}.")
        return value

    def neutral(self, field: str, value: Any, *names: str, remedy: str) -> None:
        """Check that ``names`` are absent or hold the neutral ``value``.

        Raises:
            CheckpointError: If one holds anything else: this reader has no meaning for it.
        """
        stated = self.agree(field, *names)
        if stated is not None and stated != value:
            raise CheckpointError(
                f"{stated!r} is not carried by this converter",
                where=CONFIG,
                field=next(name for name in names if self.flat.get(name) is not None),
                remedy=remedy,
            )

    def close(self, contents: Contents, known: Sequence[str]) -> None:
        """Check that every config key and tensor of ``contents`` has a fate.

        Args:
            contents: The source.
            known: Config keys of the format, to suggest a near one.

        Raises:
            UnaccountedError: If any has none.
        """
        self.ledger.close(
            "config key",
            self.flat,
            where=CONFIG,
            known=known,
            remedy="Correct the name, or give the key up with --allow-lossy NAME",
        )
        self.ledger.close(
            "tensor",
            contents.tensors,
            where="the weights",
            known=[name for name in contents.tensors if self.ledger.knows("tensor", name)],
            remedy="Convert with the tool of the format it belongs to, or pass --allow-lossy NAME",
        )

    def drop_known(self, harmless: Mapping[str, str]) -> None:
        """Give every key that the format lists as harmless its reason."""
        for name, reason in harmless.items():
            if name in self.flat:
                self.ledger.drop("config key", name, reason)


def rename_tensors(
    names: Sequence[str],
    ledger: LedgerBuilder,
    *,
    prefixes: Sequence[str],
    keep: Callable[[str], bool],
    droppable: Mapping[str, str],
    renames: Mapping[str, str] | None = None,
) -> dict[str, str | None]:
    """Return source name -> canonical name, with the fate of each in ``ledger``.

    Args:
        names: All tensor names of the source.
        ledger: Receives the fates; names that neither rule covers get none.
        prefixes: Prefixes that some trainers leave on every tensor; stripped when all carry it.
        keep: Whether a canonical name belongs to the drafter.
        droppable: Suffix -> reason, for buffers that engines compute themselves.
        renames: Start of a name -> start of the canonical one, applied after the prefix is gone.
    """
    prefix = next((p for p in prefixes if names and all(name.startswith(p) for name in names)), "")
    renamed: dict[str, str | None] = {}
    for name in names:
        canonical = _renamed(name.removeprefix(prefix), renames or {})
        reason = next((why for end, why in droppable.items() if canonical.endswith(end)), None)
        if reason is not None:
            renamed[name] = None
            ledger.drop("tensor", name, reason)
        elif keep(canonical):
            renamed[name] = canonical
            ledger.map("tensor", name, canonical)
    return renamed


def _renamed(name: str, renames: Mapping[str, str]) -> str:
    for old, new in renames.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
