"""Published drafters' configs: each is read into the right drafter or refused for its reason.

The files hold only what could be sourced; ``completed`` states what a file lacks, as a test value.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from made import changed, specs

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.converters import speculators, zlab
from dflash_pack.converters.registry import read_drafter
from dflash_pack.drafter import Drafter
from dflash_pack.errors import DflashPackError, NotRepresentableError
from dflash_pack.target import Target

FOLDER = Path(__file__).parents[2] / "data" / "public_configs"
QWEN3 = "rope_theta=1000000"
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000}}


@dataclass(frozen=True)
class Row:
    """What one file means, layer by layer, and whether the Speculators form carries it."""

    file: str
    completed: dict
    windows: tuple
    causal: tuple
    ids: tuple
    mask: int
    block: int
    carried: bool = True

    @property
    def tokens(self) -> int:
        return self.block - 1


def layer(changes):
    return {f"transformer_layer_config.{key}": value for key, value in changes.items()}


FULL5, FULL8 = ((None,) * 5, (False,) * 5), ((None,) * 8, (False,) * 8)
IDS36 = (1, 9, 17, 25, 33)
READ = [
    Row("z-lab__Qwen3-4B-DFlash-b16", {}, *FULL5, IDS36, 151669, 16),
    Row(
        "z-lab__Qwen3-8B-DFlash-b16",
        {
            "dflash_config": {"mask_token_id": 151669, "target_layer_ids": list(IDS36)},
            "vocab_size": 151936,
            "rope_theta": 1000000,
        },
        *FULL5,
        IDS36,
        151669,
        16,
    ),
    Row(
        "z-lab__Qwen3.5-4B-DFlash",
        {
            "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 8, 15, 22, 29]},
            "vocab_size": 248320,
            "rope_theta": 10000000,
        },
        *FULL5,
        (1, 8, 15, 22, 29),
        248070,
        16,
    ),
    Row(
        "z-lab__Qwen3.5-9B-DFlash",
        {"vocab_size": 248320},
        *FULL5,
        (1, 8, 15, 22, 29),
        248070,
        16,
    ),
    Row(
        "z-lab__Qwen3.5-27B-DFlash",
        {"vocab_size": 248320, "rope_theta": 10000000},
        *FULL5,
        (1, 16, 31, 46, 61),
        248070,
        16,
    ),
    Row(
        "z-lab__Qwen3.5-35B-A3B-DFlash",
        {
            "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 10, 19, 28, 37]},
            "vocab_size": 248320,
            "rope_theta": 10000000,
        },
        *FULL8,
        (1, 10, 19, 28, 37),
        248070,
        16,
    ),
    Row("z-lab__Qwen3.6-35B-A3B-DFlash", {}, *FULL8, (1, 10, 19, 28, 37), 248070, 16),
    Row(
        "z-lab__gpt-oss-120b-DFlash",
        {
            "rope_theta": 150000,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
            },
            "attention_bias": True,
        },
        *FULL8,
        IDS36,
        200000,
        10,
    ),
    Row(
        "z-lab__gemma-4-26B-A4B-it-DFlash",
        {"use_sliding_window": True, "vocab_size": 262144, "rope_theta": 1000000},
        (2048, 2048, 2048, 2048, None),
        (True, True, True, True, False),
        (1, 6, 11, 17, 22, 27),
        4,
        16,
        carried=False,
    ),
    Row("sgl-project__SpecForge-longcat-flash-dflash", {}, *FULL5, (1, 7, 13, 19, 25), 2, 16),
    Row("sgl-project__SpecForge-qwen2.5-0.5b-dflash", {}, *FULL5, (1, 6, 11, 16, 21), 151669, 16),
    Row(
        "RedHatAI__Qwen3-8B-speculator.dflash",
        layer(ROPE)
        | {
            "speculators_config": {
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
                "verifier": {"name_or_path": "Qwen/Qwen3-8B", "architectures": []},
            }
        },
        *FULL5,
        IDS36,
        151669,
        8,
    ),
    Row(
        "RedHatAI__Qwen3-30B-A3B-speculator.dflash",
        layer(
            ROPE
            | {
                "intermediate_size": 6144,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
                "head_dim": 128,
                "rms_norm_eps": 1e-6,
                "use_sliding_window": True,
            }
        )
        | {
            "sliding_window_non_causal": False,
            "speculators_config.proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": 7}
            ],
        },
        (2048,) * 5,
        (True,) * 5,
        (0, 11, 22, 33, 44),
        151669,
        8,
    ),
]
REFUSED = [
    # As the sources quote them, incomplete: nothing is filled in by a guess.
    ("z-lab__Qwen3-8B-DFlash-b16", {}, "vocab_size: is missing"),
    ("z-lab__Qwen3-8B-DFlash-b16", {"vocab_size": 151936}, "mask_token_id: is not stated"),
    ("z-lab__Qwen3-Coder-30B-A3B-DFlash", {"vocab_size": 151936}, "mask_token_id: is not stated"),
    (
        "z-lab__Qwen3-Coder-Next-DFlash",
        {"vocab_size": 151936, "dflash_config": {"mask_token_id": 151669}},
        "target_layer_ids: is not stated",
    ),
    (
        "z-lab__Qwen3.5-27B-DFlash",
        {"vocab_size": 248320},
        "rope_theta: is not stated, and engines would fill in different values",
    ),
    ("z-lab__gpt-oss-120b-DFlash", {}, "rope_theta: is not stated"),
    (
        "z-lab__gemma-4-26B-A4B-it-DFlash",
        {"vocab_size": 262144},
        "use_sliding_window: is not stated, and its default (false) makes transformers drop",
    ),
    ("RedHatAI__Qwen3-8B-speculator.dflash", {}, "speculators_config: is missing"),
    ("XiaomiMiMo__MiMo-V2.5-Pro-FP4-DFlash", {}, "True is not carried by this converter"),
    ("lightseek__TorchSpec-Qwen3-8B-dflash", {}, "this is a TorchSpec drafter"),
    ("nvidia__Nemotron-3.5-NVFP4-DFlash", {}, "this is a Nemotron drafter"),
    ("poolside__Laguna-S-2.1-DFlash", {}, "this is a Laguna drafter"),
    ("sgl-project__SpecForge-qwen3-4b-dspark", {}, "this is a DSpark drafter"),
    ("sgl-project__SpecForge-qwen3.6-27b-dspark", {}, "this is a DSpark drafter"),
    ("sgl-project__SpecForge-qwen3-8b-domino", {}, "this is a domino drafter"),
    ("z-lab__Qwen3.8-27B-DFlash2", {}, "this is a DFlash2 drafter"),
]


def load(file, completed):
    return changed(json.loads((FOLDER / f"{file}.json").read_text()), completed)


def contents_of(config):
    tensors = specs(config)
    layers = config.get("transformer_layer_config", config)
    draft = config.get("draft_vocab_size")
    if draft and draft != layers["vocab_size"]:
        tensors |= {
            "lm_head.weight": TensorSpec("BF16", (draft, layers["hidden_size"])),
            "d2t": TensorSpec("I64", (draft,)),
            "t2d": TensorSpec("BOOL", (layers["vocab_size"],)),
        }
    return Contents(config, tensors, frozenset())


def target_of(drafter: Drafter) -> Target:
    return Target(
        path=Path("target"),
        identifier="owner/target",
        revision=None,
        architectures=("SomeForCausalLM",),
        model_type="some",
        hidden_size=drafter.target_hidden_size,
        num_hidden_layers=100,
        vocab_size=drafter.vocabulary.size,
        max_position_embeddings=None,
        special_tokens=None,
        tokenizer_size=None,
        config={},
    )


@pytest.mark.parametrize("row", READ, ids=lambda row: row.file)
def test_read_as_meant(row):
    drafter = read_drafter(contents_of(load(row.file, row.completed))).drafter
    assert tuple(layer.window for layer in drafter.layers) == row.windows
    assert tuple(layer.causal for layer in drafter.layers) == row.causal
    assert drafter.target_layer_ids == row.ids
    assert drafter.vocabulary.mask_token_id == row.mask
    assert (drafter.block_size, drafter.speculative_tokens) == (row.block, row.tokens)


@pytest.mark.parametrize("row", READ, ids=lambda row: row.file)
def test_written_in_speculators_form_and_back_or_refused(row):
    drafter = read_drafter(contents_of(load(row.file, row.completed))).drafter
    if not row.carried:
        with pytest.raises(NotRepresentableError, match="layers 0-3 are causal sliding"):
            speculators.write(drafter, target_of(drafter))
        return
    config = dict(speculators.write(drafter, target_of(drafter)).config)
    back = speculators.read(contents_of(config)).drafter
    for field in ("layers", "rope", "geometry"):
        assert getattr(back, field) == getattr(drafter, field)
    assert (back.target_layer_ids, back.vocabulary) == (
        drafter.target_layer_ids,
        drafter.vocabulary,
    )


@pytest.mark.parametrize("row", [r for r in READ if "RedHat" not in r.file], ids=lambda r: r.file)
def test_native_form_and_back(row):
    drafter = read_drafter(contents_of(load(row.file, row.completed))).drafter
    target = target_of(drafter)
    config = dict(zlab.write(drafter, target).config)
    back = zlab.read(contents_of(config)).drafter
    assert vars(back) | {"target_depth": None} == vars(drafter) | {"target_depth": None}


@pytest.mark.parametrize(("file", "completed", "words"), REFUSED)
def test_refused_with_the_reason(file, completed, words):
    config = load(file, completed)
    with pytest.raises(DflashPackError) as caught:
        read_drafter(Contents(config, {}, frozenset()))
    assert words in str(caught.value)


def test_no_file_is_left_out():
    files = {path.stem for path in FOLDER.glob("*.json")}
    assert files == {row.file for row in READ} | {file for file, _, _ in REFUSED}
