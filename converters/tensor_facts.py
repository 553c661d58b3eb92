"""Facts that tensor names, shapes and dtypes state: biases, own matrices, vocabulary, dtype."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from math import prod

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.converters.reading import CONFIG, ConfigCursor
from dflash_pack.converters.side_files import MASK_EMBEDDING
from dflash_pack.drafter import Vocabulary
from dflash_pack.errors import CheckpointError

# Quantised weights are a matter of another converter; integers would be loaded as numbers.
_WEIGHT_DTYPES = ("BF16", "F16", "F32", "F64")
_MAP_DTYPES: Mapping[str, tuple[str, ...]] = {"d2t": ("I64",), "t2d": ("BOOL",)}
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
_CORE = re.compile(
    r"(fc|hidden_norm|norm)\.weight"
    r"|layers\.\d{1,4}\.(input_layernorm|post_attention_layernorm)\.weight"
    r"|layers\.\d{1,4}\.self_attn\.((q|k|v|o)_proj\.(weight|bias)|(q|k)_norm\.weight)"
    r"|layers\.\d{1,4}\.mlp\.(gate|up|down)_proj\.weight"
    r"|(embed_tokens|lm_head)\.weight|d2t|t2d"
)
# Marks of drafters of other families, with what they are: named instead of called unknown.
_RELATIVES: tuple[tuple[str, str], ...] = (
    (r"candidate_selector\.|(attention|mlp)_conv\.", "DFlash2"),
    (r"markov_|confidence_", "DSpark"),
    (r"prefix_gru\.|embed_proj\.", "Domino"),
    (r"refiner_head\.", "XPress"),
    (r"g_proj\.|aux_hidden_norms\.|\.qkv_proj\.", "Laguna"),
    (r"encoder\.fc\.", "Muse Glimmer"),
    (r"context_proj\.|context_norm\.", "TorchSpec"),
    (r"attention_sink_bias", "MiMo-style attention sinks"),
)


def is_drafter_tensor(name: str) -> bool:
    """Return whether ``name`` is a tensor of plain DFlash."""
    return _CORE.fullmatch(name) is not None


def relative_of(names: Mapping[str, object]) -> str | None:
    """Return the family that foreign tensor names belong to, None where none is recognised."""
    for pattern, family in _RELATIVES:
        if any(re.search(pattern, name) for name in names):
            return family
    return None


def has_biases(contents: Contents) -> bool:
    """Return whether attention biases are among the tensors."""
    return any(re.search(r"self_attn\.[qkvo]_proj\.bias$", name) for name in contents.tensors)


def canonical_tensors(contents: Contents, names: Mapping[str, str | None]) -> dict[str, TensorSpec]:
    """Return canonical name -> spec of the tensors that are carried on."""
    return {to: contents.tensors[name] for name, to in names.items() if to is not None}


def read_vocabulary(
    cursor: ConfigCursor,
    contents: Contents,
    names: Mapping[str, str | None],
    *,
    size_key: str,
    draft_key: str,
    mask_token_id: int,
) -> Vocabulary:
    """Return vocabulary sizes and whose matrices are used.

    Raises:
        CheckpointError: If the draft vocabulary is larger than the vocabulary, or the mask token
            lies outside it.
    """
    size = cursor.agree("vocab_size", size_key)
    draft_size = cursor.agree("draft_vocab_size", draft_key) or size
    tensors = canonical_tensors(contents, names)
    if draft_size > size:
        raise CheckpointError(
            f"{draft_size} is more than {size_key} {size}", where=CONFIG, field=draft_key
        )
    if mask_token_id >= size:
        raise CheckpointError(
            f"{mask_token_id} is outside the vocabulary of {size} ({size_key})",
            where=CONFIG,
            field="mask_token_id",
            remedy="State the id that the drafter was trained with",
        )
    return Vocabulary(
        size=size,
        draft_size=draft_size,
        mask_token_id=mask_token_id,
        embedding="own" if EMBEDDING in tensors else "target",
        head="own" if HEAD in tensors else "target",
        mask_embedding=MASK_EMBEDDING in contents.side_files,
    )


def read_dtype(
    cursor: ConfigCursor, contents: Contents, names: Mapping[str, str | None], *keys: str
) -> str:
    """Return the safetensors dtype code that most weight bytes have.

    The config's own ``dtype`` is not trusted: the tensors count, and engines load the draft in the
    target's dtype (vllm 0.32).
    """
    for key in keys:
        if key in cursor.flat:
            cursor.ledger.drop("config key", key, "written anew from the tensors")
    weight: Counter[str] = Counter()
    for name, spec in canonical_tensors(contents, names).items():
        allowed = _MAP_DTYPES.get(name, _WEIGHT_DTYPES)
        if spec.dtype not in allowed:
            raise CheckpointError(
                f"is of dtype {spec.dtype}, but {' or '.join(allowed)} is needed",
                where="the weights",
                field=name,
                remedy="Export the drafter unquantised; engines would take the bits for numbers",
            )
        if name not in _MAP_DTYPES:
            weight[spec.dtype] += prod(spec.shape)
    if not weight:
        raise CheckpointError("holds no tensor of a DFlash drafter", where="the weights")
    return weight.most_common(1)[0][0]
