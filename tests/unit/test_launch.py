"""How vLLM is told to serve a drafter."""

from __future__ import annotations

import json
import shlex

import pytest

from dflash_pack.engines.launch import shell, vllm_auto_command, vllm_command
from dflash_pack.errors import CheckpointError


def test_command_states_method_model_and_k() -> None:
    """The speculative config is what vLLM's SpeculativeConfig takes, with the method explicit."""
    command = vllm_command(target="acme/Target", draft="acme/Draft", speculative_tokens=15)
    assert command[:4] == ("vllm", "serve", "acme/Target", "--speculative-config")
    assert json.loads(command[4]) == {
        "method": "dflash",
        "model": "acme/Draft",
        "num_speculative_tokens": 15,
    }


def test_revision_pins_the_drafter_and_not_the_target() -> None:
    """The drafter's revision goes into the speculative config; --revision would be the target's."""
    command = vllm_command(target="a/T", draft="a/D", speculative_tokens=7, draft_revision="v1.0")
    assert json.loads(command[-1])["revision"] == "v1.0"
    assert "--revision" not in command


def test_auto_command_names_the_drafter_alone() -> None:
    """Target, method and k come from the file."""
    assert vllm_auto_command("acme/Draft") == ("vllm", "serve", "acme/Draft")


@pytest.mark.parametrize("k", [0, -1])
def test_no_tokens_are_refused(k: int) -> None:
    """A drafter that proposes nothing can't be served."""
    with pytest.raises(CheckpointError, match="at least one token"):
        vllm_command(target="a/T", draft="a/D", speculative_tokens=k)


@pytest.mark.parametrize(
    "draft", ["/data/my drafts/o'brien", 'quo"te', "$(touch x)", "`id`", "a;b", "späť"]
)
def test_shell_line_reads_back_as_the_same_command(draft: str) -> None:
    """A shell gives vLLM exactly the arguments, whatever the folder's name."""
    command = vllm_command(target="/models/big one", draft=draft, speculative_tokens=3)
    assert tuple(shlex.split(shell(command))) == command
    assert json.loads(shlex.split(shell(command))[-1])["model"] == draft


def test_a_name_with_a_dash_in_front_is_no_option() -> None:
    """A folder named like an option is served as a folder."""
    assert vllm_auto_command("--help")[-1] == "./--help"
    assert vllm_command(target="-t", draft="d", speculative_tokens=1)[2] == "./-t"


def test_dspark_has_a_method_of_its_own():
    for family, method in (("dflash", "dflash"), ("dflash2", "dflash"), ("dspark", "dspark")):
        command = vllm_command(target="a/T", draft="a/D", speculative_tokens=3, family=family)
        assert json.loads(command[-1])["method"] == method
