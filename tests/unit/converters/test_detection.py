"""Each source is known by one reader only, by config and tensor names alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from formats_table import with_values
from made import REMOVED, contents, native, speculators

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.converters import registry
from dflash_pack.converters.registry import FALLBACK, READERS, Reader, read_drafter
from dflash_pack.errors import CheckpointError

DATA = Path(__file__).parents[2] / "data"
CONFIGS = sorted((DATA / "public_configs").glob("*.json"))
STATED = json.loads((DATA / "public_configs_stated.json").read_text())


def known_by(contents):
    return [reader.name for reader in READERS if reader.detect(contents)]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_published_config_is_known_by_at_most_one_reader(path):
    stated = STATED.get(path.stem, {})
    config = with_values(json.loads(path.read_text()), stated.get("set", {}))
    seed = {name: TensorSpec("BF16", (1,)) for name in ("fc.weight", *stated.get("tensors", ()))}
    made = Contents(config, seed, frozenset(stated.get("side_files", ())))
    assert len(known_by(made)) <= 1
    assert known_by(made) or FALLBACK.detect(made)


EXPORTED = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
SOURCES = {
    "zlab": native(),
    "zlab, newer style": native(
        block_size=REMOVED, dflash_config__block_size=4, is_causal=False, **EXPORTED
    ),
    "speculators": speculators(),
    "universal": native() | speculators(),
    "specforge": native(draft_vocab_size=64, **EXPORTED),
    "modelopt": native(dflash_config__causal=False, dtype=REMOVED, torch_dtype="bfloat16"),
    "torchspec": native(model_type="dflash", target_num_hidden_layers=4),
    "automodel": native(architectures=["Qwen3DFlashDraftModel"]),
    "mimo": native(dflash_config__attention_value_scale=0.5),
    "nemotron": native(has_embed_tokens=True, eagle_aux_hidden_state_layer_ids=[1, 3]),
    "muse": native(architectures=["MuseGlimmerAssistantModel"]),
    "laguna": native(architectures=["DFlashLagunaForCausalLM"], model_type="laguna"),
}


@pytest.mark.parametrize(("name", "config"), SOURCES.items(), ids=SOURCES)
def test_each_format_is_told(name, config):
    wanted = name.partition(",")[0]
    made = contents(config)
    assert known_by(made) == ([] if wanted == "zlab" else [wanted])
    assert FALLBACK.detect(made) or wanted != "zlab"


def test_two_readers_that_know_a_source_are_named(monkeypatch):
    known = READERS[0]
    twin = Reader("twin", lambda _: True, known.read)
    monkeypatch.setattr(registry, "READERS", (twin, *READERS))
    with pytest.raises(CheckpointError, match="--from twin or --from speculators"):
        read_drafter(contents(speculators()))
    assert read_drafter(contents(speculators()), source_format="speculators").format == (
        "speculators"
    )
