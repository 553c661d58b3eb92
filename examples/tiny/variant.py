"""What a tiny drafter may do otherwise than the first one, and the config.json that says so."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

BLOCK_SIZE = 8
ORIGINAL_LENGTH = 64  # positions before yarn stretches them


@dataclass(frozen=True)
class Variant:
    """One drafter to train.

    Attributes:
        attention: ``full`` or ``sliding`` for each draft layer.
        window: Tokens that a sliding layer sees, the query's own included.
        causal: Causality of all layers; None = sliding layers causal, full ones not.
        target_layer_ids: 0-based target layers whose output is captured.
        intermediate_size: Width of the MLPs.
        yarn_factor: Factor of a yarn rope, None for the default one.
        attention_bias: Whether the projections of attention have biases.
        draft_vocab: Size of the draft vocabulary, None for the whole one.
        mask_embedding: Whether the masked slots' embedding is trained and saved beside the weights.
        style: z-lab's first style, its newer one, or that of the Speculators trainer.
    """

    attention: tuple[str, ...] = ("full", "full")
    window: int = 16
    causal: bool | None = None
    target_layer_ids: tuple[int, ...] = (0, 1, 2)
    intermediate_size: int = 256
    yarn_factor: float | None = None
    attention_bias: bool = False
    draft_vocab: int | None = None
    mask_embedding: bool = False
    style: Literal["old", "new", "speculators"] = "old"

    @property
    def slides(self) -> bool:
        """Whether any layer has a window."""
        return "sliding" in self.attention


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that make up a :class:`Variant`."""
    group = parser.add_argument_group("drafter")
    group.add_argument("--name", help="write to golden/NAME instead of drafter")
    group.add_argument(
        "--attention", nargs="+", choices=["full", "sliding"], default=["full", "full"]
    )
    group.add_argument("--window", type=int, default=16, help="tokens a sliding layer sees")
    group.add_argument("--causal", choices=["true", "false"], help="for all layers")
    group.add_argument("--target-layer-ids", nargs="+", type=int, default=[0, 1, 2])
    group.add_argument("--intermediate-size", type=int, default=256)
    group.add_argument("--yarn-factor", type=float)
    group.add_argument("--attention-bias", action="store_true")
    group.add_argument(
        "--draft-vocab", type=int, help="most frequent tokens, with a head of theirs"
    )
    group.add_argument("--mask-embedding", action="store_true", help="train the mask's embedding")
    group.add_argument("--style", choices=["old", "new", "speculators"], default="old")


def from_options(options: argparse.Namespace) -> Variant:
    """Return the variant that the command line asks for."""
    if options.draft_vocab and options.style != "speculators":
        raise SystemExit("--draft-vocab needs --style speculators: no other style states it")
    return Variant(
        attention=tuple(options.attention),
        window=options.window,
        causal=None if options.causal is None else options.causal == "true",
        target_layer_ids=tuple(options.target_layer_ids),
        intermediate_size=options.intermediate_size,
        yarn_factor=options.yarn_factor,
        attention_bias=options.attention_bias,
        draft_vocab=options.draft_vocab,
        mask_embedding=options.mask_embedding,
        style=options.style,
    )


def folder_of(options: argparse.Namespace) -> Path:
    """Return the folder that the drafter is written to."""
    out: Path = options.out
    return out / "golden" / options.name if options.name else out / "drafter"


def native_config(
    variant: Variant,
    geometry: dict[str, Any],
    *,
    mask_token_id: int,
    eos_token_id: int,
    target_layers: int,
) -> dict[str, Any]:
    """Return ``config.json`` in z-lab's first published style, or in its newer one."""
    layers = len(variant.attention)
    ids = list(variant.target_layer_ids)
    config: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": BLOCK_SIZE,
        "dflash_config": {"mask_token_id": mask_token_id, "target_layer_ids": ids},
        "num_target_layers": target_layers,
        **geometry,
        "attention_bias": variant.attention_bias,
        "num_hidden_layers": layers,
        "intermediate_size": variant.intermediate_size,
        "layer_types": [f"{kind}_attention" for kind in variant.attention],
        "sliding_window": variant.window if variant.slides else None,
        "use_sliding_window": variant.slides,
        "max_window_layers": layers,
        "rope_theta": 10000.0,
        "rope_scaling": _yarn(variant),
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "dtype": "bfloat16",
    }
    if variant.causal is not None:
        config["is_causal"] = variant.causal
    if variant.style == "new":
        config["dflash_config"] = {
            "block_size": config.pop("block_size"),
            **config["dflash_config"],
        }
        scaling = config.pop("rope_scaling") or {"rope_type": "default"}
        config["rope_parameters"] = {**scaling, "rope_theta": config.pop("rope_theta")}
    return config


def speculators_config(native: dict[str, Any], variant: Variant, target: str) -> dict[str, Any]:
    """Return ``config.json`` as the trainer of speculators 0.9 saves it.

    The flag is true where no sliding layer is causal: vLLM 0.32 takes it for full layers too.
    """
    skipped = {"architectures", "block_size", "dflash_config", "num_target_layers", "dtype"}
    layer = {key: value for key, value in native.items() if key not in skipped}
    scaling = layer.pop("rope_scaling") or {"rope_type": "default"}
    layer["rope_parameters"] = {**scaling, "rope_theta": layer.pop("rope_theta")}
    causal = variant.causal if variant.causal is not None else variant.slides
    return {
        "architectures": ["DFlashDraftModel"],
        "aux_hidden_state_layer_ids": [index + 1 for index in variant.target_layer_ids],
        "block_size": BLOCK_SIZE,
        "draft_vocab_size": variant.draft_vocab or native["vocab_size"],
        "dtype": native["dtype"],
        "mask_token_id": native["dflash_config"]["mask_token_id"],
        "sample_from_anchor": False,
        "sliding_window_non_causal": not causal,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "accept_tolerance": 0.0,
                    "proposal_type": "greedy",
                    "speculative_tokens": BLOCK_SIZE - 1,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": target},
        },
        "speculators_model_type": "dflash",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        "transformers_version": "5.19.0",
    }


def _yarn(variant: Variant) -> dict[str, Any] | None:
    if variant.yarn_factor is None:
        return None
    return {
        "rope_type": "yarn",
        "factor": variant.yarn_factor,
        "original_max_position_embeddings": ORIGINAL_LENGTH,
    }
