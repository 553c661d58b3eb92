"""README.md as the Hub reads it: YAML front matter, then Markdown; ours is one marked section."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_pack.errors import CheckpointError, ContradictionError, printable

BEGIN = "<!-- dflash-pack:begin -->"
END = "<!-- dflash-pack:end -->"
_MARKERS = re.compile(rf"^(?:{re.escape(BEGIN)}|{re.escape(END)})[ \t]*$", re.MULTILINE)
# The Hub's own rule of what front matter is (huggingface_hub 2.4, repocard.py), for \n only.
_OPENING = re.compile(r"\s*---\n")
_CLOSING = re.compile(r"^---[ \t]*$", re.MULTILINE)
_MAX_FRONT_MATTER = 64 << 10
_MAX_NODES = 5_000


@dataclass(frozen=True)
class Readme:
    """A README.md, line endings made LF.

    Attributes:
        metadata: Its front matter; empty where it has none.
        body: The Markdown after it.
        newline: The file's own line ending.
    """

    metadata: Mapping[str, Any]
    body: str
    newline: str = "\n"


def parse_readme(text: str, *, where: str | Path) -> Readme:
    """Return the parts of a README.md.

    Args:
        text: Its text.
        where: Its path, for messages.

    Raises:
        CheckpointError: If the front matter is not closed, not YAML, no mapping or absurdly large.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    text = text.replace("\r\n", "\n")
    opening = _OPENING.match(text)
    if opening is None:
        return Readme({}, text, newline)
    closing = _CLOSING.search(text, opening.end())
    if closing is None:
        raise _broken("opens with --- but no line --- closes it", where)
    block = text[opening.end() : closing.start()]
    return Readme(_load(block, where=where), text[closing.end() + 1 :], newline)


def merge_metadata(
    own: Mapping[str, Any], ours: Mapping[str, Any], *, where: str | Path
) -> dict[str, Any]:
    """Return front matter with the user's keys first and kept, and our facts in it.

    Tags are united. ``base_model`` must agree. ``library_name`` is ours: a wrong one makes the Hub
    show a snippet that runs the drafter alone. Any other key that the user wrote stays.

    Args:
        own: Front matter of the user's README.md.
        ours: Front matter made from facts.
        where: The README's path, for messages.

    Raises:
        ContradictionError: If the README names another ``base_model``.
        CheckpointError: If ``tags`` or ``base_model`` is no text or list of texts.
    """
    merged = dict(own)
    for key, value in ours.items():
        if key == "tags":
            kept = _texts(own.get("tags"), "tags", where)
            merged[key] = kept + [tag for tag in value if tag not in kept]
        elif key == "base_model":
            stated = _texts(own.get("base_model"), "base_model", where)
            if stated and value not in stated:
                raise ContradictionError(
                    "base_model",
                    ("README.md", stated[0] if len(stated) == 1 else stated),
                    ("config.json", value),
                    where=where,
                    remedy="Correct or delete it in README.md",
                )
            if not stated:
                merged[key] = value
        elif key == "library_name" or merged.get(key) is None:
            merged[key] = value
    return merged


def place_section(body: str, section: str, *, where: str | Path) -> str:
    """Return ``body`` with the marked section replaced, or appended where it has none.

    Args:
        body: Markdown, perhaps with one section between the markers.
        section: New content of the section, without markers.
        where: The README's path, for messages.

    Raises:
        CheckpointError: If the markers are not one pair in order.
    """
    ours = f"{BEGIN}\n{section.strip()}\n{END}"
    marks = [(m.group().rstrip(), m.start(), m.end()) for m in _MARKERS.finditer(body)]
    if not marks:
        before = body.rstrip()
        return f"{before}\n\n{ours}\n" if before else f"\n{ours}\n"
    if [mark for mark, _, _ in marks] != [BEGIN, END]:
        raise CheckpointError(
            "has dflash-pack markers that are not one pair of begin and end",
            where=where,
            remedy=f"Leave one line {BEGIN} and after it one line {END}, or neither",
        )
    return body[: marks[0][1]] + ours + body[marks[1][2] :]


def has_own_text(body: str) -> bool:
    """Return whether ``body`` holds anything outside of the marked section."""
    marks = list(_MARKERS.finditer(body))
    if not marks:
        return bool(body.strip())
    return bool((body[: marks[0].start()] + body[marks[-1].end() :]).strip())


def compose(metadata: Mapping[str, Any], body: str, newline: str = "\n") -> str:
    """Return the text of a README.md whose front matter reads back as ``metadata``."""
    import yaml  # type: ignore[import-untyped]

    def dump(data: Mapping[str, Any]) -> str:
        text: str = yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=10_000)
        return text

    text = f"---\n{dump(metadata)}---\n{body}"
    # Compared as text, since .nan in a user's front matter does not equal itself.
    if dump(parse_readme(text, where="README.md").metadata) != dump(metadata):
        raise RuntimeError("front matter does not read back as it was written")
    return text.replace("\n", newline)


def _load(block: str, *, where: str | Path) -> dict[str, Any]:
    import yaml

    if len(block) > _MAX_FRONT_MATTER:
        raise _broken(f"is longer than {_MAX_FRONT_MATTER} characters", where)
    try:
        data = yaml.safe_load(block)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 2})" if mark is not None else ""
        problem = getattr(error, "problem", None) or "a character that YAML has none of"
        raise _broken(f"is not YAML: {problem}{line}", where) from None
    except (ValueError, RecursionError, TypeError) as error:
        # A date of month 13, an integer of 5000 digits, lists nested 1000 deep, a list as a key.
        raise _broken(f"is not YAML that can be read ({type(error).__name__})", where) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise _broken("is no mapping of keys to values", where)
    if not all(isinstance(key, str) for key in data):
        raise _broken("has a key that is no text", where)
    _check_size(data, where)
    return data


def _check_size(data: dict[str, Any], where: str | Path) -> None:
    """Refuse aliases that unfold to far more values than were written, or to themselves."""
    pending: list[Any] = [data]
    count = 0
    while pending:
        value = pending.pop()
        count += 1
        if count > _MAX_NODES:
            raise _broken(f"holds more than {_MAX_NODES} values", where)
        if isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            pending += value


def _texts(value: object, key: str, where: str | Path) -> list[str]:
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in values):
        raise CheckpointError(
            "is neither text nor a list of texts",
            where=where,
            field=key,
            remedy="Correct the front matter of README.md",
        )
    return list(values)


def _broken(what: str, where: str | Path) -> CheckpointError:
    return CheckpointError(
        printable(what),
        where=where,
        field="front matter",
        remedy="Correct it, or delete README.md to have it written anew",
    )
