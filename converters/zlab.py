"""z-lab's native form, old style (2026-01) and new style (package dflash 0.1.0)."""

from __future__ import annotations

from typing import Any, Literal

from dflash_pack.checkpoint import Contents
from dflash_pack.converters.family_keys import native_keys
from dflash_pack.converters.native import NativeDialect, is_native, read_native
from dflash_pack.converters.reading import Reading
from dflash_pack.converters.writing import WrittenForm, dtype_name, layer_config
from dflash_pack.drafter import Drafter
from dflash_pack.engines.limits import causal_by_type, native_form_problems
from dflash_pack.errors import NotRepresentableError
from dflash_pack.target import Target

NAME = "zlab"
Style = Literal["old", "new"]

DIALECT = NativeDialect(name=NAME)


def detect(contents: Contents) -> bool:
    """Return whether the config is plain native DFlash, whoever wrote it."""
    return is_native(contents)


def read(contents: Contents) -> Reading:
    """Return the meaning of a drafter in z-lab's form.

    Raises:
        DflashPackError: As :func:`dflash_pack.converters.native.read_native`.
    """
    return read_native(contents, DIALECT)


def write(drafter: Drafter, target: Target, *, style: Style = "old") -> WrittenForm:
    """Return the native form of ``drafter``.

    ``old`` is the style that every native reader takes: block size at top level and in
    ``dflash_config``, rope in both spellings (formats: TensorRT-LLM reads only the top level).
    ``new`` is that of package dflash 0.1.0: block size only inside, ``rope_parameters`` only.

    Raises:
        NotRepresentableError: If the native form has no place for a fact.
    """
    require_whole_block(drafter)
    problems = native_form_problems(drafter)
    if problems:
        raise NotRepresentableError(problems[0].rstrip("."))
    return config_of(drafter, target, style=style)


def require_whole_block(drafter: Drafter) -> None:
    """Check that the drafter proposes all tokens of its block, as native keys state no number.

    Raises:
        NotRepresentableError: If it does not.
    """
    if drafter.proposal_tokens is not None:
        raise NotRepresentableError(
            f"the source asks for {drafter.proposal_tokens} tokens of a block of "
            f"{drafter.block_size}, and the native form states no number",
            remedy="Use --format speculators, or state block_size - 1 by --set",
        )


def config_of(drafter: Drafter, target: Target, *, style: Style) -> WrittenForm:
    """Return the native keys of a ``drafter`` that has been found to fit the form."""
    family = native_keys(drafter)
    section: dict[str, Any] = {
        "block_size": drafter.block_size,
        "mask_token_id": drafter.vocabulary.mask_token_id,
        "target_layer_ids": list(drafter.target_layer_ids),
        **section_extras(drafter),
        **family.section,
    }
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        **family.top,
        **layer_config(drafter, max_position_embeddings=drafter.geometry.max_position_embeddings),
        "dtype": dtype_name(drafter.dtype),
        "num_target_layers": target.num_hidden_layers,
        **top_extras(drafter),
    }
    if drafter.vocabulary.draft_size != drafter.vocabulary.size:
        config["draft_vocab_size"] = drafter.vocabulary.draft_size
    if not causal_by_type(drafter):
        config["is_causal"] = drafter.causality
        section["causal"] = drafter.causality
    if style == "old":
        config["block_size"] = drafter.block_size
        config["rope_theta"] = drafter.rope.theta
        config["rope_scaling"] = _rope_scaling(drafter)
    if drafter.rope.partial_rotary_factor != 1.0:
        config["partial_rotary_factor"] = drafter.rope.partial_rotary_factor
    if drafter.family == "dspark":
        # Where vLLM's and SGLang's DSpark look for them (vllm 0.32, models/qwen3_dspark.py).
        config["block_size"] = drafter.block_size
        config["mask_token_id"] = drafter.vocabulary.mask_token_id
        config["target_layer_ids"] = list(drafter.target_layer_ids)
    config["dflash_config"] = section
    fields = {
        "block_size": "dflash_config.block_size",
        "mask_token_id": "dflash_config.mask_token_id",
        "target_layer_ids": "dflash_config.target_layer_ids",
        "rope": "rope_parameters",
    }
    return WrittenForm("native", dict(sorted(config.items())), fields)


def top_extras(drafter: Drafter) -> dict[str, Any]:
    """Return the top-level keys of facts that most drafters don't have."""
    found: dict[str, Any] = {}
    if drafter.target_hidden_size != drafter.geometry.hidden_size:
        found["target_hidden_size"] = drafter.target_hidden_size
    if drafter.final_logit_softcapping is not None:
        found["final_logit_softcapping"] = drafter.final_logit_softcapping
    if drafter.quantization is not None and drafter.quantization.value():
        found["quantization_config"] = drafter.quantization.value()
    return found


def section_extras(drafter: Drafter) -> dict[str, Any]:
    """Return the ``dflash_config`` keys of facts that most drafters don't have."""
    found: dict[str, Any] = {}
    if drafter.attention_sinks:
        found["attention_sink_bias"] = True
    for name in ("attention_value_scale", "input_embedding_scale", "output_multiplier"):
        if getattr(drafter, name) != 1.0:
            found[name] = getattr(drafter, name)
    return found


def _rope_scaling(drafter: Drafter) -> dict[str, Any] | None:
    if drafter.rope.kind == "default":
        return None
    scaling = drafter.rope.parameters()
    scaling.pop("rope_theta")
    return scaling
