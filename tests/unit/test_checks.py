"""Each static check passes on a sound checkpoint and fails on its own fault."""

from __future__ import annotations

import json
import shlex

import pytest
import torch
from made import MIXED, NATIVE, checkpoint, native, speculators, target, target_folder
from raw_safetensors import raw

from dflash_pack.checkpoint import open_checkpoint
from dflash_pack.checks import static_checks
from dflash_pack.conversion import plan_conversion
from dflash_pack.packing import pack
from dflash_pack.target import read_target
from dflash_pack.validation import file_digests


def run(folder, aim=None):
    opened = open_checkpoint(folder)
    return static_checks(opened, aim or target(), file_digests(opened)).checks


def statuses(folder, aim=None):
    found: dict[str, set[str]] = {}
    for check in run(folder, aim):
        found.setdefault(check.id, set()).add(check.status)
    return found


@pytest.fixture
def converted(tmp_path):
    source = checkpoint(tmp_path / "source", NATIVE)
    aim = read_target(str(target_folder(tmp_path / "target")), identifier="owner/target")
    pack(plan_conversion(open_checkpoint(source), aim), tmp_path / "out")
    return tmp_path / "out"


def edit(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | changes))


def test_what_convert_wrote_passes_every_check(converted):
    assert {s for found in statuses(converted).values() for s in found} <= {"passed", "not run"}


def test_every_failure_says_what_to_do(tmp_path):
    folder = checkpoint(tmp_path / "ckpt", speculators(sliding_window_non_causal=False))
    (folder / "weights.pt").write_text("x")
    for check in run(folder, target(hidden_size=32)):
        assert check.finding
        assert "\n" not in check.finding
        if check.status in ("failed", "warning"):
            assert check.remedy


def test_the_librarys_default_flag_is_caught(tmp_path):
    """speculators convert writes false for full layers, which vLLM then runs causally."""
    folder = checkpoint(tmp_path / "ckpt", speculators(sliding_window_non_causal=False))
    found = [c for c in run(folder) if c.id == "engine.vllm"]
    assert found
    assert all(check.status == "failed" for check in found)
    assert "(by sliding_window_non_causal: false), but full, bidirectional" in found[0].finding
    assert "dflash-pack convert" in found[0].remedy


def test_a_file_that_changed_since_convert_is_caught(converted):
    edit(converted, sliding_window_non_causal=False)
    found = statuses(converted)
    assert found["files.record"] == {"failed"}
    assert found["engine.vllm"] == {"failed"}


def edit_record(folder, change):
    path = folder / "dflash_pack.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


TAMPERED = {
    "no files": lambda r: r.update(files={}),
    "config not listed": lambda r: r["files"].pop("config.json"),
    "weights not listed": lambda r: r["files"].pop("model.safetensors"),
    "another format": lambda r: r.update(format="native"),
    "another drafter": lambda r: r["drafter"].update(block_size=9),
    "another target": lambda r: r["target"].update(identifier="other/target"),
}


@pytest.mark.parametrize("change", TAMPERED.values(), ids=TAMPERED)
def test_a_record_that_does_not_speak_of_these_files_fails(converted, change):
    assert statuses(converted)["files.record"] == {"passed"}
    edit_record(converted, change)
    assert statuses(converted)["files.record"] == {"failed"}


def test_a_file_that_engines_read_by_themselves_is_not_slipped_in(converted):
    torch.save({"embedding": torch.zeros(16), "mask_token_id": 5}, converted / "mask_embedding.pt")
    assert statuses(converted)["files.record"] == {"failed"}


def test_a_quantisation_slipped_in_fails(converted):
    (converted / "hf_quant_config.json").write_text("{}")
    found = statuses(converted)
    assert (found["tensors.set"], found["files.record"]) == ({"failed"}, {"failed"})


@pytest.mark.parametrize(
    ("changes", "longest", "status"),
    [
        ({}, 512, "passed"),
        ({}, 513, "warning"),
        ({"max_position_embeddings": 16}, 512, "warning"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, 1024, "passed"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, 1025, "warning"),
    ],
)
def test_the_rope_table_against_the_targets_context(tmp_path, changes, longest, status):
    folder = checkpoint(tmp_path / "ckpt", native(**changes))
    found = statuses(folder, target(max_position_embeddings=longest))
    assert found["rope.cache"] == {status}


FAULTS = {
    "config.meaning": native(rope_theta=None),
    "target_layers.order": native(dflash_config__target_layer_ids=[2, 0]),
    "target_layers.range": native(dflash_config__target_layer_ids=[0, 9], num_target_layers=None),
    "target.depth": native(num_target_layers=7),
    "mask_token.unused": native(pad_token_id=5),
    "files.no_remote_code": native(auto_map={"AutoModel": "dflash.DFlashDraftModel"}),
}


@pytest.mark.parametrize("check", FAULTS)
def test_a_fault_in_the_config(tmp_path, check):
    good = statuses(checkpoint(tmp_path / "good", NATIVE))
    bad = statuses(checkpoint(tmp_path / "bad", FAULTS[check]))
    assert good.get(check, {"passed"}) <= {"passed", "not run"}
    assert bad[check] & {"failed", "warning"}


@pytest.mark.parametrize(
    ("check", "changes"),
    [
        ("target.hidden_size", {"hidden_size": 32}),
        ("target.vocab_size", {"vocab_size": 65}),
        ("target.depth", {"num_hidden_layers": 9}),
    ],
)
def test_another_target(tmp_path, check, changes):
    folder = checkpoint(tmp_path / "ckpt", NATIVE)
    assert statuses(folder, target(**changes))[check] == {"failed"}


@pytest.mark.parametrize(
    ("special", "size", "status"),
    [
        ({5: "<|mask|>"}, 64, "passed"),
        ({}, 5, "passed"),
        ({}, 64, "failed"),
        (None, None, "not run"),
    ],
)
def test_the_mask_token_against_the_tokenizer(tmp_path, special, size, status):
    folder = checkpoint(tmp_path / "ckpt", NATIVE)
    aim = target(special_tokens=special, tokenizer_size=size)
    assert statuses(folder, aim)["mask_token.unused"] == {status}


def test_weights_that_are_no_numbers(tmp_path):
    bad = {"norm.weight": ("BF16", (16,), b"\xc0\x7f" + bytes(30))}
    folder = checkpoint(tmp_path / "ckpt", NATIVE, extra=bad)
    assert statuses(folder)["tensors.finite"] == {"failed"}


def test_missing_tensors(tmp_path):
    config = native(num_hidden_layers=3, layer_types=["full_attention"] * 3)
    folder = checkpoint(tmp_path / "ckpt", NATIVE)
    (folder / "config.json").write_text(json.dumps(config))
    assert statuses(folder)["tensors.set"] == {"failed"}


def test_mixed_dtypes_are_said(tmp_path):
    folder = checkpoint(tmp_path / "ckpt", NATIVE, extra={"norm.weight": raw("F32", 16)})
    assert statuses(folder)["dtype.uniform"] == {"warning"}


def test_a_verifier_that_is_a_path_is_said(tmp_path):
    config = speculators(speculators_config__verifier__name_or_path="/models/target")
    found = statuses(checkpoint(tmp_path / "ckpt", config))
    assert found["verifier.hub_id"] == {"warning"}


@pytest.mark.parametrize(
    ("name", "check", "status"),
    [
        ("optimizer_state_dict.pt", "files.no_pickles", "failed"),
        ("pytorch_model.bin", "files.no_pickles", "failed"),
        ("dflash.py", "files.no_remote_code", "failed"),
        ("train.log", "files.known", "warning"),
        ("README.md", "files.known", "passed"),
        # It may be the only statement of how weights are packed: convert and push keep it.
        ("hf_quant_config.json", "files.known", "passed"),
    ],
)
def test_files_beside_the_weights(tmp_path, name, check, status):
    folder = checkpoint(tmp_path / "ckpt", NATIVE)
    (folder / name).write_text("text")
    assert statuses(folder)[check] == {status}


def test_a_mask_embedding_of_plain_tensors_passes_and_a_hostile_one_fails(tmp_path):
    folder = checkpoint(tmp_path / "ckpt", NATIVE)
    torch.save({"embedding": torch.zeros(16), "mask_token_id": 5}, folder / "mask_embedding.pt")
    assert statuses(folder)["files.mask_embedding"] == {"passed"}
    (folder / "mask_embedding.pt").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    assert statuses(folder)["files.mask_embedding"] == {"failed"}
    torch.save({"embedding": torch.zeros(7), "mask_token_id": 5}, folder / "mask_embedding.pt")
    assert statuses(folder)["files.mask_embedding"] == {"failed"}


def vocabulary(d2t, t2d):
    return {
        "lm_head.weight": raw("BF16", 3, 16),
        "d2t": ("I64", (3,), b"".join(n.to_bytes(8, "little", signed=True) for n in d2t)),
        "t2d": ("BOOL", (64,), bytes(int(n in t2d) for n in range(64))),
    }


@pytest.mark.parametrize(
    ("d2t", "t2d", "words"),
    [
        ((1, 4, 9), (1, 5, 11), None),
        # Absolute ids where offsets belong.
        ((1, 5, 61), (1, 5, 61), "t2d marks"),
        ((1, 5, 63), (1, 5, 63), "outside the vocabulary"),
        ((9, 4, 1), (9, 5, 3), "rising"),
        ((1, 4, 9), (1, 5, 12), "t2d marks"),
        ((1, 4, 9), (1, 5), "t2d marks"),
        ((-1, 4, 9), (1, 5, 11), "outside the vocabulary"),
        ((2**62, 4, 9), (1, 5, 11), "outside the vocabulary"),
    ],
)
def test_the_vocabulary_map(tmp_path, d2t, t2d, words):
    config = speculators(draft_vocab_size=3)
    folder = checkpoint(tmp_path / "ckpt", config, extra=vocabulary(d2t, t2d))
    check = next(c for c in run(folder) if c.id == "vocabulary.map")
    assert check.status == ("passed" if words is None else "failed")
    assert words is None or words in check.finding


def test_an_own_matrix_equal_to_the_targets_is_said(tmp_path):
    from raw_safetensors import write_checkpoint

    mine = {"embed_tokens.weight": raw("BF16", 64, 16, seed=3)}
    folder = checkpoint(tmp_path / "ckpt", speculators(), extra=mine)
    there = target_folder(tmp_path / "target")
    config = json.loads((there / "config.json").read_text())
    write_checkpoint(
        there, {"model.embed_tokens.weight": raw("BF16", 64, 16, seed=3)}, config=config
    )
    aim = read_target(str(there), identifier="owner/target")
    assert statuses(folder, aim)["weights.shared"] == {"warning"}
    assert statuses(folder)["weights.shared"] == {"passed"}


def test_an_unreadable_config_is_a_failed_check_and_the_rest_still_runs(tmp_path):
    folder = checkpoint(tmp_path / "ckpt", native(surprise=1))
    found = statuses(folder)
    assert found["config.meaning"] == {"failed"}
    assert found["tensors.finite"] == {"passed"}


MENDS = {"plain": ({}, ""), "mixed": (MIXED, " --format universal")}


@pytest.mark.parametrize(("changes", "option"), MENDS.values(), ids=MENDS)
def test_the_command_that_mends_can_be_taken_at_its_word(tmp_path, changes, option):
    layers = {f"transformer_layer_config__{key}": value for key, value in changes.items()}
    config = speculators(sliding_window_non_causal=False, **layers)
    folder = checkpoint(tmp_path / "ckpt", config)
    remedies = [c.remedy for c in run(folder) if c.id == "engine.vllm" and c.status == "failed"]
    assert remedies
    for remedy in remedies:
        assert f"dflash-pack convert {folder} --target target{option} --output" in remedy


ADVISED = {
    "config.meaning": (native(mystery=1), None),
    "files.mask_embedding": (NATIVE, ("mask_embedding.pt", b"no torch file")),
    "files.record": (NATIVE, ("dflash_pack.json", b"{")),
}


@pytest.mark.parametrize("check", ADVISED)
def test_the_advice_is_given_once(tmp_path, check):
    config, file = ADVISED[check]
    folder = checkpoint(tmp_path / "ckpt", config)
    if file is not None:
        (folder / file[0]).write_bytes(file[1])
    (failed,) = [c for c in run(folder) if c.id == check]
    assert failed.status == "failed"
    assert failed.remedy
    assert failed.remedy not in failed.finding


def test_a_hostile_pickle_is_told_whatever_the_config_says(tmp_path):
    folder = checkpoint(tmp_path / "ckpt", native(surprise=1))
    torch.save({"embedding": torch.zeros(7)}, folder / "mask_embedding.pt")
    assert statuses(folder)["files.mask_embedding"] == {"passed"}
    (folder / "mask_embedding.pt").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    found = statuses(folder)
    assert (found["config.meaning"], found["files.mask_embedding"]) == ({"failed"}, {"failed"})


def test_the_command_that_mends_is_quoted(tmp_path):
    folder = checkpoint(tmp_path / "a folder", speculators(sliding_window_non_causal=False))
    (check,) = [c for c in run(folder) if c.id == "engine.vllm" and c.status == "failed"]
    words = shlex.split(check.remedy.removeprefix("Mend it: "))
    assert words[:3] == ["dflash-pack", "convert", str(folder)]


def test_an_option_of_convert_is_said_to_be_its(tmp_path):
    folder = checkpoint(tmp_path / "ckpt", native(mystery=1))
    (failed,) = [c for c in run(folder) if c.id == "config.meaning"]
    assert failed.remedy.endswith("(to dflash-pack convert)")
