"""vLLM's CPU kernels against plain torch, before and after our mend."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def model():
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model

    before = DFlashQwen3Model._normalize_context_k
    yield DFlashQwen3Model
    DFlashQwen3Model._normalize_context_k = before


@pytest.mark.parametrize(("layers", "tokens"), [(1, 3), (2, 1), (3, 5)])
def test_each_layers_keys_get_that_layers_norm(model, layers, tokens):
    from dflash_pack.smoke.cpu_kernels import mend_context_key_norm

    torch.manual_seed(0)
    # A view of [layers, 2, ...], as vLLM hands it over: not contiguous from layer to layer.
    keys = torch.randn(layers, 2, tokens, 2, 32)[:, 0]
    weights = torch.rand(layers, 32) + 0.5
    holder = SimpleNamespace(_k_norm_weights=weights, _rms_norm_eps=1e-6)
    expected = keys / (keys.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weights[:, None, None]
    needed = mend_context_key_norm()
    assert torch.allclose(model._normalize_context_k(holder, keys), expected, atol=1e-5)
    assert needed, "vLLM's kernel is right by now: the mend can go"


def test_what_was_mended_is_told(model):
    from dflash_pack.smoke.cpu_kernels import mend_context_key_norm, mends_in_force

    assert mends_in_force() == ()
    mend_context_key_norm()
    assert mends_in_force() == ("context key norm",)
