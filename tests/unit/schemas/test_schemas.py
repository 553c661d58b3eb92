"""The JSON Schema files are current, and agree with the real libraries on what is valid."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from made import LAGUNA, NATIVE, SLIDING, native, speculators

from dflash_pack.converters import dflash2, dspark, laguna, mimo, nemotron, torchspec, zlab
from dflash_pack.schemas.__main__ import generate

PUBLIC = Path(__file__).parents[2] / "data" / "public_configs"


DFLASH2 = {
    "architectures": ["DFlash2DraftModel"],
    "dflash_config__conv_kernel_size": 2,
    "dflash_config__conv_group_size": 16,
    "dflash_config__selector_rank": 256,
    "dflash_config__selector_top_k": 16,
}
DSPARK = {
    "architectures": ["Qwen3DSparkModel"],
    "markov_rank": 256,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "sample_from_anchor": True,
}


def test_the_files_are_what_the_models_generate():
    folder = files("dflash_pack.schemas")
    assert {f.name: f.read_text() for f in folder.iterdir() if f.name.endswith(".json")} == (
        generate()
    ), "run make schemas"


def schema(name):
    return json.loads((files("dflash_pack.schemas") / f"{name}.schema.json").read_text())


@pytest.mark.parametrize(
    "module", [dflash2, dspark, laguna, mimo, nemotron, torchspec, zlab], ids=lambda m: m.NAME
)
def test_every_native_reader_has_its_models_schema(module):
    made = module.DIALECT.schema.model_json_schema()
    assert schema(module.NAME)["properties"] == made["properties"]


@pytest.mark.parametrize("config", [NATIVE, native(**SLIDING), native(mystery=1)])
def test_a_native_config_is_valid(config):
    jsonschema.validate(config, schema("zlab"))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dflash2", DFLASH2),
        ("dflash2", DFLASH2 | {"training_state": {"dflash2_selector_rank": 256}}),
        ("dspark", DSPARK),
        ("dspark", DSPARK | {"markov_rank": 0, "dflash_config__shift_label": True}),
        ("laguna", LAGUNA),
    ],
)
def test_a_relatives_native_config_is_valid(name, changes):
    jsonschema.validate(native(**changes), schema(name))


@pytest.mark.parametrize("changes", [{}, {"sliding_window_non_causal": False}])
def test_a_speculators_config_is_valid(changes):
    jsonschema.validate(speculators(**changes), schema("speculators"))


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("zlab", native(hidden_size="16")),
        ("zlab", native(dflash_config__target_layer_ids=[-1])),
        ("zlab", native(layer_types=["full"])),
        ("dflash2", native(**DFLASH2, conv_kernel_size=0)),
        ("dflash2", native(**DFLASH2 | {"dflash_config__selector_rank": "256"})),
        ("dflash2", native(**DFLASH2, training_state={"dflash2_conv_group_size": 1.5})),
        ("dspark", native(**DSPARK | {"markov_head_type": "transformer"})),
        ("dspark", native(**DSPARK, dflash_config__sample_from_anchor="no")),
        ("dspark", native(**DSPARK, dspark_block_size=1)),
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
