"""The trained drafters of examples/tiny, each with a fault that its decode must tell."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY = Path(__file__).parents[1] / "examples" / "tiny"
TARGET, PROMPTS = TINY / "target", TINY / "prompts.jsonl"
BLOCK_SIZE = 8


@dataclass(frozen=True)
class Golden:
    """One trained drafter.

    Attributes:
        folder: Where it is.
        fault: Spoils a copy of its conversion to the Speculators form, in what it is there for.
        decodes: Whether vLLM's CPU runner takes it.
        reference: Whether z-lab's package can run it.
    """

    folder: Path
    fault: Callable[[Path], None]
    decodes: bool = True
    reference: bool = True

    def spoilt(self, converted: Path, out: Path) -> Path:
        """Return a copy of ``converted`` with the fault."""
        shutil.copytree(converted, out)
        self.fault(out)
        return out


def _config(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    return spoil


def _tensors(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        path = folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})

    return spoil


def _flip_causality(config: dict[str, Any]) -> None:
    config["sliding_window_non_causal"] = not config["sliding_window_non_causal"]


def _flip_first_layer(config: dict[str, Any]) -> None:
    # In the universal form, where z-lab's code reads the top level.
    config["layer_types"] = ["full_attention", "full_attention"]


def _forget_yarn(config: dict[str, Any]) -> None:
    layer = config["transformer_layer_config"]
    layer["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": layer["rope_parameters"]["rope_theta"],
    }


def _middle_instead_of_last(config: dict[str, Any]) -> None:
    config["aux_hidden_state_layer_ids"] = [1, 2, 3]


def _shift_vocabulary(tensors: dict[str, Any]) -> None:
    tensors["d2t"] = tensors["d2t"].roll(1)


def _no_biases(tensors: dict[str, Any]) -> None:
    for name, tensor in tensors.items():
        if name.endswith("_proj.bias"):
            tensor.zero_()


def _empty_mask_embedding(folder: Path) -> None:
    import torch

    path = folder / "mask_embedding.pt"
    content = torch.load(path, weights_only=True)
    content["embedding"].zero_()
    torch.save(content, path)


_SHELF = TINY / "golden"
GOLDEN: dict[str, Golden] = {
    "first": Golden(TINY / "drafter", _config(_flip_causality)),
    "sliding_causal": Golden(_SHELF / "sliding_causal", _config(_flip_causality)),
    "sliding_bidirectional": Golden(_SHELF / "sliding_bidirectional", _config(_flip_causality)),
    "mixed": Golden(_SHELF / "mixed", _config(_flip_first_layer), decodes=False),
    # z-lab's package always drafts over the target's whole vocabulary, with the target's head.
    "reduced_vocabulary": Golden(
        _SHELF / "reduced_vocabulary", _tensors(_shift_vocabulary), reference=False
    ),
    "yarn": Golden(_SHELF / "yarn", _config(_forget_yarn)),
    "attention_bias": Golden(_SHELF / "attention_bias", _tensors(_no_biases)),
    "mask_embedding": Golden(_SHELF / "mask_embedding", _empty_mask_embedding),
    "last_layer": Golden(_SHELF / "last_layer", _config(_middle_instead_of_last)),
}
DECODED = [name for name, golden in GOLDEN.items() if golden.decodes]
REFERENCED = [name for name, golden in GOLDEN.items() if golden.reference]
