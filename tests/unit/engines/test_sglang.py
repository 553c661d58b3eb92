import pytest
from engine_files import (
    ABSENT,
    BLOCK_SIZE,
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

from dflash_pack.drafter import Dflash2Parts, DraftLayer, DsparkParts, LagunaParts, Rope
from dflash_pack.engines.meaning import EngineMeaning
from dflash_pack.engines.sglang import derive

FULL, SLIDING = "full_attention", "sliding_attention"
WINDOWED = {"layer_types": [SLIDING, FULL], "sliding_window": 32, "use_sliding_window": True}
CONV, RANK = 2, 8
SELECTOR = {
    "conv_kernel_size": CONV,
    "conv_group_size": 16,
    "selector_rank": RANK,
    "selector_top_k": 4,
}
MARKOV = {"architectures": ["Qwen3DSparkModel"], "markov_rank": RANK, "markov_head_type": "vanilla"}


def of(config, tensors=None, facts=None, side_files=frozenset()):
    return derive(contents(config, tensors, side_files), facts)


def refusal(config, tensors=None, facts=None):
    found = of(config, tensors, facts).refusals
    assert found
    return " ".join(found)


def noted(meaning, word):
    return any(word in note for note in meaning.notes)


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


def dspark_shapes():
    return shapes() | {
        "markov_head.markov_w1.weight": (VOCAB, RANK),
        "markov_head.markov_w2.weight": (VOCAB, RANK),
    }


def laguna():
    config = native(
        architectures=["DFlashLagunaForCausalLM"],
        model_type="laguna",
        gating="per-head",
        layer_types=[SLIDING] * LAYERS,
        sliding_window=32,
        rope_parameters=ABSENT,
        rope_theta=50000.0,
    )
    tensors = shapes() | {f"aux_hidden_norms.{n}.weight": (HIDDEN,) for n in range(2)}
    for index in range(LAYERS):
        attention = f"layers.{index}.self_attn."
        for part in "qkv":
            del tensors[f"{attention}{part}_proj.weight"]
        tensors[f"{attention}qkv_proj.weight"] = ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN)
        tensors[f"{attention}g_proj.weight"] = (HEADS, HIDDEN)
    return config, tensors


def test_every_fact_of_a_plain_drafter():
    found = of(native(), facts=target())
    notes = found.notes
    assert found == EngineMeaning(
        engine="sglang",
        versions="0.5.23",
        config_path="native",
        notes=notes,
        layers=(DraftLayer(window=None, causal=False),) * LAYERS,
        target_layer_ids=(1, 3),
        fc_input_size=2 * HIDDEN,
        mask_token_id=MASK,
        speculative_tokens=BLOCK_SIZE - 1,
        rope=Rope("default", 50000.0),
        draft_vocab_size=VOCAB,
        head_dim=16,
        rms_norm_eps=1e-5,
        hidden_act="silu",
    )
    assert noted(found, f"--speculative-num-draft-tokens is the block size, {BLOCK_SIZE}")


def test_the_pure_speculators_form_is_refused_with_the_forms_it_reads():
    assert "--format native or universal" in refusal(speculators())
    assert of(universal(), facts=target()).refusals == ()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [(32, True), (None, False)]),
        ({"is_causal": False}, [(32, False), (None, False)]),
        ({"is_causal": True}, [(32, True), (None, True)]),
        ({"dflash_config": dflash(causal=False)}, [(32, True), (None, False)]),
        ({"dflash_config": dflash(causal=True)}, [(32, True), (None, False)]),
        ({"dflash_config": dflash(swa_window_size=4)}, [(32, True), (None, False)]),
    ],
)
def test_layers_go_by_type_and_by_top_level_is_causal_alone(changes, expected):
    found = of(native(**(WINDOWED | changes)))
    assert [(layer.window, layer.causal) for layer in found.layers] == expected


def test_vllms_own_window_keys_are_ignored():
    found = of(native(dflash_config=dflash(use_swa=True, swa_window_size=4, causal=True)))
    assert found.layers == (DraftLayer(window=None, causal=False),) * LAYERS
    assert set(found.ignored) >= {
        "dflash_config.causal",
        "dflash_config.use_swa",
        "dflash_config.swa_window_size",
    }


def test_bidirectional_windows_come_with_a_warning_about_one_backend():
    assert noted(of(native(**WINDOWED, is_causal=False)), "trtllm_mha")
    assert not noted(of(native(**WINDOWED)), "trtllm_mha")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        (WINDOWED | {"use_sliding_window": False}, "nulls it"),
        (WINDOWED | {"sliding_window": None}, "no window"),
        ({"layer_types": ["chunked_attention", FULL]}, "chunked_attention"),
        ({"architectures": ABSENT}, "architectures"),
        ({"architectures": ["Qwen3DFlashDraftModel"]}, "no draft model"),
        ({"architectures": ["LiLiCorrDraftModel"]}, "LiLiCorr"),
        ({"model_type": "gpt_oss"}, "gpt_oss"),
        ({"model_type": ABSENT}, "model_type is missing"),
        ({"block_size": 0}, "block_size"),
        ({"block_size": "many"}, "block_size"),
        ({"block_size": float("inf")}, "block_size"),
        ({"hidden_act": "gelu"}, "silu"),
        ({"dflash_config": dflash(mask_token_id=ABSENT)}, "<|MASK|>"),
        ({"dflash_config": dflash(mask_token_id=None), "mask_token_id": MASK}, "<|MASK|>"),
        ({"dflash_config": dflash(mask_token_id="7")}, "not a token id"),
        ({"dflash_config": dflash(mask_token_id=-1)}, "not a token id"),
        ({"dflash_config": dflash(target_layer_ids=[])}, "not a list"),
        ({"dflash_config": dflash(target_layer_ids=[1, 1])}, "twice"),
        ({"dflash_config": dflash(target_layer_ids=[-1, 1])}, "-1"),
        ({"dflash_config": dflash(target_layer_ids=[1, TARGET_LAYERS])}, "num_target_layers"),
        ({"num_target_layers": 3, "dflash_config": dflash(target_layer_ids=None)}, "too small"),
        ({"dflash_config": dflash(attention_sink_bias=1)}, "attention_sink_bias"),
        ({"dflash_config": dflash(attention_value_scale="0.5")}, "attention_value_scale"),
        ({"dflash_config": dflash(projector_type="domino")}, "Domino"),
        ({"dflash_config": dflash(**SELECTOR)}, "calls plain"),
        ({"partial_rotary_factor": None}, "partial_rotary_factor"),
        ({"rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 1e4}}}, "per layer"),
    ],
)
def test_what_sglang_fails_on(changes, word):
    assert word in refusal(native(**changes))


def test_dflash_keys_are_looked_up_in_the_section_first():
    nested = dflash(block_size=4, mask_token_id=5)
    found = of(native(dflash_config=nested, mask_token_id=9))
    assert (found.speculative_tokens, found.mask_token_id) == (3, 5)
    top = of(native(dflash_config=dflash(mask_token_id=ABSENT), mask_token_id=9))
    assert (top.speculative_tokens, top.mask_token_id) == (BLOCK_SIZE - 1, 9)
    assert of(native(block_size=ABSENT)).speculative_tokens == 15


def test_captured_layers_come_in_layer_order_whatever_their_order():
    found = of(native(dflash_config=dflash(target_layer_ids=[3, 1])), facts=target())
    assert (found.refusals, found.target_layer_ids) == ((), (1, 3))


def test_layers_that_no_key_states_are_spread():
    found = of(native(dflash_config=dflash(target_layer_ids=ABSENT)))
    assert found.target_layer_ids == (1, 3)


@pytest.mark.parametrize(
    ("architecture", "captured"),
    [("Qwen3ForCausalLM", False), ("GptOssForCausalLM", True), ("NemotronHForCausalLM", True)],
)
def test_the_last_layer_depends_on_the_target(architecture, captured):
    config = native(dflash_config=dflash(target_layer_ids=[1, TARGET_LAYERS - 1]))
    found = of(config, facts=target(architectures=(architecture,)))
    assert (found.refusals == ()) == captured


def test_a_target_without_a_capture_hook_is_refused():
    assert "Qwen2ForCausalLM" in refusal(
        native(), facts=target(architectures=("Qwen2ForCausalLM",))
    )
    assert of(native(), facts=target(architectures=())).refusals == ()


@pytest.mark.parametrize(
    ("architecture", "ids"), [("DFlashDraftModel", (0, 2)), ("MuseGlimmerAssistantModel", (1, 3))]
)
def test_muse_glimmer_takes_ids_as_inputs_unless_the_drafter_is_its_own(architecture, ids):
    muse = target(
        architectures=("MuseGlimmerForConditionalGeneration",),
        config={"model_type": "muse_glimmer"},
    )
    found = of(native(architectures=[architecture]), facts=muse)
    assert (found.refusals, found.target_layer_ids) == ((), ids)


def test_the_targets_embedding_and_head_serve_a_reduced_vocabulary_too():
    config = native(draft_vocab_size=64)
    found = of(config, shapes(draft_vocab=64) | {"embed_tokens.weight": (VOCAB, HIDDEN)})
    assert (found.embedding, found.head, found.draft_vocab_size) == ("target", "target", VOCAB)
    assert set(found.ignored) >= {"d2t", "t2d", "lm_head.weight", "embed_tokens.weight"}
    assert found.refusals == ()


def test_only_nemotrons_layout_keeps_its_own_embedding():
    config = native(
        has_embed_tokens=True,
        quantization_config={"quant_algo": "W4A16_NVFP4"},
        eagle_aux_hidden_state_layer_ids=[2, 4],
        sample_from_anchor=False,
    )
    tensors = shapes() | {"embed_tokens.weight": (VOCAB, HIDDEN)}
    assert of(config, tensors).embedding == "own"
    assert of(config | {"eagle_aux_hidden_state_layer_ids": [1, 3]}, tensors).embedding == "target"
    assert of(config | {"sample_from_anchor": True}, tensors).embedding == "target"


def test_sinks_and_the_value_scale_are_honoured_in_the_section_only():
    sinks = {f"layers.{n}.self_attn.attention_sink_bias": (HEADS,) for n in range(LAYERS)}
    section = dflash(attention_sink_bias=True, attention_value_scale=0.5)
    found = of(native(dflash_config=section), shapes() | sinks)
    assert (found.refusals, found.attention_sinks) == ((), True)
    assert found.attention_value_scale == 0.5
    top = of(native(attention_sink_bias=True, attention_value_scale=0.5), shapes() | sinks)
    assert (top.attention_sinks, top.attention_value_scale) == (False, 1.0)
    assert "attention_sink_bias" in refusal(native(dflash_config=section))


def test_the_mask_embedding_is_read_from_a_folder():
    found = of(native(), side_files=frozenset({"mask_embedding.pt"}))
    assert found.mask_embedding
    assert noted(found, "folder")


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"partial_rotary_factor": 0.5}, 0.5),
        (
            {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 50000.0,
                    "partial_rotary_factor": 0.5,
                }
            },
            1.0,
        ),
        (
            {
                "partial_rotary_factor": 0.5,
                "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0, "rope_dim": 4},
            },
            0.25,
        ),
    ],
)
def test_of_the_partial_factors_the_top_level_one_counts_unless_there_is_a_rope_dim(
    changes, factor
):
    assert of(native(**changes)).rope == Rope("default", 50000.0, (), factor)


def test_a_stated_attention_factor_of_yarn_is_lost():
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 50000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
    }
    kept = of(native(rope_parameters=yarn)).rope
    assert dict(kept.extras) == {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
    }
    assert of(native(rope_parameters=yarn | {"attention_factor": 2.0})).rope == kept


def test_biases_are_built_where_the_config_says_so():
    config = native(attention_bias=True)
    assert of(config, shapes(bias=True)).attention_bias
    assert "missing" in refusal(config)
    found = of(native(), shapes(bias=True))
    assert (found.attention_bias, len(found.ignored)) == (False, 4 * LAYERS)


@pytest.mark.parametrize("name", sorted(shapes()))
def test_each_missing_tensor_is_a_refusal(name):
    tensors = {other: shape for other, shape in shapes().items() if other != name}
    assert name in refusal(native(), tensors)


def test_a_tensor_of_another_shape_is_refused():
    assert "fc.weight has shape" in refusal(native(), shapes(captured=3))


def test_prefixed_and_fused_and_vendor_names_are_loaded():
    prefixed = {f"model.{name}": shape for name, shape in shapes().items()}
    assert of(native(), prefixed).refusals == ()
    vendor = {"encoder.fc.weight": (HIDDEN, 2 * HIDDEN)}
    vendor |= {name: shape for name, shape in shapes().items() if name != "fc.weight"}
    assert of(native(), vendor).refusals == ()
    fused = dict(shapes())
    for part in ("gate", "up"):
        shape = fused.pop(f"layers.0.mlp.{part}_proj.weight")
    fused["layers.0.mlp.gate_up_proj.weight"] = (2 * shape[0], shape[1])
    assert of(native(), fused).refusals == ()


def test_domino_weights_under_a_plain_drafter_are_refused():
    assert "domino" in refusal(native(), shapes() | {"prefix_gru.weight_ih_l0": (3, HIDDEN)})


def test_dflash2_takes_its_sizes_scales_and_cap_from_the_section():
    section = dflash(**SELECTOR, output_multiplier=0.5, final_logit_softcapping=30)
    config = native(architectures=["DFlash2DraftModel"], dflash_config=section)
    found = of(config, dflash2_shapes())
    assert (found.refusals, found.family) == ((), "dflash2")
    assert found.parts == Dflash2Parts(CONV, 16, RANK, 4)
    assert (found.output_multiplier, found.final_logit_softcapping) == (0.5, 30.0)
    plain = of(native(dflash_config=dflash(output_multiplier=0.5, final_logit_softcapping=30)))
    assert (plain.output_multiplier, plain.final_logit_softcapping) == (1.0, None)


@pytest.mark.parametrize("name", sorted(SELECTOR))
def test_dflash2_is_refused_without_each_size(name):
    section = dflash(**{key: value for key, value in SELECTOR.items() if key != name})
    config = native(architectures=["DFlash2DraftModel"], dflash_config=section)
    assert name in refusal(config, dflash2_shapes())


def test_dspark_drafts_the_whole_block_and_builds_from_the_top_level():
    found = of(native(**MARKOV), dspark_shapes())
    assert (found.refusals, found.family) == ((), "dspark")
    assert found.parts == DsparkParts(RANK, "vanilla", False, False)
    assert (found.speculative_tokens, found.sample_from_anchor) == (BLOCK_SIZE, True)
    bound = of(native(**MARKOV, sample_from_anchor=False), dspark_shapes())
    assert (bound.speculative_tokens, bound.sample_from_anchor) == (BLOCK_SIZE, False)
    assert noted(found, "DSPARK")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"markov_rank": ABSENT}, "markov_rank"),
        ({"markov_rank": ABSENT, "dflash_config": dflash(markov_rank=RANK)}, "top level"),
        ({"markov_head_type": "wide"}, "wide"),
    ],
)
def test_dspark_without_its_head_is_refused(changes, word):
    assert word in refusal(native(**(MARKOV | changes)), dspark_shapes())


def test_dspark_refuses_markov_weights_that_it_has_no_place_for():
    tensors = dspark_shapes() | {"markov_head.gate_proj.weight": (RANK, HIDDEN + RANK)}
    assert "gate_proj" in refusal(native(**MARKOV), tensors)


def test_lagunas_drafter():
    config, tensors = laguna()
    found = of(config, tensors)
    assert (found.refusals, found.family, found.parts) == ((), "laguna", LagunaParts("per-head"))
    assert found.layers == (DraftLayer(window=32, causal=True),) * LAYERS
    assert found.rope == Rope("default", 50000.0)


def test_lagunas_drafter_with_split_projections():
    config, tensors = laguna()
    for index in range(LAYERS):
        attention = f"layers.{index}.self_attn."
        del tensors[f"{attention}qkv_proj.weight"]
        for part in "qkv":
            name = f"{attention}{part}_proj.weight"
            tensors[name] = shapes()[name]
    assert of(config, tensors).refusals == ()


def test_what_lagunas_class_would_fill_in_counts_as_missing():
    config, tensors = laguna()
    del config["head_dim"]
    assert "head_dim is not stated" in refusal(config, tensors)


def test_quantised_weights_are_noted_and_not_measured():
    packed = dict.fromkeys(shapes(), (1,))
    found = of(native(quantization_config={"quant_method": "fp8"}), packed)
    assert (found.refusals, "quantization_config" in found.ignored) == ((), False)
    assert noted(found, "quantised")


def test_a_target_that_does_not_fit():
    assert "64" in refusal(native(), facts=target(hidden_size=HIDDEN // 2))
    assert "does not exist" in refusal(
        native(num_target_layers=9), facts=target(num_hidden_layers=3)
    )
    assert "mask token" in refusal(native(), facts=target(vocab_size=MASK))


def test_a_context_shorter_than_the_targets_is_noted():
    longer = of(native(), facts=target(max_position_embeddings=512))
    assert noted(longer, "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
    assert not noted(of(native(), facts=target()), "SGLANG_ALLOW_OVERWRITE")


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"rope_is_neox_style": False}, "neighbouring pairs"), ({"use_gemma_norm": True}, "Adds 1")],
)
def test_what_changes_the_function_beside_the_meaning_is_noted(changes, word):
    assert noted(of(native(**changes)), word)
    assert not noted(of(native()), word)
