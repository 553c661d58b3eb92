"""Facts that only the engine's worker process knows."""

from __future__ import annotations

import os
from typing import Any

from dflash_pack.smoke.cpu_kernels import mends_in_force


def worker_facts(worker: Any) -> dict[str, object]:
    """Return what a vLLM worker runs on, as the keyword arguments of ``EngineFacts``.

    The draft's layers are told from the target's as vLLM's own runners tell them: by the names that
    its drafter (V1: llm_base_proposer.py) or speculator (V2: gpu/spec_decode/speculator.py) keeps;
    read from vLLM 0.32 and 0.33.

    Args:
        worker: A vLLM ``Worker``; this function is sent to it by ``LLM.collective_rpc``.
    """
    import torch
    from vllm.platforms import current_platform

    runner, config = worker.model_runner, worker.vllm_config
    proposer = getattr(runner, "speculator", None) or getattr(runner, "drafter", None)
    own = "_draft_attn_layer_names"  # V1 keeps them to itself
    draft_names = set(getattr(proposer, own.removeprefix("_"), ()) or getattr(proposer, own, ()))
    backends: dict[bool, set[str]] = {False: set(), True: set()}
    for name, layer in config.compilation_config.static_forward_context.items():
        if hasattr(layer, "get_attn_backend"):
            backends[name in draft_names].add(layer.get_attn_backend().get_name())
    on_cpu = current_platform.is_cpu()
    capability = None if on_cpu else current_platform.get_device_capability()
    return {
        "device_name": _cpu_name() if on_cpu else current_platform.get_device_name(),
        "compute_capability": f"{capability.major}.{capability.minor}" if capability else None,
        "attention_backend": "+".join(sorted(backends[False])),
        "draft_attention_backend": "+".join(sorted(backends[True])),
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "driver": None if on_cpu else _driver(),
        "torch": torch.__version__,
        "model_runner": "V2" if getattr(worker, "use_v2_model_runner", False) else "V1",
        "threads": torch.get_num_threads() if on_cpu else None,
        "intel_openmp": "libiomp" in os.environ.get("LD_PRELOAD", "") if on_cpu else None,
        "mends": mends_in_force() if on_cpu else (),
    }


def _cpu_name() -> str:
    import platform
    from pathlib import Path

    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine()


def _driver() -> str | None:
    from vllm.utils.import_utils import import_pynvml

    nvml = import_pynvml()
    try:
        nvml.nvmlInit()
        version = nvml.nvmlSystemGetDriverVersion()
    except nvml.NVMLError:  # a CUDA device without NVML (Jetson)
        return None
    return version.decode() if isinstance(version, bytes) else str(version)
