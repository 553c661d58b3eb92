"""The JSON Schema files are current, and agree with the real libraries on what is valid."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from made import NATIVE, SLIDING, native, speculators

from dflash_pack.schemas.__main__ import generate

PUBLIC = Path(__file__).parents[2] / "data" / "public_configs"


def test_the_files_are_what_the_models_generate():
    folder = files("dflash_pack.schemas")
    assert {f.name: f.read_text() for f in folder.iterdir() if f.name.endswith(".json")} == (
        generate()
    ), "run make schemas"


def schema(name):
    return json.loads((files("dflash_pack.schemas") / f"{name}.schema.json").read_text())


@pytest.mark.parametrize("config", [NATIVE, native(**SLIDING), native(mystery=1)])
def test_a_native_config_is_valid(config):
    jsonschema.validate(config, schema("zlab"))


@pytest.mark.parametrize("changes", [{}, {"sliding_window_non_causal": False}])
def test_a_speculators_config_is_valid(changes):
    jsonschema.validate(speculators(**changes), schema("speculators"))


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("zlab", native(hidden_size="16")),
        ("zlab", native(dflash_config__target_layer_ids=[-1])),
        ("zlab", native(layer_types=["full"])),
        ("speculators", speculators(mask_token_id=None)),
        ("speculators", speculators(sliding_window_non_causal="yes")),
        ("speculators", speculators(speculators_config__proposal_methods=[])),
    ],
)
def test_a_wrong_value_is_not(name, config):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config, schema(name))


@pytest.mark.parametrize("path", sorted(PUBLIC.glob("z-lab__*")), ids=lambda path: path.stem)
def test_published_native_configs_have_no_wrong_type(path):
    config = {"vocab_size": 1, "num_hidden_layers": 1} | json.loads(path.read_text())
    jsonschema.validate(config, schema("zlab"))
