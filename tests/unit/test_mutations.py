"""Any config, however wrong: refused in one sentence, or converted so that engines do as meant."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import MIXED, SLIDING, native, speculators, target
from raw_safetensors import raw, write_checkpoint

from dflash_pack.accounting import flatten
from dflash_pack.checkpoint import Checkpoint, open_checkpoint
from dflash_pack.conversion import plan_conversion
from dflash_pack.errors import DflashPackError
from dflash_pack.forms import must_agree
from dflash_pack.inspection import inspect_checkpoint

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
BASES = {
    "native": native(),
    "native, sliding": native(**SLIDING),
    "native, mixed": native(**MIXED),
    "native, yarn": native(rope_scaling=YARN),
    "native, use_swa": native(dflash_config__use_swa=True, dflash_config__swa_window_size=9),
    "speculators": speculators(),
    "speculators, sliding": speculators(
        **{f"transformer_layer_config__{key}": value for key, value in SLIDING.items()}
    ),
}
SECTIONS = (
    "dflash_config",
    "rope_scaling",
    "rope_parameters",
    "speculators_config",
    "speculators_config.verifier",
    "transformer_layer_config",
    "transformer_layer_config.rope_parameters",
)
ADDED = (
    "is_causal",
    "dflash_config.causal",
    "dflash_config.use_swa",
    "dflash_config.swa_window_size",
    "dflash_config.block_size",
    "mask_token_id",
    "rope_parameters",
    "rope_scaling",
    "draft_vocab_size",
    "target_hidden_size",
    "partial_rotary_factor",
    "transformer_layer_config.is_causal",
    "transformer_layer_config.rope_theta",
    "sliding_window",
)
VALUES = st.one_of(
    st.sampled_from(
        [None, True, False, 0, 1, -1, 2, 3, 4, 5, 9, 16, 32, 63, 64, 512, 2**31, 10**30, 0.5, 1e9]
    ),
    st.sampled_from(["", "5", "full_attention", "sliding_attention", "qwen3", "default", "yarn"]),
    st.sampled_from([[], [0], [0, 2], [2, 0], [1, 1], [-1, 2], ["sliding_attention"] * 2, {}]),
    st.sampled_from([YARN, {"rope_type": "default", "rope_theta": 10000.0}, {"rope_theta": 5}]),
)


def set_key(config, dotted, value):
    section = config
    *path, last = dotted.split(".")
    for part in path:
        if not isinstance(section.get(part), dict):
            return
        section = section[part]
    if value == "absent":
        section.pop(last, None)
    else:
        section[last] = copy.deepcopy(value)


@st.composite
def mutated(draw, base):
    config = copy.deepcopy(base)
    keys = sorted({*flatten(config, SECTIONS), *ADDED})
    for _ in range(draw(st.integers(1, 3))):
        set_key(config, draw(st.sampled_from(keys)), draw(VALUES | st.just("absent")))
    return config


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The headers of each base, read once; only the config changes from example to example."""
    from made import specs

    folder = tmp_path_factory.mktemp("bases")
    found: dict[str, Checkpoint] = {}
    for name, base in BASES.items():
        tensors = {n: raw(s.dtype, *s.shape) for n, s in specs(base).items()}
        path = folder / name.replace(", ", "-")
        found[name] = open_checkpoint(write_checkpoint(Path(path), tensors, config=base))
    return found


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("form", ["speculators", "native", "universal"])
def test_a_mutated_config_is_refused_or_served_as_meant(opened, base, form):
    source = opened[base]

    @settings(max_examples=150)
    @given(mutated(BASES[base]))
    def check(config):
        changed = Checkpoint(source.path, config, source.shards, source.side_files)
        for attempt in (
            lambda: inspect_checkpoint(changed, target()),
            lambda: plan_conversion(changed, target(), form=form),
        ):
            try:
                result = attempt()
            except DflashPackError as error:
                text = str(error)
                assert text
                assert text.isprintable()
                assert len(text) < 2000
                continue
            if not hasattr(result, "form"):
                continue
            json.dumps(result.form.config, allow_nan=False)
            for view in result.engines:
                if must_agree(form, view.meaning.engine, result.engines):
                    assert view.agrees, view.problems()
            # Whatever an engine would do otherwise with the source itself has been said.
            otherwise = [d.sentence() for view in result.source_engines for d in view.differences]
            assert all(any(text in note for note in result.notes) for text in otherwise)

    check()
