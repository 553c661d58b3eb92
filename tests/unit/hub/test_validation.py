"""When a recorded validation counts for the files at hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dflash_pack.errors import CheckpointError
from dflash_pack.hub.manifest import FileRecord
from dflash_pack.hub.validation import DecodeRecord, assess


def test_acceptance_is_derived_from_counts(decode: DecodeRecord) -> None:
    """Acceptance length counts the bonus token; rates are per verification step."""
    assert decode.acceptance_length == 1 + 65 / 40
    assert decode.acceptance_rates[:2] == (0.75, 0.5)


def test_a_passed_decode_on_these_files_is_proof(packed: Any, decode: DecodeRecord) -> None:
    """The state carries the measurement."""
    state = assess(packed.manifest, where="m")
    assert (state.level, state.proven, state.problem) == ("cpu", True, "")
    assert state.record is not None
    assert state.record.decode == decode


def test_static_checks_are_proof_of_their_level(packed: Any) -> None:
    """Without a decode the level is static."""
    packed.validate(None)
    state = assess(packed.manifest, where="m")
    assert (state.level, state.proven) == ("static", True)


def test_without_validation_nothing_is_proven(packed: Any) -> None:
    """A checkpoint straight from convert."""
    packed.update(validation=None)
    state = assess(packed.manifest, where="m")
    assert (state.level, state.proven, state.problem) == ("none", False, "it was never validated")


def test_a_failed_validation_proves_nothing(packed: Any, decode: DecodeRecord) -> None:
    """Failed is failed, whatever was measured."""
    packed.validate(decode, passed=False)
    assert assess(packed.manifest, where="m").problem == "its last validation failed"


def test_a_validation_of_other_files_proves_nothing(packed: Any) -> None:
    """A file converted again, or added, makes it stale."""
    files = {**packed.manifest.files, "config.json": FileRecord(1, "0" * 64)}
    packed.update(files=files)
    state = assess(packed.manifest, where="m")
    assert not state.proven
    assert state.problem == "its last validation was run on another config.json"


def test_the_card_is_no_validated_file(packed: Any) -> None:
    """README.md is rendered at push, so its digest is nobody's proof."""
    packed.update(files={**packed.manifest.files, "README.md": FileRecord(1, "0" * 64)})
    assert assess(packed.manifest, where="m").proven


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"drafts": 0}, "no verification step"),
        ({"prompts": 0}, "no verification step"),
        ({"accepted_per_position": (1, 2)}, "impossible counts"),
        ({"accepted_per_position": (41, 0, 0, 0, 0, 0, 0)}, "impossible counts"),
        ({"accepted_per_position": (-1, 0, 0, 0, 0, 0, 0)}, "impossible counts"),
    ],
)
def test_an_empty_measurement_is_no_success(
    packed: Any, decode: DecodeRecord, changes: dict[str, Any], problem: str
) -> None:
    """Nothing measured is nothing proven."""
    packed.validate(replace(decode, **changes))
    state = assess(packed.manifest, where="m")
    assert not state.proven
    assert problem in state.problem


@pytest.mark.parametrize(
    "changes",
    [{"passed": "yes"}, {"level": "sure"}, {"files": None}, {"decode": {}}, {"decode": None}],
)
def test_a_broken_summary_is_refused(packed: Any, changes: dict[str, Any]) -> None:
    """A level cpu without decode, or wrong types, names the field."""
    packed.update(validation={**packed.manifest.validation, **changes})
    with pytest.raises(CheckpointError, match=r"m: validation\."):
        assess(packed.manifest, where="m")
