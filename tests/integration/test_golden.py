"""Each trained drafter drafts the same after conversion, in real vLLM and in z-lab's own code."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import pytest
from golden import BLOCK_SIZE, DECODED, GOLDEN, PROMPTS, REFERENCED, TARGET, TINY
from reference_decode import ReferenceRequest, reference_decodes
from vllm_lab import vllm_lab

from dflash_pack.checkpoint import open_checkpoint
from dflash_pack.conversion import plan_conversion
from dflash_pack.errors import NotRepresentableError
from dflash_pack.packing import pack
from dflash_pack.smoke.request import DecodeRequest, load_prompts
from dflash_pack.smoke.result import compare
from dflash_pack.smoke.run import DecodeFailedError, decode_many
from dflash_pack.target import read_target

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]

EVERY = 2  # there are two prompts of each kind
MAX_TOKENS = 96  # more than the longest answer, so that none is cut in the middle of a block
FORMS = ("speculators", "universal")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Each drafter as (name, what): its source, its conversions, and one with a fault."""
    scratch = tmp_path_factory.mktemp("golden")
    target = read_target(str(TARGET), identifier=None)
    found = {}
    for name, golden in GOLDEN.items():
        found[name, "source"] = golden.folder
        for form in FORMS:
            if golden.decodes or form == "universal":
                found[name, form] = scratch / f"{name}-{form}"
                conversion = plan_conversion(open_checkpoint(golden.folder), target, form=form)
                pack(conversion, found[name, form])
        sound = found[name, "speculators" if golden.decodes else "universal"]
        found[name, "fault"] = golden.spoilt(sound, scratch / f"{name}-fault")
    return found


@pytest.fixture(scope="module")
def decodes(folders, tmp_path_factory):
    """One vLLM decode of each folder that the CPU runner takes, all in one child."""
    base = DecodeRequest(
        target=str(TARGET),
        drafter="",
        speculative_tokens=BLOCK_SIZE - 1,
        device="cpu",
        dtype="float32",
        prompts=load_prompts(PROMPTS)[::EVERY],
        max_tokens=MAX_TOKENS,
        near_tie_gap=1e-3,
        kv_cache_gib=0.25,
    )
    names = [name for name in folders if GOLDEN[name[0]].decodes]
    outcomes = decode_many(
        [replace(base, drafter=str(folders[name])) for name in names],
        timeout_s=500,
        log=tmp_path_factory.mktemp("log") / "decode.log",
    )
    for name, outcome in zip(names, outcomes, strict=True):
        assert not isinstance(outcome, DecodeFailedError), f"{name}: {outcome}"
    return dict(zip(names, outcomes, strict=True))


@pytest.fixture(scope="module")
def references(folders):
    """One decode by z-lab's own code of each folder that it reads."""
    names = [(name, "source") for name in REFERENCED]
    names += [("mixed", "universal"), ("mixed", "fault"), ("yarn", "universal")]
    requests = [
        ReferenceRequest(str(TARGET), str(folders[name]), str(PROMPTS), EVERY, MAX_TOKENS)
        for name in names
    ]
    return dict(zip(names, reference_decodes(requests), strict=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", DECODED)
def test_the_conversion_accepts_the_same_tokens_at_each_position(decodes, name, form):
    source, converted = decodes[name, "source"], decodes[name, form]
    assert source.acceptance.accepted_per_position == converted.acceptance.accepted_per_position
    assert source.acceptance == converted.acceptance
    assert source.outputs == converted.outputs


@pytest.mark.parametrize("name", DECODED)
def test_a_fault_in_what_makes_it_special_shows_in_the_counts(decodes, name):
    comparison = compare(decodes[name, "source"], decodes[name, "fault"])
    assert not comparison.equal
    assert comparison.same_outputs
    assert comparison.relative_change < 0


@pytest.mark.parametrize("name", DECODED)
def test_it_is_trained_well_enough_to_tell(decodes, name):
    assert decodes[name, "source"].acceptance.acceptance_length > 4


@pytest.mark.parametrize("name", sorted(set(DECODED) & set(REFERENCED)))
def test_zlabs_own_code_takes_as_many_steps_as_vllm(decodes, references, name):
    """The oracle: another engine, written by others, on the unconverted files."""
    engine, reference = decodes[name, "source"], references[name, "source"]
    assert engine.acceptance.drafts == reference.steps
    assert engine.outputs == reference.outputs


@pytest.mark.parametrize("name", ["mixed", "yarn"])
def test_zlabs_own_code_takes_as_many_steps_on_the_universal_form(references, name):
    assert references[name, "universal"] == references[name, "source"]


def test_zlabs_own_code_tells_a_wrong_mixed_drafter(references):
    source, fault = references["mixed", "source"], references["mixed", "fault"]
    assert fault.steps > source.steps
    assert fault.outputs == source.outputs


def test_vllm_resolves_each_mixed_layer_as_in_the_source(folders, tmp_path_factory):
    """vLLM's CPU runner takes no mixed layers, so that its own function is asked, not a decode."""
    from vllm.model_executor.models.qwen3_dflash import _resolve_layer_attention

    with vllm_lab(tmp_path_factory.mktemp("vllm")) as lab, lab.use(lab.vllm_config):
        resolved = {
            what: [_resolve_layer_attention(lab.config(folders["mixed", what]), n) for n in (0, 1)]
            for what in ("source", "universal", "fault")
        }
    assert resolved["universal"] == resolved["source"] == [(16, True), (None, False)]
    assert resolved["fault"] != resolved["source"]


def test_mixed_layers_have_no_speculators_form():
    target = read_target(str(TARGET), identifier=None)
    with pytest.raises(NotRepresentableError, match="--format universal"):
        plan_conversion(open_checkpoint(GOLDEN["mixed"].folder), target, form="speculators")


def test_the_example_files_stay_small_and_are_those_that_the_page_names():
    sizes = [path.stat().st_size for path in TINY.rglob("*") if path.is_file()]
    assert sum(sizes) < 8_000_000
    stated = dict(
        reversed(line.split())
        for line in (TINY / "README.md").read_text().splitlines()
        if re.match(r"[0-9a-f]{64}  ", line)
    )
    for golden in GOLDEN.values():
        name = str((golden.folder / "model.safetensors").relative_to(TINY))
        assert hashlib.sha256((TINY / name).read_bytes()).hexdigest() == stated[name]
