"""AutoModel's drafters: another architecture name, JetSpec's causal variant."""

from __future__ import annotations

import pytest
from made import contents, native, target

from dflash_pack.converters.registry import WRITERS, read_drafter
from dflash_pack.errors import CheckpointError

NAMED = {"architectures": ["Qwen3DFlashDraftModel"]}


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_plain_dflash_or_jetspec(causal):
    reading = read_drafter(contents(native(**NAMED, dflash_config__causal=causal)))
    assert reading.format == "automodel"
    assert reading.drafter.causality is causal


@pytest.mark.parametrize("form", ["speculators", "native", "universal"])
def test_it_is_written_under_the_name_that_engines_know(form):
    drafter = read_drafter(contents(native(**NAMED))).drafter
    assert WRITERS[form](drafter, target()).config["architectures"] == ["DFlashDraftModel"]


def test_a_projector_of_another_family_is_refused():
    with pytest.raises(CheckpointError):
        read_drafter(contents(native(**NAMED, dflash_config__projector_type="domino")))
