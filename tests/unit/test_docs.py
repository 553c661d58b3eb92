"""What the documents say is what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import formats_table

import dflash_pack.agreement
import dflash_pack.baseline
import dflash_pack.checks
import dflash_pack.validation
from dflash_pack.engines.registry import ENGINES

ROOT = Path(__file__).parents[2]
CHECK_ID = re.compile(r'"((?:[a-z_]+)\.(?:[a-z_]+))"')
FAMILIES = {
    "block_size",
    "config",
    "decode",
    "dtype",
    "files",
    "mask_token",
    "rope",
    "target",
    "target_layers",
    "tensors",
    "verifier",
    "vocabulary",
    "weights",
}


def test_every_check_is_documented_and_every_documented_check_exists():
    modules = (
        dflash_pack.agreement,
        dflash_pack.baseline,
        dflash_pack.checks,
        dflash_pack.validation,
    )
    source = "".join(Path(module.__file__).read_text() for module in modules)
    used = {i for i in CHECK_ID.findall(source) if i.split(".")[0] in FAMILIES}
    used |= {f"engine.{engine.name}" for engine in ENGINES}
    used -= {"config.json", "decode.log"}
    documented = set(re.findall(r"`([a-z_]+\.[a-z_]+)`", (ROOT / "docs" / "checks.md").read_text()))
    assert documented - {"dflash_pack.json", "mask_embedding.pt"} == used


def test_the_table_of_published_configs_is_what_the_code_finds():
    text = formats_table.PAGE.read_text()
    assert formats_table.page(text) == text, "run make docs"


def test_the_table_has_a_line_for_every_config_and_every_engine_in_some_line():
    table = formats_table.table()
    assert table.count("\n") - 1 == len(list(formats_table.CONFIGS.glob("*.json"))) >= 23
    assert all(engine.name in table for engine in ENGINES)
