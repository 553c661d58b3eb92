"""Which tensors of a checkpoint vLLM's DFlash loader takes, drops, refuses or silently misses.

Source: vllm 0.32.0 (run) and 0.33.0 (read), models/qwen3_dflash.py (load_weights) and
models/utils.py (AutoWeightsLoader). Missing tensors load without a word there, so they count as
refusals here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.drafter import DsparkParts
from dflash_pack.engines.tensor_set import (
    TensorFindings,
    compare_tensors,
    engine_shapes,
    is_quantised,
    name_some,
)
from dflash_pack.engines.vllm_config import DraftConfig

_ALIASES = {
    "midlayer.": "layers.0.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "encoder.fc.": "fc.",
}
_CONFIDENCE = "confidence_head."
_DROPPED = (
    "rotary_pos_emb.inv_freq",
    "rotary_emb.inv_freq",
    "rotary_emb.cos_cached",
    "rotary_emb.sin_cached",
    "mask_embedding",
)
_FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


@dataclass(frozen=True)
class VllmTensors:
    """What vLLM makes of the tensors.

    Attributes:
        own_embedding: Whether the file brings ``embed_tokens``.
        own_head: Whether the file brings ``lm_head``.
        ignored: Names it drops without a word.
        refusals: Sentences on tensors it refuses, and on those it misses without a word.
    """

    own_embedding: bool
    own_head: bool
    ignored: tuple[str, ...]
    refusals: tuple[str, ...]


def read_tensors(
    contents: Contents,
    config: DraftConfig,
    *,
    fc_columns: int | None,
    sinks: bool,
    target_vocab: int,
) -> VllmTensors:
    """Return what vLLM makes of the tensors of ``contents``.

    Args:
        contents: The files.
        config: The parsed draft config.
        fc_columns: Columns of ``fc``; None when the captured layers are unknown.
        sinks: Whether the layers have per-head attention sinks.
        target_vocab: Rows of the target's embedding.
    """
    names = set(contents.tensors)
    mapped = config.draft_vocab_size != target_vocab
    want = _wanted(config, fc_columns, sinks=sinks)
    optional = {
        "embed_tokens.weight": (config.vocab_size, config.geometry.hidden_size),
        "lm_head.weight": (config.draft_vocab_size, config.geometry.hidden_size),
    }
    known = frozenset((*want, *optional))
    have: dict[str, TensorSpec] = {}
    ignored: list[str] = []
    refusals: list[str] = []
    for name, spec in contents.tensors.items():
        if "mask_hidden" in name:
            refusals.append(
                f"vLLM's DFlash loader stops at {name}: it takes no mask_hidden weight."
            )
        elif "t2d" in name or any(part in name for part in _DROPPED):
            ignored.append(name)
        else:
            effective = _rename(name)
            if effective not in known and _is_stray_bias(effective, known):
                ignored.append(name)
            else:
                have[effective] = spec
    own_embedding = any("embed_tokens" in name for name in names)
    own_head = any("lm_head" in name for name in names)
    want |= {name: shape for name, shape in optional.items() if name in have}
    if not any(name.startswith(_CONFIDENCE) for name in have):
        # Without its tensors vLLM drops the confidence head.
        want = {name: shape for name, shape in want.items() if not name.startswith(_CONFIDENCE)}
    if mapped and "d2t" in have:
        want["d2t"] = (config.draft_vocab_size,)
    _use_fused(want, have)
    if fc_columns is None and "fc.weight" in have:
        want["fc.weight"] = have["fc.weight"].shape
    quantised = is_quantised(contents)
    refusals += _sentences(compare_tensors(have, want, quantised=quantised), mapped=mapped)
    refusals += _vocabulary_refusals(config, names, own_head=own_head, target_vocab=target_vocab)
    return VllmTensors(own_embedding, own_head, tuple(sorted(ignored)), tuple(refusals))


def _wanted(
    config: DraftConfig, fc_columns: int | None, *, sinks: bool
) -> dict[str, tuple[int, ...]]:
    parts = config.parts
    if isinstance(parts, DsparkParts):
        # vLLM builds the plain Markov head only (models/qwen3_dspark.py).
        parts = replace(parts, markov_head_type="vanilla")
    columns = fc_columns or config.target_hidden_size
    want = engine_shapes(
        config.geometry,
        config.num_hidden_layers,
        columns,
        parts=parts,
        vocabulary=(config.vocab_size, config.draft_vocab_size),
        captured=columns // config.target_hidden_size,
    )
    if sinks:
        heads = (config.geometry.num_attention_heads,)
        want |= {
            f"layers.{index}.self_attn.attention_sink_bias": heads
            for index in range(config.num_hidden_layers)
        }
    return want


def _rename(name: str) -> str:
    for old, new in _ALIASES.items():
        name = name.replace(old, new)
    return name


def _is_stray_bias(name: str, known: frozenset[str]) -> bool:
    # A bias without a parameter is skipped, but only inside a module that exists.
    module, _, kind = name.rpartition(".")
    inside = any(other.startswith(f"{module}.") for other in known)
    return bool(module) and kind == "bias" and inside


def _use_fused(want: dict[str, tuple[int, ...]], have: dict[str, TensorSpec]) -> None:
    # Fused projections are parameters of vLLM's module under their own names.
    for name in list(have):
        module, _, kind = name.rpartition(".")
        prefix, _, fused = module.rpartition("layers.")
        index, _, part = fused.partition(".")
        parts = [f"{prefix}layers.{index}.{piece}.{kind}" for piece in _FUSED.get(part, ())]
        if parts and all(piece in want for piece in parts):
            shapes = [want.pop(piece) for piece in parts]
            want[name] = (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _sentences(found: TensorFindings, *, mapped: bool) -> tuple[str, ...]:
    sentences: list[str] = []
    stray = [name for name in found.unexpected if name != "d2t"]
    if stray:
        sentences.append(f"vLLM refuses tensors it has no parameter for: {name_some(stray)}.")
    if "d2t" in found.unexpected and not mapped:
        sentences.append(
            "vLLM refuses d2t where the draft vocabulary is as large as the target's: it has no "
            "parameter for it."
        )
    if found.missing:
        sentences.append(
            f"Tensors are missing: {name_some(found.missing)}. vLLM loads without a word and "
            "drafts garbage."
        )
    return (*sentences, *found.misshapen)


def _vocabulary_refusals(
    config: DraftConfig, names: set[str], *, own_head: bool, target_vocab: int
) -> tuple[str, ...]:
    size = config.draft_vocab_size
    sentences: list[str] = []
    if size > max(target_vocab, config.vocab_size):
        sentences.append(f"draft_vocab_size is {size}, larger than the target's {target_vocab}.")
    if size < config.vocab_size and size != target_vocab:
        if "d2t" not in names:
            sentences.append(
                f"d2t is missing: vLLM loads without a word and takes draft ids 0-{size - 1} for "
                "the target's own."
            )
        if not own_head:
            sentences.append(
                f"lm_head.weight is missing: vLLM loads without a word and scores draft tokens "
                f"with the first {size} rows of the target's head."
            )
    return tuple(sentences)
