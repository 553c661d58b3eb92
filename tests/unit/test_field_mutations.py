"""A wrong value in any field that bears meaning is caught, each by the check that is listed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from field_mutations import FORMS, mutated

from dflash_pack.accounting import flatten
from dflash_pack.checkpoint import open_checkpoint
from dflash_pack.checks import static_checks
from dflash_pack.conversion import plan_conversion
from dflash_pack.packing import pack
from dflash_pack.target import read_target
from dflash_pack.validation import file_digests

TINY = Path(__file__).parents[2] / "examples" / "tiny"
SECTIONS = (
    "dflash_config",
    "transformer_layer_config",
    "speculators_config",
    "speculators_config.verifier",
)
# Fields that a decode does not depend on, each with the reason.
NO_MEANING = {
    "bos_token_id": "the target's count",
    "eos_token_id": "the target's count",
    "pad_token_id": "the target's count",
    "dtype": "engines load the draft in the target's",
    "max_window_layers": "layer_types say it",
    "max_position_embeddings": "the length of a cache",
    "sliding_window": "no layer slides in this drafter",
    # In the universal form, whose native half vLLM parses; listed for the Speculators form.
    "sliding_window_non_causal": "no layer slides in this drafter",
    "use_sliding_window": "no layer slides in this drafter",
    "tie_word_embeddings": "no engine reads it",
    "speculators_version": "names the writer",
    "default_proposal_method": "the methods say it",
    "name_or_path": "only the record knows the target; listed for the Speculators form",
    "model_type": "the top-level one decides for all engines",
    "num_target_layers": "a count to compare with",
    "target_hidden_size": "equals hidden_size",
    "architectures": "one value per form",
}
CASES = [
    pytest.param(form, *case, id=f"{form}-{case[0]}-{case[2]}-{number}")
    for form, cases in FORMS.items()
    for number, case in enumerate(cases)
]


@pytest.fixture(scope="module")
def target():
    return read_target(str(TINY / "target"), identifier="dflash-pack/tiny-target")


@pytest.fixture(scope="module")
def packed(tmp_path_factory, target):
    folder = tmp_path_factory.mktemp("packed")
    source = open_checkpoint(TINY / "drafter")
    for form in FORMS:
        pack(plan_conversion(source, target, form=form), folder / form)
    return folder


def changed(packed, tmp_path, form, field, value):
    out = tmp_path / form
    shutil.copytree(packed / form, out)
    path = out / "config.json"
    path.write_text(json.dumps(mutated(json.loads(path.read_text()), field, value)))
    return out


def failing(folder, target):
    checkpoint = open_checkpoint(folder)
    checks = static_checks(checkpoint, target, file_digests(checkpoint)).checks
    return {check.id for check in checks if check.status == "failed"}


@pytest.mark.parametrize("form", FORMS)
def test_the_unchanged_folder_passes(packed, target, form):
    assert failing(packed / form, target) == set()


@pytest.mark.parametrize(("form", "field", "value", "catcher"), CASES)
def test_the_record_catches_it(packed, target, tmp_path, form, field, value, catcher):
    found = failing(changed(packed, tmp_path, form, field, value), target)
    assert found & {"files.record", "config.meaning"}


@pytest.mark.parametrize(("form", "field", "value", "catcher"), CASES)
def test_without_the_record_the_listed_check_does(
    packed, target, tmp_path, form, field, value, catcher
):
    out = changed(packed, tmp_path, form, field, value)
    (out / "dflash_pack.json").unlink()
    found = failing(out, target)
    if catcher in ("decode", "record"):
        assert found == set(), "a check catches it: say which"
    else:
        assert catcher in found


@pytest.mark.parametrize("form", FORMS)
def test_no_field_is_left_out(packed, form):
    config = json.loads((packed / form / "config.json").read_text())
    listed = {field for field, _, _ in FORMS[form]}
    for field in flatten(config, SECTIONS):
        known = any(field == name or name.startswith(f"{field}.") for name in listed)
        assert known or field.rsplit(".", 1)[-1] in NO_MEANING, field
