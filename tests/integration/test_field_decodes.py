"""Wrong values that nothing in the files gives away: a real decode tells each from the source."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from field_mutations import FORMS, mutated

from dflash_pack.checkpoint import open_checkpoint
from dflash_pack.conversion import plan_conversion
from dflash_pack.packing import pack
from dflash_pack.smoke.request import DecodeRequest, load_prompts
from dflash_pack.smoke.run import DecodeFailedError, decode_many
from dflash_pack.target import read_target

pytestmark = pytest.mark.engine

TINY = Path(__file__).parents[2] / "examples" / "tiny"
CASES = [
    (f"{form}-{number}-{field}", form, field, value)
    for form, cases in FORMS.items()
    for number, (field, value, catcher) in enumerate(cases)
    if catcher == "decode"
]
NAMES = [case[0] for case in CASES]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """One decode of the source and one of each wrong folder, all in one child."""
    folder = tmp_path_factory.mktemp("fields")
    target = read_target(str(TINY / "target"), identifier=None)
    for form in {case[1] for case in CASES}:
        source = open_checkpoint(TINY / "drafter")
        pack(plan_conversion(source, target, form=form), folder / form)
    folders = {"source": TINY / "drafter"}
    for name, form, field, value in CASES:
        folders[name] = folder / name
        shutil.copytree(folder / form, folders[name])
        path = folders[name] / "config.json"
        path.write_text(json.dumps(mutated(json.loads(path.read_text()), field, value)))
    base = DecodeRequest(
        target=str(TINY / "target"),
        drafter="",
        speculative_tokens=7,
        device="cpu",
        dtype="float32",
        prompts=load_prompts(TINY / "prompts.jsonl")[:12],
        max_tokens=48,
        near_tie_gap=1e-3,
        kv_cache_gib=0.25,
    )
    requests = [replace(base, drafter=str(path)) for path in folders.values()]
    found = decode_many(requests, timeout_s=900, log=folder / "decode.log")
    return dict(zip(folders, found, strict=True))


def test_the_source_decodes(outcomes):
    assert not isinstance(outcomes["source"], DecodeFailedError), outcomes["source"]


@pytest.mark.parametrize("name", NAMES)
def test_the_decode_tells(outcomes, name):
    source, other = outcomes["source"], outcomes[name]
    if isinstance(other, DecodeFailedError):
        return  # the engine refuses it, which `validate` reports as a failed check
    counts = source.acceptance.drafts, source.acceptance.accepted_per_position
    assert (other.acceptance.drafts, other.acceptance.accepted_per_position) != counts
