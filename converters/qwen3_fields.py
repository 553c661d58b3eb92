"""The Qwen3 part of a drafter config, which every form states with the same keys."""

from __future__ import annotations

from typing import Literal

from dflash_pack.converters.reading import CONFIG, ConfigCursor
from dflash_pack.drafter import Geometry
from dflash_pack.errors import CheckpointError
from dflash_pack.schemas.qwen3 import Qwen3Fields

# Where no head size is stated: Qwen3Config's 128, or the hidden size shared out among the heads.
HeadSizeDefault = Literal["qwen3", "even"]
TokenIds = tuple[tuple[str, int | tuple[int, ...] | None], ...]

_BY_CLASS = "the default of transformers' Qwen3Config, which the trainers and engines use"


def read_geometry(
    cursor: ConfigCursor,
    parsed: Qwen3Fields,
    *,
    biases: bool,
    prefix: str = "",
    head_size: HeadSizeDefault = "qwen3",
) -> Geometry:
    """Return the sizes of the draft transformer.

    Args:
        cursor: The config.
        parsed: The same section, already validated: its required sizes are present.
        biases: Whether the checkpoint has bias tensors; the default of ``attention_bias``.
        prefix: Dotted prefix of the section.
        head_size: What the trainer's code takes where no head size is stated.

    Raises:
        CheckpointError: If no engine can build heads of these sizes.
    """
    for name in (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    ):
        cursor.agree(name, f"{prefix}{name}")
    heads, groups = parsed.num_attention_heads, parsed.num_key_value_heads
    if heads % groups:
        raise CheckpointError(
            f"{heads} heads can't share {groups} key-value heads evenly",
            where=CONFIG,
            field=f"{prefix}num_key_value_heads",
            remedy="Correct the file: engines refuse it",
        )
    if parsed.head_dim is not None and parsed.head_dim % 2:
        raise CheckpointError(
            f"{parsed.head_dim} is odd, and rope rotates pairs",
            where=CONFIG,
            field=f"{prefix}head_dim",
            remedy="Correct the file: engines refuse it",
        )
    stated_bias = cursor.agree("attention_bias", f"{prefix}attention_bias")
    return Geometry(
        hidden_size=parsed.hidden_size,
        intermediate_size=parsed.intermediate_size,
        num_attention_heads=parsed.num_attention_heads,
        num_key_value_heads=parsed.num_key_value_heads,
        head_dim=_head_size(cursor, parsed, f"{prefix}head_dim", head_size),
        rms_norm_eps=cursor.default(
            "rms_norm_eps", f"{prefix}rms_norm_eps", value=1e-6, source=_BY_CLASS
        ),
        hidden_act=cursor.default(
            "hidden_act", f"{prefix}hidden_act", value="silu", source=_BY_CLASS
        ),
        max_position_embeddings=cursor.default(
            "max_position_embeddings",
            f"{prefix}max_position_embeddings",
            value=32768,
            source=_BY_CLASS,
        ),
        attention_bias=biases if stated_bias is None else stated_bias,
    )


def read_token_ids(cursor: ConfigCursor, prefix: str = "") -> TokenIds:
    """Return the bos, eos and pad ids that the config states, in that order."""
    found: list[tuple[str, int | tuple[int, ...] | None]] = []
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = cursor.agree(name, f"{prefix}{name}")
        if value is not None:
            found.append((name, tuple(value) if isinstance(value, list) else value))
    return tuple(found)


def _head_size(
    cursor: ConfigCursor, parsed: Qwen3Fields, key: str, default: HeadSizeDefault
) -> int:
    if default == "qwen3":
        return int(cursor.default("head_dim", key, value=128, source=_BY_CLASS))
    even, rest = divmod(parsed.hidden_size, parsed.num_attention_heads)
    if parsed.head_dim is None and (rest or even % 2):
        raise CheckpointError(
            f"is not stated, and {parsed.hidden_size} channels make no whole, even head size for "
            f"{parsed.num_attention_heads} heads",
            where=CONFIG,
            field=key,
            remedy=f"Pass --set {key}=VALUE",
        )
    source = "hidden_size / num_attention_heads, as its trainer does"
    return int(cursor.default("head_dim", key, value=even, source=source))
