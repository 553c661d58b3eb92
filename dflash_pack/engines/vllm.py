"""What vLLM makes of a DFlash drafter's files, in its native and its Speculators path.

The rules were read from vllm 0.32.0 and 0.33.0 and compared with 0.32.0 as it runs
(tests/integration/test_engine_agreement.py). 0.33.0's config code was imported from its wheel and
gave the same on the same cases; its model and loader were only read. Of what is modelled here 0.33
differs in two places: ``vllm serve FOLDER`` refuses a verifier that is no Hub id, and a short
``max_position_embeddings`` is raised to the target's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dflash_pack.checkpoint import Contents
from dflash_pack.engines.keys import Keys
from dflash_pack.engines.meaning import EngineMeaning
from dflash_pack.engines.tensor_set import is_quantised
from dflash_pack.engines.vllm_config import DraftConfig, parse_native, parse_speculators, parser_of
from dflash_pack.engines.vllm_layers import (
    causality_by,
    resolve_captured,
    resolve_layers,
    resolve_mask,
)
from dflash_pack.engines.vllm_serving import Version, auto_serve, context_notes, layer_notes
from dflash_pack.engines.vllm_tensors import VllmTensors, read_tensors
from dflash_pack.target import Target

MASK_EMBEDDING = "mask_embedding.pt"


def derive(
    contents: Contents, target: Target | None, *, version: Version = "0.33"
) -> EngineMeaning:
    """Return what vLLM will do with ``contents``.

    Args:
        contents: The files, written or planned.
        target: The target; without it, its sizes are taken to be the drafter's.
        version: vLLM's minor version.
    """
    root = Keys(contents.config)
    path = parser_of(contents.config)
    parse = parse_speculators if path == "speculators" else parse_native
    config, problems = parse(root)
    served = auto_serve(root, version)
    if config is None:
        return EngineMeaning("vllm", version, path, refusals=problems)
    layers, layer_refusals = resolve_layers(config)
    captured = resolve_captured(config)
    mask, mask_from_file, mask_refusals = resolve_mask(config)
    columns = config.target_hidden_size * len(captured.layer_ids) or None
    sinks = bool(_sinks(config))
    target_vocab = config.vocab_size if target is None else target.vocab_size
    tensors = read_tensors(
        contents, config, fc_columns=columns, sinks=sinks, target_vocab=target_vocab
    )
    refusals = (
        *problems,
        *layer_refusals,
        *captured.refusals,
        *mask_refusals,
        *_config_refusals(config, own_head=tensors.own_head),
        *tensors.refusals,
        *_target_refusals(config, target, captured.layer_ids, mask, tensors),
    )
    notes = [*served.notes, *captured.notes, *layer_notes(layers, config)]
    if is_quantised(contents):
        root.get("quantization_config")
        notes.append("Weights are quantised: names and shapes of tensors were not compared.")
    notes += context_notes(config, target, version)
    geometry = config.geometry
    tokens = served.speculative_tokens
    if tokens is None and path == "native":
        stated = config.attributes.get("n_predict")
        tokens = stated if isinstance(stated, int) else None
        if config.family == "dspark":
            tokens, note = _dspark_tokens(root, anchor=_samples_anchor(config, path))
            notes += note
    return EngineMeaning(
        engine="vllm",
        versions=version,
        config_path=path,
        refusals=refusals,
        ignored=(*root.unread(), *tensors.ignored),
        notes=tuple(notes),
        layers=layers,
        causality_by=causality_by(config, speculators=path == "speculators"),
        target_layer_ids=captured.layer_ids,
        fc_input_size=columns,
        mask_token_id=mask,
        speculative_tokens=tokens,
        rope=config.rope,
        embedding="own" if tensors.own_embedding else "target",
        head="own" if tensors.own_head else "target",
        draft_vocab_size=config.draft_vocab_size,
        mask_embedding=mask_from_file and MASK_EMBEDDING in contents.side_files,
        attention_bias=geometry.attention_bias,
        head_dim=geometry.head_dim,
        rms_norm_eps=geometry.rms_norm_eps,
        hidden_act=geometry.hidden_act,
        sample_from_anchor=_samples_anchor(config, path),
        family=config.family,
        parts=config.parts,
        attention_sinks=sinks,
        attention_value_scale=_number(config.dflash.get("attention_value_scale")) or 1.0,
        **_dflash2_facts(config),
    )


def derive_supported(contents: Contents, target: Target | None) -> EngineMeaning:
    """Return :func:`derive` for all supported versions at once: 0.33, plus the notes of 0.32."""
    newest = derive(contents, target, version="0.33")
    oldest = derive(contents, target, version="0.32")
    notes = tuple(dict.fromkeys((*newest.notes, *oldest.notes)))
    return replace(newest, versions="0.32-0.33", notes=notes)


def _sinks(config: DraftConfig) -> object:
    if config.dflash.has("attention_sink_bias"):
        return config.dflash.get("attention_sink_bias")
    return config.attributes.get("add_swa_attention_sink_bias", False)


def _number(value: object) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if usable and isinstance(value, int | float) else None


def _samples_anchor(config: DraftConfig, path: str) -> bool:
    """Return whether the anchor predicts too; only DSpark's runner does that.

    Absent, it is true for native files (v1/worker/gpu/spec_decode/dspark/speculator.py) and false
    for Speculators ones (configs/speculators/algos.py).
    """
    if config.family != "dspark":
        return False
    if path == "speculators":
        return bool(config.dflash.get("sample_from_anchor"))
    return bool(config.attributes.get("sample_from_anchor", True))


def _dspark_tokens(root: Keys, *, anchor: bool) -> tuple[int | None, tuple[str, ...]]:
    """Return the k that vLLM takes of a native DSpark file, which is its block size.

    Where the anchor doesn't predict, the block has one token less to give, and k must be given.
    """
    block = root.get("block_size")
    if not isinstance(block, int) or isinstance(block, bool):
        return None, ()
    if anchor:
        return block, ()
    text = (
        f"Give it num_speculative_tokens {block - 1}: left out, it takes the block size, {block}, "
        "though the anchor does not predict here."
    )
    return None, (text,)


def _dflash2_facts(config: DraftConfig) -> dict[str, Any]:
    """Return the factors and the cap that only DFlash2's model reads."""
    if config.family != "dflash2":
        return {}
    cap = _number(config.dflash.get("final_logit_softcapping"))
    return {
        "input_embedding_scale": _number(config.dflash.get("input_embedding_scale", 1.0)) or 1.0,
        "output_multiplier": _number(config.dflash.get("output_multiplier", 1.0)) or 1.0,
        "final_logit_softcapping": cap if cap is not None and cap > 0 else None,
    }


def _config_refusals(config: DraftConfig, *, own_head: bool) -> tuple[str, ...]:
    refusals: list[str] = []
    if config.attributes.get("has_own_lm_head") and not own_head:
        refusals.append(
            "has_own_lm_head is true without lm_head.weight: vLLM's V2 model runner would score "
            "with a head that was never loaded."
        )
    if config.geometry.hidden_act != "silu":
        refusals.append(
            f"hidden_act is {config.geometry.hidden_act!r}: vLLM's Qwen3 knows silu only."
        )
    if config.family != "dspark" and config.dflash.get("sample_from_anchor"):
        refusals.append(
            "sample_from_anchor is true: vLLM's V2 model runner refuses it for DFlash, and V1 "
            "ignores it without a word."
        )
    nested = config.dflash.get("use_aux_hidden_state")
    use_aux = config.attributes.get("use_aux_hidden_state", True) if nested is None else nested
    if not use_aux:
        refusals.append("use_aux_hidden_state is false: vLLM would drop fc.weight.")
    return tuple(refusals)


def _target_refusals(
    config: DraftConfig,
    target: Target | None,
    layer_ids: tuple[int, ...],
    mask: int | None,
    tensors: VllmTensors,
) -> tuple[str, ...]:
    rows = config.vocab_size if tensors.own_embedding or target is None else target.vocab_size
    refusals: list[str] = []
    if mask is not None and mask >= rows:
        refusals.append(f"The mask token {mask} is outside the embedding of {rows} rows.")
    if min(layer_ids, default=0) < -1:
        refusals.append(f"Captured layer {min(layer_ids)} does not exist in any target.")
    if target is None:
        return tuple(refusals)
    if max(layer_ids, default=0) >= target.num_hidden_layers:
        refusals.append(
            f"Captured layer {max(layer_ids)} does not exist: the target has "
            f"{target.num_hidden_layers} layers."
        )
    if target.hidden_size != config.target_hidden_size:
        refusals.append(
            f"fc expects states of width {config.target_hidden_size}, and the target's are "
            f"{target.hidden_size} wide."
        )
    shared = [
        name
        for name, own in (("embedding", tensors.own_embedding), ("head", tensors.own_head))
        if not own
    ]
    if shared and config.geometry.hidden_size != target.hidden_size:
        refusals.append(
            f"The target's {' and '.join(shared)} would be used, but are {target.hidden_size} wide "
            f"and the drafter {config.geometry.hidden_size}."
        )
    return tuple(refusals)
