import pytest

from dflash_pack.drafter import Rope
from dflash_pack.engines.keys import Keys
from dflash_pack.engines.rope import (
    TRANSFORMERS_KINDS,
    VLLM_KINDS,
    qwen3_rope,
    to_rope,
    vllm_native_rope,
    vllm_speculators_rope,
)

TYPES = ("full_attention", "full_attention")
YARN = {"rope_type": "yarn", "factor": 4.0}


def settled(reader, config):
    reading = reader(Keys(config), TYPES, 256)
    assert reading.problems == ()
    return reading.parameters


def rope(parameters, kinds=VLLM_KINDS):
    found, problems = to_rope(parameters, 16, kinds=kinds, engine="vLLM")
    assert problems == ()
    return found


def test_a_missing_theta_is_1e4_for_transformers_and_1e6_in_vllms_speculators_path():
    assert settled(qwen3_rope, {})["rope_theta"] == 10_000
    assert settled(vllm_native_rope, {})["rope_theta"] == 10_000
    assert settled(vllm_speculators_rope, {})["rope_theta"] == 1_000_000


def test_an_empty_rope_section_brings_1e4_back_into_the_speculators_path():
    assert settled(vllm_speculators_rope, {"rope_parameters": None})["rope_theta"] == 10_000


def test_rope_scaling_wins_over_rope_parameters_in_transformers():
    config = {"rope_scaling": YARN, "rope_parameters": {"rope_type": "default", "rope_theta": 9e4}}
    assert settled(qwen3_rope, config | {"rope_theta": 7e4})["rope_type"] == "yarn"


@pytest.mark.parametrize(
    ("order", "kind"),
    [
        (("rope_scaling", "rope_parameters"), "default"),
        (("rope_parameters", "rope_scaling"), "yarn"),
    ],
)
def test_the_later_key_wins_in_vllms_speculators_path(order, kind):
    both = {"rope_scaling": YARN, "rope_parameters": {"rope_type": "default", "rope_theta": 9e4}}
    config = {name: both[name] for name in order}
    assert settled(vllm_speculators_rope, config)["rope_type"] == kind


def test_the_pretraining_length_is_filled_in_and_a_top_level_one_overrides_it():
    assert settled(qwen3_rope, {"rope_scaling": YARN})["original_max_position_embeddings"] == 256
    config = {
        "rope_scaling": YARN | {"original_max_position_embeddings": 64},
        "original_max_position_embeddings": 32,
    }
    assert settled(qwen3_rope, config)["original_max_position_embeddings"] == 32


@pytest.mark.parametrize(
    "stated",
    [
        {"rope_type": "linear"},
        {"rope_type": "yarn", "factor": None},
        {"rope_type": "llama3", "factor": 2.0},
        {"rope_type": "longrope", "short_factor": 1, "long_factor": 2},
        [1, 2],
    ],
)
def test_a_scaled_rope_without_its_numbers_is_a_problem(stated):
    assert qwen3_rope(Keys({"rope_parameters": stated}), TYPES, 256).problems


def test_vllm_fails_on_a_rope_per_layer_type():
    config = {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1.0}}}
    assert "per layer type" in vllm_native_rope(Keys(config), TYPES, 256).problems[0]


def test_vllm_refuses_two_kinds_and_m_rope():
    two = {"rope_parameters": {"rope_type": "yarn", "type": "linear", "factor": 2.0}}
    mrope = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 2]}}
    assert vllm_native_rope(Keys(two), TYPES, 256).problems
    assert "M-RoPE" in vllm_native_rope(Keys(mrope), TYPES, 256).problems[0]


def test_a_rope_keeps_what_is_stated_and_nothing_else():
    parameters = YARN | {"type": "yarn", "rope_theta": 7, "beta_fast": None, "mscale": 1.2}
    assert rope(parameters) == Rope("yarn", 7.0, (("factor", 4.0), ("mscale", 1.2)))


def test_the_rotated_share_comes_from_the_factor_or_from_rope_dim():
    base = {"rope_type": "default", "rope_theta": 1e4}
    assert rope(base | {"partial_rotary_factor": 0.5}).partial_rotary_factor == 0.5
    assert rope(base | {"rope_dim": 4}).partial_rotary_factor == 0.25


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "rope_theta": None},
        {"rope_type": "default", "rope_theta": True},
        {"rope_type": "default", "rope_theta": 0},
        {"rope_type": "spiral", "rope_theta": 1e4},
        {"rope_type": ["yarn"], "rope_theta": 1e4},
        {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.5},
        {"rope_type": "default", "rope_theta": 1e4, "nested": {"a": 1}},
    ],
)
def test_a_rope_that_no_engine_can_compute_is_a_problem(parameters):
    found, problems = to_rope(parameters, 16, kinds=VLLM_KINDS, engine="vLLM")
    assert found is None
    assert problems


def test_vllms_dflash_has_no_longrope():
    parameters = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0]}
    assert rope(parameters, TRANSFORMERS_KINDS).kind == "longrope"
    assert to_rope(parameters, 16, kinds=VLLM_KINDS, engine="vLLM")[0] is None


def test_kinds_differ_by_engine():
    parameters = {"rope_type": "ntk", "rope_theta": 1e4, "factor": 2.0}
    assert rope(parameters).kind == "ntk"
    _, problems = to_rope(parameters, 16, kinds=TRANSFORMERS_KINDS, engine="speculators")
    assert problems == ("speculators can't draft with a rope of type 'ntk'.",)
