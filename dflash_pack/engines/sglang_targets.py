"""Of which targets SGLang can capture hidden states for DFlash, and of which also the last layer's.

Source: sglang 0.5.23 (wheel read, not run): the classes under models/ that have or inherit
set_dflash_layers_to_capture, which model_runner_components/attention_backend_setup.py demands, and
the layer loops of their forward().
"""

from __future__ import annotations

from dflash_pack.target import Target

_WITH_LAST_LAYER = frozenset(
    {
        "BeamForCausalLM",
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
        "MuseSparkForConditionalGeneration",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Nano_VL_V2",
        "NemotronH_Omni_Reasoning_V3",
    }
)
# Their loop captures what enters layer i + 1, so nothing after the last.
_WITHOUT_LAST_LAYER = frozenset(
    {
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


_MUSE = "muse_glimmer"
_MUSE_BY_OUTPUT = frozenset({"DFlash2DraftModel", "MuseGlimmerAssistantModel"})


def captured_by_output(
    ids: tuple[int, ...], target: Target | None, architectures: object
) -> tuple[int, ...]:
    """Return the layers whose output SGLang captures for the stated ``ids``, in fc order.

    Targets append their states in layer order whatever the order of the ids. Muse Glimmer takes the
    ids as layers whose *input* is captured, unless the drafter's architecture is one of two
    (model_runner_components/spec_aux_hidden_state.py, _map_muse_target_layer_ids).
    """
    names = architectures if isinstance(architectures, list) else []
    by_input = (
        target is not None
        and target.config.get("model_type") == _MUSE
        and not any(name in _MUSE_BY_OUTPUT for name in names if isinstance(name, str))
    )
    return tuple(sorted(index - 1 if by_input else index for index in ids))


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
