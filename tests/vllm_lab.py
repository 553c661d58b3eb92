"""vLLM's real config classes and draft models in this process, without an engine around them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_files import BLOCK_SIZE, TARGET_CONFIG, TARGET_LAYERS, VOCAB, dtype_of, native, shapes

from dflash_pack.drafter import DraftLayer
from dflash_pack.engines.meaning import EngineMeaning


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> Path:
    """Write a checkpoint with small random weights."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: _tensor(torch, name, shape) for name, shape in tensors.items()},
        str(folder / "model.safetensors"),
        metadata={"format": "pt"},
    )
    return folder


def _tensor(torch: Any, name: str, shape: tuple[int, ...]) -> Any:
    if name == "t2d":
        mask = torch.zeros(shape, dtype=torch.bool)
        mask[: VOCAB // 2] = True
        return mask
    if dtype_of(name) == "I64":
        return torch.zeros(shape, dtype=torch.int64)
    return torch.randn(shape) * 0.02


@dataclass
class VllmReality:
    """A drafter in vLLM: its config, its built model, and the error where there is one."""

    config: Any = None
    model: Any = None
    error: str | None = None


class VllmLab:
    """Builds vLLM's real draft model in this process, without an engine around it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        import torch
        from vllm.config import set_current_vllm_config
        from vllm.distributed import init_distributed_environment, initialize_model_parallel
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.models import ModelRegistry
        from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM
        from vllm.model_executor.models.qwen3_dflash import DFlashQwen3ForCausalLM

        # The registry imports a class that it only knows by name in a child process, slowly.
        ModelRegistry.register_model("Qwen3ForCausalLM", Qwen3ForCausalLM)
        ModelRegistry.register_model("DFlashDraftModel", DFlashQwen3ForCausalLM)
        self.folder = folder
        self.counter = itertools.count()
        self.target = write(folder / "target", TARGET_CONFIG, {})
        start = write(folder / "first", native(), {})
        self.torch = torch
        self.vllm_config = EngineArgs(
            model=str(self.target),
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=64,
            enforce_eager=True,
            speculative_config={
                "method": "dflash",
                "model": str(start),
                "num_speculative_tokens": BLOCK_SIZE - 1,
            },
        ).create_engine_config()
        self.use = set_current_vllm_config
        with self.use(self.vllm_config):
            init_distributed_environment(
                world_size=1,
                rank=0,
                local_rank=0,
                distributed_init_method=f"file://{folder}/rendezvous",
                backend="gloo",
            )
            initialize_model_parallel(1, 1)
        # Mixed layers need the V2 runner, which no CPU has; the layers themselves build anywhere.
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
        # A refused config is retried after two seconds.
        patch.setattr("vllm.transformers_utils.repo_utils.time.sleep", lambda _: None)

    def config(self, folder: Path) -> Any:
        """Parse as SpeculativeConfig does for method dflash."""
        from vllm.config import SpeculativeConfig
        from vllm.transformers_utils.config import get_config, set_default_rope_theta
        from vllm.transformers_utils.configs.eagle import EAGLEConfig
        from vllm.transformers_utils.configs.speculators import SpeculatorsConfig

        parsed = get_config(
            str(folder),
            trust_remote_code=False,
            hf_overrides_fn=SpeculativeConfig.hf_config_override,
        )
        if not isinstance(parsed, EAGLEConfig | SpeculatorsConfig):
            parsed = EAGLEConfig(parsed, method="dflash", model_type="eagle")
        set_default_rope_theta(parsed, default_theta=1000000)
        return parsed

    def read(
        self,
        config: Mapping[str, Any],
        tensors: Mapping[str, tuple[int, ...]] | None = None,
        *,
        load: bool = True,
    ) -> VllmReality:
        """Return what vLLM makes of the files: parse, build, load."""
        from safetensors.torch import load_file
        from vllm.model_executor.models import ModelRegistry
        from vllm.model_executor.models.qwen3_dflash import DFlashQwen3ForCausalLM

        wanted = shapes() if tensors is None else tensors
        folder = write(self.folder / f"case{next(self.counter)}", config, wanted if load else {})
        reality = VllmReality()
        draft = self.vllm_config.speculative_config.draft_model_config
        before = draft.hf_config
        try:
            reality.config = self.config(folder)
            known = [
                name
                for name in reality.config.architectures
                if name in ModelRegistry.get_supported_archs()
            ]
            if not known:
                raise ValueError("no such architecture")
            draft.hf_config, draft.model = reality.config, str(folder)
            self.vllm_config.compilation_config.static_forward_context.clear()
            with self.use(self.vllm_config):
                reality.model = DFlashQwen3ForCausalLM(vllm_config=self.vllm_config)
                self._mask_token(reality.config)
                if load:
                    weights = load_file(str(folder / "model.safetensors"))
                    reality.model.load_weights(iter(weights.items()))
        except Exception as error:  # noqa: BLE001 - any failure of the engine is an answer
            reality.error = f"{type(error).__name__}: {error}"
        finally:
            draft.hf_config = before
        return reality

    def _mask_token(self, config: Any) -> int:
        from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
        from vllm.v1.worker.gpu.spec_decode.utils import get_parallel_drafting_token_id

        second = get_parallel_drafting_token_id(config)
        proposer = SimpleNamespace(
            draft_model_config=SimpleNamespace(hf_config=config), pass_hidden_states_to_model=False
        )
        SpecDecodeBaseProposer._init_parallel_drafting_params(proposer)
        assert proposer.parallel_drafting_token_id == second
        return second

    def assert_agrees(self, derived: EngineMeaning, real: VllmReality) -> None:
        """Compare every fact that both state."""
        if real.error is not None:
            assert derived.refusals, f"vLLM fails: {real.error}"
            return
        assert not derived.refusals, derived.refusals
        model, config = real.model, real.config
        assert derived.layers == tuple(
            DraftLayer(layer.self_attn.sliding_window, layer.self_attn.causal)
            for layer in model.model.layers
        )
        assert derived.fc_input_size == model.model.fc.input_size
        assert derived.target_layer_ids == self.captured(config)
        assert derived.mask_token_id == self._mask_token(config)
        attention = model.model.layers[0].self_attn
        assert derived.head_dim == attention.head_dim
        assert derived.rms_norm_eps == attention.q_norm.variance_epsilon
        assert derived.attention_bias == (attention.qkv_proj.bias is not None)
        assert derived.draft_vocab_size == model.lm_head.num_embeddings
        assert derived.embedding == ("own" if model.has_own_embed_tokens else "target")
        assert derived.head == ("own" if model.has_own_lm_head else "target")
        self.assert_same_rotation(derived, attention.rotary_emb, config.max_position_embeddings)

    def captured(self, config: Any) -> tuple[int, ...]:
        """Return the captured layers in the order in which vLLM's targets append their states."""
        from vllm.model_executor.models.interfaces import EagleModelMixin
        from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import (
            get_eagle3_aux_layers_from_config,
        )

        spec = SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=config))
        model = SimpleNamespace(
            aux_hidden_state_layers=get_eagle3_aux_layers_from_config(spec),
            collect=EagleModelMixin._maybe_add_hidden_state,
        )
        states: list[Any] = []
        for index in range(TARGET_LAYERS + 1):
            model.collect(model, states, index, self.torch.tensor(index), None)
        return tuple(int(state) - 1 for state in states)

    def assert_same_rotation(self, derived: EngineMeaning, real: Any, max_position: int) -> None:
        """Compare the rotation table that vLLM built with the one our derived rope builds."""
        from vllm.model_executor.layers.rotary_embedding import get_rope

        assert derived.rope is not None
        with self.use(self.vllm_config):
            ours = get_rope(
                derived.head_dim,
                max_position=max_position,
                rope_parameters=derived.rope.parameters(),
            )
        assert type(ours) is type(real)
        assert self.torch.equal(ours.cos_sin_cache, real.cos_sin_cache)


@contextmanager
def vllm_lab(folder: Path) -> Iterator[VllmLab]:
    """Set vLLM up once, and take its process groups down again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
        yield VllmLab(folder, patch)
        from vllm.distributed import (
            destroy_distributed_environment,
            destroy_model_parallel,
        )

        destroy_model_parallel()
        destroy_distributed_environment()
