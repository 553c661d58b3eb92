"""What each written form can't carry to the engines, said before anything is written."""

from __future__ import annotations

from itertools import groupby

from dflash_pack.drafter import Drafter, DraftLayer


def speculators_form_problems(drafter: Drafter) -> tuple[str, ...]:
    """Return why a pure Speculators checkpoint can't carry ``drafter`` to vLLM; empty = it can.

    vLLM turns ``sliding_window_non_causal`` into one causality for all layers (vllm 0.32 and 0.33,
    configs/speculators/algos.py, update_dflash; models/qwen3_dflash.py, _dflash_layer_causal).
    """
    problems = list(_any_form_problems(drafter))
    if not problems and drafter.causality is None:
        problems.append(
            f"{describe_runs(drafter.layers)}; vLLM 0.33 gives one causality to all layers of a "
            "Speculators config. Use --format native; one form for both (universal) comes later."
        )
    return tuple(problems)


def native_form_problems(drafter: Drafter) -> tuple[str, ...]:
    """Return why native keys (--format native, --format universal) can't carry ``drafter``."""
    return _any_form_problems(drafter)


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


def _any_form_problems(drafter: Drafter) -> tuple[str, ...]:
    problems: list[str] = []
    windows = sorted({layer.window for layer in drafter.layers if layer.window is not None})
    if len(windows) > 1:
        problems.append(f"Layers have windows of {windows} tokens; no form states more than one.")
    by_type = all(layer.causal == layer.sliding for layer in drafter.layers)
    if drafter.causality is None and not by_type:
        problems.append(
            f"{describe_runs(drafter.layers)}; no form states causality per layer other than "
            "sliding layers causal and full layers bidirectional."
        )
    if drafter.sample_from_anchor:
        problems.append(
            "The anchor row predicts too (sample_from_anchor); vLLM 0.33 refuses that for DFlash "
            "in every form."
        )
    return tuple(problems)
