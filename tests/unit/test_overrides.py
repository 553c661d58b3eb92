"""What the user states on the command line about a source."""

from __future__ import annotations

import pytest
from made import NATIVE, contents

from dflash_pack.accounting import LedgerBuilder
from dflash_pack.errors import UsageError
from dflash_pack.overrides import apply_overrides, parse_override


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("block_size=8", "block_size", 8),
        ("a.b=[1, 2]", "a.b", [1, 2]),
        ("a=true", "a", True),
        ("a=null", "a", None),
        ("a=text", "a", "text"),
        ("a=b=c", "a", "b=c"),
        ("a=", "a", ""),
        ("a=NaN", "a", "NaN"),
    ],
)
def test_values_are_json_or_else_text(text, key, value):
    override = parse_override(text)
    assert (override.key, override.value) == (key, value)


@pytest.mark.parametrize(
    "value", ['{"a": 1e400}', "[" * 50_000, "[" + "9" * 400 + "]", '{"a": 1, "a": 2}', '"x']
)
def test_json_that_no_config_may_hold_is_refused(value):
    with pytest.raises(UsageError, match="--set a"):
        parse_override(f"a={value}")


@pytest.mark.parametrize("text", ["", "a", "=1", ".=1", "a.=1"])
def test_what_is_no_assignment(text):
    with pytest.raises(UsageError, match="not of the form field=value"):
        parse_override(text)


def test_the_source_itself_is_not_changed():
    source, ledger = contents(NATIVE), LedgerBuilder()
    changed = apply_overrides(source, [parse_override("dflash_config.mask_token_id=9")], ledger)
    assert changed.config["dflash_config"]["mask_token_id"] == 9
    assert source.config["dflash_config"]["mask_token_id"] == 5


def test_objects_on_the_way_are_made_but_values_are_not_opened():
    changed = apply_overrides(contents(NATIVE), [parse_override("new.key=1")], LedgerBuilder())
    assert changed.config["new"] == {"key": 1}
    with pytest.raises(UsageError, match="block_size holds a value"):
        apply_overrides(contents(NATIVE), [parse_override("block_size.x=1")], LedgerBuilder())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dflash_config.mask_token_id=9", "9 by --set; the source states 5"),
        ("dflash_config.mask_token_id=5", "5 by --set, as the source states"),
        ("partial_rotary_factor=1.0", "1.0 by --set; the source states nothing"),
        ("rope_scaling=7", "7 by --set; the source states nothing"),
    ],
)
def test_what_is_stated_is_on_record_with_what_the_source_says(text, said):
    ledger = LedgerBuilder()
    override = parse_override(text)
    apply_overrides(contents(NATIVE), [override], ledger)
    assert [(e.name, e.fate, e.detail) for e in ledger.build().entries] == [
        (override.key, "stated", said)
    ]
