"""Xiaomi's MiMo drafters: a mask embedding of their own, attention sinks, a scale on values."""

from __future__ import annotations

from dflash_pack.checkpoint import Contents
from dflash_pack.converters.native import (
    NativeDialect,
    is_plain,
    native_cursor,
    read_native,
    states,
)
from dflash_pack.converters.reading import Reading
from dflash_pack.converters.side_files import MASK_EMBEDDING
from dflash_pack.converters.tensor_facts import has_sinks
from dflash_pack.schemas.mimo import HARMLESS, MimoConfig

NAME = "mimo"
DIALECT = NativeDialect(name=NAME, schema=MimoConfig, harmless=HARMLESS, partial_rotary="applied")
_MARKS = (
    "dflash_config.attention_value_scale",
    "dflash_config.attention_sink_bias",
    "attention_value_scale",
)
# What other trainers always write, and MiMo's never.
_OTHERS = ("eagle_aux_hidden_state_layer_ids", "has_embed_tokens", "training_state")


def detect(contents: Contents) -> bool:
    """Return whether a plain drafter has what only MiMo's trainer adds.

    ModelOpt writes sinks too, but always an explicit ``dflash_config.causal`` with torch's dtype.
    """
    config = contents.config
    if not is_plain(contents) or any(name in config for name in _OTHERS):
        return False
    if states(contents, "dflash_config.causal") and "torch_dtype" in config:
        return False
    marked = any(states(contents, key) for key in _MARKS)
    return marked or MASK_EMBEDDING in contents.side_files or has_sinks(contents)


def read(contents: Contents) -> Reading:
    """Return the meaning of a MiMo drafter; ``partial_rotary_factor`` is meant as stated.

    Raises:
        ContradictionError: If value heads have another size than the others: no engine's do.
        DflashPackError: As :func:`dflash_pack.converters.native.read_native`.
    """
    cursor = native_cursor(contents, DIALECT)
    cursor.same("head size", contents.config.get("head_dim"), "head_dim", "v_head_dim")
    return read_native(contents, DIALECT, cursor=cursor)
