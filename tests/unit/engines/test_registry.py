import subprocess
import sys

import pytest
from engine_files import contents, native, speculators, target, universal
from hypothesis import given
from hypothesis import strategies as st

from dflash_pack.engines.registry import ENGINES, derive_all


def test_every_engine_answers_in_order():
    found = derive_all(contents(universal()), target())
    assert [meaning.engine for meaning in found] == [engine.name for engine in ENGINES]
    assert [meaning.engine for meaning in found] == [
        "vllm",
        "speculators",
        "zlab",
        "sglang",
        "tensorrt_llm",
    ]
    assert all(meaning.refusals == () for meaning in found)


def test_an_engine_that_does_not_read_the_form_says_which_it_reads():
    native_view = {meaning.engine: meaning for meaning in derive_all(contents(native()), target())}
    assert "--format speculators" in native_view["speculators"].refusals[0]
    pure_view = {
        meaning.engine: meaning for meaning in derive_all(contents(speculators()), target())
    }
    for engine in ("zlab", "sglang", "tensorrt_llm"):
        assert "--format native" in pure_view[engine].refusals[0]


def test_deriving_imports_no_engine():
    code = (
        "import sys, dflash_pack.engines.registry, dflash_pack.engines.limits;"
        "heavy = {'torch', 'transformers', 'vllm', 'speculators', 'dflash', 'pydantic'};"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**20), max_value=10**20)
    | st.floats()
    | st.sampled_from(["", "qwen3", "sliding_attention", "yarn", "default", "greedy", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["rope_type", "rope_theta", "factor", "verifier", "name_or_path"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
SECTIONS = ("transformer_layer_config", "dflash_config", "speculators_config", "rope_parameters")
NAMES = sorted(universal() | universal()["transformer_layer_config"] | universal()["dflash_config"])
MORE = ["layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "rope_scaling"]
MORE += ["rope_theta", "partial_rotary_factor", "original_max_position_embeddings", "is_causal"]
MORE += ["causal", "use_swa", "swa_window_size", "target_layer_ids", "layer_ids", "eagle_config"]
MORE += ["logit_scale", "attention_sink_bias", "final_logit_softcapping", "quantization_config"]
MORE += ["proposal_methods", "verifier", "eagle_aux_hidden_state_layer_ids", "attention_bias"]


@pytest.mark.parametrize("form", [native, speculators, universal])
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(("", *SECTIONS)), st.sampled_from(NAMES + MORE), JSON), max_size=4
    )
)
def test_no_config_however_strange_crashes_an_engines_rules(form, changes):
    config = form()
    for section, name, value in changes:
        place = config.get(section) if section else config
        if isinstance(place, dict):
            place[name] = value
    for meaning in derive_all(contents(config), target()):
        assert all(isinstance(text, str) for text in (*meaning.refusals, *meaning.notes))


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), -(10**400)])
def test_numbers_that_no_float_holds_crash_nothing(value):
    sections = {"rope_type": "yarn", "factor": value, "rope_theta": value, "extra": [value]}
    changes = {"block_size": value, "output_multiplier": value, "rope_parameters": sections}
    for config in (native(**changes), speculators(layer=changes), universal(**changes)):
        assert any(meaning.refusals for meaning in derive_all(contents(config), target()))
