"""What a checkpoint may be held against: a source that vLLM decodes as it is meant."""

from __future__ import annotations

import json

import pytest
from made import MIXED, NATIVE, SLIDING, checkpoint, native, speculators, target_folder
from torch_files import save_step

from dflash_pack.checkpoint import open_checkpoint
from dflash_pack.converters.registry import read_drafter
from dflash_pack.errors import CheckFailedError, DflashPackError, MissingHereError, UsageError
from dflash_pack.overrides import Override
from dflash_pack.reference import Reference, decodable
from dflash_pack.target import read_target


@pytest.fixture
def target(tmp_path):
    return read_target(str(target_folder(tmp_path / "target")), identifier="owner/target")


@pytest.fixture
def drafter(tmp_path):
    """What the checkpoint means that is held against a source in each test."""
    return read_drafter(open_checkpoint(checkpoint(tmp_path / "ckpt", NATIVE)).contents).drafter


def folder_of(reference, drafter, target):
    with decodable(reference, drafter, target) as folder:
        return folder


@pytest.mark.parametrize("config", [NATIVE, speculators()], ids=["native", "speculators"])
def test_a_source_that_is_read_as_meant_is_decoded_where_it_is(tmp_path, config, drafter, target):
    source = checkpoint(tmp_path / "source", config)
    assert folder_of(Reference(source), drafter, target) == source


STATED = {
    "set": (
        native(dflash_config__mask_token_id=None),
        {"overrides": (Override("dflash_config.mask_token_id", 5),)},
    ),
    "given up": (native(mystery=1), {"allow_lossy": ("mystery",)}),
    "both": (
        native(mystery=1, block_size=None),
        {"overrides": (Override("block_size", 4),), "allow_lossy": ("mystery",)},
    ),
}


@pytest.mark.parametrize(("config", "options"), STATED.values(), ids=STATED)
def test_what_the_user_states_is_staged_beside_links(tmp_path, config, options, drafter, target):
    source = checkpoint(tmp_path / "source", config)
    (source / "mask_embedding.txt").write_text("any other file")
    (source / "folder").mkdir()
    before = (source / "config.json").read_text()
    with pytest.raises(DflashPackError):
        folder_of(Reference(source), drafter, target)
    with decodable(Reference(source, **options), drafter, target) as folder:
        assert folder != source
        stated = json.loads((folder / "config.json").read_text())
        assert "mystery" not in stated
        assert (stated["block_size"], stated["dflash_config"]["mask_token_id"]) == (4, 5)
        others = sorted(path.name for path in folder.iterdir() if path.name != "config.json")
        assert others == ["mask_embedding.txt", "model.safetensors"]
        assert all((folder / name).resolve() == (source / name).resolve() for name in others)
    assert not folder.exists()
    assert (source / "config.json").read_text() == before


UNLIKE = {
    # speculators convert writes false for full layers, which vLLM then runs causally.
    "of speculators convert": speculators(sliding_window_non_causal=False),
    "unknown key": native(mystery=1),
    "no mask token": native(dflash_config__mask_token_id=None),
    "two mask tokens": native(mask_token_id=9),
}


@pytest.mark.parametrize("config", UNLIKE.values(), ids=UNLIKE)
def test_a_source_that_is_decoded_otherwise_proves_nothing(tmp_path, config, drafter, target):
    source = checkpoint(tmp_path / "source", config)
    with pytest.raises(DflashPackError) as caught:
        folder_of(Reference(source), drafter, target)
    assert str(source) in str(caught.value)
    assert caught.value.remedy


def test_the_converter_of_the_library_is_named_as_what_it_is(tmp_path, drafter, target):
    source = checkpoint(tmp_path / "source", speculators(sliding_window_non_causal=False))
    with pytest.raises(CheckFailedError, match="vLLM does not decode it as it is meant") as caught:
        folder_of(Reference(source), drafter, target)
    assert "sliding_window_non_causal" in str(caught.value)
    assert "as it was trained" in str(caught.value.remedy)


def test_another_block_size_is_another_drafter(tmp_path, drafter, target):
    source = checkpoint(tmp_path / "source", native(block_size=6))
    with pytest.raises(CheckFailedError, match="has block size 6, the checkpoint 4"):
        folder_of(Reference(source), drafter, target)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_weights_without_a_config_are_not_loaded_by_an_engine(tmp_path, what, drafter, target):
    folder = save_step(tmp_path / "run-step3")
    source = folder if what == "folder" else folder / "training_state.pt"
    with pytest.raises(CheckFailedError, match="weights without a config") as caught:
        folder_of(Reference(source), drafter, target)
    assert "export" in str(caught.value.remedy)


def test_a_value_that_speaks_of_nothing_is_refused(tmp_path, drafter, target):
    source = checkpoint(tmp_path / "source", NATIVE)
    with pytest.raises(UsageError, match="names no config key"):
        folder_of(Reference(source, allow_lossy=("absent",)), drafter, target)
    # TorchSpec's num_target_layers counts the captured layers, which is another key's work here.
    with pytest.raises(DflashPackError, match="num_target_layers"):
        folder_of(Reference(source, source_format="torchspec"), drafter, target)


def test_a_tensor_is_not_given_up_that_vllm_loads_all_the_same(tmp_path, drafter, target):
    source = checkpoint(tmp_path / "source", NATIVE)
    with pytest.raises(DflashPackError, match=r"fc\.weight"):
        folder_of(Reference(source, allow_lossy=("fc.weight",)), drafter, target)


def test_a_source_of_windows_is_read_with_its_windows(tmp_path, target):
    config = native(**SLIDING, dflash_config__causal=False)
    source = open_checkpoint(checkpoint(tmp_path / "source", config))
    drafter = read_drafter(source.contents).drafter
    assert folder_of(Reference(source.path), drafter, target) == source.path


def test_a_source_that_no_cpu_runs_is_refused_before_an_engine_is_loaded(tmp_path, drafter, target):
    source = checkpoint(tmp_path / "source", native(**MIXED))
    with pytest.raises(MissingHereError, match="sliding and full layers are mixed") as caught:
        folder_of(Reference(source), drafter, target)
    assert "converted from" in str(caught.value.remedy)
