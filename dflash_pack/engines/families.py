"""The sizes of what a relative adds to plain DFlash, out of the keys that engines read them from.

Source: vllm 0.32.0, models/qwen3_dflash2.py, qwen3_dspark.py and laguna.py; dflash 0.1.0, model.py.
"""

from __future__ import annotations

from collections.abc import Callable

from dflash_pack.drafter import Dflash2Parts, DsparkParts, Gating, LagunaParts, MarkovHead

Get = Callable[[str], object]
_DFLASH2 = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_MARKOV_HEADS: tuple[MarkovHead, ...] = ("vanilla", "gated", "rnn")


def dflash2_parts(
    get: Get, *, hidden_size: int, engine: str
) -> tuple[Dflash2Parts | None, tuple[str, ...]]:
    """Return DFlash2's sizes, or sentences why ``engine`` can't build it.

    Args:
        get: Returns the value of a key where the engine looks for it, None where absent.
        hidden_size: H, which the groups of a convolution must share out evenly.
        engine: Name for the sentences.
    """
    sizes = {name: get(name) for name in _DFLASH2}
    bad = [name for name, value in sizes.items() if not _is_size(value)]
    if bad:
        return None, tuple(
            f"{name} is {sizes[name]!r}: {engine} can't build DFlash2 without it." for name in bad
        )
    numbers = {name: value for name, value in sizes.items() if isinstance(value, int)}
    if hidden_size % numbers["conv_group_size"]:
        text = f"conv_group_size {numbers['conv_group_size']} does not divide {hidden_size}."
        return None, (text,)
    return Dflash2Parts(**numbers), ()


def dspark_parts(
    get: Get, *, engine: str, markov_optional: bool = False
) -> tuple[DsparkParts | None, tuple[str, ...]]:
    """Return DSpark's sizes, or sentences why ``engine`` can't build it.

    Args:
        get: Returns the value of a key where the engine looks for it, None where absent.
        engine: Name for the sentences.
        markov_optional: Whether it builds the drafter without Markov head at rank 0.
    """
    rank, kind = get("markov_rank"), get("markov_head_type")
    without = markov_optional and rank == 0 and not isinstance(rank, bool)
    if not isinstance(rank, int) or not (without or _is_size(rank)):
        return None, (f"markov_rank is {rank!r}: {engine} can't build the Markov head.",)
    head = next((name for name in _MARKOV_HEADS if name == (kind or "vanilla")), None)
    if head is None:
        return None, (f"markov_head_type is {kind!r}, which {engine} does not know.",)
    confidence = bool(get("enable_confidence_head"))
    with_markov = bool(get("confidence_head_with_markov")) and confidence
    if without and with_markov:
        text = f"{engine} can't build a confidence head over a Markov head of rank 0."
        return None, (text,)
    return DsparkParts(rank, head, confidence, with_markov), ()


def laguna_parts(get: Get) -> tuple[LagunaParts | None, tuple[str, ...]]:
    """Return Laguna's gating, or why its drafter can't be built."""
    stated = get("gating")
    gating: Gating = "per-head" if stated is True or stated == "per-head" else "per-element"
    if not stated:
        return None, (f"gating is {stated!r}: the drafter would be built without its gates.",)
    return LagunaParts(gating), ()


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
