"""What each written form can't carry to the engines, said before anything is written."""

from __future__ import annotations

from itertools import groupby

from dflash_pack.drafter import Drafter, DraftLayer

_UNIVERSAL = "Use --format universal."


def speculators_form_problems(drafter: Drafter) -> tuple[str, ...]:
    """Return why a pure Speculators checkpoint can't carry ``drafter`` to vLLM; empty = it can.

    vLLM turns ``sliding_window_non_causal`` into one causality for all layers, and makes
    ``dflash_config`` itself, so what else stands there is lost (vllm 0.32 and 0.33,
    configs/speculators/algos.py, update_dflash; models/qwen3_dflash.py, _dflash_layer_causal).
    """
    problems = list(_any_form_problems(drafter))
    if drafter.family == "laguna":
        problems.append(_laguna("Speculators"))
    by_type = drafter.family == "dspark" and causal_by_type(drafter)
    if not problems and drafter.causality is None and not by_type:
        problems.append(
            f"{describe_runs(drafter.layers)}; vLLM 0.33 gives one causality to all layers of a "
            f"Speculators config. {_UNIVERSAL}"
        )
    problems += [
        f"{what}, which vLLM 0.33 does not take from a Speculators config. {_UNIVERSAL}"
        for what in _extras(drafter)
    ]
    if drafter.rope.partial_rotary_factor != 1.0:
        problems.append(
            f"Rope turns {drafter.rope.partial_rotary_factor} of each head; vLLM does that, and "
            f"the Speculators library turns whole heads. {_UNIVERSAL}"
        )
    return tuple(problems)


def native_form_problems(drafter: Drafter) -> tuple[str, ...]:
    """Return why native keys (--format native) can't carry ``drafter``; empty = they can."""
    problems = list(_any_form_problems(drafter))
    if -1 in drafter.target_layer_ids:
        problems.append(
            "The embedding output is captured (Speculators id 0), which the native form can't "
            "name. Use --format speculators."
        )
    return tuple(problems)


def universal_form_problems(drafter: Drafter) -> tuple[str, ...]:
    """Return why native and Speculators keys in one config can't carry ``drafter``."""
    problems = list(native_form_problems(drafter))
    if drafter.family == "laguna":
        problems.append(_laguna("universal"))
    return tuple(problems)


def causal_by_type(drafter: Drafter) -> bool:
    """Return whether layer types alone say the causality: sliding layers causal, full ones not."""
    return all(layer.causal == layer.sliding for layer in drafter.layers)


def describe_runs(layers: tuple[DraftLayer, ...]) -> str:
    """Return e.g. ``layers 0-3 are causal sliding, layer 4 is full and bidirectional``."""
    runs: list[str] = []
    start = 0
    for layer, group in groupby(layers):
        count = len(tuple(group))
        stop = start + count - 1
        where = f"layer {start} is" if count == 1 else f"layers {start}-{stop} are"
        runs.append(f"{where} {_manner(layer)}")
        start = stop + 1
    return ", ".join(runs)


def _manner(layer: DraftLayer) -> str:
    causality = "causal" if layer.causal else "bidirectional"
    return f"{causality} sliding" if layer.sliding else f"full and {causality}"


def _laguna(form: str) -> str:
    return (
        "Laguna's drafter normalises each captured state and gates its attention, which the "
        f"{form} form has no keys for. Use --format native."
    )


def _extras(drafter: Drafter) -> list[str]:
    """Return what stands in ``dflash_config`` of native files only, as beginnings of sentences."""
    found: list[str] = []
    if drafter.attention_sinks:
        found.append("Each head has a learned attention sink")
    if drafter.attention_value_scale != 1.0:
        found.append(f"Attention values are scaled by {drafter.attention_value_scale}")
    if drafter.input_embedding_scale != 1.0:
        found.append(f"Embeddings are scaled by {drafter.input_embedding_scale}")
    if drafter.output_multiplier != 1.0:
        found.append(f"Draft logits are scaled by {drafter.output_multiplier}")
    if drafter.family == "dflash2" and drafter.final_logit_softcapping is not None:
        found.append(f"Draft logits are capped at {drafter.final_logit_softcapping}")
    return found


def _any_form_problems(drafter: Drafter) -> tuple[str, ...]:
    problems: list[str] = []
    windows = sorted({layer.window for layer in drafter.layers if layer.window is not None})
    if len(windows) > 1:
        problems.append(f"Layers have windows of {windows} tokens; no form states more than one.")
    if drafter.causality is None and not causal_by_type(drafter):
        problems.append(
            f"{describe_runs(drafter.layers)}; no form states causality per layer other than "
            "sliding layers causal and full layers bidirectional."
        )
    if drafter.sample_from_anchor and drafter.family != "dspark":
        problems.append(
            "The anchor row predicts too (sample_from_anchor); vLLM 0.33 refuses that for DFlash "
            "in every form."
        )
    return tuple(problems)
