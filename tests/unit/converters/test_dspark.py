"""DSpark: Markov and confidence heads, the anchor layout in all its spellings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from formats_table import target_of, tensors_of
from made import MIXED, REMOVED, SLIDING, native

from dflash_pack.agreement import view_engines
from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.conversion import comparable
from dflash_pack.converters.dspark import ANCHOR_KEYS
from dflash_pack.converters.registry import WRITERS, read_drafter
from dflash_pack.drafter import DsparkParts
from dflash_pack.errors import CheckpointError, ContradictionError

SPECFORGE = {
    "architectures": ["DSparkDraftModel"],
    "auto_map": {"AutoModel": "dspark.DSparkDraftModel"},
    "dflash_config__attention_mode": "gqa",
    "dflash_config__confidence_head_alpha": 1.0,
    "dflash_config__confidence_head_with_markov": True,
    "dflash_config__enable_confidence_head": True,
    "dflash_config__markov_head_type": "vanilla",
    "dflash_config__markov_rank": 4,
    "dflash_config__projector_type": "dspark",
    "sample_from_anchor": True,
}
DEEPSPEC = {
    "architectures": ["Qwen3DSparkModel"],
    "confidence_head_with_markov": False,
    "dflash_config": REMOVED,
    "enable_confidence_head": True,
    "markov_head_type": "vanilla",
    "markov_rank": 4,
    "mask_token_id": 5,
    "sample_from_anchor": True,
    "target_layer_ids": [0, 2],
}
SEED = {"fc.weight": TensorSpec("BF16", (16, 32))}


def read(base=SPECFORGE, **changes):
    return read_drafter(Contents(native(**base | changes), SEED, frozenset()))


@pytest.mark.parametrize(
    ("base", "with_markov"), [(SPECFORGE, True), (DEEPSPEC, False)], ids=["SpecForge", "DeepSpec"]
)
def test_both_styles_are_read(base, with_markov):
    reading = read(base)
    assert reading.format == "dspark"
    assert reading.drafter.parts == DsparkParts(4, "vanilla", True, with_markov)
    assert reading.drafter.sample_from_anchor
    assert reading.drafter.speculative_tokens == reading.drafter.block_size == 4


@pytest.mark.parametrize("form", ["native", "speculators"])
def test_a_confidence_head_over_no_markov_head_is_a_contradiction(form):
    config = native(**SPECFORGE | {"dflash_config__markov_rank": 0})
    if form == "speculators":
        drafter = read().drafter
        config = WRITERS[form](drafter, target_of(drafter)).config | {"markov_rank": 0}
    with pytest.raises(ContradictionError, match=r"markov_rank.*confidence_head_with_markov"):
        read_drafter(Contents(config, SEED, frozenset()))


def test_modelopts_names_at_the_root_are_known():
    drafter = read().drafter
    renames = {"markov_head.": "", "confidence_head.proj.": "confidence_proj."}
    tensors = {}
    for name, spec in tensors_of(drafter).items():
        start = next((old for old in renames if name.startswith(old)), "")
        tensors[renames.get(start, "") + name.removeprefix(start)] = spec
    config = native(
        **SPECFORGE
        | {
            "dflash_config__enable_confidence_head": REMOVED,
            "dflash_config__use_confidence_head": True,
            "sample_from_anchor": REMOVED,
            "dflash_config__shift_label": True,
        }
    )
    made = Contents(config, tensors, frozenset())
    reading = read_drafter(made)
    assert reading.canonical(made) == tensors_of(drafter)
    assert reading.drafter.sample_from_anchor


def set_anchor(key, value):
    return {"sample_from_anchor": REMOVED} | {
        key.replace(".", "__"): (not value if ANCHOR_KEYS[key] else value)
    }


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("key", ANCHOR_KEYS)
def test_every_spelling_of_the_anchor_layout_is_read(key, value):
    drafter = read(**set_anchor(key, value)).drafter
    assert drafter.sample_from_anchor is value
    assert drafter.speculative_tokens == (4 if value else 3)


@pytest.mark.parametrize("key", [key for key in ANCHOR_KEYS if key != "sample_from_anchor"])
def test_two_spellings_that_differ_are_both_named(key):
    changes = set_anchor(key, False) | {"sample_from_anchor": True}
    with pytest.raises(ContradictionError) as caught:
        read(**changes)
    assert "sample_from_anchor" in str(caught.value)
    assert key in str(caught.value)


def test_the_anchor_layout_is_never_guessed():
    with pytest.raises(CheckpointError, match="--set sample_from_anchor=true"):
        read(sample_from_anchor=REMOVED)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dflash_config__attention_mode": "mla"}, "other projections"),
        ({"dflash_config__markov_rank": REMOVED}, "markov_rank"),
        ({"dflash_config__projector_type": "domino"}, "Domino"),
    ],
)
def test_what_no_engine_builds_is_refused(changes, words):
    with pytest.raises(CheckpointError, match=words):
        read(**changes)


@pytest.mark.parametrize("form", ["speculators", "native", "universal"])
@pytest.mark.parametrize("anchor", [True, False])
@pytest.mark.parametrize(
    "changes",
    [{}, SLIDING, MIXED, SLIDING | {"is_causal": False}],
    ids=["full", "sliding", "mixed", "sliding bidirectional"],
)
def test_every_form_means_the_same_and_vllm_reads_it_so(form, anchor, changes):
    drafter = read(**changes | {"sample_from_anchor": anchor}).drafter
    target = target_of(drafter)
    contents = Contents(
        dict(WRITERS[form](drafter, target).config), tensors_of(drafter), frozenset()
    )
    assert comparable(read_drafter(contents).drafter) == comparable(drafter)
    views = {view.meaning.engine: view for view in view_engines(drafter, contents, target)}
    assert views["vllm"].agrees, views["vllm"].problems()


@pytest.mark.parametrize("head", ["gated", "rnn"])
def test_heads_that_vllm_has_no_parameters_for_are_refused_by_it(head):
    drafter = replace(read().drafter, parts=DsparkParts(4, head, True, True))
    target = target_of(drafter)
    for form in ("speculators", "native"):
        contents = Contents(
            dict(WRITERS[form](drafter, target).config), tensors_of(drafter), frozenset()
        )
        assert comparable(read_drafter(contents).drafter) == comparable(drafter)
        views = {view.meaning.engine: view for view in view_engines(drafter, contents, target)}
        assert any("no parameter" in text for text in views["vllm"].problems())
