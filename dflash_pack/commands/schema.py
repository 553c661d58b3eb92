"""``dflash-pack schema``: print a JSON Schema."""

from __future__ import annotations

from typing import Annotated

import typer


def schema(
    name: Annotated[
        str | None, typer.Argument(help="Name of the schema; without it, the names are listed.")
    ] = None,
) -> None:
    """Print the JSON Schema of a config format or of a report."""
    from importlib.resources import files

    from dflash_pack.errors import UsageError

    suffix = ".schema.json"
    folder = files("dflash_pack.schemas")
    names = sorted(f.name.removesuffix(suffix) for f in folder.iterdir() if f.name.endswith(suffix))
    if name is None:
        print("\n".join(names))
        return
    if name not in names:
        raise UsageError(f"there is no schema {name}", remedy=f"Use one of {', '.join(names)}")
    print((folder / f"{name}{suffix}").read_text(encoding="utf-8"), end="")
