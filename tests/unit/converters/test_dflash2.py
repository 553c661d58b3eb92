"""DFlash2: convolutions and selector read, written in every form, each fact of theirs kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from formats_table import target_of, tensors_of
from made import REMOVED, SLIDING, native

from dflash_pack.agreement import view_engines
from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.conversion import comparable
from dflash_pack.converters.registry import WRITERS, read_drafter
from dflash_pack.drafter import Dflash2Parts, Drafter
from dflash_pack.errors import CheckpointError, ContradictionError, NotRepresentableError

SIZES = {"conv_group_size": 8, "conv_kernel_size": 2, "selector_rank": 4, "selector_top_k": 3}
CONFIG = {
    "architectures": ["DFlash2DraftModel"],
    "is_causal": False,
    **{f"dflash_config__{name}": value for name, value in SIZES.items()},
}
SEED = {"fc.weight": TensorSpec("BF16", (16, 32))}


def read(**changes):
    return read_drafter(Contents(native(**CONFIG | changes), SEED, frozenset()))


def as_contents(config, drafter: Drafter):
    return Contents(dict(config), tensors_of(drafter), frozenset())


def test_the_sizes_are_read():
    reading = read()
    assert reading.format == "dflash2"
    assert reading.drafter.family == "dflash2"
    assert reading.drafter.parts == Dflash2Parts(2, 8, 4, 3)


def test_the_published_count_of_tensors():
    # z-lab's DFlash2 of five layers has 81 (15 a layer, fc and two norms, the selector's three).
    drafter = read(num_hidden_layers=5, layer_types=REMOVED, max_window_layers=5).drafter
    assert len(tensors_of(drafter)) == 81


@pytest.mark.parametrize("suffix", ["", ".weight"])
def test_codebooks_are_known_with_and_without_their_suffix(suffix):
    drafter = read().drafter
    names = {}
    for name, spec in tensors_of(drafter).items():
        names[name + suffix if name.endswith("codebook") else name] = spec
    made = Contents(native(**CONFIG), names, frozenset())
    assert read_drafter(made).canonical(made) == tensors_of(drafter)


@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_is_missing_is_asked_for(name):
    with pytest.raises(CheckpointError, match=f"--set dflash_config.{name}=VALUE"):
        read(**{f"dflash_config__{name}": REMOVED})


@pytest.mark.parametrize("value", ["x", "2", [2], {}, 2.7, True, 0])
def test_a_size_of_the_wrong_type_or_range_is_refused_by_name(value):
    with pytest.raises(CheckpointError) as caught:
        read(dflash_config__conv_kernel_size=value)
    assert caught.value.field == "dflash_config.conv_kernel_size"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"dflash_config__selector_top_k": 65}, "selector_top_k"),
        ({"draft_vocab_size": 32}, "draft_vocab_size"),
    ],
)
@pytest.mark.parametrize("form", ["native", "speculators"])
def test_a_selector_ranks_the_whole_vocabulary(changes, field, form):
    config = native(**CONFIG | (changes if form == "native" else {}))
    if form == "speculators":
        config = dict(WRITERS[form](read().drafter, target_of(read().drafter)).config)
        config |= {name.removeprefix("dflash_config__"): v for name, v in changes.items()}
    with pytest.raises(CheckpointError) as caught:
        read_drafter(Contents(config, SEED, frozenset()))
    assert caught.value.field == field


def test_a_size_that_only_the_training_state_has_is_read_and_checked():
    # SpecForge trains DFlash2 by its strategy "dflash" (docs/concepts/DFlash2.md).
    def state(value):
        return {
            "dflash_config__selector_rank": REMOVED,
            "training_state": {"strategy": "dflash", "dflash2_selector_rank": value},
        }

    parts = read(**state(6)).drafter.parts
    assert parts.selector_rank == 6
    with pytest.raises(CheckpointError) as caught:
        read(**state("x"))
    assert caught.value.field == "training_state.dflash2_selector_rank"


def test_sizes_that_differ_are_refused():
    with pytest.raises(ContradictionError, match="selector_rank"):
        read(selector_rank=5)


@pytest.mark.parametrize("form", ["speculators", "native", "native-new", "universal"])
@pytest.mark.parametrize("changes", [{}, SLIDING, SLIDING | {"is_causal": True}])
def test_every_form_means_the_same_and_vllm_reads_it_so(form, changes):
    drafter = read(**changes).drafter
    target = target_of(drafter)
    contents = as_contents(WRITERS[form](drafter, target).config, drafter)
    assert comparable(read_drafter(contents).drafter) == comparable(drafter)
    views = {view.meaning.engine: view for view in view_engines(drafter, contents, target)}
    assert views["vllm"].agrees, views["vllm"].problems()
    own = "zlab" if form.startswith("native") else "speculators"
    assert views[own].agrees, views[own].problems()


FACTORS = {
    "output_multiplier": 0.5,
    "input_embedding_scale": 2.0,
    "final_logit_softcapping": 30.0,
}


@pytest.mark.parametrize(("name", "value"), FACTORS.items())
def test_factors_go_where_they_are_read(name, value):
    drafter = read(**{f"dflash_config__{name}": value}).drafter
    assert getattr(drafter, name) == value
    target = target_of(drafter)
    with pytest.raises(NotRepresentableError, match="--format universal"):
        WRITERS["speculators"](drafter, target)
    for form in ("native", "universal"):
        contents = as_contents(WRITERS[form](drafter, target).config, drafter)
        views = {view.meaning.engine: view for view in view_engines(drafter, contents, target)}
        assert views["vllm"].agrees, views["vllm"].problems()
        without = as_contents(
            WRITERS[form](replace(drafter, **{name: read().drafter.__dict__[name]}), target).config,
            drafter,
        )
        other = {view.meaning.engine: view for view in view_engines(drafter, without, target)}
        assert not other["vllm"].agrees
