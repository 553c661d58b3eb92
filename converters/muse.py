"""Meta's Muse Glimmer assistant: plain DFlash under other tensor names, never causal."""

from __future__ import annotations

from dflash_pack.checkpoint import Contents
from dflash_pack.converters.native import NativeDialect, architectures, read_native
from dflash_pack.converters.reading import Reading

NAME = "muse"
ARCHITECTURE = "MuseGlimmerAssistantModel"
DIALECT = NativeDialect(
    name=NAME,
    architectures=(ARCHITECTURE, f"DFlash{ARCHITECTURE}"),
    model_types=("muse_glimmer_assistant", "qwen3"),
    renames={"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."},
    causal_default=False,
)


def detect(contents: Contents) -> bool:
    """Return whether the architecture or the encoder's tensor names are Muse Glimmer's."""
    if "speculators_model_type" in contents.config:
        return False
    named = any(ARCHITECTURE in name for name in architectures(contents))
    return named or any("encoder.fc." in name for name in contents.tensors)


def read(contents: Contents) -> Reading:
    """Return the meaning of a Muse Glimmer assistant.

    Its config states no vocabulary size, so it must be stated.

    Raises:
        DflashPackError: As :func:`dflash_pack.converters.native.read_native`.
    """
    return read_native(contents, DIALECT)
