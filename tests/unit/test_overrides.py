"""What the user states on the command line about a source."""

from __future__ import annotations

import pytest
from made import NATIVE, checkpoint, contents, native, specs, target_folder

from dflash_pack.accounting import LedgerBuilder
from dflash_pack.checkpoint import Contents, open_checkpoint
from dflash_pack.conversion import plan_conversion
from dflash_pack.converters.registry import read_drafter
from dflash_pack.errors import CheckpointError, ContradictionError, DflashPackError, UsageError
from dflash_pack.overrides import Override, apply_overrides, parse_override
from dflash_pack.strict_json import MAX_DEPTH
from dflash_pack.target import read_target


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


TWICE = {
    "dflash_config.block_size": {"block_size": 4},
    "mask_token_id": {"dflash_config.mask_token_id": 5},
    "target_layer_ids": {"dflash_config.target_layer_ids": [0, 2]},
}


@pytest.mark.parametrize("key", TWICE)
def test_a_contradiction_with_what_was_stated_names_the_files_key(tmp_path, key):
    """The user stated one of two places; the advice is about the other, not to state it again."""
    source = open_checkpoint(checkpoint(tmp_path / "source", NATIVE))
    ((theirs, value),) = TWICE[key].items()
    stated = [1, 3] if isinstance(value, list) else 6
    aim = read_target(str(target_folder(tmp_path / "target")), identifier="owner/target")
    with pytest.raises(ContradictionError) as caught:
        plan_conversion(source, aim, overrides=[Override(key, stated)])
    remedy = str(caught.value.remedy)
    assert theirs in remedy
    assert f"or leave --set {key} out" in remedy
    assert remedy in str(caught.value)


def test_a_contradiction_of_the_files_own_is_nobodys_statement(tmp_path):
    source = open_checkpoint(checkpoint(tmp_path / "source", native(mask_token_id=9)))
    aim = read_target(str(target_folder(tmp_path / "target")), identifier="owner/target")
    with pytest.raises(ContradictionError) as caught:
        plan_conversion(source, aim, overrides=[Override("block_size", 4)])
    assert "leave --set" not in str(caught.value)


@pytest.mark.parametrize("depth", [MAX_DEPTH, 900, 5000])
def test_a_field_deeper_than_any_config_is_refused(depth):
    """A config of that depth could not be copied, compared or written."""
    with pytest.raises(UsageError, match="leads deeper than"):
        parse_override(".".join(["a"] * (depth + 1)) + "=1")
    assert parse_override(".".join(["a"] * MAX_DEPTH) + "=1").value == 1


@pytest.mark.parametrize(
    ("ids", "field"),
    [([0, "x"], "target_layer_ids.1"), ([0, -1], "target_layer_ids.1"), ("x", "target_layer_ids")],
)
def test_the_advice_is_one_that_can_be_taken(ids, field):
    """A list is stated as a whole: --set leads through objects only."""
    config = native(dflash_config__target_layer_ids=ids)
    with pytest.raises(CheckpointError) as caught:
        read_drafter(Contents(config, specs(NATIVE), frozenset()))
    assert caught.value.field == f"dflash_config.{field}"
    assert str(caught.value.remedy).endswith("--set dflash_config.target_layer_ids=VALUE")
    stated = Override("dflash_config.target_layer_ids", [0, 2])
    mended = apply_overrides(
        Contents(config, specs(NATIVE), frozenset()), [stated], LedgerBuilder()
    )
    assert read_drafter(mended).drafter.target_layer_ids == (0, 2)


@pytest.mark.parametrize("name", ["speculators", "universal", "torchspec", "laguna"])
def test_a_format_that_it_is_not_can_be_left_out(name):
    with pytest.raises(DflashPackError) as caught:
        read_drafter(Contents(native(), specs(NATIVE), frozenset()), source_format=name)
    assert f"eave --from {name} out" in str(caught.value)
