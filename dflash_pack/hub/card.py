"""The model card: facts of the manifest and of the validation, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from dflash_pack.drafter import Drafter
from dflash_pack.engines.launch import (
    VLLM_VERSIONS,
    method,
    shell,
    vllm_auto_command,
    vllm_command,
)
from dflash_pack.engines.meaning import describe_layer
from dflash_pack.hub import markdown
from dflash_pack.hub.folder import LocalFile
from dflash_pack.hub.manifest import LedgerItem, Manifest
from dflash_pack.hub.names import is_hub_id
from dflash_pack.hub.readme import Readme, compose, has_own_text, merge_metadata, place_section
from dflash_pack.hub.validation import DecodeRecord, ValidationState

ARXIV = "2602.06036"
_TAGS = ("speculative-decoding", "dflash", "draft-model", "block-diffusion", "vllm")
_MOST_ITEMS = 40
# Forms whose config.json holds the Speculators keys.
SPECULATORS_FORMS = frozenset({"speculators", "universal"})

Row = tuple[str, str]


@dataclass(frozen=True)
class Licence:
    """A licence as the Hub's front matter states it; ``other`` has a name and a link."""

    identifier: str
    name: str | None = None
    link: str | None = None


@dataclass(frozen=True)
class CardFacts:
    """What a card is made from.

    Attributes:
        repo: The Hub repository, ``owner/name``.
        tag: Tag that this publish sets, None without one.
        manifest: The record of the conversion.
        drafter: The drafter in it.
        validation: What was proven.
        files: The files that are published beside the card.
        licence: The licence where one is known.
    """

    repo: str
    tag: str | None
    manifest: Manifest
    drafter: Drafter
    validation: ValidationState
    files: tuple[LocalFile, ...]
    licence: Licence | None


def render_card(facts: CardFacts, readme: Readme, *, where: str | Path = "README.md") -> str:
    """Return the README.md to publish: the user's own text kept, our section written anew.

    Args:
        facts: What is known.
        readme: The README.md of the folder; empty where there is none.
        where: Its path, for messages.

    Raises:
        CheckpointError: If the README's front matter or markers don't fit.
        ContradictionError: If the README names another base model.
    """
    metadata = merge_metadata(readme.metadata, card_metadata(facts), where=where)
    section = render_section(facts, title=not has_own_text(readme.body))
    return compose(metadata, place_section(readme.body, section, where=where), readme.newline)


def card_metadata(facts: CardFacts) -> dict[str, Any]:
    """Return the front matter that follows from ``facts``, in the Hub's own vocabulary.

    No ``base_model_relation``: the Hub knows none for a drafter (hub-docs, model-cards).
    """
    from huggingface_hub import ModelCardData

    speculators = facts.manifest.format in SPECULATORS_FORMS
    licence = facts.licence
    data = ModelCardData(
        license=licence.identifier if licence else None,
        license_name=licence.name if licence else None,
        license_link=licence.link if licence else None,
        base_model=facts.manifest.target.identifier,
        library_name="speculators" if speculators else None,
        pipeline_tag="text-generation",
        tags=[*_TAGS, *(["speculators"] if speculators else []), f"arxiv:{ARXIV}"],
    )
    metadata: dict[str, Any] = data.to_dict()  # type: ignore[no-untyped-call]
    return metadata


def render_section(facts: CardFacts, *, title: bool) -> str:
    """Return the card's Markdown, without front matter and markers.

    Args:
        facts: What is known.
        title: Whether to begin with a heading of the first level.
    """
    from jinja2 import Environment, StrictUndefined

    # Markdown has no autoescape: each value is made safe by a function of markdown.py instead.
    environment = Environment(  # noqa: S701
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        files("dflash_pack.hub").joinpath("card.md.j2").read_text(encoding="utf-8")
    )
    target = facts.manifest.target.identifier
    return template.render(
        title=markdown.plain(facts.repo.split("/")[-1]) if title else None,
        target=_hub_link(target),
        k=facts.drafter.speculative_tokens,
        method=method(facts.drafter.family),
        versions=VLLM_VERSIONS,
        command=markdown.block(shell(_explicit_command(facts)), "bash"),
        auto_command=markdown.block(shell(vllm_auto_command(facts.repo)), "bash")
        if facts.manifest.format in SPECULATORS_FORMS
        else None,
        pinned=facts.tag is not None,
        specification=specification_rows(facts),
        validation=facts.validation,
        problem=markdown.plain(facts.validation.problem),
        measured=measured_rows(facts.validation),
        positions=position_rows(facts.validation.record.decode)
        if facts.validation.record and facts.validation.proven
        else [],
        provenance=provenance_rows(facts),
        dropped=_items(facts.manifest.ledger.dropped),
        lossy=_items(facts.manifest.ledger.lossy),
        stated=_items(facts.manifest.ledger.stated),
        digests=[(markdown.code(f.name), f.size, f.sha256) for f in facts.files],
        arxiv=ARXIV,
    )


def specification_rows(facts: CardFacts) -> list[Row]:
    """Return the specification as label and Markdown."""
    drafter = facts.drafter
    vocabulary, geometry, rope = drafter.vocabulary, drafter.geometry, drafter.rope
    weights = sum(file.size for file in facts.files if file.name.endswith(".safetensors"))
    depth = f" of {drafter.target_depth}" if drafter.target_depth is not None else ""
    ids = drafter.target_layer_ids
    embedding = "; -1 is the embedding" if -1 in ids else ""
    mask = str(vocabulary.mask_token_id)
    if vocabulary.mask_embedding:
        mask += ", with an embedding of its own (`mask_embedding.pt`)"
    extras = "".join(f", {name} {value}" for name, value in rope.extras)
    return [
        ("Target", markdown.code(facts.manifest.target.identifier)),
        ("Target architecture", _joined(facts.manifest.target.architectures)),
        ("Draft layers", str(len(drafter.layers))),
        ("Attention", "; ".join(_attention(drafter))),
        (
            "Captured target layers",
            f"{_numbers(ids)}{depth} (0-based, output of the layer{embedding}); Speculators ids "
            + _numbers(index + 1 for index in ids),
        ),
        ("Block size", str(drafter.block_size)),
        ("Speculative tokens k", str(drafter.speculative_tokens)),
        ("Mask token", mask),
        (
            "Draft vocabulary",
            f"{vocabulary.draft_size} of {vocabulary.size}"
            if vocabulary.reduced
            else f"{vocabulary.size} (all of the target's)",
        ),
        ("Embedding and head", f"embedding: {vocabulary.embedding}; head: {vocabulary.head}"),
        (
            "Width",
            f"hidden {geometry.hidden_size}, intermediate {geometry.intermediate_size}",
        ),
        (
            "Heads",
            f"{geometry.num_attention_heads} of {geometry.head_dim}, key and value: "
            + str(geometry.num_key_value_heads),
        ),
        ("Rope", markdown.code(f"{rope.kind}, theta {rope.theta:.12g}{extras}")),
        *family_rows(drafter),
        ("Dtype", markdown.code(drafter.dtype)),
        ("Weights", f"{human_size(weights)} ({weights} bytes)"),
        ("Form", markdown.code(facts.manifest.format)),
    ]


def family_rows(drafter: Drafter) -> list[Row]:
    """Return what a drafter has beyond plain DFlash as label and Markdown; empty for plain ones."""
    rows: list[Row] = []
    if drafter.parts is not None:
        sizes = ", ".join(f"{name} {value}" for name, value in vars(drafter.parts).items())
        rows.append(("Kind", f"{drafter.family} ({markdown.plain(sizes)})"))
    if drafter.attention_sinks:
        rows.append(("Attention sinks", "one learned for each head"))
    for label, value in (
        ("Factor on attention values", drafter.attention_value_scale),
        ("Factor on embeddings", drafter.input_embedding_scale),
        ("Factor on draft logits", drafter.output_multiplier),
    ):
        if value != 1.0:
            rows.append((label, f"{value:g}"))
    if drafter.rope.partial_rotary_factor != 1.0:
        rows.append(("Rotated share of a head", f"{drafter.rope.partial_rotary_factor:g}"))
    if drafter.quantization is not None:
        config = drafter.quantization.value()
        kind = config.get("quant_method") or config.get("quant_algo") or "as its config says"
        rows.append(("Quantisation", markdown.code(str(kind)[:80])))
    return rows


def measured_rows(state: ValidationState) -> list[Row]:
    """Return what the validation measured, as label and Markdown; empty unless it is proven."""
    if state.record is None or not state.proven:
        return []
    rows: list[Row] = [("Validated by", markdown.code(f"dflash-pack {state.record.tool_version}"))]
    decode = state.record.decode
    if decode is None:
        return rows
    prompts = str(decode.prompts)
    if decode.prompts_sha256 is not None:
        prompts += f" (sha256 {markdown.code(decode.prompts_sha256)})"
    rows += [
        ("Engine", markdown.code(f"{decode.engine} {decode.engine_version}")),
        ("Device", markdown.code(decode.device)),
        ("Dtype", markdown.code(decode.dtype)),
    ]
    if decode.attention_backend is not None:
        rows.append(("Attention backend", markdown.code(decode.attention_backend)))
    rows += [
        ("k", str(decode.speculative_tokens)),
        ("Prompts", prompts),
        ("Verification steps", str(decode.drafts)),
        ("Accepted of drafted", f"{decode.accepted_tokens} of {decode.draft_tokens}"),
        ("**Acceptance length**", f"**{decode.acceptance_length:.3f}**"),
    ]
    if decode.against is not None:
        rows.append(("Equal to", f"the source, {markdown.code(Path(decode.against).name)}"))
    return rows


def position_rows(decode: DecodeRecord | None) -> list[tuple[int, int, str]]:
    """Return position (from 1), accepted tokens and acceptance rate of each position."""
    if decode is None:
        return []
    pairs = zip(decode.accepted_per_position, decode.acceptance_rates, strict=True)
    return [(place, count, f"{rate:.3f}") for place, (count, rate) in enumerate(pairs, 1)]


def provenance_rows(facts: CardFacts) -> list[Row]:
    """Return where the files come from, as label and Markdown."""
    source, target = facts.manifest.source, facts.manifest.target
    return [
        ("Source", source_label(source.identity, source.revision)),
        ("Source revision", _or_unpinned(source.revision)),
        ("Source format", markdown.code(source.format)),
        ("Target revision", _or_unpinned(target.revision)),
        ("Converted by", markdown.code(f"dflash-pack {facts.manifest.tool_version}")),
        ("Mapped items", str(facts.manifest.ledger.mapped)),
    ]


def source_label(identity: str, revision: str | None) -> str:
    """Return the source as Markdown; of a local folder only its last part, as paths are private."""
    if revision is not None or is_hub_id(identity):
        return markdown.code(identity)
    return f"local folder {markdown.code(Path(identity).name)}"


def human_size(size: int) -> str:
    """Return a size in bytes for people, in decimal units as the Hub shows it."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def _explicit_command(facts: CardFacts) -> tuple[str, ...]:
    return vllm_command(
        target=facts.manifest.target.identifier,
        draft=facts.repo,
        speculative_tokens=facts.drafter.speculative_tokens,
        draft_revision=facts.tag,
        family=facts.drafter.family,
    )


def _hub_link(identifier: str) -> str:
    if is_hub_id(identifier):
        return f"[{markdown.plain(identifier)}](https://huggingface.co/{identifier})"
    return markdown.code(identifier)


def _attention(drafter: Drafter) -> Iterable[str]:
    first = 0
    for kind, group in groupby(drafter.layers, key=describe_layer):
        last = first + len(list(group)) - 1
        name = f"layer {first}" if first == last else f"layers {first}-{last}"
        yield f"{name}: {kind}"
        first = last + 1


def _items(items: Sequence[LedgerItem]) -> list[str]:
    shown = [
        f"{markdown.code(item.name)}: {markdown.plain(item.reason)}" for item in items[:_MOST_ITEMS]
    ]
    if len(items) > _MOST_ITEMS:
        shown.append(f"and {len(items) - _MOST_ITEMS} more, in `dflash_pack.json`")
    return shown


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))


def _joined(values: Sequence[str]) -> str:
    return ", ".join(map(markdown.code, values)) or "not recorded"


def _or_unpinned(revision: str | None) -> str:
    return "not pinned" if revision is None else markdown.code(revision)
