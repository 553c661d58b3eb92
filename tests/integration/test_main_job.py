"""The main job on the bundled trained pair, in real vLLM and the real Speculators library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_pack.checkpoint import open_checkpoint
from dflash_pack.checks import static_checks
from dflash_pack.conversion import plan_conversion
from dflash_pack.packing import pack
from dflash_pack.smoke.request import DecodeRequest, load_prompts
from dflash_pack.smoke.result import compare
from dflash_pack.smoke.run import DecodeFailedError, decode_many
from dflash_pack.target import read_target
from dflash_pack.validation import file_digests

pytestmark = pytest.mark.engine

TINY = Path(__file__).parents[2] / "examples" / "tiny"
TARGET, DRAFTER = TINY / "target", TINY / "drafter"
K = 7


def edited(folder: Path, out: Path, change) -> Path:
    """Return a copy of a checkpoint with its config changed."""
    shutil.copytree(folder, out)
    path = out / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    return out


def flip(config):
    config["sliding_window_non_causal"] = not config["sliding_window_non_causal"]


def shift(config):
    config["aux_hidden_state_layer_ids"] = [i + 1 for i in config["aux_hidden_state_layer_ids"]]


def permute_fc(folder: Path, out: Path) -> Path:
    """Return a copy whose fc takes the captured layers in another order."""
    shutil.copytree(folder, out)
    tensors = load_file(folder / "model.safetensors")
    first, *rest = tensors["fc.weight"].chunk(3, dim=1)
    tensors["fc.weight"] = torch.cat([*rest, first], dim=1).contiguous()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def apart(code: str, *arguments: object) -> str:
    """Run Python code in a process of its own and return the last line it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    out = tmp_path_factory.mktemp("main") / "converted"
    target = read_target(str(TARGET), identifier=None)
    pack(plan_conversion(open_checkpoint(DRAFTER), target), out)
    return out


@pytest.fixture(scope="module")
def by_library(tmp_path_factory):
    """The pair's drafter as `speculators convert` writes it."""
    folder = tmp_path_factory.mktemp("library")
    command = [sys.executable, "-W", "ignore", "-m", "speculators", "convert", str(DRAFTER)]
    command += ["--algorithm", "dflash", "--verifier", str(TARGET)]
    done = subprocess.run(
        [*command, "--output-path", str(folder / "out")],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


@pytest.fixture(scope="module")
def decodes(converted, by_library, tmp_path_factory):
    """One decode of each folder, all in one child so that vLLM is imported once."""
    folder = tmp_path_factory.mktemp("mutants")
    folders = {
        "source": DRAFTER,
        "converted": converted,
        "by library": by_library,
        "flipped": edited(converted, folder / "flipped", flip),
        "shifted": edited(converted, folder / "shifted", shift),
        "permuted": permute_fc(converted, folder / "permuted"),
    }
    base = DecodeRequest(
        target=str(TARGET),
        drafter="",
        speculative_tokens=K,
        device="cpu",
        dtype="float32",
        prompts=load_prompts(TINY / "prompts.jsonl"),
        max_tokens=64,
        near_tie_gap=1e-3,
        kv_cache_gib=0.25,
    )
    requests = [replace(base, drafter=str(path)) for path in folders.values()]
    requests.append(replace(base, drafter=str(converted), auto_serve=True))
    names = [*folders, "served alone"]
    outcomes = decode_many(requests, timeout_s=900, log=folder / "decode.log")
    for name, outcome in zip(names, outcomes, strict=True):
        assert not isinstance(outcome, DecodeFailedError), f"{name}: {outcome}"
    return dict(zip(names, outcomes, strict=True))


def test_it_drafts_the_same_as_its_source(decodes):
    source, converted = decodes["source"], decodes["converted"]
    assert source.acceptance.accepted_per_position == converted.acceptance.accepted_per_position
    assert source.acceptance == converted.acceptance
    assert compare(source, converted).equal


def test_the_pair_is_trained_well_enough_to_tell(decodes):
    assert decodes["source"].acceptance.acceptance_length >= 3.0
    assert decodes["source"].acceptance.drafts > 100


@pytest.mark.parametrize("mutant", ["by library", "flipped", "shifted", "permuted"])
def test_a_wrong_checkpoint_is_told_apart_by_its_accepted_counts(decodes, mutant):
    comparison = compare(decodes["source"], decodes[mutant])
    assert not comparison.equal
    # The output stays the target's own: only the accepted counts tell.
    assert comparison.same_outputs
    assert comparison.relative_change < 0


@pytest.mark.parametrize("name", ["source", "converted", "flipped", "shifted", "permuted"])
def test_every_emitted_token_is_the_targets_own_choice(decodes, name):
    assert decodes[name].losslessness.holds
    assert decodes[name].losslessness.tokens_checked == decodes[name].tokens


def test_the_librarys_own_conversion_is_caught_and_mended(by_library, tmp_path):
    target = read_target(str(TARGET), identifier=None)

    def failed(folder):
        opened = open_checkpoint(folder)
        checks = static_checks(opened, target, file_digests(opened)).checks
        return {check.id: check for check in checks if check.status == "failed"}

    found = failed(by_library)
    assert found.keys() == {"engine.vllm", "files.no_remote_code"}
    assert found["engine.vllm"].finding == (
        "vllm would take layers 0-1 as full, causal (by sliding_window_non_causal: false), "
        "but full, bidirectional is meant"
    )
    # The mend that the check names, taken at its word.
    command = found["engine.vllm"].remedy.removeprefix("Mend it: dflash-pack ")
    command = command.replace("NEW_FOLDER", str(tmp_path / "mended")).split()
    done = subprocess.run([sys.executable, "-m", "dflash_pack", *command], check=False)
    assert done.returncode == 0
    assert failed(tmp_path / "mended") == {}


def test_vllm_serves_the_target_by_the_checkpoints_own_verifier_entry(decodes):
    alone = decodes["served alone"]
    assert alone.k == K
    assert alone.acceptance == decodes["converted"].acceptance


def test_the_output_equals_plain_greedy_decoding(decodes, tmp_path):
    """The target alone, without any drafter, by transformers: another engine, the same tokens."""
    outputs = json.loads(apart(PLAIN, TARGET, TINY / "prompts.jsonl", 64))
    plain = [tuple(output) for output in outputs]
    assert list(decodes["converted"].outputs) == plain


PLAIN = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, prompts, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)  # faster for so small a model
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
outputs = []
for line in open(prompts):
    ids = tokenizer.apply_chat_template(
        json.loads(line)["messages"], add_generation_prompt=True, return_tensors="pt",
        return_dict=True,
    )["input_ids"]
    with torch.inference_mode():
        done = model.generate(ids, max_new_tokens=most, do_sample=False)
    outputs.append(done[0, ids.shape[1]:].tolist())
print(json.dumps(outputs))
"""


def test_the_speculators_library_loads_it_with_the_same_weights(converted):
    loaded = json.loads(apart(LOAD, converted, DRAFTER))
    assert loaded == {
        "class": "DFlashDraftModel",
        "different": [],
        "block_size": K + 1,
        "ids": [1, 2, 3],
        "non_causal": True,
        "tokens": K,
    }


LOAD = """
import json, sys, torch
from safetensors.torch import load_file
from speculators import SpeculatorModel
model = SpeculatorModel.from_pretrained(sys.argv[1])
loaded = model.state_dict()
source = load_file(sys.argv[2] + "/model.safetensors")
print(json.dumps({
    "class": type(model).__name__,
    "different": [n for n, t in source.items() if not torch.equal(loaded[n].to(t.dtype), t)],
    "block_size": model.config.block_size,
    "ids": model.config.aux_hidden_state_layer_ids,
    "non_causal": model.config.sliding_window_non_causal,
    "tokens": model.config.speculators_config.proposal_methods[0].speculative_tokens,
}))
"""


@pytest.mark.parametrize("change", [flip, shift])
def test_a_change_of_the_config_is_caught_without_a_decode_too(converted, tmp_path, change):
    folder = edited(converted, tmp_path / "mutant", change)
    opened = open_checkpoint(folder)
    target = read_target(str(TARGET), identifier=None)
    checks = static_checks(opened, target, file_digests(opened)).checks
    assert any(check.status == "failed" for check in checks)


def unstated(config):
    """Take away what the user then states, as at convert, and add what is then given up."""
    del config["dflash_config"]["mask_token_id"]
    config["a_note_of_the_trainers"] = "no engine reads it"


@pytest.mark.parametrize("source", ["as it is", "with what the user states"])
def test_the_command_line_proves_it_end_to_end(converted, tmp_path, source):
    """validate --cpu --against on the command line, its exit code, report and record."""
    against = ["--against", str(DRAFTER)]
    if source != "as it is":
        token = json.loads((DRAFTER / "config.json").read_text())["dflash_config"]["mask_token_id"]
        against[1] = str(edited(DRAFTER, tmp_path / "unstated", unstated))
        against += ["--set", f"dflash_config.mask_token_id={token}"]
        against += ["--allow-lossy", "a_note_of_the_trainers"]
    few = tmp_path / "prompts.jsonl"
    few.write_text("".join((TINY / "prompts.jsonl").read_text().splitlines(keepends=True)[:4]))
    mine = tmp_path / "mine"
    shutil.copytree(converted, mine)
    command = [sys.executable, "-m", "dflash_pack", "validate", str(mine), "-t", str(TARGET)]
    command += ["--cpu", *against, "--prompts", str(few), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)["result"]
    passed = {check["id"] for check in result["checks"] if check["status"] == "passed"}
    assert {"decode.ran", "decode.lossless", "decode.equals_source"} <= passed
    record = json.loads((mine / "dflash_pack.json").read_text())["validation"]
    assert (record["passed"], record["level"]) == (True, "cpu")
    assert json.loads((mine / ".dflash-pack" / "validation.json").read_text())["result"] == result
    if source == "as it is":
        former = mine / ".dflash-pack" / "validation.json"
        kept = shutil.copy(former, tmp_path / "former.json")
        later = [*command[:7], "--cpu", "--baseline", kept, "--prompts", str(few), "--json"]
        done = subprocess.run(later, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found = {c["id"]: c for c in json.loads(done.stdout)["result"]["checks"]}
        assert found["decode.baseline"]["status"] == "passed"
        assert "(+0.0%)" in found["decode.baseline"]["finding"]
        record = json.loads((mine / "dflash_pack.json").read_text())["validation"]
    # A look at the headers alone neither fails on the changed record nor takes the proof away.
    again = subprocess.run(command[:7], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout
    assert json.loads((mine / "dflash_pack.json").read_text())["validation"] == record
