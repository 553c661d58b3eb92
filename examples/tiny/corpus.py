"""The text of the tiny pair: short questions with predictable answers, all made up here.

Every example is drawn from a seeded generator, so the corpus is never stored. Held-out prompts
are drawn first and excluded from training by their text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple


def _words(text: str) -> list[str]:
    return text.split()


NAMES = _words("Ada Ben Cleo Dan Eva Finn Gus Hana Ivo Jade Kai Lena Milo Nora Otto Pia")
CITIES = _words("Oslo Lima Rome Cairo Paris Delhi Quito Tokyo Dakar Sofia")
COLORS = _words("red blue green amber violet white black silver")
ITEMS = _words("apple lamp chair kettle ladder basket mirror pencil")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words(
    "January February March April May June July August September October November December"
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ANIMALS = {
    "fox": ("the forest", "berries and mice"),
    "owl": ("an old tree", "mice and moths"),
    "seal": ("the cold sea", "fish and crabs"),
    "camel": ("the desert", "dry grass"),
    "frog": ("a small pond", "flies and worms"),
    "goat": ("the hills", "leaves and grass"),
    "bear": ("a deep cave", "honey and fish"),
    "crab": ("the beach", "weeds and shells"),
    "horse": ("the meadow", "hay and oats"),
    "swan": ("the lake", "roots and reeds"),
}


class Example(NamedTuple):
    """One user turn and the answer to it."""

    prompt: str
    answer: str


def _joined(values: range) -> str:
    return ", ".join(map(str, values)) + "."


def count_up(rng: random.Random) -> Example:
    """Count between two numbers."""
    start, length = rng.randint(1, 180), rng.randint(8, 16)
    end = start + length
    return Example(f"Count from {start} to {end}.", _joined(range(start, end + 1)))


def count_down(rng: random.Random) -> Example:
    """Count between two numbers, falling."""
    start, length = rng.randint(20, 199), rng.randint(8, 16)
    end = start - length
    return Example(f"Count down from {start} to {end}.", _joined(range(start, end - 1, -1)))


def count_steps(rng: random.Random) -> Example:
    """Count by a fixed step."""
    start, step, terms = rng.randint(1, 90), rng.choice([2, 5, 10]), rng.randint(7, 12)
    numbers = range(start, start + step * terms, step)
    return Example(f"Count by {step} from {start} to {numbers[-1]}.", _joined(numbers))


def times_table(rng: random.Random) -> Example:
    """Write part of a multiplication table."""
    factor, first, rows = rng.randint(2, 12), rng.randint(1, 6), rng.randint(3, 6)
    lines = [f"{factor} x {n} = {factor * n}" for n in range(first, first + rows)]
    prompt = f"Write the table of {factor} from {first} to {first + rows - 1}."
    return Example(prompt, "\n".join(lines))


def addition(rng: random.Random) -> Example:
    """Add a small number several times and show each sum."""
    start, step, rows = rng.randint(1, 80), rng.randint(1, 5), rng.randint(3, 5)
    sums = [start + step * n for n in range(rows + 1)]
    lines = [f"{before} + {step} = {after}" for before, after in pairwise(sums)]
    return Example(f"Start at {start} and add {step}, {rows} times.", "\n".join(lines))


def json_person(rng: random.Random) -> Example:
    """Turn facts about a person into a JSON record."""
    name, city, color = rng.choice(NAMES), rng.choice(CITIES), rng.choice(COLORS)
    age = rng.randint(18, 79)
    record = {"name": name, "age": age, "city": city, "color": color}
    prompt = f"Write JSON: {name} is {age}, lives in {city} and likes {color}."
    return Example(prompt, json.dumps(record))


def json_order(rng: random.Random) -> Example:
    """Turn an order into a JSON record with a nested list."""
    name, item, color = rng.choice(NAMES), rng.choice(ITEMS), rng.choice(COLORS)
    count = rng.randint(2, 30)
    order = {"buyer": name, "items": [{"item": item, "color": color, "count": count}]}
    prompt = f"Write JSON: {name} orders {count} pieces of the {color} {item}."
    return Example(prompt, json.dumps(order))


def animal(rng: random.Random) -> Example:
    """Tell where an animal lives and what it eats."""
    name, kind, color = rng.choice(NAMES), rng.choice(sorted(ANIMALS)), rng.choice(COLORS)
    home, food = ANIMALS[kind]
    answer = (
        f"{name} is a {color} {kind}. The {kind} lives in {home} and eats {food}. "
        f"Every day {name} looks for {food}."
    )
    return Example(f"Tell me about {name}, the {color} {kind}.", answer)


def travel(rng: random.Random) -> Example:
    """Retell a journey between two cities."""
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    start, end = rng.sample(CITIES, 2)
    answer = (
        f"{name} leaves {start} in the morning with the {item}. The train goes from {start} to "
        f"{end}. In the evening {name} arrives in {end} and still has the {item}."
    )
    return Example(f"{name} travels from {start} to {end} with the {item}. Retell it.", answer)


def cycle(rng: random.Random) -> Example:
    """List days or months in order, starting anywhere."""
    unit, ring = rng.choice([("days", DAYS), ("months", MONTHS)])
    start, length = rng.randrange(len(ring)), rng.randint(4, 7)
    names = [ring[(start + n) % len(ring)] for n in range(length)]
    return Example(f"Name {length} {unit} from {names[0]}.", ", ".join(names) + ".")


def alphabet(rng: random.Random) -> Example:
    """Spell a run of the alphabet, forward or backward."""
    first = rng.randint(0, 14)
    run = LETTERS[first : first + rng.randint(8, 12)]
    if rng.random() < 0.5:
        run = run[::-1]
    return Example(f"Spell the letters from {run[0]} to {run[-1]}.", " ".join(run) + ".")


def repeat(rng: random.Random) -> Example:
    """Repeat a phrase a number of times."""
    phrase, times = f"{rng.choice(COLORS)} {rng.choice(ITEMS)}", rng.randint(4, 9)
    return Example(f"Repeat {phrase} {times} times.", ", ".join([phrase] * times) + ".")


KINDS: tuple[Callable[[random.Random], Example], ...] = (
    count_up,
    count_down,
    count_steps,
    times_table,
    addition,
    json_person,
    json_order,
    animal,
    travel,
    cycle,
    alphabet,
    repeat,
)


def held_out(seed: int, per_kind: int = 2) -> list[Example]:
    """Draw the evaluation examples: `per_kind` distinct ones of each kind."""
    rng = random.Random(f"held-out {seed}")
    examples: dict[str, Example] = {}
    for kind in KINDS:
        wanted = len(examples) + per_kind
        while len(examples) < wanted:
            example = kind(rng)
            examples.setdefault(example.prompt, example)
    return list(examples.values())


def training(seed: int, exclude: set[str]) -> Iterator[Example]:
    """Draw training examples without end, never one whose prompt is in `exclude`."""
    rng = random.Random(f"training {seed}")
    while True:
        example = rng.choice(KINDS)(rng)
        if example.prompt not in exclude:
            yield example
