import pytest
from engine_files import (
    ABSENT,
    HIDDEN,
    LAYERS,
    MASK,
    VOCAB,
    contents,
    native,
    shapes,
    speculators,
    target,
)

from dflash_pack.drafter import DraftLayer, Rope
from dflash_pack.engines.meaning import EngineMeaning
from dflash_pack.engines.speculators import derive

FULL, SLIDING = "full_attention", "sliding_attention"
MIXED = {"layer_types": [SLIDING, FULL], "sliding_window": 32, "use_sliding_window": True}


def of(config, tensors=None, facts=None):
    return derive(contents(config, tensors), facts)


def refusal(config, tensors=None, facts=None):
    found = of(config, tensors, facts).refusals
    assert found
    return " ".join(found)


def test_every_fact_of_a_plain_drafter():
    assert of(speculators(), facts=target()) == EngineMeaning(
        engine="speculators",
        versions="0.9",
        config_path="speculators",
        ignored=("target_hidden_size",),
        notes=("Loads embedding, head and final norm from the verifier 'owner/target'.",),
        layers=(DraftLayer(window=None, causal=False),) * LAYERS,
        target_layer_ids=(1, 3),
        fc_input_size=2 * HIDDEN,
        mask_token_id=MASK,
        speculative_tokens=7,
        rope=Rope("default", 50000.0),
        draft_vocab_size=VOCAB,
        head_dim=16,
        rms_norm_eps=1e-5,
        hidden_act="silu",
    )


def test_native_files_would_be_converted_not_read():
    text = refusal(native())
    assert "auto-convert" in text
    assert "--format speculators" in text


@pytest.mark.parametrize(("flag", "causal"), [(True, False), (False, True), (ABSENT, True)])
def test_the_flag_concerns_sliding_layers_only(flag, causal):
    found = of(speculators(layer=MIXED, sliding_window_non_causal=flag))
    assert found.layers == (
        DraftLayer(window=32, causal=causal),
        DraftLayer(window=None, causal=False),
    )


def test_a_sliding_layer_whose_window_was_nulled_runs_full_and_bidirectional():
    layer = {"layer_types": [SLIDING, SLIDING], "sliding_window": 32}
    found = of(speculators(layer=layer, sliding_window_non_causal=False))
    assert found.layers == (DraftLayer(window=None, causal=False),) * 2


def test_ids_stay_in_the_order_of_the_file():
    assert of(speculators(aux_hidden_state_layer_ids=[4, 2])).target_layer_ids == (3, 1)


def test_own_embedding_and_full_head_are_the_verifiers_and_a_reduced_head_is_kept():
    own = shapes() | {"embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    found = of(speculators(), own)
    assert (found.embedding, found.head) == ("target", "target")
    assert set(found.ignored) >= {"embed_tokens.weight", "lm_head.weight"}
    reduced = of(speculators(draft_vocab_size=64), shapes(draft_vocab=64))
    assert (reduced.head, reduced.draft_vocab_size, reduced.refusals) == ("own", 64, ())


def test_a_reduced_vocabulary_needs_its_tables():
    tensors = {name: shape for name, shape in shapes(draft_vocab=64).items() if name != "t2d"}
    assert "t2d" in refusal(speculators(draft_vocab_size=64), tensors)


def test_one_rope_per_layer_type_becomes_the_sliding_layers():
    ropes = {
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        FULL: {"rope_type": "default", "rope_theta": 7e4},
    }
    found = of(speculators(layer=MIXED | {"rope_parameters": ropes}))
    assert found.rope == Rope("default", 1e4)


def test_a_partial_rotation_is_ignored_in_the_default_rope_and_refused_in_others():
    default = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    assert of(speculators(layer={"rope_parameters": default})).rope == Rope("default", 1e4)
    linear = default | {"rope_type": "linear", "factor": 2.0}
    assert "partial" in refusal(speculators(layer={"rope_parameters": linear}))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"sliding_window_non_causal": None}, "sliding_window_non_causal"),
        ({"sample_from_anchor": None}, "sample_from_anchor"),
        ({"mask_token_id": None}, "mask_token_id"),
        ({"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids"),
        ({"aux_hidden_state_layer_ids": []}, "aux_hidden_state_layer_ids"),
        ({"draft_vocab_size": None}, "draft_vocab_size"),
        ({"draft_vocab_size": ABSENT}, "lm_head.weight"),
        ({"block_size": "8"}, "block_size"),
        ({"transformer_layer_config": ABSENT}, "transformer_layer_config"),
        ({"speculators_config": ABSENT}, "speculators_config"),
        ({"speculators_config": []}, "speculators_config"),
        ({"speculators_config": {"verifier": {}}}, "proposal_methods"),
        ({"speculators_model_type": "eagle3"}, "eagle3"),
        ({"layer": {"model_type": "gpt_oss"}}, "gpt_oss"),
        ({"layer": {"hidden_size": None}}, "transformer_layer_config.hidden_size"),
        ({"verifier": None}, "NaN"),
    ],
)
def test_what_the_library_refuses(changes, word):
    assert word in refusal(speculators(**changes))


def test_a_verifier_of_another_size():
    assert "embedding" in refusal(speculators(), facts=target(vocab_size=VOCAB + 8))
    assert "within 0 and 3" in refusal(speculators(), facts=target(num_hidden_layers=3))


def test_keys_outside_the_librarys_fields_are_ignored():
    found = of(speculators(layer={"is_causal": True, "logit_scale": 2.0}, dflash_config={"a": 1}))
    assert set(found.ignored) >= {
        "transformer_layer_config.is_causal",
        "transformer_layer_config.logit_scale",
        "dflash_config",
    }
