"""Training states and bare state dicts as checkpoints; the optimizer beside them costs nothing."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from made import NATIVE, native
from peak_memory import peak_mib
from torch_files import Runs, save_step, training_state, weights

from dflash_pack.checkpoint import tensor_bytes
from dflash_pack.errors import CheckpointError, UsageError
from dflash_pack.training_state import NOT_READ, SECTION, open_torch_checkpoint


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "draft.json"
    path.write_text(json.dumps(NATIVE))
    return path


def opened(tmp_path, config, value, name="training_state.pt"):
    torch.save(value, tmp_path / name)
    return open_torch_checkpoint(tmp_path / name, config)


def test_weights_and_what_the_trainer_resolved_become_a_checkpoint(tmp_path, config):
    checkpoint = opened(tmp_path, config, training_state())
    expected = weights()
    assert {name: tensor_bytes(info) for name, info in checkpoint.tensors.items()} == {
        name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in expected.items()
    }
    section = checkpoint.config[SECTION]
    assert {key: value for key, value in checkpoint.config.items() if key != SECTION} == NATIVE
    assert section["dflash_target_layer_ids"] == [0, 2]
    assert (section["dflash_block_size"], section["dflash_mask_token_id"]) == (4, 5)
    assert section["strategy"] == "dflash"
    assert section["specforge_model_provenance"] == NOT_READ
    assert checkpoint.config_file == config
    assert not checkpoint.loadable


def test_every_key_but_the_weights_stands_in_the_section(tmp_path, config):
    state = training_state(a_key_of_a_later_version=7)
    section = opened(tmp_path, config, state).config[SECTION]
    assert section.keys() == state.keys() - {"draft_state_dict"}


PLAIN = {
    "integer": (3, 3),
    "large": (1 << 40, 1 << 40),
    "too large": (1 << 63, NOT_READ),
    "real": (0.5, 0.5),
    "nan": (math.nan, NOT_READ),
    "infinite": (math.inf, NOT_READ),
    "truth": (True, True),
    "none": (None, None),
    "text": ("flex_attention", "flex_attention"),
    "control characters": ("a\x1b[31m", NOT_READ),
    "half a character": ("\ud800", NOT_READ),
    "long text": ("x" * 10_000, NOT_READ),
    "tuple": ((1, 2), [1, 2]),
    "empty": ([], []),
    "long list": ([1] * 10_000, NOT_READ),
    "nested": ([[1]], NOT_READ),
    "object": ({"a": 1}, NOT_READ),
    "tensor": (torch.zeros(2), NOT_READ),
    "device": (torch.device("cpu"), NOT_READ),
}


@pytest.mark.parametrize(("value", "read"), PLAIN.values(), ids=PLAIN)
def test_values_of_the_section_are_what_json_has(tmp_path, config, value, read):
    section = opened(tmp_path, config, training_state(extra=value)).config[SECTION]
    assert section["extra"] == read
    json.dumps(section, allow_nan=False)


def test_a_bare_state_dict_needs_no_training_state(tmp_path, config):
    checkpoint = opened(tmp_path, config, weights(), name="draft.pt")
    assert SECTION not in checkpoint.config
    assert checkpoint.tensors.keys() == weights().keys()
    assert checkpoint.path == tmp_path / "draft.pt"
    assert checkpoint.side_files == ()


def test_the_state_dict_of_a_module_is_read_too(tmp_path, config):
    checkpoint = opened(tmp_path, config, torch.nn.Linear(2, 3).state_dict(), name="draft.pt")
    assert checkpoint.contents.tensors["weight"].shape == (3, 2)


def test_without_a_config_the_option_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"state\.pt: holds weights but no config\. Pass --d"):
        open_torch_checkpoint(save_step(tmp_path) / "training_state.pt", None)


def test_a_config_with_the_section_of_the_training_state_is_refused(tmp_path, config):
    config.write_text(json.dumps(native(training_state={"dflash_block_size": 16})))
    with pytest.raises(CheckpointError, match=r"draft\.json: training_state: stands in the config"):
        opened(tmp_path, config, training_state())


@pytest.mark.parametrize("text", ["{", "[]", '{"a": NaN}', '{"a": 1, "a": 2}'])
def test_the_config_is_read_as_strictly_as_any(tmp_path, config, text):
    config.write_text(text)
    with pytest.raises(CheckpointError, match=r"draft\.json"):
        opened(tmp_path, config, training_state())


FOREIGN = {
    "a number": (5, "a single object"),
    "a tensor": (torch.zeros(2), "a single object"),
    "a list": ([torch.zeros(2)], "a single object"),
    "nothing": ({}, "no named values"),
    "an optimizer": ({"state": {}, "param_groups": []}, "the keys state, param_groups"),
    "a wrapped state": ({"epoch": 1, "model": {"a": torch.zeros(2)}}, "the keys epoch, model"),
    "a rank file": ({"optimizer": None, "rng": {}}, "the keys optimizer, rng"),
    "no weights": (training_state(tensors={}), "holds no tensor at all"),
    "weights that are a list": ({"draft_state_dict": [1]}, "the keys draft_state_dict"),
    "a number among tensors": ({"a": torch.zeros(2), "step": 3}, "step: is not a tensor"),
    "a tensor named by a number": ({"a": torch.zeros(2), 5: torch.zeros(2)}, "other than plain"),
    "a tensor named by a tuple": ({"a": torch.zeros(2), (1,): torch.zeros(2)}, "other than plain"),
    "a name in colour": ({"\x1b[31m": torch.zeros(2)}, "other than plain"),
    "half a character": ({"\ud800": torch.zeros(2)}, "other than plain"),
    "an endless name": ({"x" * 5000: torch.zeros(2)}, "other than plain"),
    "a key that is a number": (training_state() | {5: 5}, "keys that are not a trainer's"),
    "a key in colour": (training_state() | {"\x1b": 5}, "keys that are not a trainer's"),
    "endless keys": (
        training_state() | {f"k{n}": n for n in range(2000)},
        "keys that are not a trainer's",
    ),
    "something that runs": (training_state(extra=Runs()), "names posix.system"),
    "a column-major weight": (
        training_state(tensors={"fc.weight": torch.zeros(2, 3).T}),
        "fc.weight: is stored with gaps",
    ),
}


@pytest.mark.parametrize(("value", "words"), FOREIGN.values(), ids=FOREIGN)
def test_anything_else_is_refused_in_one_sentence(tmp_path, config, value, words):
    with pytest.raises(CheckpointError, match=r"training_state\.pt") as caught:
        opened(tmp_path, config, value)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_the_other_files_of_the_folder_are_side_files(tmp_path, config):
    folder = save_step(tmp_path)
    (folder / "draft.json").write_text(json.dumps(NATIVE))
    (folder / "notes.txt").write_text("text")
    checkpoint = open_torch_checkpoint(
        folder / "training_state.pt", folder / "draft.json", folder=folder
    )
    assert [file.name for file in checkpoint.side_files] == ["notes.txt", "training_state_rank0.pt"]
    assert checkpoint.path == folder


def test_a_link_out_of_the_folder_is_refused(tmp_path, config):
    folder = save_step(tmp_path)
    (folder / "training_state.pt").rename(tmp_path / "elsewhere.pt")
    (folder / "training_state.pt").symlink_to("../elsewhere.pt")
    with pytest.raises(CheckpointError, match="leaves the folder"):
        open_torch_checkpoint(folder / "training_state.pt", config, folder=folder)


OPEN = """if True:
    import sys
    from pathlib import Path
    from dflash_pack.training_state import open_torch_checkpoint
    def read_so_far():
        line = next(x for x in open("/proc/self/io") if x.startswith("rchar"))
        return int(line.split()[1])
    before = read_so_far()
    checkpoint = open_torch_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]))
    assert len(checkpoint.tensors) == 25
    assert "torch" not in sys.modules
    # With imports, their files included.
    assert read_so_far() - before < 8 << 20, read_so_far() - before
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts what the kernel read")
def test_a_large_optimizer_is_neither_held_nor_read(tmp_path, config):
    moments = {n: {"exp_avg": torch.zeros(16 << 20)} for n in range(6)}
    state = training_state(replicated_optimizer_state={"state": moments})
    torch.save(state, tmp_path / "training_state.pt")
    assert (tmp_path / "training_state.pt").stat().st_size > 384 << 20
    assert peak_mib(OPEN, str(tmp_path / "training_state.pt"), str(config)) < 120
