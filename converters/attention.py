"""Window of each draft layer, out of the keys that configs state it with."""

from __future__ import annotations

from dflash_pack.converters.reading import CONFIG, ConfigCursor
from dflash_pack.errors import CheckpointError, ContradictionError

SLIDING = "sliding_attention"
FULL = "full_attention"


def read_windows(
    cursor: ConfigCursor,
    layers: int,
    *,
    prefix: str = "",
    use_swa_key: str | None = None,
    swa_window_key: str | None = None,
    absent_switch_means_sliding: bool,
) -> tuple[int | None, ...]:
    """Return the window of each draft layer, None for full attention.

    ``layer_types`` says which layers slide; absent, it follows from ``use_sliding_window`` and
    ``max_window_layers`` as in transformers 5 (Qwen3Config.__post_init__). ``use_swa`` puts a
    window on every layer when none slides by ``layer_types`` (ModelOpt 0.47 exports; vllm 0.32,
    models/qwen3_dflash.py, _resolve_layer_attention).

    Args:
        cursor: The config.
        layers: Number of draft layers.
        prefix: Dotted prefix of the section.
        use_swa_key: Key of ``use_swa``, where the format has it.
        swa_window_key: Key of ``swa_window_size``, where the format has it.
        absent_switch_means_sliding: What a missing ``use_sliding_window`` means when layers slide:
            True where the serving engine reads the keys as they are (vLLM's Speculators path),
            False where they pass through Qwen3Config, whose default nulls the window.

    Raises:
        CheckpointError: If a sliding layer has no window or ``layer_types`` has the wrong length.
        ContradictionError: If keys disagree on whether layers slide or how far.
    """
    types_key, window_key = f"{prefix}layer_types", f"{prefix}sliding_window"
    switch_key, first_key = f"{prefix}use_sliding_window", f"{prefix}max_window_layers"
    types = cursor.agree("attention window", types_key)
    switch = cursor.agree("attention window", switch_key)
    first = cursor.agree("attention window", first_key)
    use_swa = bool(cursor.agree("attention window", use_swa_key)) if use_swa_key else False
    if types is not None and len(types) != layers:
        raise CheckpointError(
            f"has {len(types)} entries for {layers} draft layers",
            where=CONFIG,
            field=types_key,
            remedy="Give one entry per draft layer",
        )
    sliding = _sliding_layers(types, layers, switch, first)
    if any(sliding) and types is not None and not use_swa:
        _check_switch(switch, switch_key, types_key, absent_switch_means_sliding)
    if use_swa and any(sliding) and not all(sliding):
        raise ContradictionError(
            "attention window",
            (str(use_swa_key), True),
            (types_key, types),
            where=CONFIG,
            remedy=f"Pass --set {use_swa_key}=false, or --set {types_key}=null for a window on "
            "every layer, as the drafter was trained",
        )
    if use_swa and not any(sliding):
        sliding = (True,) * layers
    names = [name for name in (swa_window_key, window_key) if name]
    if not any(sliding):
        for name in names:
            if name in cursor.flat:
                cursor.ledger.drop("config key", name, "no draft layer slides")
        return (None,) * layers
    window = cursor.agree("attention window", *names)
    if window is None:
        raise CheckpointError(
            "is not stated, but draft layers slide",
            where=CONFIG,
            field=window_key,
            remedy=f"Pass --set {window_key}=TOKENS, the window the drafter was trained with",
        )
    return tuple(int(window) if slides else None for slides in sliding)


def windows_are_forced(cursor: ConfigCursor, layers: int) -> bool:
    """Return whether windows come from ``use_swa`` alone, no layer sliding by its type."""
    flat = cursor.flat
    sliding = _sliding_layers(
        flat.get("layer_types"),
        layers,
        flat.get("use_sliding_window"),
        flat.get("max_window_layers"),
    )
    return bool(flat.get("dflash_config.use_swa")) and not any(sliding)


def _sliding_layers(
    types: list[str] | None, layers: int, switch: bool | None, first: int | None
) -> tuple[bool, ...]:
    if types is not None:
        return tuple(kind == SLIDING for kind in types)
    if not switch:
        return (False,) * layers
    # transformers 5.19, Qwen3Config: layers from max_window_layers on slide; its default is 28.
    start = 28 if first is None else first
    return tuple(index >= start for index in range(layers))


def _check_switch(
    switch: bool | None, switch_key: str, types_key: str, absent_means_sliding: bool
) -> None:
    if switch is False:
        raise ContradictionError(
            "attention window",
            (types_key, "sliding_attention"),
            (switch_key, False),
            where=CONFIG,
            remedy=f"Pass --set {switch_key}=true if the drafter was trained with the window",
        )
    if switch is None and not absent_means_sliding:
        raise CheckpointError(
            "is not stated, and its default (false) makes transformers drop the window of the "
            "layers that layer_types calls sliding",
            where=CONFIG,
            field=switch_key,
            remedy=f"Pass --set {switch_key}=true if the drafter was trained with the window",
        )
