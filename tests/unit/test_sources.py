"""Where trainers leave their weights: what is opened, and what is refused with the choices."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path

import pytest
import torch
from made import NATIVE, checkpoint, native, speculators, target_folder
from safetensors.torch import load_file, save_file
from torch_files import Runs, save_step, training_state, weights

from dflash_pack.checkpoint import MAX_FILES, open_checkpoint, tensor_bytes
from dflash_pack.cli import app
from dflash_pack.conversion import plan_conversion
from dflash_pack.errors import (
    CheckpointError,
    ContradictionError,
    DflashPackError,
    MissingHereError,
    UsageError,
)
from dflash_pack.file_reading import sha256_file
from dflash_pack.hub.manifest import read_manifest
from dflash_pack.overrides import Override
from dflash_pack.packing import pack
from dflash_pack.sources import open_source
from dflash_pack.target import read_target

EXAMPLES = Path(__file__).parents[2] / "examples" / "tiny"
# What Speculators 0.9 leaves in an epoch's folder beside config and weights.
TRAINER_FILES = {
    "config.py": "remote code, which is never shipped",
    "optimizer_state_dict.pt": "training state",
    "scheduler_state_dict.pt": "training state",
    "training_state.json": "training state",
    "train_command.txt": "no engine reads it",
    "val_metrics.json": "no engine reads it",
}


@pytest.fixture
def target(tmp_path):
    return read_target(str(target_folder(tmp_path / "target")), identifier="owner/target")


@pytest.fixture
def draft_config(tmp_path) -> Path:
    path = tmp_path / "draft.json"
    path.write_text(json.dumps(NATIVE))
    return path


def epochs(root: Path, *names: str, best: str | None = None) -> Path:
    """Write the output folder of a Speculators trainer."""
    for name in names:
        folder = checkpoint(root / name, speculators())
        for file in TRAINER_FILES:
            (folder / file).write_text("text")
    (root / "train_command.txt").write_text("text")
    if best is not None:
        (root / "checkpoint_best").symlink_to(best)
    return root


def refused(path: Path, *words: str, kind: type[DflashPackError] = CheckpointError, **options):
    with pytest.raises(kind) as caught:
        open_source(path, **options)
    for word in words:
        assert word in str(caught.value), caught.value
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 1000


def test_a_plain_folder_is_opened_as_it_is(tmp_path):
    folder = checkpoint(tmp_path / "drafter", NATIVE)
    assert open_source(folder) == open_checkpoint(folder)
    assert open_source(folder).loadable


# Speculators


@pytest.mark.parametrize("best", ["0", "7", "epoch3_step12", "./7"])
def test_the_best_epoch_is_opened(tmp_path, best):
    root = epochs(tmp_path / "out", "0", "7", "12", best=best)
    (root / "epoch3_step12").symlink_to("12")
    expected = {"epoch3_step12": "12", "./7": "7"}.get(best, best)
    assert open_source(root) == open_checkpoint(root / expected)


def test_a_best_epoch_that_was_copied_as_a_folder_is_opened(tmp_path):
    root = epochs(tmp_path / "out", "0", "checkpoint_best")
    assert open_source(root) == open_checkpoint(root / "checkpoint_best")


def test_every_file_that_a_trainer_leaves_has_its_reason(tmp_path, target):
    root = epochs(tmp_path / "out", "3", best="3")
    conversion = plan_conversion(open_source(root), target)
    pack(conversion, tmp_path / "packed")
    files = {e.name: e.detail for e in conversion.ledger.of("dropped") if e.kind == "file"}
    assert files == TRAINER_FILES
    written = {path.name for path in (tmp_path / "packed").iterdir()}
    assert written == {"config.json", "model.safetensors", "dflash_pack.json"}


def run_folder(root: Path) -> Path:
    """Write what Speculators 0.9 leaves of a run that was stopped in its third epoch.

    Source: speculators 0.9, train/trainer.py, maybe_save_checkpoint; train/config/artifacts.py.
    """
    epochs(root, "0", "1", "interrupted", best="0")
    (root / "run.yaml").write_text("train: {}")
    (root / "epoch0_end").symlink_to("0")
    (root / "epoch1_step26").symlink_to("1")
    return root


def test_a_run_folder_is_its_best_epoch_and_nothing_else_of_it(tmp_path, target):
    root = run_folder(tmp_path / "out")
    source = open_source(root)
    assert source == open_checkpoint(root / "0")
    entries = plan_conversion(source, target).ledger.entries
    assert {entry.name for entry in entries if entry.kind == "file"} == set(TRAINER_FILES)


@pytest.mark.parametrize(
    ("name", "epoch"),
    [("epoch0_end", "0"), ("epoch1_step26", "1"), ("interrupted", "interrupted")],
)
def test_any_checkpoint_of_a_run_is_opened_by_its_own_name(tmp_path, name, epoch):
    root = run_folder(tmp_path / "out")
    (root / epoch / "config.json").write_text(json.dumps(speculators(mask_token_id=7)))
    assert open_source(root / name).config["mask_token_id"] == 7


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer_state_dict.pt", "notes.txt"])
@pytest.mark.parametrize("link", ["../../elsewhere", "../1/model.safetensors"])
def test_a_file_of_an_epoch_that_lies_elsewhere_is_refused(tmp_path, name, link):
    root = run_folder(tmp_path / "out")
    (tmp_path / "elsewhere").write_bytes(b"secret")
    (root / "0" / name).unlink(missing_ok=True)
    (root / "0" / name).symlink_to(link)
    refused(root, f"0/{name}", "leaves the folder")


def test_without_a_best_epoch_all_are_named(tmp_path):
    root = epochs(tmp_path / "out", "0", "10", "9", "interrupted")
    refused(root, "no checkpoint_best: 0, 9, 10, interrupted", "Pass the one you mean")


def test_many_epochs_are_named_in_part(tmp_path):
    root = tmp_path / "out"
    for number in range(200):
        (root / str(number)).mkdir(parents=True)
        (root / str(number) / "config.json").write_text("{}")
    refused(root, "0, 1, 2, 3, 4, 5, 6, 7 and 192 more", f"{root}/199")


def test_folders_that_hold_no_epoch_are_not_named(tmp_path):
    for name in ("0", "1"):
        (tmp_path / "out" / name).mkdir(parents=True)
    refused(tmp_path / "out", "config.json: is missing")


LINKS = {
    "dangling": ("nowhere", "is a link to nothing"),
    "a loop": ("checkpoint_best", "is a link to nothing"),
    "a file": ("train_command.txt", "not a folder"),
    "out": ("../elsewhere", "leaves the folder"),
    "absolute": ("/", "leaves the folder"),
    "the folder itself": (".", "leaves the folder"),
    "the parent": ("..", "leaves the folder"),
}


@pytest.mark.parametrize(("link", "words"), LINKS.values(), ids=LINKS)
def test_a_best_link_that_leads_elsewhere_is_refused(tmp_path, link, words):
    checkpoint(tmp_path / "elsewhere", speculators())
    refused(epochs(tmp_path / "out", "0", best=link), f"{tmp_path}/out/checkpoint_best: is", words)


def test_a_best_link_by_way_of_another_is_followed_to_where_it_ends(tmp_path):
    root = epochs(tmp_path / "out", "0", best="epoch0")
    (root / "epoch0").symlink_to("../elsewhere")
    checkpoint(tmp_path / "elsewhere", speculators())
    refused(root, "leaves the folder")


# SpecForge


@pytest.mark.parametrize("name", ["", "training_state.pt"])
def test_a_training_step_is_opened_by_its_folder_or_its_file(tmp_path, draft_config, name):
    folder = save_step(tmp_path / "out")
    found = open_source(folder / name, draft_config=draft_config)
    assert found.path == folder
    assert [shard.name for shard in found.shards] == ["training_state.pt"]
    assert [file.name for file in found.side_files] == ["training_state_rank0.pt"]


@pytest.mark.parametrize("pointers", [["latest"], ["best"], ["latest", "best"]])
def test_the_one_step_that_pointers_name_is_opened(tmp_path, draft_config, pointers):
    root = tmp_path / "out"
    save_step(root, 100)
    save_step(root, 200)
    for name in pointers:
        (root / f"run-{name}").symlink_to("run-step200")
    (root / "run.best_meta.json").write_text("{}")
    assert open_source(root, draft_config=draft_config).path == root / "run-step200"


def test_pointers_to_different_steps_are_both_named(tmp_path, draft_config):
    root = tmp_path / "out"
    for step, name in ((100, "best"), (200, "latest")):
        save_step(root, step)
        (root / f"run-{name}").symlink_to(f"run-step{step}")
    refused(root, "several checkpoints: run-best, run-latest", draft_config=draft_config)
    for name, step in (("best", 100), ("latest", 200)):
        found = open_source(root / f"run-{name}", draft_config=draft_config)
        assert found.config["training_state"]["global_step"] == step


def test_several_runs_are_named(tmp_path, draft_config):
    root = tmp_path / "out"
    for run in ("one", "two"):
        save_step(root, run=run)
        (root / f"{run}-latest").symlink_to(f"{run}-step3")
    refused(root, "several checkpoints: one-latest, two-latest", draft_config=draft_config)


def test_steps_without_a_pointer_are_named(tmp_path, draft_config):
    for step in (100, 20):
        save_step(tmp_path / "out", step)
    refused(tmp_path / "out", "run-step20, run-step100", draft_config=draft_config)


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("run-step9", "is a link to nothing"),
        ("run-latest", "is a link to nothing"),
        ("notes.txt", "is not a folder"),
        ("../elsewhere/run-step3", "leaves the folder"),
    ],
)
def test_a_pointer_that_leads_elsewhere_is_refused(tmp_path, draft_config, link, words):
    root = save_step(tmp_path / "out").parent
    save_step(tmp_path / "elsewhere")
    (root / "notes.txt").write_text("text")
    (root / "run-latest").symlink_to(link)
    refused(root, "run-latest", words, draft_config=draft_config)


def test_a_training_step_without_a_config_names_the_option(tmp_path):
    refused(save_step(tmp_path / "out"), "Pass --draft-config", kind=UsageError)


def test_a_config_is_not_wanted_where_one_is(tmp_path, draft_config):
    folder = checkpoint(tmp_path / "drafter", NATIVE)
    refused(folder, "has a config.json of its own", kind=UsageError, draft_config=draft_config)
    root = epochs(tmp_path / "out", "3", best="3")
    refused(root, "out/3: has a config.json", kind=UsageError, draft_config=draft_config)


def test_the_config_beside_an_older_training_state_counts(tmp_path):
    """SpecForge's former scripts saved model and config, and the optimizer's state beside them."""
    folder = checkpoint(tmp_path / "epoch_0_step_3", NATIVE)
    torch.save({"epoch": 0, "args": Runs()}, folder / "training_state.pt")
    found = open_source(folder)
    assert [file.name for file in found.side_files] == ["training_state.pt"]


# Torch files and others


@pytest.mark.parametrize("name", ["draft.pt", "draft.pth", "pytorch_model.bin", "draft.ckpt"])
def test_a_file_with_a_state_dict_is_opened(tmp_path, draft_config, name):
    torch.save(weights(), tmp_path / name)
    found = open_source(tmp_path / name, draft_config=draft_config)
    assert found.path == tmp_path / name
    assert found.tensors.keys() == weights().keys()


def test_a_folder_of_torch_files_names_them(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    torch.save(weights(), folder / "draft.pt")
    refused(folder, "torch files: draft.pt", f"{folder}/draft.pt with --draft-config")


@pytest.mark.parametrize("inner", ["", "model"])
@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_a_distributed_checkpoint_names_the_tool_that_joins_it(tmp_path, inner, name):
    folder = tmp_path / "iter_0000100"
    (folder / inner).mkdir(parents=True)
    for mark in {name, ".metadata"} if inner else {name}:
        (folder / inner / mark).write_bytes(b"")
    refused(folder, "distributed checkpoint", f"--checkpoint_dir {folder}", "--draft-config")


def test_a_target_that_holds_its_drafter_names_the_subfolder(tmp_path):
    target_folder(tmp_path / "MiMo")
    checkpoint(tmp_path / "MiMo" / "dflash", NATIVE)
    refused(tmp_path / "MiMo", "is a target", f"Pass {tmp_path}/MiMo/dflash")
    assert open_source(tmp_path / "MiMo" / "dflash").tensors


@pytest.mark.parametrize("config", [NATIVE, speculators(), {"architectures": ["DFlashDraftModel"]}])
def test_a_drafter_with_such_a_subfolder_stays_one(tmp_path, config):
    folder = checkpoint(tmp_path / "drafter", NATIVE)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "dflash").mkdir()
    (folder / "dflash" / "config.json").write_text("{}")
    assert open_source(folder).config == config


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README.md"])
def test_another_file_is_no_source(tmp_path, name):
    folder = checkpoint(tmp_path / "drafter", NATIVE)
    (folder / "README.md").write_text("text")
    refused(folder / name, "is a file")


def test_what_is_not_there_is_said(tmp_path):
    refused(tmp_path / "nothing", "does not exist")
    refused(Path("owner/name"), "hf download owner/name", kind=MissingHereError)
    refused(Path("a" * 600), "does not exist")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "is not a folder")


def test_a_folder_of_absurdly_many_files_is_refused(tmp_path):
    for number in range(MAX_FILES + 1):
        (tmp_path / f"{number}x").touch()
    refused(tmp_path, f"more than {MAX_FILES} files")


# End to end


def numbers(folder: Path) -> dict[str, bytes]:
    return {name: tensor_bytes(info) for name, info in open_checkpoint(folder).tensors.items()}


@pytest.mark.parametrize("form", ["speculators", "native", "universal"])
@pytest.mark.parametrize("prefix", ["", "draft_model."])
def test_a_training_checkpoint_is_converted_bit_for_bit(tmp_path, form, prefix):
    config = json.loads((EXAMPLES / "drafter" / "config.json").read_text())
    tensors = load_file(EXAMPLES / "drafter" / "model.safetensors")
    optimizer = torch.optim.AdamW([torch.nn.Parameter(t.clone()) for t in tensors.values()])
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = training_state(
        config,
        {prefix + name: tensor for name, tensor in tensors.items()},
        replicated_optimizer_state=optimizer.state_dict(),
    )
    folder = tmp_path / "run-step3"
    folder.mkdir()
    torch.save(state, folder / "training_state.pt")
    draft = EXAMPLES / "drafter" / "config.json"
    aim = read_target(str(EXAMPLES / "target"), identifier="owner/target")

    source = open_source(folder, draft_config=draft)
    conversion = plan_conversion(source, aim, form=form)
    pack(conversion, tmp_path / "out")

    assert numbers(tmp_path / "out") == numbers(EXAMPLES / "drafter")
    plain = plan_conversion(open_checkpoint(EXAMPLES / "drafter"), aim, form=form)
    assert (conversion.drafter, conversion.form) == (plain.drafter, plain.form)
    assert conversion.source_engines == ()
    assert read_manifest(tmp_path / "out").source.files == {
        "config.json": sha256_file(draft),
        "training_state.pt": sha256_file(folder / "training_state.pt"),
    }


def test_an_overridden_block_size_is_refused_until_it_is_stated(tmp_path, target, draft_config):
    folder = save_step(tmp_path / "out", dflash_block_size=8)
    source = open_source(folder, draft_config=draft_config)
    with pytest.raises(ContradictionError, match=r"--set block_size=VALUE"):
        plan_conversion(source, target)
    stated = plan_conversion(source, target, overrides=[Override("block_size", 8)])
    assert stated.drafter.block_size == 8


def test_the_head_that_a_training_model_shared_is_left_out(tmp_path, draft_config):
    """Older states hold the target's matrices; they are compared where they lie in the file."""
    head = torch.randn(64, 16).to(torch.bfloat16)
    tensors = weights() | {"lm_head.weight": head, "embed_tokens.weight": head}
    folder = save_step(tmp_path / "out", tensors=tensors)
    aim = target_folder(tmp_path / "target")
    save_file(
        {"lm_head.weight": head, "model.embed_tokens.weight": head.clone()},
        aim / "model.safetensors",
    )
    source = open_source(folder, draft_config=draft_config)
    conversion = plan_conversion(source, read_target(str(aim), identifier="owner/target"))
    pack(conversion, tmp_path / "packed")
    assert numbers(tmp_path / "packed").keys() == weights().keys()


def test_a_state_dict_file_is_converted(tmp_path, target, draft_config):
    torch.save(weights(), tmp_path / "draft.pt")
    source = open_source(tmp_path / "draft.pt", draft_config=draft_config)
    pack(plan_conversion(source, target), tmp_path / "out")
    assert numbers(tmp_path / "out") == {
        name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in weights().items()
    }


def test_not_a_number_in_the_trained_weights_is_found(tmp_path, target, draft_config):
    tensors = weights()
    tensors["fc.weight"][0, 0] = float("nan")
    source = open_source(save_step(tmp_path / "out", tensors=tensors), draft_config=draft_config)
    with pytest.raises(CheckpointError, match=r"fc\.weight: holds 1 NaN"):
        pack(plan_conversion(source, target), tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def run(*arguments: object) -> tuple[int, str, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        pytest.raises(SystemExit) as stopped,
    ):
        app([str(argument) for argument in arguments], prog_name="dflash-pack")
    return int(stopped.value.code or 0), stdout.getvalue(), stderr.getvalue()


def test_the_command_line_takes_a_training_checkpoint(tmp_path, draft_config):
    folder = save_step(tmp_path / "run")
    aim = target_folder(tmp_path / "target")
    option = ("--draft-config", draft_config)
    code, shown, _ = run("inspect", folder, *option, "--json")
    assert code == 0
    result = json.loads(shown)["result"]
    assert (result["format"], result["engines"]) == ("specforge", [])
    code, _, said = run("inspect", folder)
    assert (code, said.count("\n")) == (2, 1)
    assert "Pass --draft-config" in said
    out = tmp_path / "out"
    code, _, said = run("convert", folder, "-t", aim, "-o", out, *option, "--target-id", "o/target")
    assert code == 0, said
    assert len(numbers(out)) == 25


def test_the_command_line_refuses_a_file_that_would_run_something(tmp_path, draft_config):
    mark = tmp_path / "ran"
    folder = save_step(tmp_path / "run", extra=Runs(f"touch {mark}"))
    code, shown, said = run("inspect", folder, "--draft-config", draft_config)
    assert (code, shown, said.count("\n")) == (1, "", 1)
    assert "names posix.system, which is more than tensors" in said
    assert not mark.exists()


def test_the_output_may_not_lie_in_the_run(tmp_path, draft_config):
    folder = save_step(tmp_path / "run")
    aim = target_folder(tmp_path / "target")
    out = folder / "out"
    code, _, said = run("convert", folder, "-t", aim, "-o", out, "--draft-config", draft_config)
    assert code == 2
    assert "lies inside the source" in said


def test_the_draft_config_may_be_wrong_in_one_sentence(tmp_path):
    folder = save_step(tmp_path / "run")
    code, _, said = run("inspect", folder, "--draft-config", tmp_path / "missing.json")
    assert (code, said.count("\n")) == (1, 1)
    assert "missing.json: is missing" in said
    (tmp_path / "other.json").write_text(json.dumps(native(hidden_size="wide")))
    code, _, said = run("inspect", folder, "--draft-config", tmp_path / "other.json")
    assert (code, said.count("\n")) == (1, 1)
    assert "other.json: hidden_size:" in said


def test_a_training_state_that_links_to_itself(tmp_path, draft_config):
    folder = tmp_path / "run-step1"
    folder.mkdir()
    (folder / "training_state.pt").symlink_to("training_state.pt")
    (folder / "config.pt").symlink_to("config.pt")
    with pytest.raises(CheckpointError):
        open_source(folder, draft_config=draft_config)
    with pytest.raises(CheckpointError):
        open_source(folder / "training_state.pt", draft_config=draft_config)
