"""``python -m dflash_pack.schemas [FOLDER]``: write the JSON Schema files from the models."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def generate() -> dict[str, str]:
    """Return file name -> content of every schema."""
    # Here and not above: the reports lie higher in the import order than the config models.
    from dflash_pack.hub.manifest import Manifest
    from dflash_pack.hub.render import PushReport
    from dflash_pack.results import (
        ConversionReport,
        InspectionReport,
        LaunchReport,
        ValidationReport,
    )
    from dflash_pack.schemas.dflash2 import Dflash2Config
    from dflash_pack.schemas.dspark import DsparkConfig
    from dflash_pack.schemas.laguna import LagunaConfig
    from dflash_pack.schemas.mimo import MimoConfig
    from dflash_pack.schemas.nemotron import NemotronConfig
    from dflash_pack.schemas.specforge import SpecForgeConfig
    from dflash_pack.schemas.speculators import SpeculatorsConfig
    from dflash_pack.schemas.torchspec import TorchSpecConfig
    from dflash_pack.schemas.zlab import ZlabConfig

    configs = {
        "dflash2": Dflash2Config,
        "dflash_pack": Manifest,
        "dspark": DsparkConfig,
        "laguna": LagunaConfig,
        "mimo": MimoConfig,
        "nemotron": NemotronConfig,
        "specforge": SpecForgeConfig,
        "speculators": SpeculatorsConfig,
        "torchspec": TorchSpecConfig,
        "zlab": ZlabConfig,
    }
    reports = {
        "inspection": InspectionReport,
        "conversion": ConversionReport,
        "launch": LaunchReport,
        "validation": ValidationReport,
        "push": PushReport,
    }
    schemas = {name: TypeAdapter(model).json_schema() for name, model in configs.items()}
    for name, model in reports.items():
        result = TypeAdapter(model).json_schema(mode="serialization")
        schemas[name] = _document(name, result)
    schemas["error"] = _document("error", _ERROR)
    return {f"{name}.schema.json": _text(name, schema) for name, schema in schemas.items()}


_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["sentence", "where", "field", "remedy", "exit_code"],
    "properties": {
        "sentence": {"type": "string"},
        "where": {"type": ["string", "null"]},
        "field": {"type": ["string", "null"]},
        "remedy": {"type": ["string", "null"]},
        "exit_code": {"type": "integer"},
    },
}


def _document(kind: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the envelope that ``--json`` prints around ``result``."""
    definitions = result.pop("$defs", {})
    return {
        "type": "object",
        "required": ["document", "version", "dflash_pack", "result"],
        "additionalProperties": False,
        "properties": {
            "document": {"const": kind},
            "version": {"const": 1},
            "dflash_pack": {"type": "string"},
            "result": result,
        },
        "$defs": definitions,
    }


def _text(name: str, schema: Mapping[str, Any]) -> str:
    titled = {"$schema": DIALECT, **schema, "title": name}
    return json.dumps(titled, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every schema into the folder given, by default the one this module lies in."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, text in generate().items():
        (folder / name).write_text(text, encoding="utf-8")
        print(name)


if __name__ == "__main__":
    main()
