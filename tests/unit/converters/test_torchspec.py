"""TorchSpec's drafters: renamed tensors, counts under familiar names, no block size."""

from __future__ import annotations

import pytest
from made import NATIVE, REMOVED, native, specs

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.converters.registry import read_drafter
from dflash_pack.errors import CheckpointError, ContradictionError

CONFIG = {
    "block_size": REMOVED,
    "dflash_config": REMOVED,
    "dtype": REMOVED,
    "head_dim": REMOVED,
    "hidden_act": REMOVED,
    "layer_types": REMOVED,
    "mask_token_id": 5,
    "max_window_layers": REMOVED,
    "model_type": "dflash",
    "num_target_layers": 2,
    "rope_scaling": REMOVED,
    "sliding_window": REMOVED,
    "target_hidden_size": 16,
    "target_layer_ids": [0, 2],
    "target_num_hidden_layers": 4,
    "use_sliding_window": REMOVED,
}
NAMES = {"fc.": "context_proj.", "hidden_norm.": "context_norm.", "norm.": "final_norm."}


def renamed(tensors):
    return {
        next(
            (new + name.removeprefix(old) for old, new in NAMES.items() if name.startswith(old)),
            name,
        ): spec
        for name, spec in tensors.items()
    }


def source(**changes):
    tensors = renamed(specs(NATIVE)) | {"embed_tokens.weight": TensorSpec("BF16", (64, 16))}
    return Contents(native(**CONFIG | changes), tensors, frozenset())


def test_it_is_read_once_the_block_size_is_stated():
    with pytest.raises(CheckpointError, match="--set block_size=VALUE"):
        read_drafter(source())
    made = source(block_size=16)
    reading = read_drafter(made)
    assert reading.format == "torchspec"
    assert set(reading.canonical(made)) == {*specs(NATIVE), "embed_tokens.weight"}
    drafter = reading.drafter
    assert (drafter.block_size, drafter.target_depth) == (16, 4)
    assert drafter.geometry.head_dim == 8
    assert drafter.causality is False
    assert drafter.vocabulary.embedding == "own"


@pytest.mark.parametrize(
    "changes",
    [{"num_target_layers": 3}, {"dflash_config": {"mask_token_id": 6}}],
)
def test_facts_that_differ_are_refused(changes):
    with pytest.raises(ContradictionError):
        read_drafter(source(block_size=16, **changes))


def test_heads_that_share_nothing_evenly_are_asked_about():
    with pytest.raises(CheckpointError, match="--set head_dim=VALUE"):
        read_drafter(source(block_size=16, hidden_size=18))


def test_without_its_model_type_the_tensor_names_tell():
    assert read_drafter(source(block_size=16, model_type="qwen3")).format == "torchspec"
