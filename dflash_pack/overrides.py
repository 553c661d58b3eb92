"""What the user changes in a source before it is read: ``--set`` and ``--allow-lossy``."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_pack.accounting import LedgerBuilder
from dflash_pack.checkpoint import Contents
from dflash_pack.errors import ContradictionError, DflashPackError, UsageError
from dflash_pack.strict_json import MAX_DEPTH, parse_json

MAX_VALUE = 1 << 20


@dataclass(frozen=True)
class Override:
    """One ``--set field=value``: a dotted config key and its JSON value."""

    key: str
    value: Any


def parse_override(text: str) -> Override:
    """Return ``key=value`` as an override; a value that is no JSON is taken as a string.

    Raises:
        UsageError: If there is no ``=`` or no key.
    """
    key, found, value = text.partition("=")
    if not found or not all(key.split(".")):
        raise UsageError(
            f"--set {text} is not of the form field=value",
            remedy="For example --set dflash_config.mask_token_id=151669",
        )
    if key.count(".") >= MAX_DEPTH:
        raise UsageError(
            f"--set {key[:40]}... leads deeper than {MAX_DEPTH} levels", remedy="Correct the field"
        )
    if len(value) > MAX_VALUE:
        raise UsageError(f"--set {key} has a value of {len(value)} characters")
    try:
        return Override(key, parse_json(value.encode("utf-8", "replace"), f"--set {key}"))
    except DflashPackError as error:
        if value[:1] in ("{", "[", '"'):
            raise UsageError(error.what, where=f"--set {key}") from None
        return Override(key, value)


def apply_overrides(
    contents: Contents, overrides: Sequence[Override], ledger: LedgerBuilder
) -> Contents:
    """Return ``contents`` with the config keys set; objects on the way are created.

    Each becomes a ``stated`` entry of ``ledger``, with the value of the source where it has one.

    Raises:
        UsageError: If a key leads through a value that is no object.
    """
    if not overrides:
        return contents
    config = copy.deepcopy(dict(contents.config))
    for override in overrides:
        section: dict[str, Any] = config
        *path, last = override.key.split(".")
        for part in path:
            inner = section.setdefault(part, {})
            if not isinstance(inner, dict):
                raise UsageError(f"--set {override.key}: {part} holds a value, not an object")
            section = inner
        ledger.state("config key", override.key, _statement(override, section.get(last)))
        section[last] = override.value
    return Contents(config, contents.tensors, contents.side_files)


def _statement(override: Override, source: object) -> str:
    said = f"{override.value!r} by --set"
    if source is None:
        return f"{said}; the source states nothing"
    same = source == override.value
    return f"{said}, as the source states" if same else f"{said}; the source states {source!r}"


def blame_overrides(error: ContradictionError, overrides: Sequence[Override]) -> None:
    """Name the file's own key as what to state, where the user stated the other place's."""
    stated = {override.key for override in overrides}
    for (ours, value), (theirs, _) in (
        (error.first, error.second),
        (error.second, error.first),
    ):
        if ours in stated and theirs not in stated:
            other = shlex.quote(f"{theirs}={json.dumps(value, default=str)}")
            error.advise(
                f"Both places count: pass --set {other} as well, or leave --set {ours} out"
            )
            return


def accept_losses(contents: Contents, names: Sequence[str], ledger: LedgerBuilder) -> Contents:
    """Return ``contents`` without the config keys and tensors that the user gives up by name.

    Each becomes a ``lossy`` entry of ``ledger``.

    Raises:
        UsageError: If a name is neither a config key nor a tensor of the source.
    """
    if not names:
        return contents
    config = copy.deepcopy(dict(contents.config))
    tensors = dict(contents.tensors)
    for name in names:
        if name in tensors:
            del tensors[name]
            ledger.lose("tensor", name, "given up by --allow-lossy")
        elif _remove(config, name):
            ledger.lose("config key", name, "given up by --allow-lossy")
        else:
            raise UsageError(
                f"--allow-lossy {name} names no config key or tensor of the source",
                remedy="Give the name as the message or `inspect` shows it",
            )
    return Contents(config, tensors, contents.side_files)


def _remove(config: dict[str, Any], dotted: str) -> bool:
    section: Any = config
    *path, last = dotted.split(".")
    for part in path:
        section = section.get(part) if isinstance(section, Mapping) else None
    if not isinstance(section, dict) or last not in section:
        return False
    del section[last]
    return True
