"""The Speculators reader and writer: every field rule, by what a changed config turns into."""

from __future__ import annotations

import pytest
from made import MIXED, REMOVED, SLIDING, contents, native, specs, speculators, target

from dflash_pack.accounting import flatten
from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.converters import speculators as form
from dflash_pack.converters import zlab
from dflash_pack.drafter import DraftLayer, Rope
from dflash_pack.errors import (
    CheckpointError,
    ContradictionError,
    NotRepresentableError,
    UnaccountedError,
)


def read(config, **kwargs):
    return form.read(contents(config, **kwargs)).drafter


def layer(changes):
    return {f"transformer_layer_config__{key}": value for key, value in changes.items()}


def test_it_is_read_whole():
    drafter = read(speculators())
    assert drafter.layers == (DraftLayer(None, False),) * 2
    assert drafter.target_layer_ids == (0, 2)
    assert (drafter.block_size, drafter.speculative_tokens) == (4, 3)
    assert drafter.rope == Rope("default", 10000.0)
    assert drafter.verifier == "owner/target"


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        # The flag is about sliding layers only: full ones are bidirectional in training.
        ({"sliding_window_non_causal": False}, [(None, False), (None, False)]),
        ({"sliding_window_non_causal": REMOVED}, [(None, False), (None, False)]),
        (layer(SLIDING) | {"sliding_window_non_causal": False}, [(32, True), (32, True)]),
        (layer(SLIDING) | {"sliding_window_non_causal": True}, [(32, False), (32, False)]),
        (layer(MIXED) | {"sliding_window_non_causal": False}, [(32, True), (None, False)]),
        ({"transformer_layer_config__is_causal": True}, [(None, True), (None, True)]),
        # vLLM reads the window as it stands; only an explicit false contradicts it.
        (
            layer(SLIDING | {"use_sliding_window": REMOVED}),
            [(32, False), (32, False)],
        ),
    ],
)
def test_windows_and_causality(changes, layers):
    assert read(speculators(**changes)).layers == tuple(DraftLayer(*item) for item in layers)


def test_the_embedding_output_is_layer_minus_one():
    assert read(speculators(aux_hidden_state_layer_ids=[0, 4])).target_layer_ids == (-1, 3)


@pytest.mark.parametrize(
    ("stated", "meant", "noted"), [(3, 3, False), (4, 3, True), (2, 2, False), (1, 1, False)]
)
def test_k_of_old_and_of_careful_files(stated, meant, noted):
    config = speculators()
    config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = stated
    reading = form.read(contents(config))
    assert reading.drafter.speculative_tokens == meant
    assert any("before #456" in note for note in reading.notes) is noted


VERSIONS = {
    "0.5": {
        "sliding_window_non_causal": REMOVED,
        "sample_from_anchor": REMOVED,
        "max_anchors": 256,
        "speculators_version": "0.5.0",
    },
    "0.6": {"sample_from_anchor": REMOVED, "max_anchors": 256, "speculators_version": "0.6.0"},
    "0.7": {"speculators_version": "0.7.0"},
    "0.8": {"speculators_version": "0.8.1"},
    "0.9": {"auto_map": {"": "config.DFlashSpeculatorConfig"}},
}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_means_the_same(version):
    files = ("config.py", "optimizer_state_dict.pt", "val_metrics.json", "train_command.txt")
    reading = form.read(contents(speculators(**VERSIONS[version]), side_files=files))
    assert reading.drafter == read(speculators())
    assert reading.copied_files == ()
    assert {e.name for e in reading.ledger.of("dropped") if e.kind == "file"} == set(files)


def test_full_copies_of_the_targets_matrices_are_its_own_until_compared():
    extra = {
        "embed_tokens.weight": TensorSpec("BF16", (64, 16)),
        "lm_head.weight": TensorSpec("BF16", (64, 16)),
    }
    vocabulary = read(speculators(), extra=extra).vocabulary
    assert (vocabulary.embedding, vocabulary.head, vocabulary.reduced) == ("own", "own", False)


def test_a_reduced_vocabulary():
    extra = {
        "lm_head.weight": TensorSpec("BF16", (32, 16)),
        "d2t": TensorSpec("I64", (32,)),
        "t2d": TensorSpec("BOOL", (64,)),
    }
    vocabulary = read(speculators(draft_vocab_size=32), extra=extra).vocabulary
    assert (vocabulary.size, vocabulary.draft_size, vocabulary.head) == (64, 32, "own")


def test_every_key_and_tensor_has_a_fate():
    config = speculators(auto_map={"": "config.DFlashSpeculatorConfig"})
    source = contents(config)
    names = {entry.name for entry in form.read(source).ledger.entries}
    assert names == {*flatten(config, form.SECTIONS), *source.tensors}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"mask_token_id": REMOVED}, CheckpointError, "mask_token_id: is missing"),
        ({"mask_token_id": None}, CheckpointError, "mask_token_id: None is not accepted"),
        ({"aux_hidden_state_layer_ids": None}, CheckpointError, "aux_hidden_state_layer_ids"),
        ({"aux_hidden_state_layer_ids": []}, CheckpointError, "aux_hidden_state_layer_ids"),
        ({"sliding_window_non_causal": None}, CheckpointError, "sliding_window_non_causal"),
        ({"sliding_window_non_causal": "false"}, CheckpointError, "sliding_window_non_causal"),
        ({"sample_from_anchor": True}, CheckpointError, "True is not carried"),
        ({"speculators_config": REMOVED}, CheckpointError, "speculators_config: is missing"),
        (
            {"speculators_config__proposal_methods": []},
            CheckpointError,
            "speculators_config.proposal_methods",
        ),
        ({"transformer_layer_config": REMOVED}, CheckpointError, "is missing"),
        (layer({"model_type": "llama"}), CheckpointError, "defaults of another architecture"),
        (layer({"rope_parameters": REMOVED}), CheckpointError, "engines would fill in"),
        (
            layer({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}),
            CheckpointError,
            "one rope per layer type",
        ),
        (layer({"rope_theta": 5.0}), ContradictionError, "rope_theta"),
        (
            layer(SLIDING | {"use_sliding_window": False}),
            ContradictionError,
            "use_sliding_window",
        ),
        (
            layer(SLIDING) | {"sliding_window_non_causal": REMOVED},
            CheckpointError,
            "vLLM takes true, the Speculators library false",
        ),
        (layer(SLIDING | {"is_causal": True}), ContradictionError, "causality"),
        (
            layer(SLIDING | {"is_causal": False}) | {"sliding_window_non_causal": False},
            ContradictionError,
            "causality",
        ),
        ({"block_size": 1}, CheckpointError, "block_size: 1 is not accepted"),
        (layer({"num_key_value_heads": 3}), CheckpointError, "can't share 3 key-value heads"),
        ({"speculators_config__algorithm": "eagle3"}, ContradictionError, "eagle3"),
        ({"target_hidden_size": 8, **layer({"target_hidden_size": 9})}, ContradictionError, "8"),
        ({"mystery": 1}, UnaccountedError, "mystery"),
        (layer({"slidng_window": 1}), UnaccountedError, "nearest known"),
        ({"speculators_config__verifier__mystery": 1}, UnaccountedError, "verifier.mystery"),
    ],
)
def test_what_is_refused_and_how(changes, error, words):
    with pytest.raises(error) as caught:
        form.read(Contents(speculators(**changes), specs(speculators()), frozenset()))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"proposal_type": "sample"},
        {"verifier_accept_k": 5},
        {"accept_tolerance": 0.7},
        {"temperature": 1.0},
    ],
)
def test_another_proposal_than_the_greedy_one_is_not_lost_silently(change):
    config = speculators()
    config["speculators_config"]["proposal_methods"][0].update(change)
    with pytest.raises(CheckpointError, match="proposal_methods"):
        read(config)


def test_a_second_proposal_is_not_lost_silently():
    config = speculators()
    config["speculators_config"]["proposal_methods"] *= 2
    with pytest.raises(CheckpointError, match="2 methods"):
        read(config)


def test_more_tokens_than_the_block_gives_are_refused():
    config = speculators()
    config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 5
    with pytest.raises(CheckpointError, match="can't come out of a block of 4"):
        read(config)


# The table of cases: what vLLM makes of the flag decides, since it gives one causality to all.
@pytest.mark.parametrize(
    ("changes", "flag", "stated"),
    [
        ({}, True, None),
        ({"is_causal": True}, False, True),
        (SLIDING, False, None),
        (SLIDING | {"is_causal": False}, True, None),
        (MIXED | {"is_causal": False}, True, None),
        (MIXED | {"is_causal": True}, False, True),
    ],
)
def test_the_causality_flag_that_is_written(changes, flag, stated):
    drafter = zlab.read(contents(native(**changes))).drafter
    config = form.write(drafter, target()).config
    assert config["sliding_window_non_causal"] is flag
    assert config["transformer_layer_config"].get("is_causal") is stated


def test_mixed_causality_is_refused_and_the_form_that_carries_it_named():
    drafter = zlab.read(contents(native(**MIXED))).drafter
    with pytest.raises(NotRepresentableError) as caught:
        form.write(drafter, target())
    assert "layer 0 is causal sliding" in str(caught.value)
    assert "--format universal" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        SLIDING,
        SLIDING | {"is_causal": False},
        {"is_causal": True},
        {"rope_scaling": {"rope_type": "yarn", "factor": 8.0}},
        {"attention_bias": True},
        {"final_logit_softcapping": 30.0},
        {"target_hidden_size": 12},
        {"eos_token_id": [1, 2], "bos_token_id": 3},
    ],
)
def test_what_is_written_means_what_was_read(changes):
    drafter = zlab.read(contents(native(**changes))).drafter
    aim = target(hidden_size=drafter.target_hidden_size)
    back = read(form.write(drafter, aim).config)
    assert (back.verifier, back.verifier_architectures) == ("owner/target", ("Qwen3ForCausalLM",))
    kept = {"target_depth": 4, "verifier": None, "verifier_architectures": ()}
    assert {**vars(back), **kept} == vars(drafter)


def test_the_written_form_has_no_remote_code_and_states_everything():
    drafter = zlab.read(contents(native())).drafter
    config = form.write(drafter, target()).config
    assert "auto_map" not in config
    assert "model_type" not in config
    assert config["aux_hidden_state_layer_ids"] == [1, 3]
    method = config["speculators_config"]["proposal_methods"][0]
    assert (config["block_size"], method["speculative_tokens"]) == (4, 3)
    assert config["transformer_layer_config"]["head_dim"] == 8


@pytest.mark.parametrize(
    ("rope", "longest", "written"),
    [
        (None, 4096, 4096),
        (None, 128, 512),
        (None, None, 512),
        ({"rope_type": "yarn", "factor": 8.0}, 4096, 512),
    ],
)
def test_the_rope_cache_covers_the_target_but_yarn_is_left_alone(rope, longest, written):
    drafter = zlab.read(contents(native(rope_scaling=rope))).drafter
    config = form.write(drafter, target(max_position_embeddings=longest)).config
    assert config["transformer_layer_config"]["max_position_embeddings"] == written


ARCHITECTURES = {
    "another class": ["LlamaForCausalLM"],
    "another family": ["DSparkDraftModel"],
    "two": ["DFlashDraftModel", "DFlashDraftModel"],
    "none": [],
}


@pytest.mark.parametrize("stated", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_the_class_has_to_be_the_types(stated):
    with pytest.raises(ContradictionError, match="architectures says"):
        read(speculators(architectures=stated))
