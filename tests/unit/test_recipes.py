"""How each engine is told to serve a drafter, and when nobody is told."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from itertools import pairwise

import pytest
import yaml
from made import MIXED, NATIVE, SLIDING, checkpoint, contents, native, speculators, target_folder

from dflash_pack.checkpoint import open_checkpoint
from dflash_pack.conversion import plan_conversion
from dflash_pack.converters.registry import read_drafter
from dflash_pack.drafter import DsparkParts
from dflash_pack.engines.recipes import ENGINES, Serving, recipe
from dflash_pack.errors import CheckFailedError, UsageError
from dflash_pack.launching import plan_launch
from dflash_pack.packing import pack
from dflash_pack.target import read_target

DFLASH = read_drafter(contents(NATIVE)).drafter
DSPARK = replace(DFLASH, parts=DsparkParts(4, "vanilla", True, True), sample_from_anchor=True)


def serving(drafter=DFLASH, **changes):
    facts = {
        "target": "owner/target",
        "draft": "owner/draft",
        "drafter": drafter,
        "speculative_tokens": drafter.speculative_tokens,
    }
    return Serving(**facts | changes)


def options(command):
    """Return option -> value of what follows the program's own words."""
    words = list(command)
    return {a: b for a, b in pairwise(words) if a.startswith("--")}


def test_each_engine_counts_in_its_own_way():
    """A block of 4 gives 3 tokens for DFlash, 4 for DSpark, whose anchor predicts too."""
    for drafter, k, dflash in ((DFLASH, 3, True), (DSPARK, 4, False)):
        assert drafter.speculative_tokens == k
        vllm = json.loads(options(recipe("vllm", serving(drafter)).command)["--speculative-config"])
        assert vllm["num_speculative_tokens"] == k
        assert vllm["method"] == ("dflash" if dflash else "dspark")
        sglang = options(recipe("sglang", serving(drafter)).command)
        assert sglang["--speculative-algorithm"] == ("DFLASH" if dflash else "DSPARK")
        name = "--speculative-num-draft-tokens" if dflash else "--speculative-dspark-block-size"
        assert sglang[name] == "4"
        made = recipe("tensorrt_llm", serving(drafter))
        config = yaml.safe_load(made.files[options(made.command)["--config"]])
        assert config["speculative_config"] == {
            "decoding_type": "DFlash" if dflash else "DSpark",
            "speculative_model": "owner/draft",
            "max_draft_len": k,
        }


def test_fewer_tokens_are_asked_for_by_each():
    wanted = serving(speculative_tokens=2)
    assert options(recipe("sglang", wanted).command)["--speculative-num-draft-tokens"] == "3"
    assert "max_draft_len: 2" in recipe("tensorrt_llm", wanted).files["dflash.yaml"]
    # The short way takes the number from the file.
    assert recipe("vllm", replace(wanted, by_itself=True)).notes == ()
    assert recipe("vllm", serving(by_itself=True)).notes


@pytest.mark.parametrize(
    ("changes", "architecture", "backend"),
    [
        (SLIDING | {"is_causal": False}, "blackwell", "fa4"),
        (SLIDING | {"is_causal": False}, "hopper", None),
        (SLIDING, "blackwell", None),
        ({}, "blackwell", None),
    ],
)
def test_windows_that_look_both_ways_get_a_backend_that_has_them(changes, architecture, backend):
    drafter = read_drafter(contents(native(**changes))).drafter
    command = recipe("sglang", serving(drafter, architecture=architecture)).command
    assert options(command).get("--speculative-draft-attention-backend") == backend


@pytest.mark.parametrize("name", ["a b", "o'brien", "$(touch x)", "späť", "a: b", "- c"])
@pytest.mark.parametrize("engine", ENGINES)
def test_any_name_of_a_folder_comes_through(engine, name):
    made = recipe(engine, serving(draft=name, target=f"/models/{name}"))
    assert tuple(shlex.split(shlex.join(made.command))) == made.command
    held = " ".join(made.command) + json.dumps([yaml.safe_load(t) for t in made.files.values()])
    assert json.dumps(name)[1:-1] in held or name in held


@pytest.fixture
def converted(tmp_path):
    """Return a function that converts a drafter and opens the result."""
    aim = read_target(str(target_folder(tmp_path / "target")), identifier="owner/target")

    def convert(form, **changes):
        source = open_checkpoint(checkpoint(tmp_path / f"source-{form}", native(**changes)))
        pack(plan_conversion(source, aim, form=form), tmp_path / form)
        return open_checkpoint(tmp_path / form)

    return convert


def test_the_target_is_the_one_that_the_drafter_names(converted, tmp_path):
    report = plan_launch(converted("speculators"), "vllm", None)
    assert report.target == "owner/target"
    assert f"vllm serve {tmp_path / 'speculators'} does too" in report.recipe.notes[0]
    other = plan_launch(converted("universal"), "vllm", None, target_name="/models/target")
    assert other.recipe.command[2] == "/models/target"
    assert other.recipe.notes == ()
    with pytest.raises(UsageError, match="names no target"):
        plan_launch(converted("native"), "vllm", None)


@pytest.mark.parametrize("engine", ["sglang", "tensorrt_llm"])
def test_an_engine_that_would_not_do_what_is_meant_is_not_started(converted, engine):
    with pytest.raises(CheckFailedError, match="--format native or universal") as caught:
        plan_launch(converted("speculators"), engine, None)
    assert "one of: vllm" in str(caught.value.remedy)
    assert plan_launch(converted("universal"), engine, None).recipe.engine == engine


def test_what_speculators_convert_writes_is_not_started(tmp_path):
    """Its flag makes vLLM run the drafter causally, without any error."""
    folder = checkpoint(tmp_path / "ckpt", speculators(sliding_window_non_causal=False))
    with pytest.raises(CheckFailedError, match="sliding_window_non_causal"):
        plan_launch(open_checkpoint(folder), "vllm", None)


def test_more_tokens_than_the_block_gives(converted):
    with pytest.raises(UsageError, match="at most 3 tokens"):
        plan_launch(converted("speculators"), "vllm", None, speculative_tokens=4)


def test_what_else_an_engine_needs_is_said(converted):
    report = plan_launch(converted("universal", **MIXED), "vllm", None)
    assert any("V2 model runner" in sentence for sentence in report.conditions)
