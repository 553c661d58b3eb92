"""The meaning of a DFlash drafter: what it computes, whatever file format said so.

Every reader produces a :class:`Drafter`, every writer starts from one, and every engine's derived
meaning is compared with one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

RopeValue = bool | int | float | str | tuple[float, ...]
Sharing = Literal["target", "own"]
Family = Literal["dflash", "dflash2", "dspark", "laguna"]
MarkovHead = Literal["vanilla", "gated", "rnn"]
Gating = Literal["per-head", "per-element"]


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of the draft's own queries and keys.

    Attributes:
        kind: ``default``, ``linear``, ``dynamic``, ``yarn``, ``llama3``, ``longrope``.
        theta: Base period.
        extras: Further parameters of the kind (``factor``, ``beta_fast`` ...), sorted by name;
            a parameter that is absent is absent, never a guessed default.
        partial_rotary_factor: Share of each head that is rotated, 1.0 = all.
    """

    kind: str
    theta: float
    extras: tuple[tuple[str, RopeValue], ...] = ()
    partial_rotary_factor: float = 1.0

    @staticmethod
    def freeze(extras: Mapping[str, object]) -> tuple[tuple[str, RopeValue], ...]:
        """Return ``extras`` as sorted, hashable pairs; equal numbers compare equal."""
        frozen: list[tuple[str, RopeValue]] = []
        for name in sorted(extras):
            value = extras[name]
            if isinstance(value, list | tuple):
                frozen.append((name, tuple(float(item) for item in value)))
            elif isinstance(value, bool | int | float | str):
                frozen.append((name, value))
            else:
                raise TypeError(f"rope parameter {name} has no usable value: {value!r}")
        return tuple(frozen)

    def parameters(self) -> dict[str, object]:
        """Return the ``rope_parameters`` dict that transformers 5, vLLM and Speculators read."""
        result: dict[str, object] = {"rope_type": self.kind, "rope_theta": self.theta}
        for name, value in self.extras:
            result[name] = list(value) if isinstance(value, tuple) else value
        if self.partial_rotary_factor != 1.0:
            result["partial_rotary_factor"] = self.partial_rotary_factor
        return result


@dataclass(frozen=True)
class DraftLayer:
    """Attention of one draft layer.

    Attributes:
        window: Sliding window in tokens, the query's own token included; None = full attention.
        causal: Whether a row of the draft block sees only rows before it (True) or the whole block.
    """

    window: int | None
    causal: bool

    @property
    def sliding(self) -> bool:
        """Whether the layer sees a window only."""
        return self.window is not None


@dataclass(frozen=True)
class Geometry:
    """Sizes of the draft transformer; every one is checked against tensor shapes."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    hidden_act: str
    max_position_embeddings: int
    attention_bias: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """Token ids and the matrices that turn them into vectors and back.

    Attributes:
        size: Rows of the embedding the drafter was made for (normally the target's).
        draft_size: Rows of the head that scores draft tokens; smaller than ``size`` when reduced.
        mask_token_id: Id whose embedding fills the masked slots of a block.
        embedding: ``own`` when the checkpoint carries ``embed_tokens``, else ``target``.
        head: ``own`` when the checkpoint carries ``lm_head``, else ``target``.
        mask_embedding: Whether ``mask_embedding.pt`` replaces the mask token's embedding row.
    """

    size: int
    draft_size: int
    mask_token_id: int
    embedding: Sharing = "target"
    head: Sharing = "target"
    mask_embedding: bool = False

    @property
    def reduced(self) -> bool:
        """Whether draft ids are mapped to target ids by ``d2t``."""
        return self.draft_size != self.size


@dataclass(frozen=True)
class Dflash2Parts:
    """What DFlash2 adds: local convolutions around each sublayer and a candidate selector.

    Attributes:
        conv_kernel_size: Causal taps of each convolution within the block.
        conv_group_size: Hidden channels that share one dynamic kernel.
        selector_rank: r, rank of the candidate selector's codebooks.
        selector_top_k: Candidates per position that the selector ranks anew.
    """

    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int


@dataclass(frozen=True)
class DsparkParts:
    """What DSpark adds: a Markov head over the block's own tokens and a confidence head.

    Attributes:
        markov_rank: r, rank of the transition bias; 0 = no Markov head.
        markov_head_type: First-order bias, gated by the hidden state, or recurrent.
        confidence_head: Whether acceptance is estimated per position.
        confidence_with_markov: Whether that head also sees the previous token's Markov embedding.
    """

    markov_rank: int
    markov_head_type: MarkovHead
    confidence_head: bool
    confidence_with_markov: bool


@dataclass(frozen=True)
class LagunaParts:
    """What Laguna's drafter adds: a gate on each attention output, a norm per captured layer.

    Its context keys and values also pass each layer's input norm, so it is no plain DFlash.

    Attributes:
        gating: One gate a head, or one a channel.
    """

    gating: Gating


Parts = Dflash2Parts | DsparkParts | LagunaParts
_FAMILIES: Mapping[type, Family] = {
    Dflash2Parts: "dflash2",
    DsparkParts: "dspark",
    LagunaParts: "laguna",
}


@dataclass(frozen=True)
class Quantization:
    """How weights are quantised; carried through untouched.

    Attributes:
        config: The ``quantization_config`` object as canonical JSON (keys sorted), so that it
            hashes; an empty object where only ``hf_quant_config.json`` says it.
        side_file: Whether ``hf_quant_config.json`` goes along.
    """

    config: str
    side_file: bool = False

    @staticmethod
    def freeze(config: Mapping[str, Any], *, side_file: bool = False) -> Quantization:
        """Return the quantisation that ``config`` states."""
        return Quantization(json.dumps(config, sort_keys=True), side_file)

    def value(self) -> dict[str, Any]:
        """Return the ``quantization_config`` object to write."""
        loaded: dict[str, Any] = json.loads(self.config)
        return loaded


@dataclass(frozen=True)
class Drafter:
    """A trained DFlash drafter, as meant by whoever trained it.

    Attributes:
        geometry: Sizes of the draft transformer.
        layers: One entry per draft layer.
        target_layer_ids: 0-based decoder layers of the target whose *output* is captured, in the
            order of ``fc``'s input slices. -1 stands for the embedding output (Speculators' id 0).
        target_hidden_size: Width of one captured state.
        block_size: B, the anchor and B-1 masked slots.
        rope: Rotary embedding.
        vocabulary: Token ids and matrices.
        dtype: Safetensors dtype code of the weights (``BF16``, ``F32`` ...).
        sample_from_anchor: Whether the anchor row predicts too (DSpark layout); False for DFlash.
        proposal_tokens: k where the source asks for fewer than the block gives, else None.
        target_depth: Number of decoder layers of the target, None where the source doesn't say.
        final_logit_softcapping: Monotone cap on draft logits; changes sampling, not greedy drafts.
        token_ids: ``bos_token_id``, ``eos_token_id``, ``pad_token_id`` where stated.
        verifier: Target id or path that the source names, None where it names none.
        verifier_architectures: Architectures of the target that the source names.
        parts: What a relative adds to plain DFlash; None for plain DFlash.
        attention_sinks: Whether each head has a learned sink (``attention_sink_bias`` [A]).
        attention_value_scale: Factor on attention values, 1.0 = none (MiMo).
        input_embedding_scale: Factor on the raw embedding rows of the block (dflash 0.1.0).
        output_multiplier: Factor on draft logits (dflash 0.1.0).
        quantization: How weights are quantised, None where they aren't.
    """

    geometry: Geometry
    layers: tuple[DraftLayer, ...]
    target_layer_ids: tuple[int, ...]
    target_hidden_size: int
    block_size: int
    rope: Rope
    vocabulary: Vocabulary
    dtype: str
    sample_from_anchor: bool = False
    proposal_tokens: int | None = None
    target_depth: int | None = None
    final_logit_softcapping: float | None = None
    token_ids: tuple[tuple[str, int | tuple[int, ...] | None], ...] = ()
    verifier: str | None = None
    verifier_architectures: tuple[str, ...] = ()
    parts: Parts | None = None
    attention_sinks: bool = False
    attention_value_scale: float = 1.0
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    quantization: Quantization | None = None

    @property
    def family(self) -> Family:
        """Which kind of drafter this is."""
        return "dflash" if self.parts is None else _FAMILIES[type(self.parts)]

    @property
    def speculative_tokens(self) -> int:
        """k: tokens proposed per verification step."""
        if self.proposal_tokens is not None:
            return self.proposal_tokens
        return self.most_speculative_tokens

    @property
    def most_speculative_tokens(self) -> int:
        """Tokens that a whole block proposes; the anchor is one of them where it predicts too."""
        return self.block_size if self.sample_from_anchor else self.block_size - 1

    @property
    def causality(self) -> bool | None:
        """The one causality of all layers, or None when layers differ."""
        kinds = {layer.causal for layer in self.layers}
        return kinds.pop() if len(kinds) == 1 else None


def core_tensor_shapes(drafter: Drafter) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every tensor that ``drafter`` must have, and no other.

    With H hidden, I intermediate, A heads, K kv heads, D head size, C captured layers, Ht target
    hidden: ``fc`` [H, C*Ht], norms [H], projections as in Qwen3; biases iff ``attention_bias``;
    sinks [A] iff ``attention_sinks``; ``embed_tokens`` / ``lm_head`` iff own; ``d2t`` [draft] and
    ``t2d`` [size] iff reduced; then what the family adds. These are the shapes before quantisation.
    """
    g = drafter.geometry
    h, i, d = g.hidden_size, g.intermediate_size, g.head_dim
    q, kv = g.num_attention_heads * d, g.num_key_value_heads * d
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (h, len(drafter.target_layer_ids) * drafter.target_hidden_size),
        "hidden_norm.weight": (h,),
        "norm.weight": (h,),
    }
    for index in range(len(drafter.layers)):
        layer = f"layers.{index}."
        shapes |= {
            layer + "input_layernorm.weight": (h,),
            layer + "post_attention_layernorm.weight": (h,),
            layer + "self_attn.q_proj.weight": (q, h),
            layer + "self_attn.k_proj.weight": (kv, h),
            layer + "self_attn.v_proj.weight": (kv, h),
            layer + "self_attn.o_proj.weight": (h, q),
            layer + "self_attn.q_norm.weight": (d,),
            layer + "self_attn.k_norm.weight": (d,),
            layer + "mlp.gate_proj.weight": (i, h),
            layer + "mlp.up_proj.weight": (i, h),
            layer + "mlp.down_proj.weight": (h, i),
        }
        if g.attention_bias:
            attn = layer + "self_attn."
            shapes |= {attn + "q_proj.bias": (q,), attn + "o_proj.bias": (h,)}
            shapes |= {attn + "k_proj.bias": (kv,), attn + "v_proj.bias": (kv,)}
        if drafter.attention_sinks:
            shapes[layer + "self_attn.attention_sink_bias"] = (g.num_attention_heads,)
    vocabulary = drafter.vocabulary
    if vocabulary.embedding == "own":
        shapes["embed_tokens.weight"] = (vocabulary.size, h)
    if vocabulary.head == "own":
        shapes["lm_head.weight"] = (vocabulary.draft_size, h)
    if vocabulary.reduced:
        shapes |= {"d2t": (vocabulary.draft_size,), "t2d": (vocabulary.size,)}
    match drafter.parts:
        case Dflash2Parts() as parts:
            shapes |= _dflash2_shapes(drafter, parts)
        case DsparkParts() as parts:
            shapes |= _dspark_shapes(drafter, parts)
        case LagunaParts() as parts:
            _to_laguna_shapes(drafter, parts, shapes)
    return shapes


def _dflash2_shapes(drafter: Drafter, parts: Dflash2Parts) -> dict[str, tuple[int, ...]]:
    h, taps, rank = drafter.geometry.hidden_size, parts.conv_kernel_size, parts.selector_rank
    rows = 2 * taps * (h // parts.conv_group_size)
    size = drafter.vocabulary.size
    shapes: dict[str, tuple[int, ...]] = {
        "candidate_selector.predecessor_codebook": (size, rank),
        "candidate_selector.successor_codebook": (size, rank),
        "candidate_selector.hidden_projection.weight": (rank, h),
    }
    for index in range(len(drafter.layers)):
        for place in ("attention_conv", "mlp_conv"):
            conv = f"layers.{index}.{place}."
            shapes |= {
                conv + "base_kernel": (2, taps, h),
                conv + "kernel_projection.weight": (rows, h),
            }
    return shapes


def _dspark_shapes(drafter: Drafter, parts: DsparkParts) -> dict[str, tuple[int, ...]]:
    h, rank = drafter.geometry.hidden_size, parts.markov_rank
    shapes: dict[str, tuple[int, ...]] = {}
    if rank:
        markov = "markov_head."
        shapes |= {
            markov + "markov_w1.weight": (drafter.vocabulary.size, rank),
            markov + "markov_w2.weight": (drafter.vocabulary.draft_size, rank),
        }
        if parts.markov_head_type == "gated":
            gate = markov + "gate_proj."
            shapes |= {gate + "weight": (rank, h + rank), gate + "bias": (rank,)}
        elif parts.markov_head_type == "rnn":
            joint = markov + "joint_proj."
            shapes |= {joint + "weight": (3 * rank, 2 * rank + h), joint + "bias": (3 * rank,)}
    if parts.confidence_head:
        width = h + (rank if parts.confidence_with_markov else 0)
        shapes |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
    return shapes


def _to_laguna_shapes(
    drafter: Drafter, parts: LagunaParts, shapes: dict[str, tuple[int, ...]]
) -> None:
    """Replace each layer's three projections by the fused one and add gates and norms."""
    g = drafter.geometry
    gates = g.num_attention_heads * (g.head_dim if parts.gating == "per-element" else 1)
    for index in range(len(drafter.layers)):
        attn = f"layers.{index}.self_attn."
        rows = sum(shapes.pop(f"{attn}{name}_proj.weight")[0] for name in "qkv")
        shapes |= {
            attn + "qkv_proj.weight": (rows, g.hidden_size),
            attn + "g_proj.weight": (gates, g.hidden_size),
        }
    for index in range(len(drafter.target_layer_ids)):
        shapes[f"aux_hidden_norms.{index}.weight"] = (drafter.target_hidden_size,)
