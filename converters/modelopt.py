"""NVIDIA ModelOpt's export of DFlash (0.47): explicit causality, windows by ``use_swa``."""

from __future__ import annotations

from dflash_pack.checkpoint import Contents
from dflash_pack.converters.native import NativeDialect, is_plain, read_native, states
from dflash_pack.converters.reading import Reading

NAME = "modelopt"
# Its draft layers are transformers' Qwen3 ones, whose rope knows no partial factor.
DIALECT = NativeDialect(name=NAME, partial_rotary="ignored")


def detect(contents: Contents) -> bool:
    """Return whether ModelOpt exported this drafter.

    It always writes ``dflash_config.causal`` and ``torch_dtype``, and never an ``auto_map``.
    """
    config = contents.config
    return (
        is_plain(contents)
        and states(contents, "dflash_config.causal")
        and "torch_dtype" in config
        and "auto_map" not in config
        and "eagle_aux_hidden_state_layer_ids" not in config
        and "training_state" not in config
    )


def read(contents: Contents) -> Reading:
    """Return the meaning of a ModelOpt export, quantised or not.

    Raises:
        DflashPackError: As :func:`dflash_pack.converters.native.read_native`.
    """
    return read_native(contents, DIALECT)
