"""NVIDIA NeMo AutoModel's DFlash, JetSpec's causal variant included."""

from __future__ import annotations

from dflash_pack.checkpoint import Contents
from dflash_pack.converters.native import NativeDialect, architectures, read_native
from dflash_pack.converters.reading import Reading

NAME = "automodel"
ARCHITECTURE = "Qwen3DFlashDraftModel"
DIALECT = NativeDialect(
    name=NAME,
    architectures=(ARCHITECTURE, "DFlashDraftModel"),
    # Its draft layers are transformers' Qwen3 ones, whose rope knows no partial factor.
    partial_rotary="ignored",
)


def detect(contents: Contents) -> bool:
    """Return whether the architecture is AutoModel's, which engines don't know by that name."""
    return architectures(contents) == (ARCHITECTURE,)


def read(contents: Contents) -> Reading:
    """Return the meaning of an AutoModel drafter.

    Raises:
        DflashPackError: As :func:`dflash_pack.converters.native.read_native`.
    """
    return read_native(contents, DIALECT)
