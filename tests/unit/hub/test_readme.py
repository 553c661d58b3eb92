"""README.md: the user's own words stay, our section is replaced, front matter is merged."""

from __future__ import annotations

from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from huggingface_hub import ModelCard

from dflash_pack.errors import CheckpointError, ContradictionError
from dflash_pack.hub.readme import (
    BEGIN,
    END,
    compose,
    has_own_text,
    merge_metadata,
    parse_readme,
    place_section,
)

OURS = {"base_model": "acme/T", "library_name": "speculators", "tags": ["dflash", "vllm"]}


def hub_metadata(text: str) -> dict[str, Any]:
    """Return the front matter as the Hub's client reads it."""
    data: Any = ModelCard(text).data
    return dict(data.to_dict())


def merge(own: dict[str, Any]) -> dict[str, Any]:
    """Return the merged front matter."""
    return merge_metadata(own, OURS, where="README.md")


def test_parts_are_told_apart_as_the_hub_does() -> None:
    """The same metadata and text as huggingface_hub finds."""
    text = "---\nlicense: mit\ntags:\n- a\n---\n\n# Title\n\n---\nnot front matter\n---\n"
    readme, card = parse_readme(text, where="README.md"), ModelCard(text)
    assert readme.metadata == hub_metadata(text) == {"license": "mit", "tags": ["a"]}
    assert readme.body == card.text


@pytest.mark.parametrize("text", ["", "# Only text\n", "a\n---\nb: c\n---\n"])
def test_a_readme_may_have_no_front_matter(text: str) -> None:
    """Then all of it is body."""
    readme = parse_readme(text, where="README.md")
    assert (readme.metadata, readme.body) == ({}, text)


@pytest.mark.parametrize(
    ("block", "what"),
    [
        ("license: mit", "no line --- closes it"),
        ("a: [1, 2\n---\n", "is not YAML"),
        ("a: b: c\n---\n", "is not YAML"),
        ("- a\n- b\n---\n", "is no mapping"),
        ("just text\n---\n", "is no mapping"),
        ("1: a\n---\n", "key that is no text"),
        ("? [a]\n: b\n---\n", "is not YAML"),
        ("a: !!python/object/apply:os.system ['true']\n---\n", "is not YAML"),
        ("a: 2026-13-45\n---\n", "is not YAML that can be read"),
        (f"a: {'9' * 5000}\n---\n", "is not YAML that can be read"),
        ("a: \x07\n---\n", "is not YAML"),
        (f"a:\n  {'- ' * 3000}\n---\n", "is not YAML that can be read"),
        ("a: &a [*a]\n---\n", "more than 5000 values"),
        (f"a: {'x' * 70_000}\n---\n", "is longer than"),
    ],
)
def test_broken_front_matter_is_one_sentence(block: str, what: str) -> None:
    """It names the file and says what to do."""
    with pytest.raises(CheckpointError) as caught:
        parse_readme(f"---\n{block}", where="x/README.md")
    sentence = caught.value.sentence()
    assert sentence.startswith("x/README.md: front matter: ")
    assert what in sentence
    assert "\n" not in sentence
    assert "delete README.md" in sentence


def test_aliases_that_unfold_are_bounded() -> None:
    """A few hundred bytes of YAML can mean billions of values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(CheckpointError, match="more than 5000 values"):
        parse_readme("---\n" + "\n".join(lines) + "\n---\n", where="README.md")


def test_the_users_keys_stay_and_ours_are_added() -> None:
    """Order kept, tags united, no duplicates."""
    merged = merge({"license": "mit", "tags": ["mine", "vllm"], "datasets": ["d"]})
    assert list(merged) == ["license", "tags", "datasets", "base_model", "library_name"]
    assert merged["tags"] == ["mine", "vllm", "dflash"]
    assert merged["license"] == "mit"


def test_library_name_is_ours() -> None:
    """With transformers the Hub shows a snippet that runs the drafter alone."""
    assert merge({"library_name": "transformers"})["library_name"] == "speculators"


@pytest.mark.parametrize("stated", ["acme/T", ["acme/T", "acme/T-Instruct"]])
def test_a_base_model_that_agrees_stays_as_written(stated: object) -> None:
    """As one id or in a list."""
    assert merge({"base_model": stated})["base_model"] == stated


def test_a_base_model_left_empty_is_filled_in() -> None:
    """An empty list or null names none."""
    assert merge({"base_model": []})["base_model"] == "acme/T"
    assert merge({"base_model": None})["base_model"] == "acme/T"


@pytest.mark.parametrize("stated", ["acme/Other", ["acme/Other"]])
def test_another_base_model_is_a_contradiction(stated: object) -> None:
    """Copied cards name the wrong target."""
    with pytest.raises(ContradictionError, match="base_model"):
        merge({"base_model": stated})


@pytest.mark.parametrize("own", [{"tags": {"a": 1}}, {"tags": [1]}, {"base_model": 5}])
def test_metadata_of_wrong_types_is_refused(own: dict[str, Any]) -> None:
    """The sentence names the key."""
    with pytest.raises(CheckpointError, match=f"README.md: {next(iter(own))}: "):
        merge(own)


def test_a_section_is_appended_to_a_hand_written_readme() -> None:
    """Every word of the user's stays."""
    body = "\n# Mine\n\nText.\n"
    placed = place_section(body, "new", where="README.md")
    assert placed == f"\n# Mine\n\nText.\n\n{BEGIN}\nnew\n{END}\n"
    assert has_own_text(placed)


def test_only_the_marked_section_is_replaced() -> None:
    """What stands before and after it stays byte for byte, and doing it twice changes nothing."""
    body = f"before  \n\n{BEGIN}\nold\n{END}\n\n\nafter"
    once = place_section(body, "new", where="README.md")
    assert once == f"before  \n\n{BEGIN}\nnew\n{END}\n\n\nafter"
    assert place_section(once, "new", where="README.md") == once


def test_markers_inside_a_line_are_text() -> None:
    """A value in the card can't end the section."""
    section = f"| x | `{END}` |\nends with {END}\n{END} begins"
    once = place_section("", section, where="README.md")
    assert place_section(once, section, where="README.md") == once
    assert not has_own_text(once)


@pytest.mark.parametrize(
    "body",
    [
        BEGIN,
        END,
        f"{END}\n{BEGIN}",
        f"{BEGIN}\n{BEGIN}\n{END}",
        f"{BEGIN}\n{END}\n{BEGIN}\n{END}",
    ],
)
def test_markers_that_are_not_one_pair_are_refused(body: str) -> None:
    """To guess would delete the user's text."""
    with pytest.raises(CheckpointError, match="not one pair"):
        place_section(body, "new", where="README.md")


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"a": "x\n---\ny", "b": "yes", "c": "1.0", "d": "# no comment", "e": ": -"},
        {"license": "mit", "n": float("nan"), "u": "日本", "z": None, "l": [1, {"k": "'\""}]},
        {"---": "x"},
    ],
)
def test_front_matter_reads_back(metadata: dict[str, Any]) -> None:
    """By us and by the Hub's client, whatever the values."""
    text = compose(metadata, "\nbody\n")
    readme = parse_readme(text, where="README.md")
    assert yaml.safe_dump(dict(readme.metadata)) == yaml.safe_dump(metadata)
    assert readme.body == "\nbody\n"
    if metadata:
        assert yaml.safe_dump(hub_metadata(text)) == yaml.safe_dump(
            {key: value for key, value in metadata.items() if value is not None}
        )


def test_line_endings_of_the_file_are_kept() -> None:
    """A file saved on Windows stays one."""
    readme = parse_readme("---\r\nlicense: mit\r\n---\r\n# x\r\n", where="README.md")
    assert readme.metadata == {"license": "mit"}
    assert compose(readme.metadata, readme.body, readme.newline) == (
        "---\r\nlicense: mit\r\n---\r\n# x\r\n"
    )
