"""What the trainers of Speculators 0.5 to 0.9 saved themselves, read as they meant it.

The record was made by each version's own code: tests/speculators_case.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made import REMOVED, contents, speculators

from dflash_pack.accounting import flatten
from dflash_pack.agreement import tensor_problems, view_engines
from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.conversion import comparable
from dflash_pack.converters import speculators as form
from dflash_pack.converters.registry import WRITERS, read_drafter
from dflash_pack.drafter import Dflash2Parts, DraftLayer, DsparkParts, Geometry, Rope
from dflash_pack.errors import ContradictionError, NotRepresentableError
from dflash_pack.target import read_target

ROOT = Path(__file__).parents[3]
RECORD = ROOT / "tests" / "data" / "speculators_versions.jsonl"
CASES = [json.loads(line) for line in RECORD.read_text().splitlines()]
LAYERS = {
    "full": (DraftLayer(None, False), DraftLayer(None, False)),
    "reduced": (DraftLayer(None, False), DraftLayer(None, False)),
    "mixed": (DraftLayer(64, True), DraftLayer(None, False)),
    "sliding": (DraftLayer(64, True), DraftLayer(64, True)),
    "sliding-bidirectional": (DraftLayer(64, False), DraftLayer(64, False)),
}
PARTS = {
    "dflash": None,
    "dflash2": Dflash2Parts(2, 16, 8, 4),
    "dspark": DsparkParts(8, "vanilla", True, True),
}


def version(case):
    """Return e.g. (0, 6)."""
    return tuple(int(part) for part in case["config"]["speculators_version"].split(".")[:2])


def name(case):
    return "{}.{} {kind} {shape}".format(*version(case), **case)


def source(case):
    tensors = {name: TensorSpec(dtype, tuple(shape)) for name, (dtype, shape) in case["tensors"]}
    config_and_weights = {"config.json", "model.safetensors"}
    return Contents(case["config"], tensors, frozenset(case["files"]) - config_and_weights)


for _case in CASES:
    _case["tensors"] = list(_case["tensors"].items())
every_case = pytest.mark.parametrize("case", CASES, ids=name)


def test_the_record_has_every_version_and_kind():
    assert {version(case) for case in CASES} == {(0, minor) for minor in range(5, 10)}
    assert {case["kind"] for case in CASES} == set(PARTS)
    assert {case["shape"] for case in CASES} == set(LAYERS)


@every_case
def test_it_is_read_as_it_was_trained(case):
    reading = read_drafter(source(case))
    drafter = reading.drafter
    assert reading.format == "speculators"
    # DFlash2's window is bidirectional: its trainer's flag is true by default.
    bidirectional = case["kind"] == "dflash2"
    shape = "sliding-bidirectional" if bidirectional else case["shape"]
    assert drafter.layers == LAYERS[shape]
    assert drafter.parts == PARTS[case["kind"]]
    assert drafter.geometry == Geometry(32, 48, 2, 1, 16, 1e-6, "silu", 512)
    assert drafter.rope == Rope("default", 10000.0)
    assert drafter.target_layer_ids == (0, 1, 2)
    assert (drafter.block_size, drafter.vocabulary.mask_token_id) == (8, 511)
    assert drafter.sample_from_anchor is (case["kind"] == "dspark")
    assert drafter.speculative_tokens == (8 if case["kind"] == "dspark" else 7)
    assert drafter.dtype == "BF16"
    assert drafter.verifier == "example/tiny-target"


@every_case
def test_its_matrices_are_those_that_its_version_saves(case):
    vocabulary = read_drafter(source(case)).drafter.vocabulary
    reduced = case["shape"] == "reduced"
    # Since 0.8 only a reduced head is saved, and never the embedding.
    saves_all = version(case) < (0, 8)
    assert vocabulary.embedding == ("own" if saves_all else "target")
    assert vocabulary.head == ("own" if saves_all or reduced else "target")
    assert (vocabulary.size, vocabulary.draft_size) == (512, 128 if reduced else 512)


@every_case
def test_its_tensors_are_exactly_those_of_its_geometry(case):
    made = source(case)
    reading = read_drafter(made)
    assert tensor_problems(reading.drafter, reading.canonical(made)) == ()


@every_case
def test_every_key_tensor_and_file_has_a_fate(case):
    made = source(case)
    reading = read_drafter(made)
    names = {(entry.kind, entry.name) for entry in reading.ledger.entries}
    assert names == {
        *(("config key", key) for key in flatten(made.config, form.SECTIONS)),
        *(("tensor", tensor) for tensor in made.tensors),
        *(("file", file) for file in made.side_files),
    }
    left = {e.name: e.detail for e in reading.ledger.of("dropped") if e.kind == "file"}
    assert left == {
        "config.py": "remote code, which is never shipped",
        "optimizer_state_dict.pt": "training state",
    }
    assert reading.copied_files == ()


@every_case
def test_the_dtype_that_early_trainers_left_uncorrected_is_told_and_the_tensors_count(case):
    reading = read_drafter(source(case))
    told = [note for note in reading.notes if note.startswith("dtype is float32, but")]
    assert bool(told) is (version(case) < (0, 7))


@pytest.mark.parametrize("written_by", ["0.7.0", "0.9.0", "0.50.0", None, REMOVED])
def test_a_dtype_that_no_trainer_leaves_uncorrected_is_a_contradiction(written_by):
    config = speculators(dtype="float32", speculators_version=written_by)
    with pytest.raises(ContradictionError, match="--set dtype=bfloat16"):
        form.read(contents(config))


@every_case
def test_what_is_written_of_it_is_served_as_meant_or_the_form_for_it_is_named(case):
    target = read_target(
        str(ROOT / "examples" / "tiny" / "target"), identifier="example/tiny-target"
    )
    target = replace(target, hidden_size=32)
    made = source(case)
    drafter = read_drafter(made).drafter
    for output in ("speculators", "universal"):
        if output == "speculators" and case["shape"] == "mixed":
            with pytest.raises(NotRepresentableError, match="--format universal"):
                WRITERS[output](drafter, target)
            continue
        config = dict(WRITERS[output](drafter, target).config)
        written = Contents(config, made.tensors, frozenset())
        assert comparable(read_drafter(written).drafter) == comparable(drafter)
        views = {v.meaning.engine: v for v in view_engines(drafter, written, target)}
        assert views["vllm"].agrees, views["vllm"].problems()
