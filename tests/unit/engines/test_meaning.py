from dataclasses import replace

import pytest

from dflash_pack.drafter import Dflash2Parts, Drafter, DraftLayer, Geometry, Rope, Vocabulary
from dflash_pack.engines.meaning import EngineMeaning, describe_layer, differences

FULL = DraftLayer(window=None, causal=False)
DRAFTER = Drafter(
    geometry=Geometry(64, 96, 4, 2, 16, 1e-5, "silu", 256),
    layers=(FULL, FULL),
    target_layer_ids=(1, 3),
    target_hidden_size=64,
    block_size=8,
    rope=Rope("default", 1e4),
    vocabulary=Vocabulary(size=128, draft_size=128, mask_token_id=127),
    dtype="BF16",
)
MEANING = EngineMeaning(
    engine="vllm",
    versions="0.33",
    config_path="native",
    layers=(FULL, FULL),
    target_layer_ids=(1, 3),
    fc_input_size=128,
    mask_token_id=127,
    speculative_tokens=7,
    rope=Rope("default", 1e4),
    draft_vocab_size=128,
    head_dim=16,
    rms_norm_eps=1e-5,
    hidden_act="silu",
)


def test_the_same_meaning_has_no_differences():
    assert differences(DRAFTER, MEANING) == ()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layers": (FULL,)}, "the number of draft layers"),
        ({"layers": (FULL, DraftLayer(window=None, causal=True))}, "layer 1"),
        ({"target_layer_ids": (3, 1)}, "the captured target layers"),
        ({"fc_input_size": 64}, "the input width of fc"),
        ({"mask_token_id": 1}, "the mask token"),
        ({"speculative_tokens": 8}, "k"),
        ({"rope": Rope("default", 1e6)}, "rope"),
        ({"embedding": "own"}, "the embedding"),
        ({"head": "own"}, "the head"),
        ({"draft_vocab_size": 64}, "the draft vocabulary"),
        ({"mask_embedding": True}, "mask_embedding.pt"),
        ({"attention_bias": True}, "attention biases"),
        ({"head_dim": 128}, "the head size"),
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps"),
        ({"hidden_act": "gelu"}, "the activation"),
        ({"sample_from_anchor": True}, "sampling from the anchor"),
    ],
)
def test_each_fact_that_differs_is_named_once(change, field):
    found = differences(DRAFTER, replace(MEANING, **change))
    assert [difference.field for difference in found] == [field]


def test_a_difference_is_one_sentence():
    found = differences(DRAFTER, replace(MEANING, layers=(FULL, DraftLayer(2048, causal=True))))
    assert found[0].sentence() == (
        "vllm would take layer 1 as sliding 2048, causal, but full, bidirectional is meant"
    )


def test_k_is_compared_only_where_the_engine_takes_it_from_the_file():
    assert differences(DRAFTER, replace(MEANING, speculative_tokens=None)) == ()


def test_a_refused_meaning_has_no_differences():
    assert differences(DRAFTER, EngineMeaning("vllm", "0.33", "native", refusals=("No.",))) == ()


def test_a_scaled_rope_without_its_length_is_completed_as_every_config_class_does():
    yarn = Rope("yarn", 1e4, (("factor", 4.0),))
    length = ("original_max_position_embeddings", 256)
    filled = Rope("yarn", 1e4, (("factor", 4.0), length))
    assert differences(replace(DRAFTER, rope=yarn), replace(MEANING, rope=filled)) == ()
    stated = Rope("yarn", 1e4, (("factor", 4.0), (length[0], 64)))
    assert differences(replace(DRAFTER, rope=stated), replace(MEANING, rope=filled))


def test_layers_are_described_by_window_and_causality():
    assert describe_layer(FULL) == "full, bidirectional"
    assert describe_layer(DraftLayer(window=8, causal=True)) == "sliding 8, causal"


def test_ropes_and_parts_are_told_in_words():
    meant = replace(DRAFTER, parts=Dflash2Parts(2, 16, 8, 4))
    other = replace(MEANING, family="dflash2", parts=Dflash2Parts(2, 16, 8, 16))
    (parts,) = differences(meant, other)
    assert parts.meant.endswith("rank 8 over 4 candidates")
    assert parts.derived.endswith("rank 8 over 16 candidates")
    (rope,) = differences(DRAFTER, replace(MEANING, rope=Rope("default", 1e6, (), 0.5)))
    assert rope.derived == "default, theta 1e+06, of 0.5 of each head"


VOCABULARY, GEOMETRY = DRAFTER.vocabulary, DRAFTER.geometry
PRESENT = {
    "mask_embedding": {"vocabulary": replace(VOCABULARY, mask_embedding=True)},
    "attention_bias": {"geometry": replace(GEOMETRY, attention_bias=True)},
    "attention_sinks": {"attention_sinks": True},
}
NAMES = {
    "mask_embedding": "mask_embedding.pt",
    "attention_bias": "attention biases",
    "attention_sinks": "attention sinks",
}


@pytest.mark.parametrize("field", PRESENT)
def test_what_is_there_or_not_is_said_in_plain_words(field):
    """No sentence speaks of True and False."""
    (lost,) = differences(replace(DRAFTER, **PRESENT[field]), MEANING)
    assert lost.sentence() == f"vllm would do without {NAMES[field]}, which is meant"
    (added,) = differences(DRAFTER, replace(MEANING, **{field: True}))
    assert added.sentence() == f"vllm would have {NAMES[field]}, which is not meant"
