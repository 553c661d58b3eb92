"""NVIDIA's Nemotron drafters: an embedding of their own, both lists of layer ids, no block size."""

from __future__ import annotations

from dflash_pack.checkpoint import Contents
from dflash_pack.converters.native import NativeDialect, native_cursor, read_native
from dflash_pack.converters.reading import CONFIG, ConfigCursor, Reading
from dflash_pack.converters.tensor_facts import EMBEDDING, HEAD
from dflash_pack.errors import ContradictionError
from dflash_pack.schemas.nemotron import HARMLESS, NemotronConfig

NAME = "nemotron"
DIALECT = NativeDialect(
    name=NAME,
    schema=NemotronConfig,
    harmless=HARMLESS,
    mask_keys=("dflash_config.mask_token_id", "mask_token_id", "pard_token"),
    captured_count_keys=("num_aux_layers",),
    causal_keys=("is_causal", "dflash_config.causal", "dflash_query_causal"),
)
_DSPARK = (
    "A Nemotron drafter with a Markov head is not converted; pass --set {key}=null if it has none"
)


def detect(contents: Contents) -> bool:
    """Return whether the config says whose embedding it brings and names layers the other way."""
    config = contents.config
    return (
        "has_embed_tokens" in config
        and "eagle_aux_hidden_state_layer_ids" in config
        and "speculators_model_type" not in config
    )


def read(contents: Contents) -> Reading:
    """Return the meaning of a Nemotron drafter.

    Raises:
        ContradictionError: If the config says that a matrix is there and it isn't, or the reverse.
        DflashPackError: As :func:`dflash_pack.converters.native.read_native`.
    """
    cursor = native_cursor(contents, DIALECT)
    for key in ("dspark_markov_rank", "dspark_fixup_head_type"):
        if cursor.flat.get(key) not in (None, 0):
            cursor.neutral("family", None, key, remedy=_DSPARK.format(key=key))
        cursor.agree("family", key)
    _require_matrix(cursor, contents, "has_embed_tokens", EMBEDDING)
    _require_matrix(cursor, contents, "has_lm_head", HEAD)
    return read_native(contents, DIALECT, cursor=cursor)


def _require_matrix(cursor: ConfigCursor, contents: Contents, key: str, tensor: str) -> None:
    stated = cursor.agree("own matrices", key)
    if stated is not None and bool(stated) != (tensor in contents.tensors):
        raise ContradictionError(
            tensor,
            (key, stated),
            ("the weights", tensor if tensor in contents.tensors else "no such tensor"),
            where=CONFIG,
            remedy="Export the drafter again",
        )
