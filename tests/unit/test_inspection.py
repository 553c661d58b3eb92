from dataclasses import replace
from io import StringIO

import pytest
from made import MIXED, REMOVED, checkpoint, native, target
from rich.console import Console

from dflash_pack.checkpoint import open_checkpoint
from dflash_pack.drafter import (
    Dflash2Parts,
    DsparkParts,
    LagunaParts,
    Quantization,
    Rope,
)
from dflash_pack.engines.registry import ENGINES
from dflash_pack.inspection import inspect_checkpoint
from dflash_pack.overrides import parse_override
from dflash_pack.report import drafter_facts, render_inspection


def inspected(folder, config):
    return inspect_checkpoint(open_checkpoint(checkpoint(folder, config)), target())


def text_of(report, *, verbose=False, width=80):
    stream = StringIO()
    console = Console(file=stream, width=width, no_color=True, highlight=False)
    render_inspection(report, console, verbose=verbose)
    return stream.getvalue()


@pytest.fixture
def report(tmp_path):
    return inspected(tmp_path / "drafter", native())


def facts_of(report, **changes):
    drafter = replace(report.drafter, **changes)
    return dict(drafter_facts(drafter, report.weights, report.target))


def test_every_engine_has_a_view_and_a_verdict_in_order(report):
    names = [engine.name for engine in ENGINES]
    assert [view.meaning.engine for view in report.engines] == names
    assert list(report.verdicts) == names
    assert report.verdicts["vllm"] == report.verdicts["sglang"] == "as meant"
    assert report.verdicts["speculators"] == "no"


def test_every_engine_has_a_row_with_its_versions(report):
    text = text_of(report)
    for view in report.engines:
        assert f"\n{view.meaning.engine} " in text
        assert f"\n  {view.meaning.versions}" in text


def test_what_an_engine_would_do_otherwise_is_told_per_layer(tmp_path):
    config = native(**MIXED, is_causal=False)
    report = inspected(tmp_path / "drafter", config)
    assert report.verdicts["tensorrt_llm"] == "not as meant"
    assert report.verdicts["sglang"] == "as meant"
    line = "layer 0: sliding 32, causal (meant: sliding 32, bidirectional)"
    assert line in text_of(report, width=120)


def test_ignored_names_are_shown_on_demand(tmp_path):
    report = inspected(tmp_path / "drafter", native(max_window_layers=9))
    assert "max_window_layers" not in text_of(report)
    assert "max_window_layers" in text_of(report, verbose=True)


def test_the_engines_see_the_files_as_they_are(tmp_path):
    config = native(dflash_config__mask_token_id=REMOVED)
    folder = checkpoint(tmp_path / "drafter", config)
    override = parse_override("dflash_config.mask_token_id=5")
    report = inspect_checkpoint(open_checkpoint(folder), target(), overrides=[override])
    assert report.drafter.vocabulary.mask_token_id == 5
    assert set(report.verdicts.values()) == {"no"}


def test_without_a_loadable_source_no_engine_is_asked(report):
    bare = replace(report, engines=(), verdicts={})
    assert "No engine loads a training state" in text_of(bare)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (None, "DFlash"),
        (Dflash2Parts(2, 16, 256, 8), "rank 256 over 8 candidates"),
        (DsparkParts(64, "gated", True, True), "gated Markov head of rank 64, confidence head"),
        (LagunaParts("per-head"), "gates per head"),
    ],
)
def test_the_kind_is_shown_with_its_sizes(report, parts, words):
    assert words in facts_of(report, parts=parts)["kind"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_sinks": True}, "a sink for each head"),
        ({"attention_value_scale": 0.612}, "attention values x 0.612"),
        ({"input_embedding_scale": 2.0}, "embeddings x 2"),
        ({"output_multiplier": 0.5}, "logits x 0.5"),
        ({"final_logit_softcapping": 30.0}, "logits capped at 30"),
        ({"target_hidden_size": 32}, "target states 32 wide"),
    ],
)
def test_what_few_drafters_have_is_shown_where_it_is(report, changes, words):
    assert facts_of(report, **changes)["extras"] == words
    assert "extras" not in facts_of(report)


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        (Quantization.freeze({"quant_method": "modelopt", "quant_algo": "NVFP4"}), "NVFP4"),
        (Quantization.freeze({}, side_file=True), "hf_quant_config.json"),
        (Quantization.freeze({"weights": 4}), "as the config says"),
    ],
)
def test_quantisation_is_shown(report, quantization, words):
    assert words in facts_of(report, quantization=quantization)["quantised"]
    assert "quantised" not in facts_of(report)


def test_rope_and_the_anchor_are_shown_whole(report):
    rope = Rope("yarn", 1e6, (("factor", 4.0),), 0.5)
    facts = facts_of(report, rope=rope, sample_from_anchor=True)
    assert facts["rope"] == "yarn, theta 1e+06, factor 4.0, of 0.5 of each head"
    assert facts["block size"] == "4, so k = 4; the anchor predicts too"
