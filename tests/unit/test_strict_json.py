from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pack.errors import CheckpointError
from dflash_pack.strict_json import (
    MIB,
    decode_at,
    object_members,
    parse_json_object,
    read_json_object,
)

REFUSED = {
    "trailing comma in an object": (b'{"a": 1,\n}', "trailing comma at line 1, column 8"),
    "trailing comma in an array": (b'{"a": [1,\n 2,\n]}', "trailing comma at line 2, column 3"),
    "missing colon": (b'{"a" 1}', "expecting ':' delimiter at line 1, column 6"),
    "single quotes": (b"{'a': 1}", "expecting property name enclosed in double quotes"),
    "raw newline in a string": (b'{"a": "x\ny"}', "invalid control character at line 1, column 9"),
    "something after the end": (b"{} {}", "extra data at line 1, column 4"),
    "empty": (b"", "expecting value at line 1, column 1"),
    "array at the top": (b"[]", "holds an array where a JSON object belongs"),
    "number at the top": (b"3", "holds a number where a JSON object belongs"),
    "null at the top": (b"null", "holds null where a JSON object belongs"),
    "duplicate key": (b'{"x": {"a": 1, "a": 2}}', "a: stands twice in one JSON object"),
    "NaN": (b'{"a": NaN}', "holds NaN"),
    "infinity": (b'{"a": -Infinity}', "holds -Infinity"),
    "float out of range": (b'{"a": 1e999}', "holds 1e999, beyond a float's range"),
    "long integer": (b'{"a": ' + b"1" * 5000 + b"}", "holds a number of 5000 digits"),
    "closed nesting": (b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", "nested deeper than 64 levels"),
    "open nesting": (b'{"a":' + b"[" * 300_000, "nested deeper than 64 levels"),
    "byte order mark": (b"\xef\xbb\xbf{}", "starts with a byte order mark"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "starts with a byte order mark"),
    "Latin-1": ('{"a": "é"}'.encode("latin-1"), "is not UTF-8 at byte 7"),
    "half a surrogate pair": (rb'{"a": "\ud800"}', "half of a surrogate pair"),
    "many values": (b'{"a":[' + b"[]," * 600_000 + b"1]}", "holds more than 500000 values"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_in_one_sentence(case):
    data, said = REFUSED[case]
    with pytest.raises(CheckpointError) as caught:
        parse_json_object(data, "config.json")
    message = str(caught.value)
    assert message.startswith("config.json: ")
    assert said in message
    assert "\n" not in message


def test_accepts_what_is_merely_unusual():
    data = rb'{"a,]": "[,}", "pair": "\ud83d\ude00", "n": -0.5e-3, "deep": ' + b"[" * 60 + b"]" * 60
    value = parse_json_object(data + b"}", "x")
    assert value["pair"] == "😀"
    assert value["n"] == -0.0005


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), json_values, max_size=5), st.booleans())
def test_reads_whatever_json_writes(value, escaped):
    """Property: no valid document of moderate size is refused or altered."""
    data = json.dumps(value, ensure_ascii=escaped).encode()
    assert parse_json_object(data, "x") == value


@given(st.binary(max_size=60))
def test_any_bytes_parse_or_are_refused(data):
    """Property: nothing but our own error ever comes out."""
    with contextlib.suppress(CheckpointError):
        assert isinstance(parse_json_object(data, "x"), dict)


def test_reads_a_file_and_names_it(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text('{"a": [1, 2]}')
    assert read_json_object(path) == {"a": [1, 2]}
    path.write_text("{")
    with pytest.raises(CheckpointError, match=str(path)):
        read_json_object(path)


def test_missing_file(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"config\.json: is missing\."):
        read_json_object(tmp_path / "config.json")


def test_folder_is_no_file(tmp_path: Path):
    with pytest.raises(CheckpointError, match="is not a regular file"):
        read_json_object(tmp_path)


@pytest.mark.timeout(10)
def test_named_pipe_is_refused_instead_of_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="is not a regular file"):
        read_json_object(tmp_path / "config.json")


def test_size_limit_is_exact_and_stops_the_read(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text('{"a": 1}')
    assert read_json_object(path, max_bytes=8) == {"a": 1}
    with pytest.raises(CheckpointError, match="is larger than 7 bytes"):
        read_json_object(path, max_bytes=7)
    with path.open("wb") as file:
        file.truncate(1 << 40)  # Sparse: reading it whole would never end.
    with pytest.raises(CheckpointError, match="is larger than 16 MiB"):
        read_json_object(path)


def test_value_limit_can_be_raised():
    data = b'{"a":[' + b"1," * 600_000 + b"1]}"
    assert len(parse_json_object(data, "x", max_values=MIB)["a"]) == 600_001


def test_members_are_found_without_building_the_document():
    text = ' {"a" : [1, {"b": 2}], "c":\n"x,}" , "d": {} } trailing'
    found = {key: decode_at(text, position, "x")[0] for key, position in object_members(text, "x")}
    assert found == {"a": [1, {"b": 2}], "c": "x,}", "d": {}}
    assert list(object_members("{ }", "x")) == []


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"a"}', '{"a": 1', '{"a": 1 "b": 2}', "{1: 2}", '{"a": ' + "[" * 200_000]
)
def test_members_of_what_is_no_object_are_refused(text):
    with pytest.raises(CheckpointError):
        list(object_members(text, "x"))
