"""The meaning of a DFlash drafter: what it computes, whatever file format said so.

Every reader produces a :class:`Drafter`, every writer starts from one, and every engine's derived
meaning is compared with one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

RopeValue = bool | int | float | str | tuple[float, ...]
Sharing = Literal["target", "own"]


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

    @property
    def speculative_tokens(self) -> int:
        """k: tokens proposed per verification step."""
        if self.proposal_tokens is not None:
            return self.proposal_tokens
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
    ``embed_tokens`` / ``lm_head`` iff own; ``d2t`` [draft] and ``t2d`` [size] iff reduced.
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
    vocabulary = drafter.vocabulary
    if vocabulary.embedding == "own":
        shapes["embed_tokens.weight"] = (vocabulary.size, h)
    if vocabulary.head == "own":
        shapes["lm_head.weight"] = (vocabulary.draft_size, h)
    if vocabulary.reduced:
        shapes |= {"d2t": (vocabulary.draft_size,), "t2d": (vocabulary.size,)}
    return shapes
