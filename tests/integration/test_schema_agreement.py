"""The Speculators schema against the real library's own config class."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from made import MIXED, SLIDING, contents, native, speculators, target

from dflash_pack.converters import speculators as form
from dflash_pack.converters import zlab
from dflash_pack.errors import DflashPackError
from dflash_pack.schemas.parse import parse
from dflash_pack.schemas.speculators import (
    HARMLESS,
    LayerConfig,
    ProposalMethod,
    SpeculatorsConfig,
    SpeculatorsSection,
    Verifier,
)

pytestmark = pytest.mark.engine

LIBRARY = """
import json, sys
from speculators import SpeculatorModelConfig, SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import DFlashSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import Qwen3Config
def try_one(config):
    try:
        return json.loads(SpeculatorModelConfig.from_dict(config).to_json_string())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
def fields(model):
    return {n: repr(f.default) for n, f in model.model_fields.items()}
print(json.dumps({
    "results": [try_one(config) for config in json.load(sys.stdin)],
    "fields": {
        "SpeculatorsConfig": fields(DFlashSpeculatorConfig),
        "SpeculatorsSection": fields(SpeculatorsConfig),
        "Verifier": fields(VerifierConfig),
        "ProposalMethod": fields(GreedyTokenProposalConfig),
        "LayerConfig": sorted(Qwen3Config().to_dict()),
    },
}, default=str))
"""

WRITTEN = {
    name: dict(form.write(zlab.read(contents(native(**changes))).drafter, target()).config)
    for name, changes in {
        "full": {},
        "sliding": SLIDING,
        "sliding bidirectional": SLIDING | {"is_causal": False},
        "mixed, one causality": MIXED | {"is_causal": False},
        "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 8.0}},
        "biases": {"attention_bias": True},
        "end tokens": {"eos_token_id": [1, 2]},
    }.items()
}
REFUSED = {
    "no flag": speculators(sliding_window_non_causal=None),
    "a flag that is text": speculators(sliding_window_non_causal="perhaps"),
    "no section": speculators(transformer_layer_config="qwen3"),
    "no proposal": speculators(speculators_config__proposal_methods="greedy"),
    "no algorithm": speculators(speculators_config={"verifier": {}}),
    "block size of text": speculators(block_size="eight"),
    "ids of text": speculators(aux_hidden_state_layer_ids=["one"]),
}


@pytest.fixture(scope="module")
def library():
    """What the real library makes of all configs, in one process that imports it."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LIBRARY],
        input=json.dumps([*WRITTEN.values(), *REFUSED.values()]),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    names = [*WRITTEN, *REFUSED]
    return dict(zip(names, answer["results"], strict=True)), answer["fields"]


@pytest.mark.parametrize("name", WRITTEN)
def test_the_library_reads_what_we_write_and_keeps_every_value(library, name):
    kept = library[0][name]
    assert isinstance(kept, dict), kept
    written = WRITTEN[name]
    for key in written.keys() - {"transformer_layer_config", "speculators_version"}:
        assert kept[key] == written[key], key
    layer = kept["transformer_layer_config"]
    for key, value in written["transformer_layer_config"].items():
        # transformers leaves out what its class has as default.
        assert layer.get(key, value) == value, key


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_refuses_we_refuse(library, name):
    assert isinstance(library[0][name], str)
    with pytest.raises(DflashPackError):
        parse(SpeculatorsConfig, REFUSED[name], where="config.json")


def test_every_field_of_the_library_is_known_with_its_default(library):
    fields = library[1]
    for model in (SpeculatorsConfig, SpeculatorsSection, Verifier, ProposalMethod):
        theirs = fields[model.__name__]
        known = set(model.model_fields) | set(HARMLESS)
        assert set(theirs) - known == set(), model.__name__
    ours = SpeculatorsConfig.model_fields
    for name in ("sliding_window_non_causal", "sample_from_anchor", "target_hidden_size"):
        assert repr(ours[name].default) == fields["SpeculatorsConfig"][name]


def test_every_key_of_a_qwen3_layer_has_a_rule(library):
    prefix = "transformer_layer_config."
    known = set(LayerConfig.model_fields) | {k.removeprefix(prefix) for k in HARMLESS}
    assert set(library[1]["LayerConfig"]) - known == set()
