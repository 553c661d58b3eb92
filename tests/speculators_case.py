"""Print what one version of the Speculators trainer saves, as a line of its record.

`python tests/speculators_case.py KIND SHAPE` with the version wanted first on PYTHONPATH (a wheel
unpacked is enough). The model is built by that version's own `from_training_args` for the bundled
target and saved by its own checkpointer: the record in data/speculators_versions.jsonl is its
config, its tensors' headers and its files, not our reading of its code.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "examples" / "tiny" / "target"
VOCABULARY, DRAFTED = 512, 128
LAYER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
WINDOW = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}
SHAPES: dict[str, dict[str, Any]] = {
    "full": {},
    "reduced": {},
    "sliding": WINDOW | {"layer_types": ["sliding_attention"] * 2},
    "sliding-bidirectional": WINDOW | {"layer_types": ["sliding_attention"] * 2},
    "mixed": WINDOW | {"layer_types": ["sliding_attention", "full_attention"]},
}


def saved(kind: str, shape: str, folder: Path) -> Path:
    """Build and save a drafter with the library at hand, and return the epoch's folder."""
    import torch
    from speculators.model import SpeculatorModel
    from speculators.train.checkpointer import SingleGPUCheckpointer
    from transformers import Qwen3Config

    def no_weights(model: Any) -> None:
        # The target's matrices are of another width here; only names and shapes are recorded.
        for part in (model.embed_tokens, model.lm_head):
            torch.nn.init.zeros_(part.weight)

    layers = Qwen3Config(**LAYER, **SHAPES[shape])
    layers._attn_implementation = "simple_flex_attention"
    t2d = d2t = None
    if shape == "reduced":
        t2d = torch.zeros(VOCABULARY, dtype=torch.bool)
        t2d[: 2 * DRAFTED : 2] = True
        d2t = t2d.nonzero().flatten() - torch.arange(DRAFTED)
    drafter = SpeculatorModel.registry[kind]
    drafter.load_verifier_weights = no_weights
    model = drafter.from_training_args(
        layers,
        t2d=t2d,
        d2t=d2t,
        block_size=8,
        draft_vocab_size=VOCABULARY if t2d is None else DRAFTED,
        markov_rank=8,
        mask_token_id=511,
        max_anchors=16,
        selector_rank=8,
        selector_top_k=4,
        sliding_window_non_causal=shape == "sliding-bidirectional" or kind == "dflash2",
        target_layer_ids=[1, 2, 3],
        verifier_name_or_path=str(TARGET),
    )
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    SingleGPUCheckpointer(folder).save_checkpoint(model, torch.optim.AdamW(trained), 0)
    return folder / "0"


def main() -> None:
    """Print the line."""
    from safetensors import safe_open

    kind, shape = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary:
        epoch = saved(kind, shape, Path(temporary))
        config = json.loads((epoch / "config.json").read_text())
        config["speculators_config"]["verifier"]["name_or_path"] = "example/tiny-target"
        with safe_open(epoch / "model.safetensors", "numpy") as file:
            slices = {name: file.get_slice(name) for name in sorted(file.keys())}
            tensors = {name: [s.get_dtype(), s.get_shape()] for name, s in slices.items()}
        files = sorted(path.name for path in epoch.iterdir())
    case = {"kind": kind, "shape": shape, "config": config, "tensors": tensors, "files": files}
    sys.stdout.write(json.dumps(case, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
