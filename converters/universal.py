"""The universal form: native and Speculators keys in one config.json, which every engine reads.

vLLM serves it by its Speculators keys and parses the drafter by the native ones; SGLang,
TensorRT-LLM and z-lab's code read the native keys; the Speculators library reads its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from dflash_pack.accounting import Ledger
from dflash_pack.checkpoint import Contents
from dflash_pack.converters import speculators, zlab
from dflash_pack.converters.reading import CONFIG, Reading
from dflash_pack.converters.writing import WrittenForm
from dflash_pack.drafter import Drafter
from dflash_pack.engines.limits import universal_form_problems
from dflash_pack.errors import ContradictionError, NotRepresentableError
from dflash_pack.forms import form_of
from dflash_pack.schemas.speculators import SPECULATORS_ONLY
from dflash_pack.target import Target

NAME = "universal"
# Facts that only one half has a key for; the half that has it is believed.
_NATIVE_ONLY = (
    "attention_sinks",
    "attention_value_scale",
    "input_embedding_scale",
    "output_multiplier",
    "target_depth",
)
_SPECULATORS_ONLY = ("proposal_tokens", "verifier", "verifier_architectures")


def detect(contents: Contents) -> bool:
    """Return whether the config has the keys of both forms."""
    return form_of(contents.config) == "universal"


def read(contents: Contents, *, read_native: Callable[[Contents], Reading]) -> Reading:
    """Return the meaning of a config with both halves, which must agree.

    Args:
        contents: The source.
        read_native: Reads the native half, in whichever native format it is.

    Raises:
        CheckpointError: If one half can't be read.
        ContradictionError: If the halves differ.
    """
    native = read_native(_with(contents, native_half(contents.config)))
    # Whether a partial rope is meant has been decided by the native half; here it must be equal.
    other = speculators.read(
        _with(contents, speculators_half(contents.config)), partial_rotary="applied"
    )
    drafter = replace(
        native.drafter, **{name: getattr(other.drafter, name) for name in _SPECULATORS_ONLY}
    )
    _require_agreement(native.drafter, other.drafter)
    return replace(
        native,
        format=NAME,
        drafter=drafter,
        ledger=_joined(native.ledger, other.ledger),
        notes=(*native.notes, *(note for note in other.notes if note not in native.notes)),
    )


def write(drafter: Drafter, target: Target) -> WrittenForm:
    """Return both halves in one config, written from one drafter.

    The Speculators half is what the library understands: there full layers are bidirectional and
    the flag is about sliding ones, so it carries mixed layers that vLLM's reading of it would not.

    Raises:
        NotRepresentableError: If the form can't carry the drafter; names the form that can.
    """
    problems = universal_form_problems(drafter)
    if problems:
        raise NotRepresentableError(problems[0].rstrip("."))
    theirs = speculators.config_of(drafter, target)
    ours = zlab.config_of(replace(drafter, proposal_tokens=None), target, style="old")
    width = drafter.target_hidden_size
    config = {
        **theirs.config,
        **ours.config,
        # A null here would be the engine's answer in vLLM's native path.
        "target_hidden_size": width,
    }
    return WrittenForm(
        NAME,
        dict(sorted(config.items())),
        {**theirs.fields, **ours.fields},
        tuple(dict.fromkeys((*ours.notes, *theirs.notes))),
    )


def native_half(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that native readers account for: all but the Speculators ones.

    A draft vocabulary that is the whole one is the Speculators half's way to say so; native files
    have that key only where it is reduced, or from SpecForge.
    """
    skipped = set(SPECULATORS_ONLY)
    if config.get("draft_vocab_size") == config.get("vocab_size"):
        skipped.add("draft_vocab_size")
    return {key: value for key, value in config.items() if key not in skipped}


def speculators_half(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that the Speculators library reads."""
    return {key: value for key, value in config.items() if key in speculators.TOP_LEVEL}


def _with(contents: Contents, config: dict[str, Any]) -> Contents:
    return Contents(config, contents.tensors, contents.side_files)


def _require_agreement(native: Drafter, other: Drafter) -> None:
    """Check that both halves mean the same, the cache length aside, which the second may raise.

    Token ids beside the mask token's have to be equal where both halves state them.

    Raises:
        ContradictionError: With the first fact in which they differ.
    """
    length = native.geometry.max_position_embeddings
    if other.geometry.max_position_embeddings >= length:
        other = replace(other, geometry=replace(other.geometry, max_position_embeddings=length))
    stated = dict(other.token_ids)
    ids = tuple((name, stated.get(name, value)) for name, value in native.token_ids)
    other = replace(other, token_ids=ids)
    skipped = {*_NATIVE_ONLY, *_SPECULATORS_ONLY}
    for item in fields(Drafter):
        mine, theirs = getattr(native, item.name), getattr(other, item.name)
        if item.name not in skipped and mine != theirs:
            raise ContradictionError(
                item.name,
                ("the native keys", mine),
                ("the Speculators keys", theirs),
                where=CONFIG,
                remedy="Convert the drafter's source again: both halves are written from one",
            )


def _joined(first: Ledger, second: Ledger) -> Ledger:
    """Return one ledger; a fate other than dropped counts where the halves differ."""
    entries = {(e.kind, e.name): e for e in second.entries}
    for entry in first.entries:
        known = entries.get((entry.kind, entry.name))
        if known is None or known.fate == "dropped":
            entries[entry.kind, entry.name] = entry
    return Ledger(tuple(sorted(entries.values(), key=lambda e: (e.kind, e.name))))
