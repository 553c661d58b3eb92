from dataclasses import fields

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
from dflash_pack.engines.vllm import derive, derive_supported
from dflash_pack.engines.vllm_serving import gpu_runner_need

FULL, SLIDING = "full_attention", "sliding_attention"
MIXED = {"layer_types": [SLIDING, FULL], "sliding_window": 32, "use_sliding_window": True}
CAUSAL_FULL = DraftLayer(window=None, causal=True)
PLAIN_FULL = DraftLayer(window=None, causal=False)


def of(config, tensors=None, side_files=frozenset(), *, facts=None, version="0.33"):
    return derive(contents(config, tensors, side_files), facts, version=version)


def refusal(config, tensors=None, facts=None):
    found = of(config, tensors, facts=facts).refusals
    assert found
    return " ".join(found)


def test_every_fact_of_a_plain_native_drafter():
    assert of(native(), facts=target()) == EngineMeaning(
        engine="vllm",
        versions="0.33",
        config_path="native",
        ignored=("block_size", "num_target_layers"),
        notes=of(native()).notes,
        layers=(PLAIN_FULL,) * LAYERS,
        target_layer_ids=(1, 3),
        fc_input_size=2 * HIDDEN,
        mask_token_id=MASK,
        rope=Rope("default", 50000.0),
        draft_vocab_size=VOCAB,
        head_dim=16,
        rms_norm_eps=1e-5,
        hidden_act="silu",
    )


def test_the_speculators_form_means_the_same_and_brings_k():
    plain, other = of(native(), facts=target()), of(speculators(), facts=target())
    assert (other.config_path, other.speculative_tokens) == ("speculators", 7)
    different = {"config_path", "speculative_tokens", "ignored", "notes", "causality_by"}
    for field in fields(EngineMeaning):
        if field.name not in different:
            assert getattr(plain, field.name) == getattr(other, field.name)


def test_the_universal_form_is_parsed_natively_and_serves_alone():
    found = of(universal(**MIXED), facts=target())
    assert (found.config_path, found.speculative_tokens) == ("native", 7)
    assert found.layers == (DraftLayer(window=32, causal=True), PLAIN_FULL)
    assert "sliding_window_non_causal" in found.ignored
    assert "transformer_layer_config" in found.ignored


def test_the_librarys_default_flag_makes_full_layers_causal():
    found = of(speculators(sliding_window_non_causal=False))
    assert found.layers == (CAUSAL_FULL,) * LAYERS


@pytest.mark.parametrize("flag", [True, False, None, ABSENT])
def test_a_speculators_config_has_one_causality_for_mixed_layers(flag):
    found = of(speculators(layer=MIXED, sliding_window_non_causal=flag))
    assert len({layer.causal for layer in found.layers}) == 1
    assert found.layers[0].causal == (flag is False or flag is None)


def test_mixed_layers_are_noted_as_needing_the_v2_runner():
    assert any("V2 model runner" in note for note in of(native(**MIXED)).notes)
    assert not any("V2 model runner" in note for note in of(native()).notes)


def test_a_causal_flag_that_is_causal_overrides_is_ignored():
    found = of(native(is_causal=True, dflash_config=dflash(causal=False)))
    assert found.layers == (CAUSAL_FULL,) * LAYERS
    assert "dflash_config.causal" in found.ignored


def test_is_causal_decides_even_when_it_is_false():
    found = of(native(**MIXED, is_causal=False, dflash_config=dflash(causal=True)))
    assert [layer.causal for layer in found.layers] == [False, False]


def test_a_nulled_window_is_refused_with_the_key_that_nulls_it():
    text = refusal(native(layer_types=[SLIDING, FULL], sliding_window=32))
    assert "use_sliding_window" in text


def test_captured_layers_come_in_ascending_order_whatever_the_file_says():
    found = of(native(dflash_config=dflash(target_layer_ids=[3, 1])))
    assert found.target_layer_ids == (1, 3)


@pytest.mark.parametrize(
    ("config", "facts", "word"),
    [
        (native(dflash_config=dflash(target_layer_ids=ABSENT)), None, "default layers"),
        (native(dflash_config=dflash(target_layer_ids=[])), None, "default layers"),
        (native(dflash_config=dflash(target_layer_ids=[1, 1])), None, "twice"),
        (native(dflash_config=dflash(target_layer_ids=[1, "3"])), None, "whole numbers"),
        (native(dflash_config=dflash(target_layer_ids=[1, 6])), target(), "6 layers"),
        (native(dflash_config=dflash(target_layer_ids=[-2, 3])), None, "-2"),
    ],
)
def test_unusable_captured_layers(config, facts, word):
    assert word in refusal(config, facts=facts)


def test_captured_layers_that_only_one_runner_reads_are_noted():
    config = native(dflash_config=dflash(target_layer_ids=ABSENT), target_layer_ids=[1, 3])
    found = of(config)
    assert found.target_layer_ids == (1, 3)
    assert any("V1" in note for note in found.notes)


def test_eagle_config_is_noted_as_hiding_the_captured_layers_from_the_v1_runner():
    assert any("eagle_config" in note for note in of(native(eagle_config={"a": 1})).notes)


@pytest.mark.parametrize("mask", [None, True, "127", 1.0, -1])
def test_a_mask_that_is_no_token(mask):
    assert "mask token" in refusal(native(dflash_config=dflash(mask_token_id=mask)))


def test_a_mask_token_outside_the_embedding():
    assert "outside" in refusal(native(dflash_config=dflash(mask_token_id=VOCAB)))


def test_a_mask_embedding_is_used_where_the_file_is_there():
    file = frozenset({"mask_embedding.pt"})
    assert of(native(), side_files=file).mask_embedding
    assert of(speculators(), side_files=file).mask_embedding
    assert not of(native()).mask_embedding
    borrowed = native(dflash_config=dflash(mask_token_id=ABSENT), pard_token=MASK)
    assert not of(borrowed, side_files=file).mask_embedding


def test_sampling_from_the_anchor_is_refused_in_both_forms():
    assert "V1" in refusal(native(dflash_config=dflash(sample_from_anchor=True)))
    assert "V1" in refusal(speculators(sample_from_anchor=True))


@pytest.mark.parametrize(
    ("model_type", "word"), [("gpt_oss", "factor 32"), ("llama", "defaults"), (ABSENT, "missing")]
)
def test_another_model_type_is_refused_with_its_trap(model_type, word):
    assert word in refusal(native(model_type=model_type))


@pytest.mark.parametrize(
    ("architectures", "word"),
    [
        (["DFlash2DraftModel"], "DFlash2"),
        (["DFlashLagunaForCausalLM"], "Laguna"),
        (["Qwen3DFlashDraftModel"], "does not know"),
        ([], "DFlashDraftModel"),
        ("DFlashDraftModel", "DFlashDraftModel"),
    ],
)
def test_another_architecture_is_refused(architectures, word):
    assert word in refusal(native(architectures=architectures))


def test_other_faults_of_the_config():
    assert "silu" in refusal(native(hidden_act="gelu"))
    assert "fc.weight" in refusal(native(use_aux_hidden_state=False))
    assert "has_own_lm_head" in refusal(native(has_own_lm_head=True))
    assert "draft_vocab_size" in refusal(native(draft_vocab_size="all"))


def test_a_target_of_another_width():
    text = refusal(native(), facts=target(hidden_size=32))
    assert "width" in text
    assert "embedding and head" in text
    fitting = native(target_hidden_size=32)
    own = shapes(captured=1) | {
        "embed_tokens.weight": (VOCAB, HIDDEN),
        "lm_head.weight": (VOCAB, HIDDEN),
    }
    assert of(fitting, own, facts=target(hidden_size=32)).refusals == ()


def test_tensors_that_are_dropped_are_ignored():
    tensors = shapes() | {"t2d": (VOCAB,), "layers.0.self_attn.q_proj.bias": (HIDDEN,)}
    found = of(native(), tensors)
    assert found.refusals == ()
    assert set(found.ignored) >= {"t2d", "layers.0.self_attn.q_proj.bias"}


def test_own_matrices_are_told_by_their_tensors():
    own = shapes() | {"embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    found = of(native(), own)
    assert (found.embedding, found.head) == ("own", "own")


def test_a_smaller_vocabulary_than_the_targets_is_no_reduced_one():
    found = of(native(), facts=target(vocab_size=VOCAB + 8))
    assert found.refusals == ()
    assert found.draft_vocab_size == VOCAB


def test_d2t_has_a_place_exactly_when_the_targets_vocabulary_is_another():
    tensors = shapes() | {"d2t": (VOCAB,)}
    assert of(native(), tensors, facts=target(vocab_size=VOCAB + 8)).refusals == ()
    assert "d2t" in refusal(native(), tensors, target())


def test_a_model_prefix_is_refused():
    assert "model.fc.weight" in refusal(native(), {f"model.{n}": s for n, s in shapes().items()})


def test_what_the_drafter_adds_is_noted():
    sinks = {f"layers.{i}.self_attn.attention_sink_bias": (4,) for i in range(LAYERS)}
    config = native(
        dflash_config=dflash(attention_sink_bias=True, attention_value_scale=0.5),
        logit_scale=2.0,
        is_neox_style=False,
    )
    found = of(config, shapes() | sinks)
    assert (found.attention_sinks, found.attention_value_scale) == (True, 0.5)
    for word in ("logit_scale", "is_neox_style"):
        assert word in " ".join(found.notes)
    assert "attention_sink_bias" in refusal(config)


def test_quantised_weights_are_noted_and_not_compared():
    packed = {name: shape for name, shape in shapes().items() if name != "fc.weight"}
    packed["fc.weight_packed"] = (1, 1)
    found = of(native(quantization_config={"quant_method": "x"}), packed)
    assert found.refusals == ()
    assert any("quantised" in note for note in found.notes)
    assert "quantization_config" not in found.ignored


def test_keys_that_the_speculators_parser_overwrites_are_ignored():
    layer = {"architectures": ["Qwen3ForCausalLM"], "dflash_config": {"causal": True}}
    found = of(speculators(layer=layer))
    prefix = "transformer_layer_config."
    assert {f"{prefix}architectures", f"{prefix}dflash_config"} <= set(found.ignored)
    assert "block_size" in found.ignored


def test_missing_sizes_are_refused_in_the_speculators_path_which_fills_nothing():
    for name in ("num_key_value_heads", "vocab_size", "rms_norm_eps", "max_position_embeddings"):
        assert name in refusal(speculators(layer={name: ABSENT}))
    assert of(speculators(layer={"head_dim": ABSENT})).head_dim == 16


@pytest.mark.parametrize("name", ["0.32", "0.33"])
def test_a_version_says_which_one_it_is(name):
    assert of(native(), version=name).versions == name


def test_both_versions_at_once_have_the_notes_of_both():
    short = target(max_position_embeddings=1024)
    config = speculators(verifier="/somewhere/target")
    found = derive_supported(contents(config), short)
    assert found.versions == "0.32-0.33"
    assert any("0.32" in note for note in found.notes)
    assert any("0.33" in note for note in found.notes)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "qwen3"},
        {"model_type": {"a": 1}},
        {"speculators_config": []},
        {"speculators_config": {"proposal_methods": "x", "verifier": 3}},
        native(dflash_config=[]),
        native(layer_types={}),
        native(num_hidden_layers=10**9),
        native(quantization_config="x"),
        native(rope_scaling="x"),
        native(rope_parameters={"rope_type": ["yarn"], "rope_theta": 1e4}),
        speculators(transformer_layer_config={"num_hidden_layers": 10**9}),
        speculators(aux_hidden_state_layer_ids={"a": 1}),
        speculators(layer={"sliding_window": "x", "layer_types": [SLIDING, SLIDING]}),
        speculators(draft_vocab_size=[]),
    ],
)
def test_strange_files_are_refused_and_never_crash(config):
    found = derive(contents(config), target())
    if config.get("quantization_config") is None:
        assert found.refusals


@pytest.mark.parametrize(
    ("layers", "family", "words"),
    [
        ((PLAIN_FULL, CAUSAL_FULL), "dflash", None),
        ((DraftLayer(window=16, causal=True),) * 2, "dflash", None),
        ((DraftLayer(window=16, causal=True), PLAIN_FULL), "dflash", "are mixed"),
        ((PLAIN_FULL,), "dflash2", "DFlash2 runs in vLLM's V2 model runner"),
        ((PLAIN_FULL,), "dspark", "DSpark runs in vLLM's V2 model runner"),
    ],
)
def test_what_only_the_runner_on_a_gpu_takes(layers, family, words):
    """The words go on in a note too, which starts with a capital letter."""
    need = gpu_runner_need(layers, family)
    assert need is None if words is None else words in need
