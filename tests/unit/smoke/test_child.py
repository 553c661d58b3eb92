"""The parts of the engine's process that need no engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash_pack.smoke.child import answer_length, context_length, engine_options
from dflash_pack.smoke.request import DecodeRequest, Prompt

REQUEST = DecodeRequest(
    target="/target",
    drafter="/drafter",
    speculative_tokens=7,
    device="cpu",
    dtype="float32",
    prompts=(Prompt(text="x"),) * 40,
    max_tokens=64,
)


def test_the_drafters_method_is_always_explicit():
    options = engine_options(REQUEST, 512)
    assert options["model"] == "/target"
    assert options["speculative_config"] == {
        "method": "dflash",
        "model": "/drafter",
        "num_speculative_tokens": 7,
    }
    assert options["trust_remote_code"] is False
    assert options["enable_prefix_caching"] is False


def test_served_alone_the_checkpoint_names_target_method_and_k_itself():
    options = engine_options(replace(REQUEST, auto_serve=True, drafter_revision="abc"), 512)
    assert (options["model"], options["revision"]) == ("/drafter", "abc")
    assert "speculative_config" not in options


def test_only_what_the_request_states_is_passed_on():
    options = engine_options(REQUEST, 512)
    assert not {"attention_backend", "quantization", "distributed_executor_backend"} & set(options)
    stated = replace(
        REQUEST,
        device="cuda",
        tensor_parallel_size=2,
        distributed_executor_backend="ray",
        attention_backend="FLASHINFER",
        draft_attention_backend="FLASH_ATTN",
        quantization="fp8",
        drafter_revision="d",
        target_revision="t",
    )
    options = engine_options(stated, 512)
    assert options["tensor_parallel_size"] == 2
    assert options["distributed_executor_backend"] == "ray"
    assert options["attention_backend"] == "FLASHINFER"
    assert options["quantization"] == "fp8"
    assert options["revision"] == "t"
    assert options["speculative_config"]["attention_backend"] == "FLASH_ATTN"
    assert options["speculative_config"]["revision"] == "d"


def test_the_cpu_is_eager_and_does_not_take_all_memory():
    options = engine_options(REQUEST, 512)
    assert options["enforce_eager"] is True
    assert options["kv_cache_memory_bytes"] == 2 * 2**30
    assert options["max_num_seqs"] == 16
    small = replace(REQUEST, kv_cache_gib=0.0625, prompts=REQUEST.prompts[:3])
    assert engine_options(small, 512)["kv_cache_memory_bytes"] == 2**26
    assert engine_options(small, 512)["max_num_seqs"] == 3


def test_the_gpu_compiles_and_sizes_its_own_cache():
    options = engine_options(replace(REQUEST, device="cuda"), 512)
    assert options["enforce_eager"] is False
    assert "kv_cache_memory_bytes" not in options


def test_the_context_holds_the_longest_prompt_its_answer_and_one_block():
    length = context_length(REQUEST, [10, 30, 20])
    assert length == 30 + 64 + 8
    assert answer_length(REQUEST, 30, 7, length) == 64
    assert context_length(replace(REQUEST, max_model_len=96), [10]) == 96


def test_an_answer_is_cut_to_the_context_and_refused_without_room():
    assert answer_length(REQUEST, 50, 7, 96) == 38
    assert answer_length(REQUEST, 87, 7, 96) == 1
    with pytest.raises(ValueError, match="leave no room for an answer in max_model_len 96"):
        answer_length(REQUEST, 88, 7, 96)
