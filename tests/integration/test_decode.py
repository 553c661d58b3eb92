"""The real decode of the tiny pair: a real vLLM on CPU, in real child processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import uuid
from dataclasses import replace
from importlib import util
from pathlib import Path

import pytest

from dflash_pack.smoke.environment import child_environment
from dflash_pack.smoke.request import DecodeRequest, Prompt, load_prompts
from dflash_pack.smoke.result import DecodeResult, TokenDifference, compare
from dflash_pack.smoke.run import DecodeFailedError, decode, decode_many

TINY = Path(__file__).parents[2] / "examples" / "tiny"
K = 7
# fp32 on CPU: sums in another order differ by far less than this, other choices by far more.
NEAR_TIE_GAP = 1e-3

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


def request(**changes) -> DecodeRequest:
    values = {
        "target": str(TINY / "target"),
        "drafter": str(TINY / "drafter"),
        "speculative_tokens": K,
        "device": "cpu",
        "dtype": "float32",
        "prompts": load_prompts(TINY / "prompts.jsonl"),
        "max_tokens": 64,
        "near_tie_gap": NEAR_TIE_GAP,
        "kv_cache_gib": 0.125,
    }
    return DecodeRequest(**{**values, **changes})


def damaged(folder: Path) -> Path:
    """Write the drafter with its captured states mirrored: it loads, and drafts worse."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(TINY / "drafter", folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["fc.weight"] = tensors["fc.weight"].flip(1).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def without_weights(folder: Path) -> Path:
    folder.mkdir()
    shutil.copy(TINY / "drafter" / "config.json", folder)
    return folder


def served_alone(folder: Path) -> Path:
    """Write the drafter with a Speculators config whose verifier is the target's folder."""
    shutil.copytree(TINY / "drafter", folder)
    native = json.loads((folder / "config.json").read_text())
    dflash = native["dflash_config"]
    not_of_the_layers = {"architectures", "block_size", "dflash_config", "num_target_layers"}
    config = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_version": "0.9.0",
        "block_size": native["block_size"],
        "draft_vocab_size": native["vocab_size"],
        "mask_token_id": dflash["mask_token_id"],
        "aux_hidden_state_layer_ids": [index + 1 for index in dflash["target_layer_ids"]],
        "sliding_window_non_causal": True,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": native["block_size"] - 1}
            ],
            "verifier": {
                "name_or_path": str(TINY / "target"),
                "architectures": ["Qwen3ForCausalLM"],
            },
        },
        "transformer_layer_config": {
            key: value for key, value in native.items() if key not in not_of_the_layers
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Decode all that is asked about below in one child: importing vLLM is most of the time."""
    folder = tmp_path_factory.mktemp("drafters")
    text = (Prompt(text="Count from 3 to 9."), Prompt(text="Name 4 days"))
    requests = {
        "first": request(),
        "again": request(),
        "damaged": request(drafter=str(damaged(folder / "damaged"))),
        "no weights": request(drafter=str(without_weights(folder / "no-weights"))),
        "short": request(speculative_tokens=3),
        "alone": request(drafter=str(served_alone(folder / "alone")), auto_serve=True),
        "text": request(prompts=text, max_tokens=8, check_lossless=False),
        "too long": request(max_model_len=12),
    }
    log = folder / "engine.log"
    found = decode_many(tuple(requests.values()), timeout_s=400, log=log)
    return dict(zip(requests, found, strict=True))


@pytest.fixture
def first(outcomes) -> DecodeResult:
    """Return the plain decode of the trained pair."""
    assert isinstance(outcomes["first"], DecodeResult), outcomes["first"]
    return outcomes["first"]


def test_the_trained_drafter_is_accepted_and_every_position_is_counted(first):
    counts = first.acceptance
    assert first.k == K
    assert len(counts.accepted_per_position) == K
    assert sum(counts.accepted_per_position) == counts.accepted
    assert counts.draft_tokens == K * counts.drafts
    assert list(counts.accepted_per_position) == sorted(counts.accepted_per_position, reverse=True)
    assert counts.acceptance_length > 2


def test_every_token_is_the_targets_own_choice(first):
    assert first.losslessness is not None
    assert first.losslessness.holds, first.losslessness
    assert first.losslessness.tokens_checked == first.tokens
    assert first.losslessness.near_ties < first.tokens / 100


def test_the_facts_of_the_engine_are_those_of_this_machine(first):
    engine = first.engine
    assert engine.name.startswith("vllm")
    assert (engine.attention_backend, engine.draft_attention_backend) == ("CPU_ATTN", "CPU_ATTN")
    assert (engine.dtype, engine.model_runner, engine.driver) == ("float32", "V1", None)
    assert engine.mends == ("context key norm",)
    assert engine.device_name
    assert first.load_seconds > 0
    assert first.decode_seconds > 0


def test_two_decodes_count_the_same_at_every_position(first, outcomes):
    assert compare(first, outcomes["again"]).equal


def test_a_damaged_drafter_is_still_lossless_but_accepted_less(first, outcomes):
    result = outcomes["damaged"]
    comparison = compare(first, result)
    assert result.losslessness.holds
    assert comparison.same_outputs
    assert not comparison.equal
    assert result.acceptance.acceptance_length < first.acceptance.acceptance_length - 0.3


def test_missing_weights_are_a_sentence_that_names_drafter_and_log(outcomes):
    error = outcomes["no weights"]
    assert isinstance(error, DecodeFailedError)
    assert "no-weights: vLLM failed: RuntimeError: Cannot find any model weights" in str(error)
    assert str(error).endswith(f"The engine's log is {error.log}.")
    assert "\n" not in str(error)


def test_fewer_speculative_tokens_emit_the_same_text(first, outcomes):
    result = outcomes["short"]
    assert result.k == 3
    assert len(result.acceptance.accepted_per_position) == 3
    assert result.outputs == first.outputs


def test_the_checkpoint_served_alone_drafts_the_same(first, outcomes):
    result = outcomes["alone"]
    assert isinstance(result, DecodeResult), result
    assert result.k == K
    assert compare(first, result).equal


def test_raw_text_goes_past_the_template_and_the_check_is_optional(outcomes):
    result = outcomes["text"]
    assert result.losslessness is None
    assert [len(output) <= 8 for output in result.outputs] == [True, True]


def test_a_context_without_room_is_a_sentence(outcomes):
    error = outcomes["too long"]
    assert isinstance(error, DecodeFailedError)
    assert "leave no room for an answer in max_model_len 12" in str(error)


def test_a_forged_token_is_found_by_the_real_target(first, tmp_path):
    """Alone in its process the pair counts the same; the check sees the token that we exchange."""
    script = """
        import sys
        from dflash_pack.smoke import child

        scores = child._scores

        def forge(llm, prompts, outputs):
            outputs = [list(output) for output in outputs]
            outputs[2][4] = (outputs[2][4] + 1) % 400
            return scores(llm, prompts, outputs)

        child._scores = forge
        child._leave(child.main(sys.argv[1:]))
    """
    asked, answer = tmp_path / "request.json", tmp_path / "result.json"
    asked.write_text(json.dumps(request().to_json()))
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(asked), str(answer)],
        env=child_environment([request()], os.environ, tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=200,
    )
    result = DecodeResult.from_json(json.loads(answer.read_text()))
    found = result.losslessness.first_difference
    own = first.outputs[2][4]
    assert isinstance(found, TokenDifference)
    assert (found.prompt, found.position, found.choice) == (2, 4, own)
    assert found.emitted == (own + 1) % 400
    assert found.gap > NEAR_TIE_GAP
    assert compare(first, replace(result, losslessness=first.losslessness)).equal


def marked(mark: str) -> list[str]:
    """Return the running processes whose environment holds ``mark``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # gone meanwhile
            continue
    return found


def test_out_of_time_nothing_of_the_engine_is_left(tmp_path, monkeypatch):
    mark = uuid.uuid4().hex
    monkeypatch.setenv("DFLASH_PACK_TEST_MARK", mark)
    with pytest.raises(DecodeFailedError, match="vLLM did not end within 4 s"):
        decode(request(), timeout_s=4, log=tmp_path / "engine.log")
    assert marked(mark) == []
