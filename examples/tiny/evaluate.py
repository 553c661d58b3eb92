"""Measure the acceptance length of a drafter in vLLM: greedy, float32, on CPU.

Run as `python examples/tiny/evaluate.py [TARGET] [DRAFTER]` where vLLM is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def prepare_environment() -> None:
    """Set what vLLM's CPU build wants, and start anew with Intel's OpenMP where it's installed."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    if "LD_PRELOAD" not in os.environ and openmp.exists():
        # Without it DFlash on CPU is about 70 times slower, and it's only read at process start.
        os.environ["LD_PRELOAD"] = str(openmp)
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606  # ourselves again


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure a drafter's acceptance length in vLLM.")
    parser.add_argument("target", nargs="?", default=str(HERE / "target"), help="its folder")
    parser.add_argument("drafter", nargs="?", default=str(HERE / "drafter"), help="its folder")
    parser.add_argument("--prompts", type=Path, default=HERE / "prompts.jsonl")
    parser.add_argument("--k", type=int, default=7, help="speculative tokens (block size - 1)")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--show", action="store_true", help="print the answers too")
    return parser.parse_args()


def main() -> None:
    """Decode the prompts once and print vLLM's own counts."""
    args = parse_arguments()
    prepare_environment()
    from vllm import LLM, SamplingParams

    from dflash_pack.smoke.cpu_kernels import mend_context_key_norm

    mend_context_key_norm()  # on a GPU each layer's keys get that layer's norm
    chats = [json.loads(line)["messages"] for line in args.prompts.read_text().splitlines()]
    llm = LLM(
        model=args.target,
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=256,
        speculative_config={
            "method": "dflash",
            "model": args.drafter,
            "num_speculative_tokens": args.k,
        },
        disable_log_stats=False,
    )
    started = time.perf_counter()
    outputs = llm.chat(chats, SamplingParams(temperature=0, max_tokens=args.max_tokens))
    seconds = time.perf_counter() - started

    answers = [output.outputs[0] for output in outputs]
    if args.show:
        for chat, answer in zip(chats, answers, strict=True):
            print(f"{chat[-1]['content']}\n    {answer.text!r}")
    values: dict[str, Any] = {
        metric.name: getattr(metric, "values", getattr(metric, "value", None))
        for metric in llm.get_metrics()
    }
    drafts = values["vllm:spec_decode_num_drafts"]
    drafted = values["vllm:spec_decode_num_draft_tokens"]
    accepted = values["vllm:spec_decode_num_accepted_tokens"]
    print(f"{len(answers)} prompts, {sum(len(a.token_ids) for a in answers)} tokens")
    print(f"{sum(a.finish_reason == 'stop' for a in answers)} answers ended by themselves")
    print(f"{drafts} drafts, {accepted} of {drafted} draft tokens accepted, {seconds:.2f} s")
    print("accepted per position:", values["vllm:spec_decode_num_accepted_tokens_per_pos"])
    print(f"acceptance length: {1 + accepted / drafts:.3f}")


if __name__ == "__main__":
    main()
