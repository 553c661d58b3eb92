"""The engine's log: bounded, and searched for the telling line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dflash_pack.smoke.log import TELLING_CHARS, BoundedLog, telling


def test_all_output_is_kept_while_it_fits(tmp_path):
    path = tmp_path / "new" / "engine.log"
    with BoundedLog(path) as log:
        command = [sys.executable, "-c", "import sys; print('out'); sys.stderr.write('err')"]
        process = subprocess.Popen(command, stdout=log.fileno(), stderr=log.fileno())
        log.hand_over()
        process.wait()
    assert sorted(path.read_bytes().split()) == [b"err", b"out"]


def test_beginning_and_end_of_a_flood_are_kept_and_the_rest_is_counted(tmp_path):
    path = tmp_path / "engine.log"
    with (
        BoundedLog(path, head_bytes=1000, tail_bytes=2000) as log,
        os.fdopen(os.dup(log.fileno()), "wb") as writer,
    ):
        log.hand_over()
        writer.write(b"first\n" + b"x" * 1_000_000 + b"\nlast\n")
    text = path.read_bytes()
    assert text.startswith(b"first\nxxx")
    assert text.endswith(b"xxx\nlast\n")
    dropped = int(text.partition(b"\n[")[2].partition(b" bytes left out]")[0])
    note = len(f"\n[{dropped} bytes left out]\n")
    assert dropped + len(text) - note == 1_000_012
    # One chunk of a pipe may be as long as 64 KiB and is kept whole.
    assert len(text) < 1000 + 2000 + 65536 + note


def test_a_process_that_outlives_the_engine_does_not_hold_the_log(tmp_path):
    path = tmp_path / "engine.log"
    log = BoundedLog(path)
    stray = os.dup(log.fileno())
    os.write(stray, b"said before")
    log.close(patience_s=0.2)
    os.write(stray, b"said after")
    os.close(stray)
    assert path.read_bytes() == b"said before"


@pytest.mark.parametrize("kind", ["file", "link", "link to nothing", "pipe"])
def test_what_has_its_name_is_replaced_and_never_written_to(tmp_path, kind):
    """A checkpoint of unknown origin may hold a link or a pipe where its log goes."""
    path, mine = tmp_path / "decode.log", tmp_path / "mine"
    mine.write_text("precious")
    match kind:
        case "file":
            path.write_text("a former log, which is longer than what follows")
        case "link":
            path.symlink_to(mine)
        case "link to nothing":
            path.symlink_to(tmp_path / "nothing")
        case "pipe":
            os.mkfifo(path)
    with BoundedLog(path) as log:
        os.write(log.fileno(), b"said")
    assert (path.read_bytes(), path.is_symlink()) == (b"said", False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["decode.log", "mine"]
    assert mine.read_text() == "precious"


BETWEEN_NOISE = """
(EngineCore pid=12) INFO 12-01 15:33:04 [core.py:133] Initializing a V1 LLM engine
Traceback (most recent call last):
  File "a.py", line 3, in f
    g()
ValueError: no rope
(EngineCore pid=12) INFO 12-01 15:33:04 [core.py:133] Shutting down
"""
SECOND_HAND = "RuntimeError: Engine core initialization failed. See root cause above."
FIRST_AND_SECOND_HAND = f"""
(EngineCore pid=1) ERROR 12-01 15:33:04 [core.py:9] KeyError: 'fc.weight'
{SECOND_HAND}
"""
PYDANTIC = """
pydantic_core._pydantic_core.ValidationError: 1 validation error for Speculative
  Value error, Invalid repository ID or local directory [type=value_error]
    For further information visit the manual
"""
CONTINUED = """
RuntimeError: shapes differ:
  fc.weight is [1]
  norm.weight is [2]
some noise
"""
BARE_ASSERTION = """
  File "m.py", line 5, in load
    assert not mask_hidden
           ^^^^^^^^^^^^^^^
AssertionError
"""
COLOURED_CRASH = "\x1b[0;36mload\x1b[0m\n\x1b[1mFatal Python error: Aborted\x1b[0m\n\nThread 0x1:\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BETWEEN_NOISE, "ValueError: no rope"),
        (FIRST_AND_SECOND_HAND, "KeyError: 'fc.weight'"),
        (SECOND_HAND, SECOND_HAND),
        (PYDANTIC, "Value error, Invalid repository ID or local directory [type=value_error]"),
        (CONTINUED, "RuntimeError: shapes differ: fc.weight is [1] norm.weight is [2]"),
        (BARE_ASSERTION, "AssertionError (assert not mask_hidden)"),
        (COLOURED_CRASH, "Fatal Python error: Aborted"),
        ("one\ntwo\n\nthree\nfour\n", "two three four"),
        ("", ""),
    ],
)
def test_the_telling_part_is_the_last_exception_that_is_no_hearsay(text, expected):
    assert telling(text) == expected


def test_hostile_text_is_escaped_and_bounded():
    found = telling("ValueError: \x07\u202e" + "x" * 10_000 + "\n")
    assert found.startswith("ValueError: \\x07\\u202e")
    assert len(found) == TELLING_CHARS
    assert found.endswith("...")
