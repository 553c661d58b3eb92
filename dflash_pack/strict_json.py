"""JSON of unknown origin: read within bounds, refused wherever two readers could differ."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from dflash_pack.errors import CheckpointError

MIB = 1 << 20
MAX_DEPTH = 64
MAX_DIGITS = 40
MAX_VALUES = 500_000

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SPACE = re.compile(r"[ \t\n\r]*")


def read_json_object(
    path: Path, *, max_bytes: int = 16 * MIB, max_values: int = MAX_VALUES
) -> dict[str, Any]:
    """Return the JSON object that the file ``path`` holds.

    Args:
        path: A regular file, or a symbolic link to one.
        max_bytes: Largest file that is read.
        max_values: Most values it may hold, since a small file of ``[[],[],`` needs much memory.

    Raises:
        CheckpointError: The file is missing, not a regular file, too large or not strict JSON.
    """
    return parse_json_object(read_bounded(path, max_bytes), str(path), max_values=max_values)


def open_regular(path: Path) -> BufferedReader:
    """Open the regular file ``path`` for reading; never waits, as opening a named pipe would.

    Raises:
        CheckpointError: The file is missing, not a regular file or can't be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise CheckpointError("is missing", where=path) from error
    except OSError as error:
        raise CheckpointError(f"can't be opened ({error.strerror})", where=path) from error
    # Before fdopen, which refuses folders with an error of its own.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError("is not a regular file", where=path)
    return os.fdopen(descriptor, "rb")


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of the regular file ``path``, at most ``max_bytes``.

    Raises:
        CheckpointError: The file is missing, not a regular file, too large or unreadable.
    """
    with open_regular(path) as file:
        try:
            data = file.read(max_bytes + 1)
        except OSError as error:
            raise CheckpointError(f"can't be read ({error.strerror})", where=path) from error
    if len(data) > max_bytes:
        raise CheckpointError(f"is larger than {_size(max_bytes)}, the limit here", where=path)
    return data


def parse_json_object(data: bytes, where: str, *, max_values: int = MAX_VALUES) -> dict[str, Any]:
    """Return the object in ``data``; ``where`` names its file in errors.

    Stricter than :func:`json.loads`: no byte order mark, no duplicate keys, no NaN or Infinity, no
    number beyond a float's range or of more than 40 digits, no lone surrogates, at most 64 levels.

    Raises:
        CheckpointError: The sentence names line and column where the syntax is wrong.
    """
    value = parse_json(data, where, max_values=max_values)
    if not isinstance(value, dict):
        raise CheckpointError(f"holds {_kind(value)} where a JSON object belongs", where=where)
    return value


def parse_json(data: bytes, where: str, *, max_values: int = MAX_VALUES) -> Any:
    """Return the value in ``data``, as strict as :func:`parse_json_object`.

    Raises:
        CheckpointError: As for :func:`parse_json_object`.
    """
    text = _decode(data, where)
    # Separators bound the number of values from above at the speed of memchr.
    containers = data.count(b"[") + data.count(b"{")
    if data.count(b",") + containers > max_values:
        raise CheckpointError(f"holds more than {max_values} values, the limit here", where=where)

    hooks = _Hooks(where)
    try:
        value = json.loads(
            text,
            object_pairs_hook=hooks.pairs,
            parse_constant=hooks.constant,
            parse_int=hooks.integer,
            parse_float=hooks.real,
        )
    except json.JSONDecodeError as error:
        raise CheckpointError(_syntax(error, text), where=where) from error
    except RecursionError as error:
        raise CheckpointError(f"is nested deeper than {MAX_DEPTH} levels", where=where) from error
    if containers > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise CheckpointError(f"is nested deeper than {MAX_DEPTH} levels", where=where)
    if _SURROGATE_ESCAPE.search(data):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            what = "holds half of a surrogate pair, which no UTF-8 file can store"
            raise CheckpointError(what, where=where) from error
    return value


def object_members(text: str, where: str, start: int = 0) -> Iterator[tuple[str, int]]:
    """Yield key and value position of each member of the object that opens at ``start``.

    For files too large to hold parsed, such as a tokenizer: the caller decodes only the members
    that it wants (:func:`decode_at`); the others are parsed one at a time to be skipped. ``text``
    may be the bytes decoded as Latin-1, which keeps positions equal to byte offsets.

    Raises:
        CheckpointError: What was read so far is not an object.
    """
    position = _skip_space(text, start)
    if text[position : position + 1] != "{":
        raise CheckpointError("holds no JSON object where one belongs", where=where)
    position = _skip_space(text, position + 1)
    if text[position : position + 1] == "}":
        return
    while True:
        key, position = decode_at(text, position, where)
        position = _skip_space(text, position)
        if not isinstance(key, str) or text[position : position + 1] != ":":
            raise CheckpointError(f"is not valid JSON at character {position}", where=where)
        position = _skip_space(text, position + 1)
        yield key, position
        _, position = decode_at(text, position, where)
        position = _skip_space(text, position)
        if text[position : position + 1] == "}":
            return
        if text[position : position + 1] != ",":
            raise CheckpointError(f"is not valid JSON at character {position}", where=where)
        position = _skip_space(text, position + 1)


def decode_at(text: str, position: int, where: str) -> tuple[Any, int]:
    """Return the JSON value that starts at ``position``, and where it ends.

    Raises:
        CheckpointError: There is no valid JSON value.
    """
    try:
        return json.JSONDecoder().raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise CheckpointError(_syntax(error, text), where=where) from error
    except RecursionError as error:
        raise CheckpointError(f"is nested deeper than {MAX_DEPTH} levels", where=where) from error
    except ValueError as error:
        raise CheckpointError("holds a number of absurd length", where=where) from error


@dataclass(frozen=True)
class _Hooks:
    """What the parser calls for the values that it would otherwise be lenient about."""

    where: str

    def pairs(self, items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            twice, _ = Counter(key for key, _ in items).most_common(1)[0]
            raise CheckpointError("stands twice in one JSON object", where=self.where, field=twice)
        return result

    def constant(self, name: str) -> Any:
        raise CheckpointError(f"holds {name}, which JSON has no number for", where=self.where)

    def integer(self, digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise CheckpointError(f"holds a number of {len(digits)} digits", where=self.where)
        return int(digits)

    def real(self, digits: str) -> float:
        number = float(digits)
        if math.isinf(number):
            what = f"holds {digits[:20]}, beyond a float's range"
            raise CheckpointError(what, where=self.where)
        return number


def _decode(data: bytes, where: str) -> str:
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise CheckpointError(
            "starts with a byte order mark", where=where, remedy="Save it as UTF-8 without one"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"is not UTF-8 at byte {error.start}"
        raise CheckpointError(what, where=where, remedy="Save it as UTF-8") from error


def _syntax(error: json.JSONDecodeError, text: str) -> str:
    before = text[max(0, error.pos - 200) : error.pos + 1].rstrip()
    closing = before[-1:] in ("}", "]") and before[:-1].rstrip().endswith(",")
    if closing or "trailing comma" in error.msg:
        comma = text.rfind(",", 0, error.pos + 1)
        line = text.count("\n", 0, comma) + 1
        column = comma - text.rfind("\n", 0, comma)
        return f"is not valid JSON: trailing comma at line {line}, column {column}"
    message = (error.msg[:1].lower() + error.msg[1:]).removesuffix(" at")
    return f"is not valid JSON: {message} at line {error.lineno}, column {error.colno}"


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _kind(value: object) -> str:
    names: dict[type, str] = {list: "an array", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


def _size(count: int) -> str:
    return f"{count // MIB} MiB" if count >= MIB else f"{count} bytes"
