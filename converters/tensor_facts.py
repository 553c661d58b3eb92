"""Facts that tensor names, shapes and dtypes state: biases, own matrices, vocabulary, dtype."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

from dflash_pack.accounting import LedgerBuilder
from dflash_pack.checkpoint import DTYPE_NAMES, Contents, TensorSpec
from dflash_pack.converters.reading import CONFIG, ConfigCursor
from dflash_pack.converters.side_files import MASK_EMBEDDING, QUANT_CONFIG
from dflash_pack.drafter import Dflash2Parts, Geometry, Parts, Quantization, Vocabulary
from dflash_pack.errors import CheckpointError, ContradictionError, UsageError

# Integers would be loaded as numbers.
_WEIGHT_DTYPES = tuple(DTYPE_NAMES)
_MAP_DTYPES: Mapping[str, tuple[str, ...]] = {"d2t": ("I64",), "t2d": ("BOOL",)}
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
_CORE = re.compile(
    r"(fc|hidden_norm|norm)\.weight"
    r"|layers\.\d{1,4}\.(input_layernorm|post_attention_layernorm)\.weight"
    r"|layers\.\d{1,4}\.self_attn\.((q|k|v|o)_proj\.(weight|bias)|(q|k)_norm\.weight)"
    r"|layers\.\d{1,4}\.mlp\.(gate|up|down)_proj\.weight"
    r"|layers\.\d{1,4}\.self_attn\.attention_sink_bias"
    r"|(embed_tokens|lm_head)\.weight|d2t|t2d"
    # DFlash2
    r"|layers\.\d{1,4}\.(attention|mlp)_conv\.(base_kernel|kernel_projection\.weight)"
    r"|candidate_selector\.((predecessor|successor)_codebook|hidden_projection\.weight)"
    # DSpark
    r"|markov_head\.(markov_w[12]\.weight|(gate|joint)_proj\.(weight|bias))"
    r"|confidence_head\.proj\.(weight|bias)"
    # Laguna; fused rows also stand for the parts they are split into
    r"|layers\.\d{1,4}\.self_attn\.(qkv|g)_proj\.weight|layers\.\d{1,4}\.mlp\.gate_up_proj\.weight"
    r"|aux_hidden_norms\.\d{1,4}\.weight"
)
# What the quantisers of ModelOpt, compressed-tensors, AWQ and GPTQ put beside or in place of a
# module's weight.
_QUANTISED = re.compile(
    r"(fc|lm_head|embed_tokens|markov_head\.markov_w[12]|confidence_head\.proj"
    r"|candidate_selector\.hidden_projection"
    r"|layers\.\d{1,4}\.(self_attn\.(q|k|v|o|g|qkv)_proj|mlp\.(gate|up|down|gate_up)_proj"
    r"|(attention|mlp)_conv\.kernel_projection))"
    r"\.(weight_(packed|scale|scale_2|scale_inv|global_scale|zero_point|shape|g_idx)"
    r"|input_scale|input_global_scale|(k|v|q)_scale|pre_quant_scale"
    r"|qweight|qzeros|scales|g_idx)"
)
_FUSED: Mapping[str, tuple[str, ...]] = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
_SINKS = re.compile(r"attention_sink_bias")
# What plain DFlash has none of: DFlash2, DSpark, Domino, XPress, Laguna, Muse Glimmer, TorchSpec.
_RELATIVE = re.compile(
    r"candidate_selector\.|(attention|mlp)_conv\."
    r"|markov_|confidence_"
    r"|prefix_gru\.|embed_proj\."
    r"|refiner_head\."
    r"|self_attn\.g_proj\.|aux_hidden_norms\."
    r"|encoder\.fc\."
    r"|context_proj\.|context_norm\."
)


def cast_code(dtype: str | None) -> str | None:
    """Return the safetensors code of the dtype that weights are cast to, None for no cast.

    Raises:
        UsageError: If it is none that engines run drafters in.
    """
    if dtype is None:
        return None
    codes = {name: code for code, name in DTYPE_NAMES.items() if code != "F64"}
    try:
        return codes[dtype]
    except KeyError:
        raise UsageError(
            f"--dtype {dtype} is none that weights are cast to",
            remedy=f"Use one of {', '.join(codes)}",
        ) from None


def is_drafter_tensor(name: str) -> bool:
    """Return whether ``name`` is a tensor of DFlash or of a relative that is converted."""
    return _CORE.fullmatch(name) is not None


def is_quantised_part(name: str) -> bool:
    """Return whether ``name`` is a scale, packed weight or index of a quantised module."""
    return _QUANTISED.fullmatch(name) is not None


def account_fused_rows(
    names: dict[str, str | None], geometry: Geometry, ledger: LedgerBuilder
) -> dict[str, tuple[tuple[str, int], ...]]:
    """Move fused projections out of ``names`` and return what they are split into, by rows.

    Args:
        names: Source tensor -> canonical name; loses the fused ones.
        geometry: Sizes: q has A*D rows, k and v K*D each, gate and up I each.
        ledger: Receives what became of them.
    """
    queries = geometry.num_attention_heads * geometry.head_dim
    groups = geometry.num_key_value_heads * geometry.head_dim
    rows = {
        "self_attn.qkv_proj": (queries, groups, groups),
        "mlp.gate_up_proj": (geometry.intermediate_size,) * 2,
    }
    splits: dict[str, tuple[tuple[str, int], ...]] = {}
    for source, canonical in list(names.items()):
        for fused, parts in _FUSED.items():
            end = f".{fused}.weight"
            if canonical is None or not canonical.endswith(end):
                continue
            start = canonical.removesuffix(end)
            split = zip((f"{start}.{part}.weight" for part in parts), rows[fused], strict=True)
            splits[source] = tuple(split)
            del names[source]
            ledger.map("tensor", source, " + ".join(name for name, _ in splits[source]))
            break
    return splits


def read_quantization(
    cursor: ConfigCursor, contents: Contents, *, allowed: bool
) -> Quantization | None:
    """Return how the weights are quantised, None where nothing says that they are.

    Raises:
        CheckpointError: If they are and the format's exports can't be.
    """
    stated = cursor.agree("quantization", "quantization_config")
    side_file = QUANT_CONFIG in contents.side_files
    if stated is None and not side_file:
        return None
    if not allowed:
        raise CheckpointError(
            "is stated, and this format has no quantised drafters",
            where=CONFIG,
            field="quantization_config",
            remedy="Pass --from with the format it is in, or export the drafter unquantised",
        )
    return Quantization.freeze(stated or {}, side_file=side_file)


def has_relatives_tensors(contents: Contents) -> bool:
    """Return whether tensors are there that plain DFlash has none of."""
    return any(_RELATIVE.search(name) for name in contents.tensors)


def has_sinks(contents: Contents) -> bool:
    """Return whether attention sinks are among the tensors."""
    return any(_SINKS.search(name) for name in contents.tensors)


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
    parts: Parts | None,
) -> Vocabulary:
    """Return vocabulary sizes and whose matrices are used.

    Raises:
        CheckpointError: If the draft vocabulary is larger than the vocabulary, the mask token
            lies outside it, or DFlash2's selector has not all of its candidates.
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
    if isinstance(parts, Dflash2Parts):
        _check_candidates(parts, size, draft_size, size_key, draft_key)
    return Vocabulary(
        size=size,
        draft_size=draft_size,
        mask_token_id=mask_token_id,
        embedding="own" if EMBEDDING in tensors else "target",
        head="own" if HEAD in tensors else "target",
        mask_embedding=MASK_EMBEDDING in contents.side_files,
    )


def _check_candidates(
    parts: Dflash2Parts, size: int, draft_size: int, size_key: str, draft_key: str
) -> None:
    """Refuse a selector whose candidates are not the vocabulary's.

    The library builds none (speculators 0.9, models/dflash2/core.py); vLLM looks up the head's rows
    as the target's tokens, without ``d2t`` (vllm 0.32, models/qwen3_dflash2.py).

    Raises:
        CheckpointError: If that is so.
    """
    if draft_size != size:
        raise CheckpointError(
            f"is {draft_size} of {size} tokens ({size_key}), and DFlash2 has no reduced vocabulary",
            where=CONFIG,
            field=draft_key,
            remedy="Export the drafter with the target's whole vocabulary",
        )
    if parts.selector_top_k > size:
        raise CheckpointError(
            f"{parts.selector_top_k} is more than the {size} tokens there are ({size_key})",
            where=CONFIG,
            field="selector_top_k",
            remedy="State the number that the drafter was trained with",
        )


def read_dtype(
    cursor: ConfigCursor,
    contents: Contents,
    names: Mapping[str, str | None],
    *keys: str,
    quantised: bool = False,
    checked: bool = True,
) -> str:
    """Return the safetensors dtype code that most weight bytes have, quantised ones left out.

    Args:
        cursor: The config.
        contents: The source.
        names: Source tensor -> canonical name.
        keys: Config keys that state a dtype.
        quantised: Whether packed weights and scales of other dtypes are in order.
        checked: Whether a stated dtype must be that of the tensors; False for producers that are
            known to state another one. Engines load the draft in the target's dtype (vllm 0.32).

    Raises:
        CheckpointError: If weights are of a dtype that engines would take for numbers.
        ContradictionError: If the config states another dtype.
    """
    weight: Counter[str] = Counter()
    for name, spec in canonical_tensors(contents, names).items():
        allowed = _MAP_DTYPES.get(name, _WEIGHT_DTYPES)
        if spec.dtype not in allowed and not (quantised and name not in _MAP_DTYPES):
            raise CheckpointError(
                f"is of dtype {spec.dtype}, but {' or '.join(allowed)} is needed",
                where="the weights",
                field=name,
                remedy="Export the drafter unquantised; engines would take the bits for numbers",
            )
        if name not in _MAP_DTYPES and spec.dtype in _WEIGHT_DTYPES:
            weight[spec.dtype] += prod(spec.shape)
    if not weight:
        raise CheckpointError("holds no tensor of a DFlash drafter", where="the weights")
    found = weight.most_common(1)[0][0]
    _account_dtype(cursor, keys, found, checked=checked and not quantised)
    return found


def _account_dtype(cursor: ConfigCursor, keys: Sequence[str], found: str, *, checked: bool) -> None:
    """Account for the stated dtypes; one that is not what most weights have is an error or told.

    Raises:
        ContradictionError: If ``checked`` and one differs.
    """
    for key in keys:
        if key not in cursor.flat:
            continue
        cursor.ledger.drop("config key", key, "written anew from the tensors")
        stated = cursor.flat[key]
        if stated is None or str(stated).removeprefix("torch.") == DTYPE_NAMES[found]:
            continue
        if checked:
            raise ContradictionError(
                "dtype",
                (key, str(stated)[:40]),
                ("the weights", DTYPE_NAMES[found]),
                where=CONFIG,
                remedy=f"Pass --set {key}={DTYPE_NAMES[found]} if the weights are right",
            )
        cursor.notes.append(
            f"{key} is {str(stated)[:40]}, but most weights are {DTYPE_NAMES[found]}: the tensors "
            "count."
        )
