"""Which format a source is, and how the ones that are not converted are named."""

from __future__ import annotations

import pytest
from made import NATIVE, contents, native, specs, speculators

from dflash_pack.checkpoint import Contents
from dflash_pack.converters.registry import read_drafter, writer
from dflash_pack.errors import CheckpointError, UsageError


def test_each_form_is_detected():
    assert read_drafter(contents(native())).format == "zlab"
    assert read_drafter(contents(speculators())).format == "speculators"
    assert read_drafter(contents(native() | speculators())).format == "universal"


def test_a_target_is_no_drafter():
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    with pytest.raises(CheckpointError, match="no DFlash drafter"):
        read_drafter(Contents(config, specs(NATIVE), frozenset()))


@pytest.mark.parametrize("value", [1, None, {"a": 1}, [[]]])
def test_nonsense_where_names_belong_is_no_crash(value):
    config = {"architectures": value, "speculators_model_type": value, "dflash_config": value}
    with pytest.raises(CheckpointError):
        read_drafter(Contents(config, {}, frozenset()))


def test_unknown_names_on_the_command_line():
    with pytest.raises(UsageError, match="--from nemo is no known format"):
        read_drafter(contents(native()), source_format="nemo")
    with pytest.raises(UsageError, match="--format gguf is no form"):
        writer("gguf")
