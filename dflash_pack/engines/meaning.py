"""What an engine makes of a checkpoint, and how that differs from what was meant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from dflash_pack.drafter import (
    Dflash2Parts,
    Drafter,
    DraftLayer,
    DsparkParts,
    Family,
    LagunaParts,
    Parts,
    Rope,
    Sharing,
)

# Kinds whose pre-training length every config class fills in when the file doesn't state it.
SCALED_KINDS = frozenset({"llama3", "yarn", "longrope"})


@dataclass(frozen=True)
class EngineMeaning:
    """What one engine will do with given files, derived without running it.

    Attributes:
        engine: ``vllm``, ``speculators``, ``zlab``, ``sglang``, ``tensorrt_llm``.
        versions: Versions whose code the derivation was read from, e.g. ``0.32-0.33``.
        config_path: ``native`` or ``speculators``: which of its parsers takes the file.
        refusals: Sentences why the engine will not load or serve these files; empty = it will.
        ignored: Config keys (dotted) and tensors of the files that the engine does not read.
        notes: Conditions under which it works (runner, version, flags), as sentences.
        layers: Window and causality per draft layer as run; empty when refused early.
        target_layer_ids: 0-based layers whose output it captures, in fc order (-1 = embedding).
        fc_input_size: Columns it expects of ``fc.weight``.
        mask_token_id: Id it fills masked slots with.
        speculative_tokens: k it takes from the file; None when the user must give it.
        rope: Rotary embedding as it computes it.
        embedding: Whose embedding it uses.
        head: Whose head it uses.
        draft_vocab_size: Rows of the head it drafts with.
        mask_embedding: Whether it applies ``mask_embedding.pt``.
        attention_bias: Whether it builds attention biases.
        head_dim: Head size it builds.
        rms_norm_eps: Epsilon of its norms.
        final_logit_softcapping: Cap it applies to draft logits, None = none.
        hidden_act: Activation of its MLPs.
        sample_from_anchor: Whether it lets the anchor row predict too.
        family: Which kind of drafter it builds.
        parts: Sizes of what that family adds, as it builds them; None for plain DFlash.
        attention_sinks: Whether it adds a learned sink to each head.
        attention_value_scale: Factor on attention values.
        input_embedding_scale: Factor on the block's embeddings.
        output_multiplier: Factor on draft logits.
        causality_by: The key and value that decide every layer's causality, where one does.
    """

    engine: str
    versions: str
    config_path: str
    refusals: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    layers: tuple[DraftLayer, ...] = ()
    target_layer_ids: tuple[int, ...] = ()
    fc_input_size: int | None = None
    mask_token_id: int | None = None
    speculative_tokens: int | None = None
    rope: Rope | None = None
    embedding: Sharing = "target"
    head: Sharing = "target"
    draft_vocab_size: int | None = None
    mask_embedding: bool = False
    attention_bias: bool = False
    head_dim: int | None = None
    rms_norm_eps: float | None = None
    final_logit_softcapping: float | None = None
    hidden_act: str | None = None
    sample_from_anchor: bool = False
    family: Family = "dflash"
    parts: Parts | None = None
    attention_sinks: bool = False
    attention_value_scale: float = 1.0
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    causality_by: str | None = None


@dataclass(frozen=True)
class Difference:
    """One fact that an engine reads otherwise than it was meant.

    Attributes:
        engine: The engine.
        field: The fact; neighbouring layers that differ alike are one.
        meant: What is meant.
        derived: What the engine would do.
        cause: What in the files makes it, where that is known.
    """

    engine: str
    field: str
    meant: str
    derived: str
    cause: str | None = None

    def sentence(self) -> str:
        """Return the difference in one sentence."""
        cause = f" (by {self.cause})" if self.cause else ""
        if self.derived == str(False):
            return f"{self.engine} would do without {self.field}, which is meant"
        if self.derived == str(True):
            return f"{self.engine} would have {self.field}, which is not meant"
        return (
            f"{self.engine} would take {self.field} as {self.derived}{cause}, "
            f"but {self.meant} is meant"
        )


def differences(drafter: Drafter, meaning: EngineMeaning) -> tuple[Difference, ...]:
    """Return every fact in which ``meaning`` is not what ``drafter`` means.

    A refused meaning has no differences: refusals are reported on their own. ``speculative_tokens``
    is compared only when the engine takes it from the file. Softcap and factor on the logits of
    plain DFlash only change sampling of drafts, so they are no difference but show in ``ignored``;
    DFlash2 adds its selector's scores to those logits, so there they are.
    """
    if meaning.refusals:
        return ()
    vocabulary = drafter.vocabulary
    pairs: list[tuple[str, object, object]] = [
        ("the number of draft layers", len(drafter.layers), len(meaning.layers)),
        ("the captured target layers", drafter.target_layer_ids, meaning.target_layer_ids),
        (
            "the input width of fc",
            len(drafter.target_layer_ids) * drafter.target_hidden_size,
            meaning.fc_input_size,
        ),
        ("the mask token", vocabulary.mask_token_id, meaning.mask_token_id),
        ("rope", _settled_rope(drafter), meaning.rope),
        ("the embedding", vocabulary.embedding, meaning.embedding),
        ("the head", vocabulary.head, meaning.head),
        ("the draft vocabulary", vocabulary.draft_size, meaning.draft_vocab_size),
        ("mask_embedding.pt", vocabulary.mask_embedding, meaning.mask_embedding),
        ("attention biases", drafter.geometry.attention_bias, meaning.attention_bias),
        ("the head size", drafter.geometry.head_dim, meaning.head_dim),
        ("rms_norm_eps", drafter.geometry.rms_norm_eps, meaning.rms_norm_eps),
        ("the activation", drafter.geometry.hidden_act, meaning.hidden_act),
        ("sampling from the anchor", drafter.sample_from_anchor, meaning.sample_from_anchor),
        ("the kind of drafter", drafter.family, meaning.family),
        ("attention sinks", drafter.attention_sinks, meaning.attention_sinks),
        (
            "the factor on attention values",
            drafter.attention_value_scale,
            meaning.attention_value_scale,
        ),
        ("the factor on embeddings", drafter.input_embedding_scale, meaning.input_embedding_scale),
    ]
    if drafter.family == meaning.family:
        pairs.append(("the sizes of its parts", drafter.parts, meaning.parts))
    if drafter.family == "dflash2":
        pairs += [
            ("the factor on logits", drafter.output_multiplier, meaning.output_multiplier),
            ("the softcap", drafter.final_logit_softcapping, meaning.final_logit_softcapping),
        ]
    if meaning.speculative_tokens is not None:
        pairs.append(("k", drafter.speculative_tokens, meaning.speculative_tokens))
    found = [
        Difference(meaning.engine, field, _show(meant), _show(derived))
        for field, meant, derived in pairs
        if meant != derived
    ]
    found += _layer_differences(drafter.layers, meaning)
    return tuple(found)


def _layer_differences(
    meant: tuple[DraftLayer, ...], meaning: EngineMeaning
) -> Iterator[Difference]:
    """Yield one difference for each run of layers that differ in the same way."""
    pairs = enumerate(zip(meant, meaning.layers, strict=False))
    for (wanted, derived), group in groupby(pairs, key=itemgetter(1)):
        numbers = [index for index, _ in group]
        if wanted == derived:
            continue
        first, last = numbers[0], numbers[-1]
        yield Difference(
            meaning.engine,
            f"layer {first}" if first == last else f"layers {first}-{last}",
            describe_layer(wanted),
            describe_layer(derived),
            meaning.causality_by if wanted.causal != derived.causal else None,
        )


def describe_layer(layer: DraftLayer) -> str:
    """Return e.g. ``sliding 2048, causal`` or ``full, bidirectional``."""
    window = "full" if layer.window is None else f"sliding {layer.window}"
    return f"{window}, {'causal' if layer.causal else 'bidirectional'}"


def describe_rope(rope: Rope) -> str:
    """Return e.g. ``yarn, theta 1e+06, factor 32.0, of 0.5 of each head``."""
    extras = [f"{name} {value}" for name, value in rope.extras]
    partial = rope.partial_rotary_factor
    share = [] if partial == 1.0 else [f"of {partial:g} of each head"]
    return ", ".join([rope.kind, f"theta {rope.theta:g}", *extras, *share])


def describe_parts(parts: Parts | None) -> str:
    """Return e.g. ``DFlash2, convolutions of 2 taps in groups of 16, selector of rank 256, 16``."""
    match parts:
        case Dflash2Parts():
            return (
                f"DFlash2, convolutions of {parts.conv_kernel_size} taps in groups of "
                f"{parts.conv_group_size}, selector of rank {parts.selector_rank} over "
                f"{parts.selector_top_k} candidates"
            )
        case DsparkParts():
            rank = parts.markov_rank
            markov = f"{parts.markov_head_type} Markov head of rank {rank}" if rank else "no head"
            sees = " that sees it" if parts.confidence_with_markov else ""
            return f"DSpark, {markov}" + (f", confidence head{sees}" * parts.confidence_head)
        case LagunaParts():
            return f"Laguna, gates {parts.gating.replace('-', ' ')}"
        case None:
            return "DFlash"


def _settled_rope(drafter: Drafter) -> Rope:
    """Return the drafter's rope as every config class of transformers completes it.

    A scaled rope without a pre-training length gets ``max_position_embeddings`` (transformers 5.19,
    modeling_rope_utils.py, standardize_rope_params), for the producer as for every engine.
    """
    rope = drafter.rope
    name = "original_max_position_embeddings"
    if rope.kind not in SCALED_KINDS or name in dict(rope.extras):
        return rope
    length = drafter.geometry.max_position_embeddings
    return replace(rope, extras=Rope.freeze({**dict(rope.extras), name: length}))


def _show(value: object) -> str:
    if isinstance(value, Rope):
        return describe_rope(value)
    if isinstance(value, Dflash2Parts | DsparkParts | LagunaParts):
        return describe_parts(value)
    return str(list(value)) if isinstance(value, tuple) else str(value)
