"""Which tensors of a checkpoint TensorRT-LLM's DFlash loader takes, drops or silently misses.

Source: NVIDIA/TensorRT-LLM main 2026-09, read and not run: _torch/models/modeling_dflash.py
(load_weights, _load_dflash2_weights). ``fc`` and ``hidden_norm`` are built from the tensors; the
rest goes to the Qwen3 backbone, which may be loaded in part, so a missing tensor counts as a
refusal.
"""

from __future__ import annotations

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.drafter import Geometry, Parts
from dflash_pack.engines.fused_tensors import QKV, as_written
from dflash_pack.engines.tensor_set import compare_tensors, engine_shapes, is_quantised, name_some

_PREFIX = "model."
# These must stand without the prefix that the loader adds to all the others.
_CONV = "_conv."
_PLAIN = ("fc.", "hidden_norm.", "candidate_selector.", "aux_hidden_norms.")


def read_tensors(
    contents: Contents,
    geometry: Geometry,
    layers: int,
    captured: int,
    parts: Parts | None,
    vocab_size: int,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tensors that are dropped without a word, and refusals.

    Args:
        contents: The files.
        geometry: Sizes of the Qwen3 backbone.
        layers: L, number of draft layers.
        captured: C, number of captured layers.
        parts: What the family adds.
        vocab_size: Rows of the selector's codebooks.
    """
    split = engine_shapes(geometry, layers, geometry.hidden_size)
    want = engine_shapes(
        geometry,
        layers,
        captured * geometry.hidden_size,
        parts=parts,
        vocabulary=(vocab_size, vocab_size),
        captured=captured,
    )
    have: dict[str, TensorSpec] = {}
    names: dict[str, str] = {}
    for name, spec in contents.tensors.items():
        plain = name.removeprefix(_PREFIX)
        names[name] = name if plain.startswith(_PLAIN) or _CONV in plain else plain
        have[names[name]] = spec
    as_written(want, have, split=split, fused=(QKV,))
    found = compare_tensors(have, want, quantised=is_quantised(contents))
    dropped = tuple(sorted(name for name, plain in names.items() if plain in found.unexpected))
    refusals = list(found.misshapen)
    if found.missing:
        refusals.append(
            f"Tensors are missing: {name_some(found.missing)}. TensorRT-LLM loads without a word "
            "and drafts garbage."
        )
    return dropped, tuple(refusals)
