"""Planning and writing a conversion: what is checked first, and what is then written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made import MIXED, NATIVE, SLIDING, checkpoint, native, speculators, target_folder
from raw_safetensors import raw, write_checkpoint
from safetensors import safe_open

from dflash_pack.checkpoint import open_checkpoint, tensor_bytes
from dflash_pack.conversion import plan_conversion
from dflash_pack.errors import (
    CheckpointError,
    DflashPackError,
    NotRepresentableError,
    OutputExistsError,
    TargetMismatchError,
    UsageError,
)
from dflash_pack.file_reading import sha256_file
from dflash_pack.hub.manifest import read_drafter as recorded_drafter
from dflash_pack.hub.manifest import read_manifest
from dflash_pack.overrides import Override
from dflash_pack.packing import pack
from dflash_pack.target import read_target


@pytest.fixture
def target(tmp_path):
    return read_target(str(target_folder(tmp_path / "target")), identifier="owner/target")


def convert(source: Path, target, out: Path, **options):
    conversion = plan_conversion(open_checkpoint(source), target, **options)
    return conversion, pack(conversion, out)


def all_bytes(folder: Path) -> dict[str, bytes]:
    return {n: tensor_bytes(info) for n, info in open_checkpoint(folder).tensors.items()}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("form", ["native", "native-new"])
@pytest.mark.parametrize("changes", [{}, SLIDING, {"attention_bias": True}])
def test_native_to_speculators_and_back_keeps_every_bit(tmp_path, target, shards, changes, form):
    source = checkpoint(tmp_path / "source", native(**changes), shards=shards)
    there, _ = convert(source, target, tmp_path / "there")
    back, _ = convert(tmp_path / "there", target, tmp_path / "back", form=form)
    assert all_bytes(tmp_path / "back") == all_bytes(tmp_path / "there") == all_bytes(source)
    assert len(open_checkpoint(tmp_path / "back").shards) == shards
    kept = {"target_depth": 4, "verifier": None, "verifier_architectures": ()}
    assert vars(back.drafter) | kept == vars(there.drafter)


def test_only_what_belongs_there_is_written(tmp_path, target):
    source = checkpoint(tmp_path / "source", NATIVE)
    for name in ("dflash.py", "README.md", "optimizer_state_dict.pt", "LICENSE"):
        (source / name).write_text("text")
    _, packed = convert(source, target, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"config.json", "model.safetensors", "LICENSE", "dflash_pack.json"}
    assert {file.name for file in packed.files} == names - {"dflash_pack.json"}


@pytest.mark.parametrize("shards", [1, 2])
def test_the_record_names_what_was_read_and_written(tmp_path, target, shards):
    source = checkpoint(tmp_path / "source", NATIVE, shards=shards)
    conversion, _ = convert(source, target, tmp_path / "out")
    manifest = read_manifest(tmp_path / "out")
    for name, record in manifest.files.items():
        assert record.sha256 == sha256_file(tmp_path / "out" / name)
    for name, digest in manifest.source.files.items():
        assert digest == sha256_file(source / name)
    assert manifest.target.identifier == "owner/target"
    assert recorded_drafter(manifest, where="x") == conversion.drafter


def test_the_output_is_read_by_safetensors_itself(tmp_path, target):
    convert(checkpoint(tmp_path / "source", NATIVE), target, tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}
        assert len(list(file.keys())) == 25


def own(name: str, seed: int):
    return {name: raw("BF16", 64, 16, seed=seed)}


@pytest.mark.parametrize("kind", ["embed_tokens.weight", "lm_head.weight"])
def test_matrices_equal_to_the_targets_are_left_out(tmp_path, kind):
    source = checkpoint(tmp_path / "source", speculators(), extra=own(kind, 7))
    folder = target_folder(tmp_path / "target", tie_word_embeddings=False)
    prefix = "model." if kind.startswith("embed") else ""
    config = json.loads((folder / "config.json").read_text())
    write_checkpoint(folder, own(prefix + kind, 7), config=config)
    aim = read_target(str(folder), identifier="owner/target")
    conversion, _ = convert(source, aim, tmp_path / "out")
    assert kind not in all_bytes(tmp_path / "out")
    assert any(e.name == kind and "equal" in e.detail for e in conversion.ledger.of("dropped"))


def test_a_matrix_that_differs_or_cannot_be_compared_is_kept_and_said(tmp_path, target):
    source = checkpoint(tmp_path / "source", speculators(), extra=own("embed_tokens.weight", 7))
    conversion, _ = convert(source, target, tmp_path / "unknown")
    assert "embed_tokens.weight" in all_bytes(tmp_path / "unknown")
    assert any("not at hand" in note for note in conversion.notes)
    folder = target_folder(tmp_path / "weights")
    config = json.loads((folder / "config.json").read_text())
    write_checkpoint(folder, own("model.embed_tokens.weight", 8), config=config)
    aim = read_target(str(folder), identifier="owner/target")
    conversion, _ = convert(source, aim, tmp_path / "differs")
    assert "embed_tokens.weight" in all_bytes(tmp_path / "differs")
    assert any("it differs" in note for note in conversion.notes)
    # The library overwrites it with the verifier's: told, but vLLM, which serves, does as meant.
    assert any("embedding" in warning for warning in conversion.warnings)


@pytest.mark.parametrize("form", ["native", "universal"])
def test_mixed_layers_have_no_pure_speculators_form(tmp_path, target, form):
    source = open_checkpoint(checkpoint(tmp_path / "source", native(**MIXED)))
    with pytest.raises(NotRepresentableError, match="--format universal"):
        plan_conversion(source, target)
    conversion = plan_conversion(source, target, form=form)
    assert all(view.agrees for view in conversion.engines if view.meaning.engine == "vllm")


def test_a_value_that_contradicts_the_source_is_in_report_and_record(tmp_path, target):
    source = checkpoint(tmp_path / "source", NATIVE)
    stated = [Override("dflash_config.mask_token_id", 9)]
    conversion, _ = convert(source, target, tmp_path / "out", overrides=stated)
    said = "9 by --set; the source states 5"
    assert any(said in note for note in conversion.notes)
    assert [item.reason for item in read_manifest(tmp_path / "out").ledger.stated] == [said]


def test_values_that_the_user_states_are_read(tmp_path, target):
    config = native(dflash_config__mask_token_id=None)
    source = open_checkpoint(checkpoint(tmp_path / "source", config))
    stated = [Override("dflash_config.mask_token_id", 9)]
    conversion = plan_conversion(source, target, overrides=stated)
    assert conversion.form.config["mask_token_id"] == 9


def test_a_named_loss_is_taken_and_recorded(tmp_path, target):
    config = native(dflash_config__attention_value_scale=0.5, mystery=1)
    source = open_checkpoint(checkpoint(tmp_path / "source", config))
    with pytest.raises(DflashPackError):
        plan_conversion(source, target)
    names = ("dflash_config.attention_value_scale", "mystery")
    conversion = plan_conversion(source, target, allow_lossy=names)
    assert {entry.name for entry in conversion.ledger.of("lossy")} == set(names)
    with pytest.raises(UsageError, match="names no config key"):
        plan_conversion(source, target, allow_lossy=["absent"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 32}, "takes states of width 16, the target's are 32 wide"),
        ({"vocab_size": 65}, "made for a vocabulary of 64, the target has 65"),
        ({"num_hidden_layers": 5}, "made for 4 target layers, the target has 5"),
    ],
)
def test_another_target_is_refused(tmp_path, changes, words):
    source = open_checkpoint(checkpoint(tmp_path / "source", NATIVE))
    aim = read_target(str(target_folder(tmp_path / "target", **changes)), identifier=None)
    with pytest.raises(TargetMismatchError, match=words):
        plan_conversion(source, aim)


def test_layers_beyond_the_target_are_refused(tmp_path, target):
    config = native(num_target_layers=None, dflash_config__target_layer_ids=[0, 4])
    source = open_checkpoint(checkpoint(tmp_path / "source", config))
    with pytest.raises(TargetMismatchError, match=r"\[4\] lie outside the target's 4 layers"):
        plan_conversion(source, target)


TENSORS = [
    ("missing", lambda t: t.pop("fc.weight"), r"1 tensors are missing: fc\.weight"),
    (
        "missing layer",
        lambda t: [t.pop(n) for n in list(t) if n.startswith("layers.1.")],
        "11 tensors are missing",
    ),
    ("shape", lambda t: t.update({"fc.weight": raw("BF16", 16, 16)}), "fc.weight has shape"),
    (
        "too many",
        lambda t: t.update({"layers.7.mlp.up_proj.weight": raw("BF16", 24, 16)}),
        "1 tensors have no place",
    ),
    ("unknown", lambda t: t.update({"surprise": raw("BF16", 1)}), "1 unknown tensor: surprise"),
]


@pytest.mark.parametrize(("change", "words"), [t[1:] for t in TENSORS], ids=[t[0] for t in TENSORS])
def test_another_tensor_set_is_refused(tmp_path, target, change, words):
    from made import specs

    tensors = {name: raw(spec.dtype, *spec.shape) for name, spec in specs(NATIVE).items()}
    change(tensors)
    source = open_checkpoint(write_checkpoint(tmp_path / "source", tensors, config=NATIVE))
    with pytest.raises(DflashPackError, match=words):
        plan_conversion(source, target)


@pytest.mark.parametrize(
    "bits", [b"\xc0\x7f", b"\x80\x7f", b"\x80\xff"], ids=["nan", "inf", "minus"]
)
def test_weights_that_are_no_numbers_are_refused_and_nothing_is_left(tmp_path, target, bits):
    bad = {"norm.weight": ("BF16", (16,), bits + bytes(30))}
    source = checkpoint(tmp_path / "source", NATIVE, extra=bad)
    with pytest.raises(CheckpointError, match=r"norm\.weight: holds"):
        convert(source, target, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "target"}


def test_an_existing_output_is_not_touched(tmp_path, target):
    source = checkpoint(tmp_path / "source", NATIVE)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(OutputExistsError):
        convert(source, target, tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "mine"


def test_what_engines_would_make_of_the_source_itself_is_said(tmp_path, target):
    source = checkpoint(tmp_path / "source", speculators(sliding_window_non_causal=False))
    conversion = plan_conversion(open_checkpoint(source), target)
    said = (
        "Of the source as it is, vllm would take layers 0-1 as full, causal "
        "(by sliding_window_non_causal: false), but full, bidirectional is meant."
    )
    assert said in conversion.notes


def test_fewer_tokens_than_the_block_gives_have_no_native_form(tmp_path, target):
    config = speculators()
    config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 2
    source = open_checkpoint(checkpoint(tmp_path / "source", config))
    with pytest.raises(NotRepresentableError, match="asks for 2 tokens"):
        plan_conversion(source, target, form="native")


def test_a_hostile_mask_embedding_is_not_passed_on(tmp_path, target):
    source = checkpoint(tmp_path / "source", NATIVE)
    (source / "mask_embedding.pt").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(CheckpointError, match=r"mask_embedding\.pt"):
        convert(source, target, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_both_forms_state_the_same_meaning_of_a_window_by_use_swa(tmp_path, target):
    config = native(dflash_config__use_swa=True, dflash_config__swa_window_size=9)
    source = open_checkpoint(checkpoint(tmp_path / "source", config))
    for form in ("speculators", "native"):
        conversion = plan_conversion(source, target, form=form)
        views = {view.meaning.engine: view for view in conversion.engines}
        assert views["vllm"].agrees
        assert [layer.window for layer in views["vllm"].meaning.layers] == [9, 9]


@pytest.mark.parametrize("given", ["named", "a path"])
def test_the_sources_own_name_of_its_verifier_outlives_a_target_without_one(tmp_path, given):
    identifier = "other/target" if given == "named" else None
    aim = read_target(str(target_folder(tmp_path / "target")), identifier=identifier)
    source = open_checkpoint(checkpoint(tmp_path / "source", speculators()))
    conversion = plan_conversion(source, aim)
    written = conversion.form.config["speculators_config"]["verifier"]["name_or_path"]
    kept = [note for note in conversion.notes if "owner/target, is kept" in note]
    assert (written, len(kept)) == (
        ("other/target", 0) if given == "named" else ("owner/target", 1)
    )


def test_a_path_as_the_sources_verifier_is_not_kept(tmp_path):
    aim = read_target(str(target_folder(tmp_path / "target")), identifier=None)
    config = speculators(speculators_config__verifier__name_or_path="/data/target")
    source = open_checkpoint(checkpoint(tmp_path / "source", config))
    verifier = plan_conversion(source, aim).form.config["speculators_config"]["verifier"]
    assert verifier["name_or_path"] == aim.identifier


def test_an_ordinary_mask_token_is_said_where_the_tokenizer_is_at_hand(tmp_path):
    """validate fails it; convert is the place to correct it."""
    folder = target_folder(tmp_path / "target")
    vocabulary = {f"t{number}": number for number in range(60)}
    tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": []}
    for mask, said in ((5, True), (61, False)):
        for present in (True, False):
            path = folder / "tokenizer.json"
            path.write_text(json.dumps(tokenizer)) if present else path.unlink()
            aim = read_target(str(folder), identifier="owner/target")
            config = native(dflash_config__mask_token_id=mask)
            source = open_checkpoint(checkpoint(tmp_path / f"source-{mask}-{present}", config))
            notes = " ".join(plan_conversion(source, aim).notes)
            assert ("validate will fail" in notes) == (said and present)
