"""TorchSpec's drafters: other tensor names, counts that mean something else, no block size."""

from __future__ import annotations

from dflash_pack.checkpoint import Contents
from dflash_pack.converters.native import NativeDialect, read_native
from dflash_pack.converters.reading import Reading
from dflash_pack.schemas.torchspec import TorchSpecConfig

NAME = "torchspec"
DIALECT = NativeDialect(
    name=NAME,
    schema=TorchSpecConfig,
    model_types=("dflash", "qwen3"),
    renames={
        "context_proj.": "fc.",
        "context_norm.": "hidden_norm.",
        "final_norm.": "norm.",
    },
    depth_keys=("target_num_hidden_layers",),
    captured_count_keys=("num_target_layers",),
    # Attention is the trainer's own, over hidden_size / num_attention_heads channels a head.
    head_size_default="even",
    causal_default=False,
)


def detect(contents: Contents) -> bool:
    """Return whether the model type or the tensor names are TorchSpec's."""
    config = contents.config
    if "speculators_model_type" in config:
        return False
    named = any("context_proj." in name for name in contents.tensors)
    return named or (config.get("model_type") == "dflash" and "target_num_hidden_layers" in config)


def read(contents: Contents) -> Reading:
    """Return the meaning of a TorchSpec drafter.

    Its block size stands only in the run's own settings, so it must be stated.

    Raises:
        DflashPackError: As :func:`dflash_pack.converters.native.read_native`.
    """
    return read_native(contents, DIALECT)
