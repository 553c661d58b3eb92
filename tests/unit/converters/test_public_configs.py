"""Published drafters' configs: each is read into the right drafter or refused for its reason.

The files hold only what could be sourced; public_configs_stated.json states what they lack.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from formats_table import contents_of, target_of, tensors_of, with_values
from made import changed

from dflash_pack.checkpoint import Contents
from dflash_pack.conversion import comparable
from dflash_pack.converters.registry import read_drafter, writer
from dflash_pack.errors import DflashPackError, NotRepresentableError

FOLDER = Path(__file__).parents[2] / "data" / "public_configs"
STATED = json.loads((FOLDER.parent / "public_configs_stated.json").read_text())


@dataclass(frozen=True)
class Row:
    """What one file means, layer by layer, and why the Speculators form refuses it, if it does."""

    file: str
    format: str
    windows: tuple
    causal: tuple
    ids: tuple
    mask: int
    block: int
    refused: str | None = None
    tokens: int | None = None


FULL5, FULL8 = ((None,) * 5, (False,) * 5), ((None,) * 8, (False,) * 8)
IDS36 = (1, 9, 17, 25, 33)
READ = [
    Row("z-lab__Qwen3-4B-DFlash-b16", "zlab", *FULL5, IDS36, 151669, 16),
    Row("z-lab__Qwen3-8B-DFlash-b16", "zlab", *FULL5, IDS36, 151669, 16),
    Row("z-lab__Qwen3.5-4B-DFlash", "zlab", *FULL5, (1, 8, 15, 22, 29), 248070, 16),
    Row("z-lab__Qwen3.5-9B-DFlash", "zlab", *FULL5, (1, 8, 15, 22, 29), 248070, 16),
    Row("z-lab__Qwen3.5-27B-DFlash", "zlab", *FULL5, (1, 16, 31, 46, 61), 248070, 16),
    Row("z-lab__Qwen3.5-35B-A3B-DFlash", "zlab", *FULL8, (1, 10, 19, 28, 37), 248070, 16),
    Row("z-lab__Qwen3.6-35B-A3B-DFlash", "zlab", *FULL8, (1, 10, 19, 28, 37), 248070, 16),
    Row("z-lab__gpt-oss-120b-DFlash", "zlab", *FULL8, IDS36, 200000, 10),
    Row(
        "z-lab__gemma-4-26B-A4B-it-DFlash",
        "zlab",
        (2048, 2048, 2048, 2048, None),
        (True, True, True, True, False),
        (1, 6, 11, 17, 22, 27),
        4,
        16,
        refused="layers 0-3 are causal sliding",
    ),
    Row("sgl-project__SpecForge-longcat-flash-dflash", "zlab", *FULL5, (1, 7, 13, 19, 25), 2, 16),
    Row(
        "sgl-project__SpecForge-qwen2.5-0.5b-dflash", "zlab", *FULL5, (1, 6, 11, 16, 21), 151669, 16
    ),
    Row("RedHatAI__Qwen3-8B-speculator.dflash", "speculators", *FULL5, IDS36, 151669, 8),
    Row(
        "RedHatAI__Qwen3-30B-A3B-speculator.dflash",
        "speculators",
        (2048,) * 5,
        (True,) * 5,
        (0, 11, 22, 33, 44),
        151669,
        8,
    ),
    Row(
        "XiaomiMiMo__MiMo-V2.5-Pro-FP4-DFlash",
        "mimo",
        (1024,) * 5,
        (False,) * 5,
        (0, 15, 31, 47, 69),
        151669,
        8,
        refused="attention sink",
    ),
    Row("lightseek__TorchSpec-Qwen3-8B-dflash", "torchspec", *FULL5, IDS36, 151669, 16),
    Row(
        "nvidia__Nemotron-3.5-NVFP4-DFlash",
        "nemotron",
        (None,) * 6,
        (False,) * 6,
        (1, 5, 19, 29, 41, 51),
        990,
        8,
    ),
    Row(
        "z-lab__Qwen3.8-27B-DFlash2",
        "dflash2",
        (2048,) * 5,
        (False,) * 5,
        (5, 19, 33, 47, 61),
        248070,
        8,
    ),
    Row("sgl-project__SpecForge-qwen3-4b-dspark", "dspark", *FULL5, IDS36, 151669, 7, tokens=7),
    Row(
        "poolside__Laguna-S-2.1-DFlash",
        "laguna",
        (512,) * 6,
        (True,) * 6,
        (1, 10, 19, 29, 38, 47),
        12,
        16,
        refused="Laguna",
    ),
]
REFUSED = [
    # As the sources quote them, incomplete: nothing is filled in by a guess.
    ("z-lab__Qwen3-8B-DFlash-b16", {}, "vocab_size: is missing"),
    ("z-lab__Qwen3-8B-DFlash-b16", {"vocab_size": 151936}, "mask_token_id: is not stated"),
    ("z-lab__Qwen3-Coder-30B-A3B-DFlash", {"vocab_size": 151936}, "mask_token_id: is not stated"),
    (
        "z-lab__Qwen3-Coder-Next-DFlash",
        {"vocab_size": 151936, "dflash_config": {"mask_token_id": 151669}},
        "target_layer_ids: is not stated",
    ),
    (
        "z-lab__Qwen3.5-27B-DFlash",
        {"vocab_size": 248320},
        "rope_theta: is not stated, and engines would fill in different values",
    ),
    ("z-lab__gpt-oss-120b-DFlash", {}, "rope_theta: is not stated"),
    (
        "z-lab__gemma-4-26B-A4B-it-DFlash",
        {"vocab_size": 262144},
        "use_sliding_window: is not stated, and its default (false) makes transformers drop",
    ),
    ("RedHatAI__Qwen3-8B-speculator.dflash", {}, "speculators_config: is missing"),
    ("lightseek__TorchSpec-Qwen3-8B-dflash", {}, "block_size: is not stated"),
    ("nvidia__Nemotron-3.5-NVFP4-DFlash", {}, "has_embed_tokens says True but the weights says"),
    ("sgl-project__SpecForge-qwen3-4b-dspark", {}, "sample_from_anchor: is not stated"),
    ("sgl-project__SpecForge-qwen3.6-27b-dspark", {}, "sample_from_anchor: is not stated"),
    ("sgl-project__SpecForge-qwen3-8b-domino", {}, "this is a Domino drafter"),
]


def load(file, completed):
    return changed(json.loads((FOLDER / f"{file}.json").read_text()), completed)


def source(file):
    stated = STATED.get(file, {})
    config = with_values(json.loads((FOLDER / f"{file}.json").read_text()), stated.get("set", {}))
    return contents_of(
        config, tuple(stated.get("tensors", ())), frozenset(stated.get("side_files", ()))
    )


def as_contents(config, drafter, files=frozenset()):
    return Contents(dict(config), tensors_of(drafter), files)


@pytest.mark.parametrize("row", READ, ids=lambda row: row.file)
def test_read_as_meant(row):
    reading = read_drafter(source(row.file))
    drafter = reading.drafter
    assert reading.format == row.format
    assert tuple(layer.window for layer in drafter.layers) == row.windows
    assert tuple(layer.causal for layer in drafter.layers) == row.causal
    assert drafter.target_layer_ids == row.ids
    assert drafter.vocabulary.mask_token_id == row.mask
    assert (drafter.block_size, drafter.speculative_tokens) == (
        row.block,
        row.tokens or row.block - 1,
    )


FORMS = ["speculators", "native", "universal"]
CARRIED = [
    pytest.param(row, form, id=f"{row.file}-{form}")
    for row in READ
    for form in FORMS
    if row.refused is None or form == "native" or (form == "universal" and row.format != "laguna")
]
REFUSING = [
    pytest.param(row, form, id=f"{row.file}-{form}")
    for row in READ
    for form in FORMS
    if row.refused and (form == "speculators" or (form == "universal" and row.format == "laguna"))
]


@pytest.mark.parametrize(("row", "form"), CARRIED)
def test_a_form_that_carries_it_means_the_same(row, form):
    reading = read_drafter(source(row.file))
    drafter = reading.drafter
    config = writer(form)(drafter, target_of(drafter)).config
    back = read_drafter(as_contents(config, drafter, frozenset(reading.copied_files))).drafter
    assert comparable(back) == comparable(drafter)


@pytest.mark.parametrize(("row", "form"), REFUSING)
def test_a_form_that_does_not_says_why(row, form):
    drafter = read_drafter(source(row.file)).drafter
    with pytest.raises(NotRepresentableError, match=row.refused):
        writer(form)(drafter, target_of(drafter))


@pytest.mark.parametrize(("file", "completed", "words"), REFUSED)
def test_refused_with_the_reason(file, completed, words):
    config = load(file, completed)
    with pytest.raises(DflashPackError) as caught:
        read_drafter(Contents(config, {}, frozenset()))
    assert words in str(caught.value)


def test_no_file_is_left_out():
    files = {path.stem for path in FOLDER.glob("*.json")}
    assert files == {row.file for row in READ} | {file for file, _, _ in REFUSED}
