"""Which tensors of a checkpoint SGLang's DFlash loader takes, drops, refuses or silently misses.

Source: sglang 0.5.23 (wheel read, not run): models/dflash.py and models/dspark.py (load_weights).
Unknown tensors are dropped and missing ones left uninitialised without a word, so a missing one
counts as a refusal here.
"""

from __future__ import annotations

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.drafter import Geometry
from dflash_pack.engines.fused_tensors import as_written
from dflash_pack.engines.sglang_config import SglangConfig
from dflash_pack.engines.tensor_set import compare_tensors, engine_shapes, is_quantised, name_some

_PREFIX = "model."
_ALIASES = {
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
}
_CONFIDENCE = "confidence_head."
_DOMINO = ("prefix_gru.", "embed_proj.")


def read_tensors(
    contents: Contents, geometry: Geometry, layers: int, config: SglangConfig, vocab_size: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tensors that SGLang drops without a word, and refusals.

    Args:
        contents: The files.
        geometry: Sizes that SGLang builds with.
        layers: L, number of draft layers.
        config: DFlash's own facts.
        vocab_size: Rows of codebooks, Markov matrices and, if it is used, the own embedding.
    """
    want = engine_shapes(
        geometry,
        layers,
        len(config.layer_ids) * geometry.hidden_size,
        parts=config.parts,
        vocabulary=(vocab_size, vocab_size),
        captured=len(config.layer_ids),
    )
    if config.sinks:
        want |= {
            f"layers.{index}.self_attn.attention_sink_bias": (geometry.num_attention_heads,)
            for index in range(layers)
        }
    if config.own_embedding:
        want["embed_tokens.weight"] = (vocab_size, geometry.hidden_size)
    have: dict[str, TensorSpec] = {}
    names: dict[str, str] = {}
    for name, spec in contents.tensors.items():
        plain = name.removeprefix(_PREFIX)
        names[name] = _ALIASES.get(plain, plain)
        have[names[name]] = spec
    as_written(want, have, split=engine_shapes(geometry, layers, geometry.hidden_size))
    if not any(name.startswith(_CONFIDENCE) for name in have):
        want = {name: shape for name, shape in want.items() if not name.startswith(_CONFIDENCE)}
    found = compare_tensors(have, want, quantised=is_quantised(contents))
    dropped = tuple(sorted(name for name, plain in names.items() if plain in found.unexpected))
    refusals = list(found.misshapen)
    if found.missing:
        refusals.append(
            f"Tensors are missing: {name_some(found.missing)}. SGLang loads without a word and "
            "drafts garbage."
        )
    domino = [name for name in dropped if names[name].startswith(_DOMINO)]
    if domino:
        refusals.append(f"SGLang takes {name_some(domino)} under projector_type 'domino' only.")
    if config.family == "dspark":
        stray = [name for name in dropped if names[name].startswith("markov_head.")]
        if stray:
            refusals.append(f"SGLang's DSpark has no parameter for {name_some(stray)}.")
    return dropped, tuple(refusals)
