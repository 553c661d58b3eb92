"""A drafter and its target of a given size, with random weights, made fast and the same each time.

Run as a program, ``python synthetic.py FOLDER SIZE [--target-weights]``, so that the memory it
needs does not count as the benchmark's own.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dflash_pack.checkpoint import TensorSpec
from dflash_pack.drafter import Drafter, DraftLayer, Geometry, Rope, Vocabulary, core_tensor_shapes

_BLOCK_VALUES = 1 << 23


@dataclass(frozen=True)
class Size:
    """What a benchmark's checkpoint is like: the drafter, and its target's depth."""

    drafter: Drafter
    target_layers: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of the drafter's BF16 tensors."""
        return 2 * sum(map(math.prod, core_tensor_shapes(self.drafter).values()))

    @property
    def target_bytes(self) -> int:
        """Bytes of the target's embedding and head."""
        return 4 * self.drafter.vocabulary.size * self.drafter.geometry.hidden_size


def _size(hidden: int, intermediate: int, heads: int, kv_heads: int, vocabulary: int) -> Size:
    drafter = Drafter(
        geometry=Geometry(
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=128,
            rms_norm_eps=1e-6,
            hidden_act="silu",
            max_position_embeddings=40960,
        ),
        layers=(DraftLayer(window=None, causal=False),) * 5,
        target_layer_ids=(1, 9, 17, 25, 33),
        target_hidden_size=hidden,
        block_size=16,
        rope=Rope("default", 1_000_000.0),
        vocabulary=Vocabulary(vocabulary, vocabulary, vocabulary - 267),
        dtype="BF16",
    )
    return Size(drafter, target_layers=36)


SIZES: Mapping[str, Size] = {
    # The drafter of Qwen3-8B: 2.1 GB.
    "full": _size(hidden=4096, intermediate=12288, heads=32, kv_heads=8, vocabulary=151_936),
    "small": _size(hidden=1024, intermediate=3072, heads=8, kv_heads=2, vocabulary=32_000),
}


def write_source(folder: Path, size: Size) -> None:
    """Write the drafter as z-lab releases it: config.json and model.safetensors."""
    shapes = core_tensor_shapes(size.drafter)
    folder.mkdir(parents=True)
    _write_json(folder / "config.json", _source_config(size))
    _write_safetensors(folder / "model.safetensors", dict(sorted(shapes.items())))


def write_target(folder: Path, size: Size, *, weights: bool) -> None:
    """Write the target: config.json and, for ``speculators convert``, the weights it reads."""
    drafter = size.drafter
    folder.mkdir(parents=True)
    config = _qwen3_config(drafter, layers=size.target_layers)
    _write_json(folder / "config.json", {"architectures": ["Qwen3ForCausalLM"], **config})
    if weights:
        matrix = (drafter.vocabulary.size, drafter.geometry.hidden_size)
        _write_safetensors(
            folder / "model.safetensors",
            {
                "lm_head.weight": matrix,
                "model.embed_tokens.weight": matrix,
                "model.norm.weight": matrix[1:],
            },
        )


def _source_config(size: Size) -> dict[str, Any]:
    drafter = size.drafter
    return {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": drafter.block_size,
        "dflash_config": {
            "mask_token_id": drafter.vocabulary.mask_token_id,
            "target_layer_ids": list(drafter.target_layer_ids),
        },
        "num_target_layers": size.target_layers,
        **_qwen3_config(drafter, layers=len(drafter.layers)),
        "layer_types": ["full_attention"] * len(drafter.layers),
    }


def _qwen3_config(drafter: Drafter, *, layers: int) -> dict[str, Any]:
    geometry = drafter.geometry
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "head_dim": geometry.head_dim,
        "hidden_act": geometry.hidden_act,
        "hidden_size": geometry.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": geometry.intermediate_size,
        "max_position_embeddings": geometry.max_position_embeddings,
        "max_window_layers": layers,
        "model_type": "qwen3",
        "num_attention_heads": geometry.num_attention_heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": geometry.num_key_value_heads,
        "rms_norm_eps": geometry.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": drafter.rope.theta,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": drafter.vocabulary.size,
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _write_safetensors(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Write BF16 tensors; a block of random finite values is repeated to stay fast."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        spec = TensorSpec("BF16", shape)
        header[name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(seed=20)
    values = random.normal(scale=0.02, size=_BLOCK_VALUES).astype("<f4")
    block = (values.view("<u4") >> 16).astype("<u2").tobytes()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, end, len(block)):
            file.write(memoryview(block)[: end - start])


def main() -> None:
    """Make ``FOLDER/source`` and ``FOLDER/target``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--target-weights", action="store_true")
    arguments = parser.parse_args()
    size = SIZES[arguments.size]
    write_source(arguments.folder / "source", size)
    write_target(arguments.folder / "target", size, weights=arguments.target_weights)


if __name__ == "__main__":
    main()
