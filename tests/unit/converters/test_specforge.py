"""SpecForge's drafters: exports and training checkpoints, read by what was trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import NATIVE, REMOVED, SLIDING, changed, contents, native, specs, speculators
from torch_files import training_state

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.converters import specforge, zlab
from dflash_pack.converters.native import read_native
from dflash_pack.converters.registry import read_drafter
from dflash_pack.drafter import DraftLayer
from dflash_pack.errors import CheckpointError, ContradictionError, UnaccountedError

EXPORT = {
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "draft_vocab_size": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "transformers_version": "5.6.0",
}
SECTION = {
    key: list(value) if isinstance(value, tuple) else value
    for key, value in training_state().items()
    if key != "draft_state_dict"
} | {"specforge_step_options": "(not read)", "specforge_model_provenance": "(not read)"}


def exported(**changes):
    return contents(native(**(EXPORT | changes)))


def trained(section=(), config=NATIVE, **kwargs) -> Contents:
    """Return the draft config with the section of a training state, some keys of it changed."""
    changes = {f"training_state.{key}": value for key, value in dict(section).items()}
    whole = changed(dict(config) | {"training_state": SECTION}, changes)
    return replace(contents(config, **kwargs), config=whole)


def test_an_export_is_detected_and_means_what_zlab_reads_in_it():
    assert read_drafter(exported()).format == "specforge"
    assert specforge.read(exported()).drafter == zlab.read(exported()).drafter
    assert specforge.read(exported()).drafter == zlab.read(contents(NATIVE)).drafter


def test_a_training_checkpoint_means_what_its_config_and_it_say():
    reading = read_drafter(trained())
    assert reading.format == "specforge"
    assert reading.drafter == zlab.read(contents(NATIVE)).drafter
    assert "The weights are those of the training checkpoint at step 3 of run." in reading.notes
    fates = {entry.name: entry for entry in reading.ledger.entries}
    assert {f"training_state.{key}" for key in SECTION} <= fates.keys()
    assert fates["training_state.dflash_block_size"].fate == "mapped"
    assert fates["training_state.dflash_loss_type"].fate == "dropped"


NOT_MINE = {
    "z-lab, old": contents(NATIVE),
    "z-lab, new": contents(native(rope_theta=REMOVED, rope_parameters={"rope_theta": 1e4})),
    "one rope style": exported(rope_parameters=REMOVED),
    "no draft vocabulary": exported(draft_vocab_size=REMOVED),
    "no vocabulary at all": exported(draft_vocab_size=None, vocab_size=None),
    "a reduced vocabulary": exported(draft_vocab_size=32),
    "Speculators": contents(speculators()),
    "DSpark": exported(architectures=["DSparkDraftModel"]),
    "DFlash2": exported(architectures=["DFlash2DraftModel"]),
    "Domino": exported(dflash_config__projector_type="domino"),
    "markov tensors": contents(
        native(**EXPORT), extra={"markov_head.markov_w1.weight": TensorSpec("BF16", (64, 4))}
    ),
    "a DSpark run": trained({"strategy": "dspark"}),
    "DFlash2 in a DFlash run": trained(config=native(architectures=["DFlash2DraftModel"])),
}


@pytest.mark.parametrize("source", NOT_MINE.values(), ids=NOT_MINE)
def test_what_others_write_is_left_to_their_readers(source):
    assert not specforge.detect(source)


@pytest.mark.parametrize("strategy", ["domino", "eagle3", "peagle", "x" * 500])
def test_a_strategy_that_is_no_dflash_is_refused_by_name(strategy):
    source = trained({"strategy": strategy})
    assert specforge.detect(source)
    with pytest.raises(CheckpointError, match=r"training_state\.strategy: '.*is a strategy") as e:
        read_drafter(source)
    assert strategy[:40] in str(e.value)
    assert len(str(e.value)) < 250


@pytest.mark.parametrize("strategy", [None, REMOVED])
def test_a_state_without_a_strategy_is_dflash(strategy):
    assert read_drafter(trained({"strategy": strategy})).format == "specforge"


CONTRADICTIONS = {
    "block size": ("dflash_block_size", 8, "block_size", 4),
    "mask token": ("dflash_mask_token_id", 6, "dflash_config.mask_token_id", 5),
    "layers": ("dflash_target_layer_ids", [0, 3], "dflash_config.target_layer_ids", [0, 2]),
    "order of layers": (
        "dflash_target_layer_ids",
        [2, 0],
        "dflash_config.target_layer_ids",
        [0, 2],
    ),
    "depth": ("dflash_draft_num_hidden_layers", 3, "num_hidden_layers", 2),
}


@pytest.mark.parametrize(
    ("key", "value", "other", "stated"), CONTRADICTIONS.values(), ids=CONTRADICTIONS
)
def test_a_config_that_is_not_what_was_trained_is_refused_with_both_places(
    key, value, other, stated
):
    with pytest.raises(ContradictionError) as caught:
        read_drafter(trained({key: value}))
    assert caught.value.first == (f"training_state.{key}", value)
    assert caught.value.second == (other, stated)
    assert f"--set {other}=VALUE" in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        native(block_size=REMOVED),
        native(dflash_config__mask_token_id=REMOVED),
        native(dflash_config__target_layer_ids=None),
        native(dflash_config=REMOVED, block_size=REMOVED),
        native(dflash_config__block_size=4, block_size=REMOVED),
    ],
)
def test_what_the_config_leaves_open_is_what_was_trained(config):
    source = replace(trained(), config=dict(config) | {"training_state": SECTION})
    assert read_drafter(source).drafter == zlab.read(contents(NATIVE)).drafter


def test_a_config_without_a_depth_gets_the_trained_one():
    config = {key: value for key, value in NATIVE.items() if key != "num_hidden_layers"}
    source = Contents(config | {"training_state": SECTION}, specs(NATIVE), frozenset())
    assert len(specforge.read(source).drafter.layers) == 2


@pytest.mark.parametrize("key", ["dflash_block_size", "dflash_mask_token_id"])
def test_what_neither_states_is_refused_by_the_name_in_the_config(key):
    config = native(block_size=REMOVED, dflash_config__mask_token_id=REMOVED)
    section = {k: v for k, v in SECTION.items() if k != key}
    source = replace(trained(), config=config | {"training_state": section})
    with pytest.raises(CheckpointError, match="is not stated") as caught:
        specforge.read(source)
    assert "training_state" not in str(caught.value)


@pytest.mark.parametrize("key", ["dflash_sliding_draft_causal", "optimizer", "dspark_block_size"])
def test_a_key_of_the_state_without_a_rule_stops_the_conversion(key):
    with pytest.raises(UnaccountedError, match=rf"training_state\.{key}"):
        read_drafter(trained({key: 5}))


def test_older_states_hold_the_whole_training_model():
    """draft_model.* beside the target's embedding and head, which need not be trained."""
    source = trained()
    own = dict.fromkeys(("embed_tokens.weight", "lm_head.weight"), TensorSpec("BF16", (64, 16)))
    tensors = {f"draft_model.{name}": spec for name, spec in source.tensors.items()} | own
    whole = replace(source, tensors=tensors)
    reading = specforge.read(whole)
    assert reading.canonical(whole) == {**source.tensors, **own}
    vocabulary = reading.drafter.vocabulary
    assert (vocabulary.embedding, vocabulary.head) == ("own", "own")


@pytest.mark.parametrize("mode", ["gqa", "mha", "GQA"])
def test_plain_attention_is_dflash(mode):
    source = trained(config=native(dflash_config__attention_mode=mode))
    assert read_drafter(source).drafter == zlab.read(contents(NATIVE)).drafter


@pytest.mark.parametrize("mode", ["mla", "kda"])
def test_other_attention_is_refused(mode):
    source = trained(config=native(dflash_config__attention_mode=mode))
    with pytest.raises(CheckpointError, match=f"dflash_config.attention_mode: '{mode}' attention"):
        read_drafter(source)


def test_the_dtype_that_the_config_claims_does_not_count():
    wide = {name: TensorSpec("F32", spec.shape) for name, spec in specs(NATIVE).items()}
    reading = specforge.read(replace(trained(), tensors=wide))
    assert reading.drafter.dtype == "F32"
    assert any("bfloat16" in note for note in reading.notes)


def test_sliding_layers_are_causal_and_full_ones_are_not():
    """SpecForge 0.2.0, algorithms/common/dflash_family_model.py, create_dflash_sdpa_mask."""
    drafter = specforge.read(trained(config=native(**SLIDING))).drafter
    assert drafter.layers == (DraftLayer(32, True), DraftLayer(32, True))


def test_a_rope_factor_that_the_trainer_ignores_is_left_out():
    reading = specforge.read(trained(config=native(partial_rotary_factor=0.5)))
    assert reading.drafter.rope.partial_rotary_factor == 1.0
    assert any("partial_rotary_factor" in note for note in reading.notes)


def test_the_targets_config_is_not_the_drafters():
    config = native(architectures=["Qwen3ForCausalLM"], dflash_config=REMOVED)
    source = replace(trained(), config=config | {"training_state": SECTION})
    with pytest.raises(CheckpointError, match="it is no DFlash drafter"):
        read_drafter(source)


def test_a_run_of_another_family_reaches_its_reader_with_the_facts_of_the_state():
    """The shared rules take the section whoever reads: what DSpark trained counts there too."""
    dspark = {key.replace("dflash_", "dspark_"): value for key, value in SECTION.items()}
    objective = ("dpace", "lk_loss", "kl_")
    section = {k: v for k, v in dspark.items() if not any(mark in k for mark in objective)}
    section["strategy"] = "dspark"
    config = native(block_size=REMOVED) | {"training_state": section}
    source = replace(trained(), config=config)
    assert not specforge.detect(source)
    assert read_native(source, zlab.DIALECT).drafter.block_size == 4


def test_the_run_is_named_on_one_short_line():
    (note,) = [n for n in specforge.read(trained({"run_id": "x" * 900})).notes if "step" in n]
    assert len(note) < 200
