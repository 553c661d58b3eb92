"""The native reader and writer: every field rule, by what a changed config turns into."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import MIXED, NATIVE, REMOVED, SLIDING, contents, native, specs, target

from dflash_pack.accounting import flatten
from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.converters import zlab
from dflash_pack.drafter import DraftLayer, Rope
from dflash_pack.errors import (
    CheckpointError,
    ContradictionError,
    NotRepresentableError,
    UnaccountedError,
)


def read(config, **kwargs):
    return zlab.read(contents(config, **kwargs)).drafter


def test_old_style_is_read_whole():
    drafter = read(NATIVE)
    assert drafter.layers == (DraftLayer(None, False),) * 2
    assert drafter.target_layer_ids == (0, 2)
    assert (drafter.block_size, drafter.speculative_tokens) == (4, 3)
    assert drafter.vocabulary.mask_token_id == 5
    assert drafter.rope == Rope("default", 10000.0)
    assert drafter.target_depth == 4
    assert drafter.dtype == "BF16"


def test_new_style_means_the_same_as_old_style():
    new = native(
        block_size=REMOVED,
        dflash_config__block_size=4,
        rope_theta=REMOVED,
        rope_scaling=REMOVED,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        is_causal=False,
    )
    assert read(new) == read(NATIVE)


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        (SLIDING, [(32, True), (32, True)]),
        (SLIDING | {"is_causal": False}, [(32, False), (32, False)]),
        (SLIDING | {"dflash_config__causal": False}, [(32, False), (32, False)]),
        (MIXED, [(32, True), (None, False)]),
        (MIXED | {"is_causal": True}, [(32, True), (None, True)]),
        ({"is_causal": True}, [(None, True), (None, True)]),
        ({"dflash_config__causal": True}, [(None, True), (None, True)]),
        # ModelOpt: a window on layers that layer_types calls full, bidirectional unless stated.
        (
            {"dflash_config__use_swa": True, "dflash_config__swa_window_size": 9},
            [(9, False), (9, False)],
        ),
        (
            {
                "dflash_config__use_swa": True,
                "sliding_window": 9,
                "dflash_config__causal": True,
            },
            [(9, True), (9, True)],
        ),
        (
            {"layer_types": REMOVED, "dflash_config__use_swa": True, "sliding_window": 9},
            [(9, False), (9, False)],
        ),
        # transformers derives absent layer_types from these two.
        (
            {
                "layer_types": REMOVED,
                "use_sliding_window": True,
                "max_window_layers": 1,
                "sliding_window": 7,
            },
            [(None, False), (7, True)],
        ),
        ({"layer_types": REMOVED, "sliding_window": 7}, [(None, False), (None, False)]),
    ],
)
def test_windows_and_causality(changes, layers):
    assert read(native(**changes)).layers == tuple(DraftLayer(*layer) for layer in layers)


def test_yarn_in_both_spellings_is_one_rope():
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
    flat = native(rope_scaling=yarn)
    nested = native(
        rope_theta=REMOVED, rope_scaling=REMOVED, rope_parameters=yarn | {"rope_theta": 10000}
    )
    assert read(flat).rope == read(nested).rope
    assert read(flat).rope.kind == "yarn"
    assert dict(read(flat).rope.extras)["factor"] == 8.0


def test_the_length_before_scaling_is_explicit_as_transformers_fills_it_in():
    reading = zlab.read(contents(native(rope_scaling={"rope_type": "yarn", "factor": 8.0})))
    assert dict(reading.drafter.rope.extras)["original_max_position_embeddings"] == 512
    assert any("original_max_position_embeddings" in note for note in reading.notes)


def test_the_older_key_type_names_the_rope_too():
    assert read(native(rope_scaling={"type": "linear", "factor": 2.0})).rope.kind == "linear"


def test_absent_head_size_is_that_of_qwen3_and_checked_by_the_caller():
    reading = zlab.read(contents(native(head_dim=REMOVED)))
    assert reading.drafter.geometry.head_dim == 128
    assert any("head_dim is not stated" in note for note in reading.notes)


@pytest.mark.parametrize("prefix", ["model.", "draft_model.", "dflash_module."])
def test_a_trainers_prefix_is_stripped(prefix):
    plain = specs(NATIVE)
    prefixed = {prefix + name: spec for name, spec in plain.items()}
    reading = zlab.read(Contents(NATIVE, prefixed, frozenset()))
    assert set(reading.tensor_names.values()) == set(plain)


def test_own_matrices_and_side_files_are_seen():
    extra = {"embed_tokens.weight": TensorSpec("BF16", (64, 16))}
    files = ("mask_embedding.pt", "dflash.py", "README.md", "LICENSE")
    reading = zlab.read(contents(NATIVE, extra=extra, side_files=files))
    assert reading.drafter.vocabulary.embedding == "own"
    assert reading.drafter.vocabulary.mask_embedding
    assert reading.copied_files == ("LICENSE", "mask_embedding.pt")
    fates = {entry.name: entry.detail for entry in reading.ledger.of("dropped")}
    assert "remote code" in fates["dflash.py"]


@pytest.mark.parametrize(
    "config", [NATIVE, native(**SLIDING), native(final_logit_softcapping=30.0)]
)
def test_every_key_and_tensor_has_a_fate(config):
    source = contents(config, side_files=("README.md",))
    names = {entry.name for entry in zlab.read(source).ledger.entries}
    assert names == {*flatten(config, zlab.DIALECT.sections), *source.tensors, "README.md"}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"dflash_config__mask_token_id": REMOVED},
            CheckpointError,
            "mask_token_id: is not stated",
        ),
        ({"dflash_config__mask_token_id": None}, CheckpointError, "mask_token_id: is not stated"),
        ({"dflash_config__mask_token_id": 64}, CheckpointError, "outside the vocabulary of 64"),
        ({"dflash_config__mask_token_id": "5"}, CheckpointError, "'5' is not accepted"),
        ({"dflash_config__mask_token_id": True}, CheckpointError, "True is not accepted"),
        ({"mask_token_id": 6}, ContradictionError, "says 5 but mask_token_id says 6"),
        ({"dflash_config__target_layer_ids": REMOVED}, CheckpointError, "target_layer_ids: is not"),
        ({"target_layer_ids": [1, 2]}, ContradictionError, "target_layer_ids"),
        ({"block_size": REMOVED}, CheckpointError, "block_size: is not stated"),
        ({"dflash_config__block_size": 8}, ContradictionError, "block_size"),
        ({"rope_theta": REMOVED}, CheckpointError, "engines would fill in different values"),
        ({"rope_parameters": {"rope_theta": 5.0}}, ContradictionError, "rope_theta"),
        (
            {
                "rope_parameters": {"rope_type": "yarn", "factor": 2.0},
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
            },
            ContradictionError,
            "rope",
        ),
        ({"partial_rotary_factor": 0.5}, CheckpointError, "is not clear"),
        ({"draft_vocab_size": "64"}, CheckpointError, "draft_vocab_size"),
        ({"block_size": 1}, CheckpointError, "block_size: 1 is not accepted"),
        ({"block_size": 10**6}, CheckpointError, "block_size"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, CheckpointError, "evenly"),
        ({"num_key_value_heads": 4}, CheckpointError, "evenly"),
        ({"head_dim": 7}, CheckpointError, "is odd"),
        ({"is_causal": True, "dflash_config__causal": False}, ContradictionError, "causality"),
        (SLIDING | {"use_sliding_window": False}, ContradictionError, "use_sliding_window"),
        (SLIDING | {"use_sliding_window": REMOVED}, CheckpointError, "drop the window"),
        (SLIDING | {"sliding_window": None}, CheckpointError, "but draft layers slide"),
        (SLIDING | {"layer_types": ["sliding_attention"]}, CheckpointError, "1 entries for 2"),
        ({"layer_types": ["full", "full"]}, CheckpointError, "'full' is not accepted"),
        (
            {
                "dflash_config__use_swa": True,
                "dflash_config__swa_window_size": 9,
                "sliding_window": 8,
            },
            ContradictionError,
            "attention window",
        ),
        ({"hidden_size": REMOVED}, CheckpointError, "hidden_size: is missing"),
        ({"num_hidden_layers": 10**9}, CheckpointError, "num_hidden_layers"),
        ({"hidden_size": 16.0}, CheckpointError, "16.0 is not accepted"),
        ({"draft_vocab_size": 65}, CheckpointError, "more than"),
        ({"model_type": "gpt_oss"}, CheckpointError, "defaults of another architecture"),
        ({"architectures": ["LlamaForCausalLM"]}, CheckpointError, "is not what zlab writes"),
        ({"dflash_config__sample_from_anchor": True}, CheckpointError, "True is not carried"),
        ({"dtype": "float32"}, ContradictionError, "dtype says 'float32' but the weights says"),
        (
            {"attention_sink_bias": True} | {"dflash_config__attention_sink_bias": False},
            ContradictionError,
            "attention_sink_bias",
        ),
        ({"eagle_aux_hidden_state_layer_ids": [1, 4]}, ContradictionError, "eagle_aux_hidden"),
        ({"slidng_window": 5}, UnaccountedError, "nearest known: sliding_window"),
        ({"dflash_config__mystery": 5}, UnaccountedError, "dflash_config.mystery"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": {"a": 1}}}, CheckpointError, "rope"),
    ],
)
def test_what_is_refused_and_how(changes, error, words):
    with pytest.raises(error) as caught:
        zlab.read(Contents(native(**changes), specs(NATIVE), frozenset()))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# What trainers and vLLM do not read alike, or can't compute with, is refused by name.
ROPES = [
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
    {"rope_type": "mrope"},
    {"rope_type": {}},
    {"type": 0},
    {"rope_type": "yarn", "type": "linear", "factor": 2.0},
    {"rope_type": "yarn"},
    {"rope_type": "default", "use_fope": True},
    {"rope_type": "default", "factor": 2.0},
    {"rope_type": "linear", "factor": "2"},
    {"rope_type": "linear", "factor": -2.0},
    {"rope_type": "linear", "factor": 0.5},
    {"rope_type": "linear", "factor": True},
    {"rope_type": "linear", "factor": 10**400},
    {"rope_type": "linear", "factor": 2.0, "alpha": 1000},
    {"rope_type": "yarn", "factor": 2.0, "junk": 1},
    {"rope_type": "yarn", "factor": 2.0, "beta_fast": "32"},
    {"rope_type": "yarn", "factor": 2.0, "beta_fast": -1},
    {"rope_type": "yarn", "factor": 2.0, "beta_fast": 0, "beta_slow": 0},
    {"rope_type": "yarn", "factor": 2.0, "beta_fast": [1, 2]},
    {"rope_type": "yarn", "factor": 2.0, "attention_factor": "x"},
    {"rope_type": "yarn", "factor": 2.0, "truncate": 1},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 0.5},
    {"rope_type": "llama3", "factor": 2.0},
]


@pytest.mark.parametrize("scaling", ROPES, ids=str)
def test_a_rope_that_engines_would_compute_otherwise_is_refused(scaling):
    with pytest.raises((CheckpointError, ContradictionError), match="rope"):
        read(native(rope_scaling=scaling))


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2},
        {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0},
        {"rope_type": "yarn", "factor": 64, "mscale": 1.0, "mscale_all_dim": 1.0},
        {"rope_type": "yarn", "factor": 32.0, "truncate": False, "attention_factor": None},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ],
    ids=str,
)
def test_published_ropes_are_read(scaling):
    assert read(native(rope_scaling=scaling)).rope.kind == scaling["rope_type"]


def test_use_swa_beside_layers_that_slide_by_default_stays_causal():
    config = native(
        layer_types=REMOVED,
        use_sliding_window=True,
        max_window_layers=0,
        sliding_window=4,
        dflash_config__use_swa=True,
        dflash_config__swa_window_size=4,
    )
    assert read(config).layers == (DraftLayer(4, True),) * 2


@pytest.mark.parametrize("dtype", ["I16", "U16", "F8_E4M3", "I8"])
@pytest.mark.parametrize("name", ["fc.weight", "norm.weight"])
def test_bits_that_engines_would_take_for_numbers_are_refused(name, dtype):
    tensors = specs(NATIVE)
    tensors[name] = TensorSpec(dtype, tensors[name].shape)
    with pytest.raises(CheckpointError, match=f"{name}: is of dtype {dtype}"):
        zlab.read(Contents(NATIVE, tensors, frozenset()))


@pytest.mark.parametrize(
    ("changes", "fact", "value"),
    [
        ({"dflash_config__attention_value_scale": 0.6}, "attention_value_scale", 0.6),
        ({"dflash_config__attention_sink_bias": True}, "attention_sinks", True),
        ({"dflash_config__input_embedding_scale": 2.0}, "input_embedding_scale", 2.0),
        ({"output_multiplier": 0.5}, "output_multiplier", 0.5),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3]}, "target_layer_ids", (0, 2)),
        ({"dflash_config__num_target_layers": 4}, "target_depth", 4),
    ],
)
def test_rare_facts_are_read_from_where_they_stand(changes, fact, value):
    assert getattr(read(native(**changes)), fact) == value


def test_fused_projections_are_split_by_rows():
    tensors = specs(NATIVE)
    for name in ("q", "k", "v"):
        del tensors[f"layers.0.self_attn.{name}_proj.weight"]
    del tensors["layers.1.mlp.gate_proj.weight"], tensors["layers.1.mlp.up_proj.weight"]
    tensors["layers.0.self_attn.qkv_proj.weight"] = TensorSpec("BF16", (32, 16))
    tensors["layers.1.mlp.gate_up_proj.weight"] = TensorSpec("BF16", (48, 16))
    source = Contents(NATIVE, tensors, frozenset())
    reading = zlab.read(source)
    assert reading.canonical(source) == specs(NATIVE)
    assert reading.row_splits["layers.0.self_attn.qkv_proj.weight"] == (
        ("layers.0.self_attn.q_proj.weight", 16),
        ("layers.0.self_attn.k_proj.weight", 8),
        ("layers.0.self_attn.v_proj.weight", 8),
    )


def test_a_foreign_tensor_is_refused_by_name():
    with pytest.raises(UnaccountedError, match=r"1 unknown tensor: layers\.0\.extra"):
        read(NATIVE, extra={"layers.0.extra": TensorSpec("BF16", (1,))})


@pytest.mark.parametrize("style", ["old", "new"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        SLIDING,
        SLIDING | {"is_causal": False},
        MIXED,
        {"is_causal": True},
        {"rope_scaling": {"rope_type": "yarn", "factor": 8.0}},
        {"attention_bias": True},
        {"final_logit_softcapping": 30.0},
        {"target_hidden_size": 12},
        {"eos_token_id": [1, 2]},
    ],
)
def test_what_is_written_means_what_was_read(style, changes):
    config = native(**changes)
    drafter = read(config)
    form = zlab.write(drafter, target(hidden_size=drafter.target_hidden_size), style=style)
    assert zlab.read(contents(form.config)).drafter == drafter


def test_old_style_states_block_size_and_rope_for_every_reader():
    config = zlab.write(read(NATIVE), target()).config
    assert config["block_size"] == config["dflash_config"]["block_size"] == 4
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10000.0
    assert "is_causal" not in config


def test_a_causality_that_layer_types_do_not_say_is_written_for_both_readers():
    config = zlab.write(read(native(**SLIDING, is_causal=False)), target()).config
    assert config["is_causal"] is False
    assert config["dflash_config"]["causal"] is False


def test_a_head_of_its_own_keeps_its_size():
    extra = {
        "lm_head.weight": TensorSpec("BF16", (32, 16)),
        "d2t": TensorSpec("I64", (32,)),
        "t2d": TensorSpec("BOOL", (64,)),
    }
    drafter = read(native(draft_vocab_size=32), extra=extra)
    form = zlab.write(drafter, target())
    assert form.config["draft_vocab_size"] == 32
    assert read(form.config, extra=extra) == replace(drafter, target_depth=4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"proposal_tokens": 2}, "states no number"),
        ({"target_layer_ids": (-1, 2)}, "embedding output"),
    ],
)
def test_what_the_native_form_has_no_key_for_is_refused(change, words):
    with pytest.raises(NotRepresentableError, match=words):
        zlab.write(replace(read(NATIVE), **change), target())
