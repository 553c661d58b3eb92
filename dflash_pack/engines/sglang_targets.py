"""Of which targets SGLang can capture hidden states for DFlash, and of which also the last layer's.

Source: sglang 0.5.23 (wheel read, not run): the classes under models/ that have or inherit
set_dflash_layers_to_capture, which model_executor/model_runner_components/attention_backend_setup.py
demands, and the layer loops of their forward().
"""

from __future__ import annotations

from dflash_pack.target import Target

# Their loop captures what enters layer i + 1, and goes on to a hook after the last layer.
_WITH_LAST_LAYER = frozenset(
    {
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "GptOssForCausalLM",
        "InklingForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "KimiK3LinearForCausalLM",
        "LagunaForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Lfm2VlForConditionalGeneration",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Nano_VL_V2",
        "NemotronH_Omni_Reasoning_V3",
    }
)
_WITHOUT_LAST_LAYER = frozenset(
    {
        "BeamForCausalLM",
        "Cosmos3ForConditionalGeneration",
        "DeepseekV2ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "Glm5NextForConditionalGeneration",
        "GlmMoeDsaForCausalLM",
        "IQuestCoderForCausalLM",
        "InternLM3ForCausalLM",
        "InternS1ProForConditionalGeneration",
        "InternS2MobiusForConditionalGeneration",
        "InternS2PreviewForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
        "Llama4ForCausalLM",
        "LlamaForCausalLM",
        "MellumForCausalLM",
        "MiniCPMV",
        "MiniMaxM3SparseForConditionalGeneration",
        "Ministral3ForCausalLM",
        "MistralForCausalLM",
        "MistralLarge3ForCausalLM",
        "MuseGlimmerForCausalLM",
        "MuseGlimmerForConditionalGeneration",
        "MuseSparkForConditionalGeneration",
        "NanbeigeForCausalLM",
        "Phi3ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
        "TeleFLMForCausalLM",
    }
)


def capture_refusals(ids: tuple[int, ...], target: Target) -> tuple[str, ...]:
    """Return why SGLang can't capture the 0-based layers ``ids`` of ``target``.

    A target whose architecture is not stated is given the benefit of the doubt.
    """
    name = target.architectures[0] if target.architectures else None
    if name is None or name in _WITH_LAST_LAYER:
        return ()
    if name not in _WITHOUT_LAST_LAYER:
        return (f"SGLang 0.5.23 can't capture the states of a {name} target.",)
    if ids and max(ids) == target.num_hidden_layers - 1:
        text = (
            f"Layer {max(ids)} is the target's last, and SGLang 0.5.23 captures of a {name} only "
            "what enters another layer."
        )
        return (text,)
    return ()
