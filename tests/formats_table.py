"""Write the table of docs/formats.md anew: what this tool finds in published drafters' configs.

`python tests/formats_table.py` writes it, `--check` only compares. Tensors are not at hand, so
each config is taken with exactly those that its own sizes need.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_pack.agreement import view_engines
from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.converters.reading import Reading
from dflash_pack.converters.registry import read_drafter, writer
from dflash_pack.drafter import Drafter, core_tensor_shapes
from dflash_pack.engines.limits import describe_runs
from dflash_pack.errors import DflashPackError
from dflash_pack.forms import Form, must_agree
from dflash_pack.target import Target

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "tests" / "data" / "public_configs"
STATED = ROOT / "tests" / "data" / "public_configs_stated.json"
PAGE = ROOT / "docs" / "formats.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
FORMS: tuple[Form, ...] = ("speculators", "universal", "native")
_DTYPES = {"d2t": "I64", "t2d": "BOOL"}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    format: str
    attention: str
    forms: str
    engines: str
    stated: str

    def markdown(self) -> str:
        """Return the line."""
        cells = (self.name, self.format, self.attention, self.forms, self.engines, self.stated)
        return "| " + " | ".join(cells) + " |"


def with_values(config: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return ``config`` with dotted keys set."""
    result: dict[str, Any] = json.loads(json.dumps(config))
    for dotted, value in values.items():
        section = result
        *path, last = dotted.split(".")
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    return result


def contents_of(
    config: dict[str, Any], extra: tuple[str, ...], side_files: frozenset[str]
) -> Contents:
    """Return ``config`` with the tensors that its own sizes need.

    Args:
        config: The config.
        extra: Names whose presence decides how the config is read: biases, own matrices, sinks.
        side_files: Files beside it.
    """
    seed = {name: TensorSpec("BF16", (1,)) for name in ("fc.weight", *extra)}
    drafter = read_drafter(Contents(config, seed, side_files)).drafter
    return Contents(config, tensors_of(drafter), side_files)


def tensors_of(drafter: Drafter) -> dict[str, TensorSpec]:
    """Return the tensors that ``drafter`` must have."""
    return {
        name: TensorSpec(_DTYPES.get(name, "BF16"), shape)
        for name, shape in core_tensor_shapes(drafter).items()
    }


def target_of(drafter: Drafter) -> Target:
    """Return a target that ``drafter`` fits, and whose states every engine can capture."""
    depth = drafter.target_depth or max(drafter.target_layer_ids) + 1
    return Target(
        path=Path("target"),
        identifier="owner/target",
        revision=None,
        architectures=(),  # which gives engines the benefit of the doubt
        model_type="some",
        hidden_size=drafter.target_hidden_size,
        num_hidden_layers=depth,
        vocab_size=drafter.vocabulary.size,
        max_position_embeddings=None,
        special_tokens=None,
        tokenizer_size=None,
        config={},
    )


def row_of(name: str, config: dict[str, Any], stated: dict[str, Any]) -> Row:
    """Return the line of one published config."""
    title = name.replace("__", "/", 1)
    values: dict[str, Any] = stated.get("set", {})
    told = ", ".join(f"`{key}`" for key in values) or "nothing"
    try:
        contents = contents_of(
            with_values(config, values),
            tuple(stated.get("tensors", ())),
            frozenset(stated.get("side_files", ())),
        )
        reading = read_drafter(contents)
    except DflashPackError as error:
        return Row(title, "refused", error.sentence(), "none", "none", told)
    forms, engines = possible(reading)
    return Row(title, reading.format, describe_runs(reading.drafter.layers), forms, engines, told)


def possible(reading: Reading) -> tuple[str, str]:
    """Return the forms that carry the drafter and, per form, the engines that serve it as meant."""
    drafter = reading.drafter
    target = target_of(drafter)
    forms: list[str] = []
    served: dict[str, list[str]] = {}
    for form in FORMS:
        try:
            config = writer(form)(drafter, target).config
        except DflashPackError:
            continue
        files = frozenset(reading.copied_files)
        views = view_engines(drafter, Contents(config, tensors_of(drafter), files), target)
        if any(not v.agrees and must_agree(form, v.meaning.engine, views) for v in views):
            continue
        forms.append(form)
        for view in views:
            if view.agrees:
                served.setdefault(view.meaning.engine, []).append(form)
    engines = [
        engine if len(by) == len(forms) else f"{engine} ({', '.join(by)})"
        for engine, by in served.items()
    ]
    return ", ".join(forms) or "none", ", ".join(engines) or "none"


def table() -> str:
    """Return the whole table."""
    stated = json.loads(STATED.read_text())
    head = (
        "| config | format found | attention of the draft layers | forms | engines that do as meant"
        " | stated by `--set` |\n|---|---|---|---|---|---|"
    )
    rows = [
        row_of(path.stem, json.loads(path.read_text()), stated.get(path.stem, {})).markdown()
        for path in sorted(CONFIGS.glob("*.json"))
    ]
    return "\n".join([head, *rows])


def page(text: str) -> str:
    """Return the page with the table renewed."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> None:
    """Write the page, or compare it."""
    text = PAGE.read_text()
    renewed = page(text)
    if "--check" in sys.argv[1:]:
        raise SystemExit(0 if renewed == text else "docs/formats.md is out of date: make docs")
    PAGE.write_text(renewed)


if __name__ == "__main__":
    main()
