"""Validate a parsed config against its model, with one sentence for the first fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from dflash_pack.errors import CheckpointError

Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], config: Mapping[str, Any], *, where: str) -> Model:
    """Return ``config`` as ``model``.

    Args:
        model: A model of this package.
        config: The parsed JSON object.
        where: File to name in the message.

    Raises:
        CheckpointError: If a known key has a value of the wrong type or range.
    """
    try:
        return model.model_validate(dict(config))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        first = faults[0]
        field, settable = _field(first["loc"], config, missing=first["type"] == "missing")
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        shown = repr(first["input"])[:60]
        if first["type"] == "missing":
            what = f"is missing{more}"
            remedy = f"Add it to the file or pass --set {settable}=VALUE"
        else:
            what = f"{shown} is not accepted: {first['msg']}{more}"
            remedy = f"Correct the file or pass --set {settable}=VALUE"
        raise CheckpointError(what, where=where, field=field, remedy=remedy) from None


def _field(
    path: Sequence[int | str], config: Mapping[str, Any], *, missing: bool
) -> tuple[str, str]:
    """Return the dotted key that ``path`` leads to, and the part of it that ``--set`` can state.

    Names of union branches are left out. A list can be stated as a whole only.
    """
    keys: list[str] = []
    settable: int | None = None
    value: Any = config
    for part in path:
        if isinstance(value, list) and settable is None:
            settable = len(keys)
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            if missing:
                keys.append(str(part))
            break
        keys.append(str(part))
    return ".".join(keys), ".".join(keys[:settable])
