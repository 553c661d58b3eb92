"""The ledger: nothing of a source goes without a fate."""

from __future__ import annotations

import pytest

from dflash_pack.accounting import LedgerBuilder, flatten
from dflash_pack.errors import UnaccountedError


def test_a_name_without_fate_stops_the_conversion_and_gets_a_hint():
    ledger = LedgerBuilder()
    ledger.map("config key", "block_size", "block_size")
    with pytest.raises(UnaccountedError) as caught:
        ledger.close(
            "config key",
            ["block_size", "blok_size"],
            where="config.json",
            known=["block_size"],
            remedy="Correct the name",
        )
    assert caught.value.names == ("blok_size",)
    assert str(caught.value) == (
        "config.json: 1 unknown config key: blok_size (nearest known: block_size). "
        "Correct the name."
    )


def test_entries_are_sorted_by_kind_and_name():
    builder = LedgerBuilder()
    builder.drop("tensor", "z", "why")
    builder.lose("config key", "b", "why")
    builder.map("config key", "a", "there")
    ledger = builder.build()
    assert [entry.name for entry in ledger.entries] == ["a", "b", "z"]
    assert [entry.name for entry in ledger.of("lossy")] == ["b"]


def test_a_later_fate_replaces_an_earlier_one():
    builder = LedgerBuilder()
    builder.map("tensor", "a", "a")
    builder.drop("tensor", "a", "equal to the target's")
    assert [entry.fate for entry in builder.build().entries] == ["dropped"]


def test_only_named_sections_are_opened():
    config = {"a": 1, "b": {"c": 2, "d": {"e": 3}}, "f": {"g": 4}}
    assert flatten(config, ["b"]) == {"a": 1, "b.c": 2, "b.d": {"e": 3}, "f": {"g": 4}}
    assert flatten({"b": 5}, ["b"]) == {"b": 5}
