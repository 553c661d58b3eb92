"""Where vLLM's CPU kernels compute otherwise than its GPU ones, and that put right in this process.

The decode on a CPU stands for what an engine will do on a GPU, so that a difference between the two
must not count for or against a drafter.
"""

from __future__ import annotations

from typing import Any

CONTEXT_KEY_NORM = "context key norm"


def mend_context_key_norm() -> bool:
    """Give the context's keys of each draft layer that layer's own norm; return whether needed.

    vLLM normalises the keys of all draft layers in one call, with one row of weights a layer
    (vllm 0.32, models/qwen3_dflash.py, _normalize_context_k). The CUDA kernel takes the rows
    (vllm-project/vllm#46761); the CPU kernel applies the first layer's to all, as XPU's did, for
    which vLLM got the same mend as this one (vllm-project/vllm#56431).
    """
    from vllm.model_executor.models import laguna_dflash, qwen3_dflash

    if _rows_are_honoured(qwen3_dflash.ops.rms_norm):
        return False
    for model in (qwen3_dflash.DFlashQwen3Model, laguna_dflash.DFlashLagunaModel):
        model._normalize_context_k = _normalize_each_layer  # noqa: SLF001 - vLLM has no setting
    return True


def mends_in_force() -> tuple[str, ...]:
    """Return what is put right in this process, by name."""
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model

    mended = DFlashQwen3Model._normalize_context_k is _normalize_each_layer  # noqa: SLF001
    return (CONTEXT_KEY_NORM,) if mended else ()


def _normalize_each_layer(model: Any, all_k: Any) -> Any:
    """Return the keys [layers, context tokens, heads, head size] normalised, layer by layer."""
    import torch
    from vllm import _custom_ops as ops

    result = torch.empty_like(all_k)
    weights, eps = model._k_norm_weights, model._rms_norm_eps  # noqa: SLF001 - as in vLLM's own
    for keys, weight, out in zip(all_k, weights, result, strict=True):
        ops.rms_norm(out, keys.contiguous(), weight, eps)
    return result


def _rows_are_honoured(rms_norm: Any) -> bool:
    """Return whether the kernel gives each of two layers its own row of weights."""
    import torch

    values = torch.ones(2, 1, 1, 32)
    weights = torch.stack([torch.ones(32), torch.full((32,), 2.0)])
    out = torch.empty_like(values)
    rms_norm(out, values, weights, 1e-6)
    return bool(torch.allclose(out[1], torch.full_like(out[1], 2.0), atol=1e-3))
