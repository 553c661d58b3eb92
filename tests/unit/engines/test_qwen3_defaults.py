import pytest
from engine_files import ABSENT, native

from dflash_pack.engines.keys import Keys
from dflash_pack.engines.qwen3_defaults import MAX_LAYERS, parse_qwen3

FULL, SLIDING = "full_attention", "sliding_attention"


def parse(**changes):
    fields, problems = parse_qwen3(Keys(native(**changes)))
    assert not problems
    return fields


def problems(**changes):
    fields, found = parse_qwen3(Keys(native(**changes)))
    assert fields is None
    return " ".join(found)


def test_an_empty_config_gets_every_default_of_the_class():
    fields, found = parse_qwen3(Keys({}))
    assert found == ()
    geometry = fields.geometry
    assert (geometry.hidden_size, geometry.intermediate_size) == (4096, 22016)
    assert (geometry.num_attention_heads, geometry.num_key_value_heads) == (32, 32)
    assert (geometry.head_dim, geometry.rms_norm_eps, geometry.hidden_act) == (128, 1e-6, "silu")
    assert (geometry.max_position_embeddings, geometry.attention_bias) == (32768, False)
    assert (fields.num_hidden_layers, fields.vocab_size) == (32, 151936)
    assert fields.layer_types == (FULL,) * 32
    assert fields.sliding_window is None


def test_the_window_is_thrown_away_unless_use_sliding_window_is_true():
    assert parse(layer_types=[SLIDING, FULL], sliding_window=8).sliding_window is None
    kept = parse(layer_types=[SLIDING, FULL], sliding_window=8, use_sliding_window=True)
    assert kept.sliding_window == 8


def test_a_window_that_is_thrown_away_counts_as_ignored():
    keys = Keys(native(sliding_window=8))
    parse_qwen3(keys)
    assert "sliding_window" in keys.unread()


def test_layer_types_are_derived_from_max_window_layers():
    fields = parse(use_sliding_window=True, sliding_window=8, max_window_layers=1)
    assert fields.layer_types == (FULL, SLIDING)


def test_a_null_number_of_kv_heads_means_as_many_as_heads():
    assert parse(num_key_value_heads=None).geometry.num_key_value_heads == 4
    assert parse(num_key_value_heads=ABSENT).geometry.num_key_value_heads == 32


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rms_norm_eps", 1),
        ("hidden_size", 64.0),
        ("hidden_size", True),
        ("hidden_size", -4),
        ("head_dim", None),
        ("attention_bias", None),
        ("use_sliding_window", 1),
        ("sliding_window", "8"),
        ("hidden_act", 3),
        ("max_window_layers", "2"),
        ("layer_types", "full_attention"),
        ("layer_types", [FULL]),
        ("layer_types", [FULL, "spiral"]),
    ],
)
def test_a_value_the_class_refuses_is_named(name, value):
    assert name in problems(**{name: value})


def test_an_absurd_number_of_layers_is_refused_before_anything_is_built():
    assert "num_hidden_layers" in problems(num_hidden_layers=MAX_LAYERS + 1)
    assert "num_hidden_layers" in problems(num_hidden_layers=10**18)
