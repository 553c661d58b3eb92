import pytest
from engine_files import (
    ABSENT,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    MASK,
    TARGET_LAYERS,
    VOCAB,
    contents,
    dflash,
    native,
    shapes,
    speculators,
    target,
    universal,
)

from dflash_pack.drafter import Dflash2Parts, DraftLayer, LagunaParts, Rope
from dflash_pack.engines.meaning import EngineMeaning
from dflash_pack.engines.tensorrt_llm import derive

FULL, SLIDING = "full_attention", "sliding_attention"
WINDOWED = {"layer_types": [SLIDING, FULL], "sliding_window": 32, "use_sliding_window": True}
CONV, RANK = 2, 8
SELECTOR = {
    "conv_kernel_size": CONV,
    "conv_group_size": 16,
    "selector_rank": RANK,
    "selector_top_k": 4,
}


def of(config, tensors=None, facts=None, side_files=frozenset()):
    return derive(contents(config, tensors, side_files), facts)


def refusal(config, tensors=None, facts=None):
    found = of(config, tensors, facts).refusals
    assert found
    return " ".join(found)


def noted(meaning, word):
    return any(word in note for note in meaning.notes)


def layers_of(**changes):
    found = of(native(**changes))
    assert found.refusals == ()
    return [(layer.window, layer.causal) for layer in found.layers]


def dflash2_shapes():
    groups = 2 * CONV * (HIDDEN // SELECTOR["conv_group_size"])
    result = shapes() | {
        "candidate_selector.predecessor_codebook": (VOCAB, RANK),
        "candidate_selector.successor_codebook": (VOCAB, RANK),
        "candidate_selector.hidden_projection.weight": (RANK, HIDDEN),
    }
    for index in range(LAYERS):
        for place in ("attention_conv", "mlp_conv"):
            result[f"layers.{index}.{place}.base_kernel"] = (2, CONV, HIDDEN)
            result[f"layers.{index}.{place}.kernel_projection.weight"] = (groups, HIDDEN)
    return result


def dflash2(**changes):
    config = {"architectures": ["DFlash2DraftModel"], "dflash_config": dflash(**SELECTOR)}
    return native(**(config | changes))


def laguna(gating="per-head"):
    config = native(
        architectures=["DFlashLagunaForCausalLM"],
        model_type="laguna",
        gating=gating,
        layer_types=[SLIDING] * LAYERS,
        sliding_window=32,
    )
    gates = HEADS if gating == "per-head" else HEADS * HEAD_DIM
    tensors = shapes() | {f"aux_hidden_norms.{n}.weight": (HIDDEN,) for n in range(2)}
    for index in range(LAYERS):
        attention = f"layers.{index}.self_attn."
        for part in "qkv":
            del tensors[f"{attention}{part}_proj.weight"]
        tensors[f"{attention}qkv_proj.weight"] = ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN)
        tensors[f"{attention}g_proj.weight"] = (gates, HIDDEN)
    return config, tensors


def test_every_fact_of_a_plain_drafter():
    found = of(native(), facts=target())
    notes = found.notes
    assert found == EngineMeaning(
        engine="tensorrt_llm",
        versions="main 2026-09",
        config_path="native",
        ignored=("num_target_layers",),
        notes=notes,
        layers=(DraftLayer(window=None, causal=False),) * LAYERS,
        target_layer_ids=(1, 3),
        fc_input_size=2 * HIDDEN,
        mask_token_id=MASK,
        rope=Rope("default", 50000.0),
        draft_vocab_size=VOCAB,
        head_dim=16,
        rms_norm_eps=1e-5,
        hidden_act="silu",
    )
    assert noted(found, "max_draft_len")


def test_the_pure_speculators_form_is_refused_with_the_forms_it_reads():
    assert "--format native or universal" in refusal(speculators())
    assert of(universal(), facts=target()).refusals == ()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"is_causal": False},
        {"is_causal": True},
        {"dflash_config": dflash(causal=False)},
        {"dflash_config": dflash(causal=True)},
    ],
)
def test_a_plain_drafters_causality_goes_by_window_whatever_the_flags(changes):
    assert layers_of(**(WINDOWED | changes)) == [(32, True), (None, False)]


@pytest.mark.parametrize("use", [False, ABSENT])
def test_sliding_layers_without_a_window_run_as_full_ones(use):
    found = layers_of(**(WINDOWED | {"use_sliding_window": use}))
    assert found == [(None, False), (None, False)]


def test_use_swa_windows_sliding_layers_only():
    section = dflash(use_swa=True, swa_window_size=8)
    assert layers_of(dflash_config=section) == [(None, False), (None, False)]
    windowless = WINDOWED | {"use_sliding_window": False, "dflash_config": section}
    assert layers_of(**windowless) == [(8, False), (None, False)]
    assert layers_of(**WINDOWED, dflash_config=section) == [(8, True), (None, False)]


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (ABSENT, [(32, True), (None, False)]),
        (False, [(32, False), (None, False)]),
        (True, [(32, True), (None, True)]),
    ],
)
def test_is_causal_counts_for_dflash2(stated, expected):
    found = of(dflash2(**WINDOWED, is_causal=stated), dflash2_shapes())
    assert found.refusals == ()
    assert [(layer.window, layer.causal) for layer in found.layers] == expected


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        (WINDOWED | {"sliding_window": None}, "without a sliding_window"),
        (WINDOWED | {"sliding_window": 0}, "sliding_window"),
        ({"dflash_config": dflash(use_swa=True)}, "swa_window_size"),
        ({"dflash_config": dflash(use_swa=True, swa_window_size=0)}, "swa_window_size"),
        ({"architectures": ABSENT}, "architectures"),
        ({"architectures": ["LlamaForCausalLM"]}, "another backbone"),
        ({"model_type": "gpt_oss"}, "gpt_oss"),
        ({"dflash_config": dflash(target_layer_ids=ABSENT)}, "target_layer_ids"),
        ({"dflash_config": dflash(target_layer_ids=[1, 1])}, "twice"),
        ({"dflash_config": dflash(mask_token_id=ABSENT)}, "vocab_size"),
        ({"dflash_config": dflash(mask_token_id="7")}, "not a token id"),
        ({"markov_rank": 8}, "DSpark"),
        ({"dflash_config": dflash(projector_type="dspark")}, "DSpark"),
        ({"dflash_config": dflash(conv_kernel_size=2)}, "conv_group_size"),
        ({"head_dim": None}, "head_dim"),
    ],
)
def test_what_it_fails_on(changes, word):
    assert word in refusal(native(**changes))


def test_names_that_no_registry_knows_fall_back_to_the_model_type():
    for name in ("Qwen3DFlashDraftModel", "Qwen3ForCausalLM"):
        assert of(native(architectures=[name])).refusals == ()


def test_captured_layers_are_read_from_the_section_and_sorted():
    found = of(native(dflash_config=dflash(target_layer_ids=[3, 1])), facts=target())
    assert (found.refusals, found.target_layer_ids) == ((), (1, 3))
    top = native(dflash_config=dflash(target_layer_ids=ABSENT), target_layer_ids=[1, 3])
    assert "target_layer_ids" in refusal(top)


def test_the_last_layer_is_captured_too():
    config = native(dflash_config=dflash(target_layer_ids=[1, TARGET_LAYERS - 1]))
    assert of(config, facts=target()).refusals == ()


def test_the_mask_token_is_read_from_the_section_then_from_the_top():
    assert of(native(mask_token_id=9)).mask_token_id == MASK
    top = of(native(dflash_config=dflash(mask_token_id=ABSENT), mask_token_id=9))
    assert top.mask_token_id == 9


def test_k_is_the_users():
    assert of(native()).speculative_tokens is None


def test_a_nested_block_size_alone_needs_a_recent_version():
    nested = of(native(block_size=ABSENT, dflash_config=dflash(block_size=8)))
    assert noted(nested, "September 2026")
    assert "dflash_config.block_size" not in nested.ignored
    assert not noted(of(native()), "September 2026")


@pytest.mark.parametrize(
    ("config", "tensors", "word"),
    [
        (native(**WINDOWED), None, "16914"),
        (dflash2(), dflash2_shapes(), "18155"),
        (*laguna(), "15666"),
    ],
)
def test_since_when_it_works_is_noted(config, tensors, word):
    assert noted(of(config, tensors), word)
    assert not noted(of(native()), word)


def test_sinks_scales_caps_and_the_mask_embedding_are_lost():
    sinks = {f"layers.{n}.self_attn.attention_sink_bias": (HEADS,) for n in range(LAYERS)}
    section = dflash(**SELECTOR, attention_sink_bias=True, attention_value_scale=0.5)
    section |= {"output_multiplier": 0.5, "final_logit_softcapping": 30.0}
    found = of(
        dflash2(dflash_config=section),
        dflash2_shapes() | sinks,
        side_files=frozenset({"mask_embedding.pt"}),
    )
    assert found.refusals == ()
    assert (found.attention_sinks, found.attention_value_scale) == (False, 1.0)
    assert (found.output_multiplier, found.final_logit_softcapping) == (1.0, None)
    assert not found.mask_embedding
    assert set(found.ignored) >= {
        *sinks,
        "dflash_config.attention_sink_bias",
        "dflash_config.attention_value_scale",
        "dflash_config.output_multiplier",
        "dflash_config.final_logit_softcapping",
    }


def test_the_activation_is_silu_whatever_the_file_says():
    assert of(native(hidden_act="gelu")).hidden_act == "silu"


def test_the_targets_embedding_and_head_serve_a_reduced_vocabulary_too():
    found = of(native(draft_vocab_size=64), shapes(draft_vocab=64))
    assert (found.embedding, found.head, found.draft_vocab_size) == ("target", "target", VOCAB)
    assert set(found.ignored) >= {"d2t", "t2d", "lm_head.weight", "draft_vocab_size"}


def test_a_partial_rope_is_honoured_wherever_it_stands():
    assert of(native(partial_rotary_factor=0.5)).rope == Rope("default", 50000.0, (), 0.5)
    inside = {"rope_type": "default", "rope_theta": 5e4, "partial_rotary_factor": 0.5}
    assert of(native(rope_parameters=inside)).rope == Rope("default", 5e4, (), 0.5)


@pytest.mark.parametrize(
    ("stated", "kept"),
    [
        ({"truncate": False}, {}),
        ({"truncate": True}, {"truncate": True}),
        ({"attention_factor": 2.0}, {}),
        ({"beta_fast": 16}, {"beta_fast": 16}),
    ],
)
def test_of_yarn_it_reads_what_its_table_takes(stated, kept):
    yarn = {"factor": 4.0, "original_max_position_embeddings": 64}
    rope = {"rope_type": "yarn", "rope_theta": 5e4, **yarn, **stated}
    assert dict(of(native(rope_parameters=rope)).rope.extras) == yarn | kept


def test_of_one_rope_per_layer_type_the_full_layers_is_taken():
    inner = {"rope_type": "default", "rope_theta": 7e4}
    nested = {FULL: inner, SLIDING: {"rope_type": "default", "rope_theta": 1e4}}
    found = of(native(**WINDOWED, rope_parameters=nested))
    assert (found.refusals, found.rope) == ((), Rope("default", 7e4))


@pytest.mark.parametrize("name", sorted(shapes()))
def test_each_missing_tensor_is_a_refusal(name):
    tensors = {other: shape for other, shape in shapes().items() if other != name}
    assert name in refusal(native(), tensors)


@pytest.mark.parametrize("name", ["fc.weight", "hidden_norm.weight"])
def test_fc_and_its_norm_must_not_be_prefixed(name):
    prefixed = {
        other if other in ("fc.weight", "hidden_norm.weight") else f"model.{other}": shape
        for other, shape in shapes().items()
    }
    assert of(native(), prefixed).refusals == ()
    prefixed[f"model.{name}"] = prefixed.pop(name)
    assert name in refusal(native(), prefixed)


def test_fused_queries_are_split_and_fused_gates_are_lost():
    fused = dict(shapes())
    rows = sum(fused.pop(f"layers.0.self_attn.{part}_proj.weight")[0] for part in "qkv")
    fused["layers.0.self_attn.qkv_proj.weight"] = (rows, HIDDEN)
    assert of(native(), fused).refusals == ()
    for part in ("gate", "up"):
        shape = fused.pop(f"layers.0.mlp.{part}_proj.weight")
    fused["layers.0.mlp.gate_up_proj.weight"] = (2 * shape[0], shape[1])
    assert "gate_proj" in refusal(native(), fused)


def test_biases_are_built_where_the_config_says_so():
    assert of(native(attention_bias=True), shapes(bias=True)).attention_bias
    assert len(of(native(), shapes(bias=True)).ignored) == 4 * LAYERS + 1


def test_dflash2_by_architecture_or_by_sizes():
    for changes in ({}, {"architectures": ["DFlashDraftModel"]}):
        found = of(dflash2(**changes), dflash2_shapes())
        assert (found.refusals, found.family) == ((), "dflash2")
        assert found.parts == Dflash2Parts(CONV, 16, RANK, 4)
    lone = dflash(**(SELECTOR | {"selector_top_k": 1}))
    assert "at least 2" in refusal(dflash2(dflash_config=lone), dflash2_shapes())
    assert "missing" in refusal(dflash2())


def test_lagunas_drafter_is_gated_per_head_only():
    config, tensors = laguna()
    found = of(config, tensors)
    assert (found.refusals, found.family, found.parts) == ((), "laguna", LagunaParts("per-head"))
    assert found.layers == (DraftLayer(window=32, causal=True),) * LAYERS
    assert "per element" in refusal(*laguna("per-element"))


def test_quantised_weights_are_noted_and_not_measured():
    packed = dict.fromkeys(shapes(), (1,))
    found = of(native(quantization_config={"quant_method": "fp8"}), packed)
    assert (found.refusals, "quantization_config" in found.ignored) == ((), False)
    assert noted(found, "quantised")


def test_a_target_that_does_not_fit():
    assert "wide" in refusal(native(), facts=target(hidden_size=HIDDEN // 2))
    assert "does not exist" in refusal(native(), facts=target(num_hidden_layers=3))
    assert "mask token" in refusal(native(), facts=target(vocab_size=MASK))
