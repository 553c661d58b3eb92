"""transformers' Qwen3Config without transformers: what it checks, fills in and throws away.

vLLM's native path, Speculators' ``transformer_layer_config`` and z-lab's package all parse with it.
Source: transformers 5.19, models/qwen3/configuration_qwen3.py and configuration_utils.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dflash_pack.drafter import Geometry
from dflash_pack.engines.keys import Keys

MAX_LAYERS = 1024
SLIDING = "sliding_attention"
FULL = "full_attention"

_INT_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 32768,
}
_KV_HEADS = 32
_WINDOW = 4096
_MAX_WINDOW_LAYERS = 28
_RMS_NORM_EPS = 1e-6
_HIDDEN_ACT = "silu"

# Layer types of an attention layer; any that is not sliding runs as full attention in DFlash code.
_LAYER_TYPES = frozenset({SLIDING, FULL, "chunked_attention", "window_attention"})
_LEGACY_LAYER_TYPES: dict[str, str] = {"attention": FULL}


@dataclass(frozen=True)
class Qwen3Fields:
    """The fields of a parsed Qwen3Config that a drafter's function depends on.

    Attributes:
        geometry: Sizes, with defaults filled in.
        num_hidden_layers: L, number of draft layers.
        vocab_size: Rows of the embedding.
        layer_types: One name per layer.
        sliding_window: Window in tokens; None unless ``use_sliding_window`` is true.
    """

    geometry: Geometry
    num_hidden_layers: int
    vocab_size: int
    layer_types: tuple[str, ...]
    sliding_window: int | None


def parse_qwen3(keys: Keys) -> tuple[Qwen3Fields | None, tuple[str, ...]]:
    """Return the parsed fields, or sentences why Qwen3Config refuses the section.

    The class checks types strictly: ``1`` is no float, ``64.0`` no int, null only where it may be.
    """
    problems: list[str] = []

    def typed(name: str, kinds: tuple[type, ...], default: Any, *, nullable: bool = False) -> Any:
        value = keys.get(name) if keys.has(name) else default
        if value is None and nullable:
            return None
        # A bool is an int to Python, but not to the class.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            problems.append(
                f"{keys.prefix}{name} is {value!r}, and transformers' Qwen3Config wants {wanted}."
            )
            return default
        return value

    ints = {name: typed(name, (int,), default) for name, default in _INT_DEFAULTS.items()}
    problems += [
        f"{keys.prefix}{name} is {value}, which is not a positive number."
        for name, value in ints.items()
        if value <= 0
    ]
    kv_heads = typed("num_key_value_heads", (int,), _KV_HEADS, nullable=True)
    use_window = typed("use_sliding_window", (bool,), False)
    window = typed("sliding_window", (int,), _WINDOW, nullable=True)
    if not use_window:
        # The class throws the window away, so the key counts as ignored.
        window = None
        keys.forget("sliding_window")
    layer_types, type_problems = _layer_types(keys, ints["num_hidden_layers"], window)
    geometry = Geometry(
        hidden_size=ints["hidden_size"],
        intermediate_size=ints["intermediate_size"],
        num_attention_heads=ints["num_attention_heads"],
        num_key_value_heads=ints["num_attention_heads"] if kv_heads is None else kv_heads,
        head_dim=ints["head_dim"],
        rms_norm_eps=typed("rms_norm_eps", (float,), _RMS_NORM_EPS),
        hidden_act=typed("hidden_act", (str,), _HIDDEN_ACT),
        max_position_embeddings=ints["max_position_embeddings"],
        attention_bias=typed("attention_bias", (bool,), False),
    )
    problems += type_problems
    if problems:
        return None, tuple(problems)
    fields = Qwen3Fields(
        geometry, ints["num_hidden_layers"], ints["vocab_size"], layer_types, window
    )
    return fields, ()


def check_layer_types(
    value: object, count: object, where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return ``layer_types`` with old names replaced, and sentences on what is wrong with it.

    Every config class of transformers runs this check (``validate_layer_type``), so vLLM's
    Speculators path does too.

    Args:
        value: The list from the file.
        count: ``num_hidden_layers``; the length is checked only where it is a number.
        where: Dotted prefix for the sentences.
    """
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return (), (f"{where}layer_types is not a list of names.",)
    stated = [str(name) for name in value]
    names = tuple(_LEGACY_LAYER_TYPES.get(name, name) for name in stated)
    unknown = sorted(set(names) - _LAYER_TYPES)
    if unknown:
        return (), (f"{where}layer_types holds {unknown[0]!r}, which no DFlash layer can be.",)
    if isinstance(count, int) and len(names) != count:
        text = f"{where}layer_types has {len(names)} entries for {count} layers."
        return (), (text,)
    return names, ()


def _layer_types(
    keys: Keys, count: int, window: int | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    stated = keys.get("layer_types")
    if stated is not None:
        return check_layer_types(stated, count, keys.prefix)
    first = keys.get("max_window_layers", _MAX_WINDOW_LAYERS)
    if not isinstance(first, int) or isinstance(first, bool):
        return (), (f"{keys.prefix}max_window_layers is {first!r}, not a whole number.",)
    # An absurd layer count must not build an absurd tuple.
    if count > MAX_LAYERS:
        return (), (f"{keys.prefix}num_hidden_layers is {count}, more than {MAX_LAYERS}.",)
    return tuple(
        SLIDING if window is not None and index >= first else FULL for index in range(count)
    ), ()
