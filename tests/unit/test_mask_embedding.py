"""mask_embedding.pt: one finite embedding of the right size for this mask token, or refused."""

from __future__ import annotations

import math

import pytest
import torch
from made import NATIVE, checkpoint, target_folder
from torch_files import Runs

from dflash_pack.checkpoint import open_checkpoint
from dflash_pack.conversion import plan_conversion
from dflash_pack.converters.registry import read_drafter
from dflash_pack.errors import DflashPackError
from dflash_pack.mask_embedding import require_mask_embedding
from dflash_pack.target import read_target

NAME = "mask_embedding.pt"


def saved(folder, content):
    torch.save(content, folder / NAME)
    return folder / NAME


@pytest.fixture
def source(tmp_path):
    return checkpoint(tmp_path / "source", NATIVE)


SOUND = {
    "as trainers save it": {"embedding": torch.ones(16), "mask_token_id": 5},
    "bfloat16": {"embedding": torch.ones(16, dtype=torch.bfloat16), "mask_token_id": 5},
    "a row": {"embedding": torch.ones(1, 16), "mask_token_id": 5},
    "a parameter": {"embedding": torch.nn.Parameter(torch.ones(16)), "mask_token_id": 5},
    "with a flag": {"embedding": torch.ones(16), "mask_token_id": 5, "per_position": False},
    "a tensor alone": torch.ones(16),
}


@pytest.mark.parametrize("content", SOUND.values(), ids=SOUND)
def test_what_engines_take_is_taken(source, content):
    path = saved(source, content)
    require_mask_embedding(path, read_drafter(open_checkpoint(source).contents).drafter)


FAULTS = {
    "another size": ({"embedding": torch.ones(7), "mask_token_id": 5}, "[7]"),
    "one for each position": ({"embedding": torch.ones(4, 16), "mask_token_id": 5}, "[4, 16]"),
    "NaN": ({"embedding": torch.full((16,), math.nan), "mask_token_id": 5}, "NaN"),
    "infinity": ({"embedding": torch.full((16,), -math.inf), "mask_token_id": 5}, "infinity"),
    "integers": ({"embedding": torch.ones(16, dtype=torch.int64), "mask_token_id": 5}, ""),
    "another token": ({"embedding": torch.ones(16), "mask_token_id": 6}, "this file says 6"),
    "no embedding": ({"a": 1}, "holds no embedding"),
    "a list": ([torch.ones(16)], "holds no embedding"),
    "transposed": ({"embedding": torch.ones(8, 4).T[:, :4], "mask_token_id": 5}, ""),
    "negated": ({"embedding": torch._neg_view(torch.ones(16)), "mask_token_id": 5}, "negated"),
    "code": ({"embedding": Runs(), "mask_token_id": 5}, "posix.system"),
}


@pytest.mark.parametrize(("content", "words"), FAULTS.values(), ids=FAULTS)
def test_anything_else_is_refused_before_a_byte_is_written(source, tmp_path, content, words):
    path = saved(source, content)
    aim = read_target(str(target_folder(tmp_path / "target")), identifier="owner/target")
    with pytest.raises(DflashPackError) as caught:
        plan_conversion(open_checkpoint(source), aim)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.remedy
