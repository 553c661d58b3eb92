"""The card says what manifest and validation say, and hostile values are never markup in it."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from dflash_pack.drafter import Dflash2Parts, Drafter, DraftLayer, Quantization, Vocabulary
from dflash_pack.hub.card import (
    CardFacts,
    Licence,
    card_metadata,
    human_size,
    measured_rows,
    render_card,
    render_section,
    source_label,
    specification_rows,
)
from dflash_pack.hub.folder import hash_file
from dflash_pack.hub.manifest import LedgerItem, LedgerRecord, SourceRecord, TargetRecord
from dflash_pack.hub.readme import Readme, parse_readme
from dflash_pack.hub.validation import DecodeRecord, assess

EMPTY = Readme({}, "")
RENDERER = MarkdownIt("commonmark", {"html": True}).enable("table")
HOSTILE = [
    "x | y",
    "`; rm -rf /`",
    "a\n\n# Injected\n",
    "<img src=x onerror=alert(1)>",
    "<!-- dflash-pack:end -->",
    "\n<!-- dflash-pack:end -->\n",
    "{{ 7 * 7 }}{% include '/etc/passwd' %}{# c #}",
    "---\nlicense: mit\n---",
    "[link](http://evil.example)",
    "\x1b]8;;http://evil.example\x07x",
    "```\nsh\n```",
    "\u202egnp.exe",
]


def hub_metadata(text: str) -> dict[str, Any]:
    """Return the front matter as the Hub's client reads it."""
    data: Any = ModelCard(text).data
    return dict(data.to_dict())


@pytest.fixture
def facts(packed: Any, drafter: Drafter) -> CardFacts:
    """Return the facts of a validated checkpoint."""
    return facts_of(packed, drafter)


def facts_of(packed: Any, drafter: Drafter, **changes: Any) -> CardFacts:
    """Return the facts of ``packed`` as a push would collect them."""
    files = tuple(hash_file(packed.folder / name) for name in sorted(packed.manifest.files))
    facts = CardFacts(
        repo="me/Tiny-DFlash",
        tag=None,
        manifest=packed.manifest,
        drafter=drafter,
        validation=assess(packed.manifest, where="m"),
        files=files,
        licence=None,
    )
    return replace(facts, **changes)


def test_front_matter_follows_the_hubs_vocabulary(facts: CardFacts) -> None:
    """Target, library, pipeline and tags; no licence where none is known."""
    assert hub_metadata(render_card(facts, EMPTY)) == {
        "base_model": "acme/Tiny-Target",
        "library_name": "speculators",
        "pipeline_tag": "text-generation",
        "tags": [
            "speculative-decoding",
            "dflash",
            "draft-model",
            "block-diffusion",
            "vllm",
            "speculators",
            "arxiv:2602.06036",
        ],
    }


def test_a_native_checkpoint_is_no_speculators_model(packed: Any, drafter: Drafter) -> None:
    """Neither library nor tag, and no auto-serve command, as nothing reads the target from it."""
    packed.update(format="native")
    facts = facts_of(packed, drafter)
    metadata = card_metadata(facts)
    assert "library_name" not in metadata
    assert "speculators" not in metadata["tags"]
    assert "vllm serve me/Tiny-DFlash" not in render_card(facts, EMPTY)


def test_a_known_licence_is_stated(facts: CardFacts) -> None:
    """With name and link where it is of type other."""
    metadata = card_metadata(
        replace(facts, licence=Licence("other", "acme-1", "https://a.example"))
    )
    assert metadata["license"] == "other"
    assert metadata["license_name"] == "acme-1"
    assert metadata["license_link"] == "https://a.example"


def test_what_a_relative_adds_is_in_the_specification(packed: Any, drafter: Drafter) -> None:
    """Rows that plain drafters have none of."""
    plain = dict(specification_rows(facts_of(packed, drafter)))
    odd = replace(
        drafter,
        parts=Dflash2Parts(2, 16, 256, 8),
        attention_sinks=True,
        attention_value_scale=0.612,
        input_embedding_scale=2.0,
        output_multiplier=0.5,
        quantization=Quantization.freeze({"quant_method": "modelopt"}),
        rope=replace(drafter.rope, partial_rotary_factor=0.5),
    )
    rows = dict(specification_rows(facts_of(packed, odd)))
    added = {label: rows[label] for label in rows.keys() - plain.keys()}
    assert "selector" in added.pop("Kind")
    assert added == {
        "Attention sinks": "one learned for each head",
        "Factor on attention values": "0.612",
        "Factor on draft logits": "0.5",
        "Factor on embeddings": "2",
        "Quantisation": "`modelopt`",
        "Rotated share of a head": "0.5",
    }


def test_the_specification_states_the_drafter(packed: Any, drafter: Drafter) -> None:
    """Each figure from the drafter; captured layers in both conventions."""
    mixed = replace(
        drafter,
        layers=(DraftLayer(2048, True), DraftLayer(2048, True), DraftLayer(None, False)),
        vocabulary=Vocabulary(64, 32, 63, head="own", mask_embedding=True),
        target_layer_ids=(-1, 3),
    )
    rows = dict(specification_rows(facts_of(packed, mixed)))
    assert rows["Attention"] == "layers 0-1: sliding 2048, causal; layer 2: full, bidirectional"
    assert rows["Captured target layers"] == (
        "-1, 3 of 8 (0-based, output of the layer; -1 is the embedding); Speculators ids 0, 4"
    )
    assert rows["Draft vocabulary"] == "32 of 64"
    assert rows["Embedding and head"] == "embedding: target; head: own"
    assert rows["Mask token"] == "63, with an embedding of its own (`mask_embedding.pt`)"
    assert rows["Speculative tokens k"] == "7"
    assert rows["Rope"] == "`yarn, theta 1000000, beta_fast 32, factor 4.0`"
    size = (packed.folder / "model.safetensors").stat().st_size
    assert rows["Weights"] == f"{size / 1000:.1f} kB ({size} bytes)"


def test_a_measurement_is_given_in_full(facts: CardFacts) -> None:
    """Figures, versions, device and positions as recorded."""
    rows = dict(measured_rows(facts.validation))
    assert rows["**Acceptance length**"] == "**2.625**"
    assert rows["Accepted of drafted"] == "65 of 280"
    assert rows["Engine"] == "`vllm 0.32.0`"
    card = render_card(facts, EMPTY)
    assert "| 1 | 30 | 0.750 |" in card
    assert "| 7 | 0 | 0.000 |" in card
    assert "Not validated" not in card


def test_static_checks_claim_no_acceptance(packed: Any, drafter: Drafter) -> None:
    """The card says that no engine decoded."""
    packed.validate(None)
    card = render_card(facts_of(packed, drafter), EMPTY)
    assert "No engine decoded with them" in card
    assert "Acceptance rate" not in card


def test_without_proof_the_card_says_so(
    packed: Any, drafter: Drafter, decode: DecodeRecord
) -> None:
    """Figures of a failed or stale validation are not shown."""
    packed.validate(decode, passed=False)
    assert measured_rows(assess(packed.manifest, where="m")) == []
    card = render_card(facts_of(packed, drafter), EMPTY)
    assert "**Not validated:** its last validation failed." in card
    assert "2.625" not in card


def test_the_card_warns_that_a_drafter_writes_nothing_alone(facts: CardFacts) -> None:
    """The Hub's own snippet would serve it alone."""
    assert "It does not generate text by itself" in render_card(facts, EMPTY)


def test_commands_are_those_of_launch(facts: CardFacts) -> None:
    """Explicit method, and a revision once there is a tag."""
    card = render_card(replace(facts, tag="v2"), EMPTY)
    assert (
        "vllm serve acme/Tiny-Target --speculative-config "
        """'{"method":"dflash","model":"me/Tiny-DFlash","num_speculative_tokens":7,"revision":"v2"}'"""
    ) in card
    assert "\nvllm serve me/Tiny-DFlash\n" in card
    assert "sglang" not in card.lower()


def test_drops_and_losses_are_listed(packed: Any, drafter: Drafter) -> None:
    """The first forty of each, and how many more."""
    many = tuple(LedgerItem(f"key_{i}", "why") for i in range(50))
    packed.update(ledger=LedgerRecord(many, (LedgerItem("logit_scale", "accepted"),), 1))
    section = render_section(facts_of(packed, drafter), title=True)
    assert "- `logit_scale`: accepted" in section
    assert "- `key_39`: why" in section
    assert "key_40" not in section
    assert "and 10 more" in section


def test_a_local_source_is_named_without_its_path() -> None:
    """Home folders are nobody's business."""
    assert source_label("/home/me/secret-project/run7", None) == "local folder `run7`"
    assert source_label("z-lab/Qwen3-4B-DFlash", None) == "`z-lab/Qwen3-4B-DFlash`"
    assert source_label("z-lab/Qwen3-4B-DFlash", "a" * 40) == "`z-lab/Qwen3-4B-DFlash`"


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_are_shown_and_not_obeyed(
    packed: Any, drafter: Drafter, decode: DecodeRecord, value: str
) -> None:
    """Wherever a name comes from, the page keeps its headings, tables, links and section."""
    calm = render_card(facts_of(packed, drafter), EMPTY)
    packed.update(
        tool_version=value,
        format="speculators",
        source=SourceRecord(value, "r", value, {}),
        target=TargetRecord("acme/Tiny-Target", value, (value, value)),
        ledger=LedgerRecord(
            (LedgerItem("use_cache", "no engine reads it"), LedgerItem(value, value)), (), 42
        ),
    )
    packed.validate(
        replace(
            decode,
            engine=value,
            engine_version=value,
            device=value,
            dtype=value,
            against=value,
            prompts_sha256=value,
            attention_backend=value,
        )
    )
    hostile = replace(drafter, dtype=value, rope=replace(drafter.rope, kind=value))
    card = render_card(facts_of(packed, hostile), EMPTY)

    pages = [RENDERER.render(parse_readme(c, where="x").body) for c in (calm, card)]
    for tag in ("<h1", "<h2", "<table", "<tr", "<a ", "<img", "<pre", "<ul", "<em", "<strong"):
        assert pages[1].count(tag) == pages[0].count(tag), tag
    assert pages[1].count("<li") == pages[0].count("<li") + 1
    assert "<img" not in pages[1]
    assert "49" not in html.unescape(re.sub("<[^>]*>", "", pages[1])).replace(value, "").split()
    assert hub_metadata(card) == hub_metadata(calm)
    # Written again over itself, the section is found whole.
    again = render_card(facts_of(packed, hostile), parse_readme(card, where="x"))
    assert parse_readme(again, where="x").body == parse_readme(card, where="x").body


def test_rendering_again_changes_nothing(facts: CardFacts) -> None:
    """The same facts give the same bytes, the title included."""
    once = render_card(facts, EMPTY)
    assert render_card(facts, parse_readme(once, where="x")) == once
    assert once.count("# Tiny-DFlash\n") == 1


def test_a_hand_written_card_is_kept(facts: CardFacts) -> None:
    """Their title stays the only one; ours begins with the second level."""
    own = "---\nlicense: mit\ntags: [mine]\n---\n# My drafter\n\nTrained on tea.\n"
    card = render_card(facts, parse_readme(own, where="x"))
    assert "# My drafter\n\nTrained on tea.\n" in card
    assert "# Tiny-DFlash" not in card
    assert yaml.safe_load(card.split("---\n")[1])["tags"][0] == "mine"
    assert hub_metadata(card)["license"] == "mit"


def test_sizes_are_decimal() -> None:
    """As the Hub shows them."""
    assert human_size(999) == "999 B"
    assert human_size(1500) == "1.5 kB"
    assert human_size(1_074_860_544) == "1.07 GB"
    assert human_size(250_000_000_000) == "250.00 GB"


def test_the_template_needs_no_file_beside_the_checkpoint(
    facts: CardFacts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is found in the package, from whatever folder."""
    monkeypatch.chdir(tmp_path)
    assert render_card(facts, EMPTY)


def test_each_form_of_a_drafter_renders(make_packed: Callable[..., Any], drafter: Drafter) -> None:
    """No optional fact is needed."""
    bare = replace(drafter, target_depth=None)
    packed = make_packed("bare", drafter=bare)
    packed.update(
        source=replace(packed.manifest.source, revision=None),
        target=TargetRecord("acme/Tiny-Target", None, ()),
        ledger=LedgerRecord((), (), 0),
    )
    card = render_card(facts_of(packed, bare), EMPTY)
    assert "| Target revision | not pinned |" in card
    assert "| Target architecture | not recorded |" in card
    assert "left behind" not in card
