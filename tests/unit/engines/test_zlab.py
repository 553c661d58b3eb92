import pytest
from engine_files import (
    ABSENT,
    HIDDEN,
    LAYERS,
    MASK,
    VOCAB,
    contents,
    dflash,
    native,
    shapes,
    speculators,
    target,
    universal,
)

from dflash_pack.drafter import DraftLayer, Rope
from dflash_pack.engines.meaning import EngineMeaning
from dflash_pack.engines.zlab import default_layer_ids, derive

FULL, SLIDING = "full_attention", "sliding_attention"


def of(config, tensors=None, facts=None):
    return derive(contents(config, tensors), facts)


def refusal(config, tensors=None, facts=None):
    found = of(config, tensors, facts).refusals
    assert found
    return " ".join(found)


def test_every_fact_of_a_plain_drafter():
    assert of(native(), facts=target()) == EngineMeaning(
        engine="zlab",
        versions="0.1.0",
        config_path="native",
        ignored=("model_type",),
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


def test_the_speculators_form_is_refused_with_the_forms_it_reads():
    text = refusal(speculators())
    assert "--format native" in text
    assert of(universal()).refusals == ()


def test_the_section_comes_before_the_top():
    found = of(native(block_size=16, dflash_config=dflash(block_size=4)))
    assert found.speculative_tokens == 3
    assert of(native(block_size=ABSENT)).speculative_tokens == 15


def test_vllms_own_keys_are_ignored():
    section = dflash(causal=True, use_swa=True, swa_window_size=4)
    found = of(native(dflash_config=section))
    assert found.layers == (DraftLayer(window=None, causal=False),) * LAYERS
    assert set(found.ignored) >= {
        "dflash_config.causal",
        "dflash_config.use_swa",
        "dflash_config.swa_window_size",
    }


def test_own_matrices_are_skipped():
    own = shapes() | {"embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    found = of(native(), own)
    assert (found.embedding, found.head) == ("target", "target")
    assert set(found.ignored) >= {"embed_tokens.weight", "lm_head.weight"}


def test_a_cap_and_factors_are_honoured():
    found = of(native(final_logit_softcapping=30.0, dflash_config=dflash(output_multiplier=2.0)))
    assert found.final_logit_softcapping == 30.0
    assert (found.output_multiplier, found.input_embedding_scale) == (2.0, 1.0)
    assert of(native(input_embedding_scale=0.5)).input_embedding_scale == 0.5
    assert of(native(final_logit_softcapping=0)).final_logit_softcapping is None
    assert "not a number" in refusal(native(final_logit_softcapping="30"))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"num_target_layers": ABSENT}, "num_target_layers"),
        ({"num_target_layers": None}, "num_target_layers"),
        ({"dflash_config": None}, "dflash_config"),
        ({"dflash_config": dflash(target_layer_ids=None)}, "target_layer_ids"),
        ({"dflash_config": dflash(mask_token_id=ABSENT)}, "mask_token_id"),
        ({"block_size": None}, "block_size"),
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash2"),
        ({"head_dim": None}, "head_dim"),
        ({"target_hidden_size": HIDDEN}, ""),
    ],
)
def test_what_the_package_fails_on(changes, word):
    if word:
        assert word in refusal(native(**changes))
    else:
        assert of(native(**changes)).refusals == ()


def test_a_model_prefix_is_stripped():
    found = of(native(), {f"model.{name}": shape for name, shape in shapes().items()})
    assert (found.refusals, found.ignored) == ((), ("model_type",))


def test_missing_tensors_would_be_random():
    tensors = {name: shape for name, shape in shapes().items() if name != "fc.weight"}
    assert "random weights" in refusal(native(), tensors)


def test_a_target_that_does_not_fit():
    assert "wide" in refusal(native(), facts=target(hidden_size=32))
    assert "within 0 and 2" in refusal(native(), facts=target(num_hidden_layers=3))


def test_default_layers_are_spread_from_the_second_to_the_third_last():
    assert default_layer_ids(36, 5) == (1, 9, 17, 25, 33)
    assert default_layer_ids(36, 1) == (18,)
    found = of(native(dflash_config=dflash(target_layer_ids=ABSENT)))
    assert found.target_layer_ids == (1, 3)


@pytest.mark.parametrize(("depth", "told"), [(5, False), (4, True)])
def test_a_captured_last_layer_is_told(depth, told):
    ids = [0, 1, 3]
    found = of(native(num_target_layers=depth, dflash_config=dflash(target_layer_ids=ids)))
    assert any("final norm" in note for note in found.notes) is told
