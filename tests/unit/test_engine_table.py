from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from dflash_pack.agreement import EngineView
from dflash_pack.engine_table import difference_lines, engine_row, show_engines, verdict_on
from dflash_pack.engines.meaning import Difference, EngineMeaning

MEANING = EngineMeaning("sglang", "0.5.23", "native")
SERVED = EngineView(MEANING, ())


def layer(index, meant="sliding 32, causal", derived="full, bidirectional"):
    return Difference("sglang", f"layer {index}", meant, derived)


def refused(*sentences):
    return EngineView(replace(MEANING, refusals=sentences), ())


def shown(*views, width=80, verbose=False):
    stream = StringIO()
    console = Console(file=stream, width=width, no_color=True, highlight=False)
    show_engines(console, "Engines", views, verbose=verbose)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("view", "verdict"),
    [
        (SERVED, "as meant"),
        (EngineView(MEANING, (layer(0),)), "not as meant"),
        (refused("It can't."), "no"),
    ],
)
def test_a_view_is_one_verdict(view, verdict):
    assert verdict_on(view) == engine_row(view).verdict == verdict


def test_each_difference_is_a_line():
    runs = [replace(layer(0), field="layers 0-2"), layer(4)]
    assert difference_lines(runs) == (
        "layers 0-2: full, bidirectional (meant: sliding 32, causal)",
        "layer 4: full, bidirectional (meant: sliding 32, causal)",
    )


def test_flags_are_told_in_words_and_facts_stay_apart():
    flags = [
        Difference("sglang", "attention sinks", "True", "False"),
        Difference("sglang", "mask_embedding.pt", "True", "False"),
    ]
    assert difference_lines(flags) == (
        "attention sinks: no (meant: yes)",
        "mask_embedding.pt: no (meant: yes)",
    )


def test_the_first_reason_stands_for_all_unless_asked():
    view = refused("First.", "Second.", "Third.")
    assert engine_row(view).details == ("First.", "(and 2 more reasons: --verbose)")
    assert engine_row(view, verbose=True).details == ("First.", "Second.", "Third.")
    assert engine_row(refused("First.")).details == ("First.",)


def test_what_is_ignored_is_counted_and_named_when_asked():
    view = EngineView(replace(MEANING, ignored=("dtype", "d2t")), ())
    assert engine_row(view).details == ("ignores 2 of the file's keys and tensors",)
    assert engine_row(view, verbose=True).details == ("ignores dtype, d2t",)
    assert engine_row(SERVED).details == ()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_keeps_within_the_width_and_leaves_nothing_at_line_ends(width):
    words = " ".join(["word"] * 60)
    lines = shown(SERVED, refused(words), width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert lines == [line.rstrip() for line in lines]
    assert " ".join(lines).split().count("word") == 60


def test_a_row_reads_as_engine_form_and_answer():
    both = replace(layer(0), field="layers 0-1")
    lines = shown(EngineView(MEANING, (both,))).splitlines()
    assert lines[1:] == [
        "Engines",
        "engine    reads   serves it",
        "sglang    native  not as meant",
        "  0.5.23          layers 0-1: full, bidirectional (meant: sliding 32, causal)",
    ]


def test_hostile_names_can_not_draw_on_the_terminal():
    evil = "a\x1b[31mred\nline[bold]"
    text = shown(EngineView(replace(MEANING, ignored=(evil,)), ()), verbose=True)
    assert "\x1b" not in text
    assert "[bold]" in text
