"""What the speculators library means by a drafter's files when it loads them.

Source: speculators 0.9.0: model.py (from_pretrained, DraftVocabMixin), models/dflash/config.py,
core.py and attention.py, models/utils.py (flatten_rope_parameters), config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dflash_pack.checkpoint import Contents
from dflash_pack.drafter import Dflash2Parts, DraftLayer, Family, Parts, Rope, Sharing
from dflash_pack.engines.families import dflash2_parts, dspark_parts
from dflash_pack.engines.keys import Keys
from dflash_pack.engines.meaning import EngineMeaning
from dflash_pack.engines.qwen3_defaults import SLIDING, Qwen3Fields, parse_qwen3
from dflash_pack.engines.rope import TRANSFORMERS_KINDS, nested_labels, qwen3_rope, to_rope
from dflash_pack.engines.tensor_set import engine_shapes
from dflash_pack.engines.transformers_tensors import read_tensors
from dflash_pack.target import Target

_DEFAULT_DRAFT_VOCAB = 32000
_DEFAULT_BLOCK_SIZE = 8
_DEFAULT_TOKENS = 5
_FAMILIES: Mapping[str, Family] = {"dflash": "dflash", "dflash2": "dflash2", "dspark": "dspark"}
# models/dflash2/config.py and models/dspark/config.py
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "dflash2": {
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
    },
    "dspark": {
        "markov_rank": 256,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    },
}
_HEADER = ("speculators_version", "architectures")


def derive(
    contents: Contents, target: Target | None, *, version: Literal["0.9"] = "0.9"
) -> EngineMeaning:
    """Return what ``SpeculatorModel.from_pretrained`` makes of ``contents``.

    Sliding layers are causal within the block unless ``sliding_window_non_causal``, full layers are
    always bidirectional, whatever other key says. The embedding, and the head unless the draft
    vocabulary is reduced, are the verifier's even where the file brings its own.
    """
    root = Keys(contents.config)
    kind = root.get("speculators_model_type")
    family = _FAMILIES.get(str(kind))
    if family is None:
        return EngineMeaning("speculators", version, "speculators", refusals=(_wrong_kind(kind),))
    layer = root.section("transformer_layer_config")
    problems = [*_header_problems(root), *_layer_section_problems(root, layer)]
    fields, field_problems = parse_qwen3(layer)
    problems += field_problems
    facts, fact_problems = _top_facts(root, family)
    problems += fact_problems
    parts, part_problems = _parts(root, family, fields)
    problems += part_problems
    if fields is None or facts is None or problems:
        return EngineMeaning(
            "speculators",
            version,
            "speculators",
            refusals=tuple(problems),
        )
    rope, rope_problems = _rope(layer, fields)
    columns = len(facts.aux_layer_ids) * fields.geometry.hidden_size
    reduced = facts.draft_vocab_size != fields.vocab_size
    skipped, tensor_refusals = read_tensors(
        contents, *_parameters(fields, facts, columns, parts), engine="speculators"
    )
    verifier = facts.verifier
    names = {name.removeprefix("model.") for name in contents.tensors}
    embedding: Sharing = "own" if "embed_tokens.weight" in names and verifier is None else "target"
    head: Sharing = (
        "own" if reduced or ("lm_head.weight" in names and verifier is None) else "target"
    )
    overwritten = [
        name
        for name, sharing in (("embed_tokens.weight", embedding), ("lm_head.weight", head))
        if name in names and sharing == "target"
    ]
    refusals = (*rope_problems, *tensor_refusals, *_target_refusals(fields, facts, target))
    if verifier is None and (embedding == "target" or head == "target"):
        text = "No verifier is named, so the library leaves embedding or head unset (NaN)."
        refusals = (*refusals, text)
    geometry = fields.geometry
    return EngineMeaning(
        engine="speculators",
        versions=version,
        config_path="speculators",
        refusals=refusals,
        ignored=(*root.unread(), *skipped, *overwritten),
        notes=(f"Loads embedding, head and final norm from the verifier {verifier!r}.",)
        if verifier
        else (),
        layers=_layers(fields, non_causal=facts.non_causal),
        target_layer_ids=tuple(item - 1 for item in facts.aux_layer_ids),
        fc_input_size=columns,
        mask_token_id=facts.mask_token_id,
        speculative_tokens=facts.speculative_tokens,
        rope=rope,
        embedding=embedding,
        head=head,
        draft_vocab_size=facts.draft_vocab_size,
        attention_bias=geometry.attention_bias,
        head_dim=geometry.head_dim,
        rms_norm_eps=geometry.rms_norm_eps,
        hidden_act=geometry.hidden_act,
        sample_from_anchor=facts.sample_from_anchor,
        family=family,
        parts=parts,
    )


@dataclass(frozen=True)
class _Facts:
    """Top-level fields of DFlashSpeculatorConfig; layer ids count the embedding output as 0."""

    draft_vocab_size: int
    aux_layer_ids: tuple[int, ...]
    mask_token_id: int
    non_causal: bool
    sample_from_anchor: bool
    speculative_tokens: int
    verifier: str | None


def _wrong_kind(kind: object) -> str:
    if kind is None:
        return (
            "speculators_model_type is missing: the library would auto-convert the files with "
            "defaults of its own instead of reading them. It reads --format speculators."
        )
    return f"speculators_model_type is {kind!r}: the library would load it as that, not as dflash."


def _header_problems(root: Keys) -> tuple[str, ...]:
    for name in _HEADER:
        root.get(name)
    stated = root.config.get("speculators_config")
    if stated is not None and not isinstance(stated, Mapping):
        return ("speculators_config is not an object.",)
    return ()


def _layer_section_problems(root: Keys, layer: Keys) -> tuple[str, ...]:
    if not isinstance(root.config.get("transformer_layer_config"), Mapping):
        return ("transformer_layer_config is missing: the library would build a default Qwen3.",)
    kind = layer.get("model_type", "qwen3")
    if kind == "qwen3":
        return ()
    text = (
        f"transformer_layer_config.model_type is {kind!r}: its class has defaults of its own. "
        'Write "qwen3" and every field explicitly.'
    )
    return (text,)


def _parts(
    root: Keys, family: Family, fields: Qwen3Fields | None
) -> tuple[Parts | None, tuple[str, ...]]:
    """Return what the family adds, its config class filling in what is absent."""
    defaults = _DEFAULTS.get(family)
    if defaults is None or fields is None:
        return None, ()

    def get(name: str) -> object:
        return root.get(name, defaults[name])

    if family == "dflash2":
        hidden = fields.geometry.hidden_size
        parts, problems = dflash2_parts(get, hidden_size=hidden, engine="speculators")
        return parts, (*problems, *_selector_problems(root, parts, fields.vocab_size))
    return dspark_parts(get, engine="speculators", markov_optional=True)


def _selector_problems(root: Keys, parts: Dflash2Parts | None, vocab_size: int) -> tuple[str, ...]:
    """Return why the library can't build DFlash2's selector (models/dflash2/core.py)."""
    problems = []
    reduced = root.get("draft_vocab_size", _DEFAULT_DRAFT_VOCAB)
    if reduced != vocab_size:
        problems.append(
            f"draft_vocab_size is {reduced!r}: the library builds DFlash2 only with the target's "
            f"{vocab_size} tokens."
        )
    if parts is not None and parts.selector_top_k > vocab_size:
        problems.append(
            f"selector_top_k {parts.selector_top_k} exceeds the {vocab_size} tokens there are."
        )
    return tuple(problems)


def _top_facts(root: Keys, family: Family) -> tuple[_Facts | None, tuple[str, ...]]:
    problems: list[str] = []

    def whole(name: str, default: int, minimum: int = 1) -> int:
        value = root.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and value >= minimum:
            return value
        problems.append(f"{name} is {value!r}, not a whole number of at least {minimum}.")
        return default

    def flag(name: str, default: bool) -> bool:
        value = root.get(name, default)
        if isinstance(value, bool):
            return value
        problems.append(f"{name} is {value!r}, and the library wants true or false.")
        return False

    whole("block_size", _DEFAULT_BLOCK_SIZE)
    draft_vocab = whole("draft_vocab_size", _DEFAULT_DRAFT_VOCAB)
    mask = root.get("mask_token_id")
    if not isinstance(mask, int) or isinstance(mask, bool):
        problems.append(f"mask_token_id is {mask!r}: the library can't fill masked slots.")
    ids = root.get("aux_hidden_state_layer_ids")
    if (
        not isinstance(ids, list)
        or not ids
        or not all(isinstance(item, int) and not isinstance(item, bool) for item in ids)
    ):
        problems.append(f"aux_hidden_state_layer_ids is {ids!r}, not a list of layer ids.")
    non_causal = flag("sliding_window_non_causal", family == "dflash2")
    from_anchor = flag("sample_from_anchor", family == "dspark")
    tokens, verifier, config_problems = _speculators_config(root)
    problems += config_problems
    if problems:
        return None, tuple(problems)
    return _Facts(draft_vocab, tuple(ids), mask, non_causal, from_anchor, tokens, verifier), ()


def _speculators_config(root: Keys) -> tuple[int, str | None, tuple[str, ...]]:
    section = root.section("speculators_config")
    if not section.config:
        return _DEFAULT_TOKENS, None, ("speculators_config is missing, so no verifier is known.",)
    problems: list[str] = []
    methods = section.get("proposal_methods")
    default = section.get("default_proposal_method")
    if not isinstance(section.get("algorithm"), str):
        problems.append("speculators_config.algorithm is missing.")
    known = (
        [item for item in methods if isinstance(item, Mapping)] if isinstance(methods, list) else []
    )
    kinds = [item.get("proposal_type") for item in known]
    if not known or any(kind != "greedy" for kind in kinds):
        problems.append("speculators_config.proposal_methods must be a list of greedy methods.")
    elif default not in kinds:
        problems.append(f"default_proposal_method {default!r} is none of the proposal_methods.")
    tokens: Any = known[0].get("speculative_tokens", _DEFAULT_TOKENS) if known else None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        problems.append(f"speculative_tokens is {tokens!r}, not a whole number of at least 1.")
    verifier = section.get("verifier")
    if not isinstance(verifier, Mapping) or "name_or_path" not in verifier:
        problems.append("speculators_config.verifier.name_or_path is missing.")
        return 0, None, tuple(problems)
    if not isinstance(verifier.get("architectures"), list):
        problems.append("speculators_config.verifier.architectures is not a list.")
    name = verifier["name_or_path"]
    if name is not None and not isinstance(name, str):
        problems.append(f"speculators_config.verifier.name_or_path is {name!r}, not a name.")
    return tokens, name, tuple(problems)


def _rope(layer: Keys, fields: Qwen3Fields) -> tuple[Rope | None, tuple[str, ...]]:
    geometry = fields.geometry
    reading = qwen3_rope(layer, fields.layer_types, geometry.max_position_embeddings)
    if reading.problems:
        return None, reading.problems
    parameters = reading.parameters
    if nested_labels(parameters, fields.layer_types) and SLIDING in parameters:
        # One rope per layer type is flattened to the sliding layers' (models/utils.py).
        parameters = parameters[SLIDING]
    return to_transformers_rope(parameters, fields, engine="speculators")


def to_transformers_rope(
    parameters: Mapping[str, Any], fields: Qwen3Fields, *, engine: str
) -> tuple[Rope | None, tuple[str, ...]]:
    """Return the rope that transformers' Qwen3RotaryEmbedding computes from ``parameters``.

    The default kind rotates whole heads whatever ``partial_rotary_factor`` says; the other kinds
    then make tables that don't fit the heads, so they are refused (modeling_qwen3.py).
    """
    if nested_labels(parameters, fields.layer_types) or "rope_type" not in parameters:
        return None, (
            f"The rope section holds one rope per layer type, which {engine} can't read.",
        )
    flat = {name: value for name, value in parameters.items() if name != "rope_dim"}
    if flat["rope_type"] == "default":
        flat.pop("partial_rotary_factor", None)
    elif flat.get("partial_rotary_factor", 1) not in (1, None):
        return None, (
            f"A partial {flat['rope_type']} rope makes tables that don't fit {engine}'s heads.",
        )
    return to_rope(flat, fields.geometry.head_dim, kinds=TRANSFORMERS_KINDS, engine=engine)


def _layers(fields: Qwen3Fields, *, non_causal: bool) -> tuple[DraftLayer, ...]:
    window = fields.sliding_window
    # Without a window the mask code treats a sliding layer as full, and full is bidirectional.
    return tuple(
        DraftLayer(window=window, causal=window is not None and not non_causal)
        if kind == SLIDING
        else DraftLayer(window=None, causal=False)
        for kind in fields.layer_types
    )


def _parameters(
    fields: Qwen3Fields, facts: _Facts, columns: int, parts: Parts | None
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    hidden, vocab, draft = fields.geometry.hidden_size, fields.vocab_size, facts.draft_vocab_size
    want = engine_shapes(
        fields.geometry,
        fields.num_hidden_layers,
        columns,
        parts=parts,
        vocabulary=(vocab, draft),
    )
    optional: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (vocab, hidden),
        "lm_head.weight": (draft, hidden),
        "verifier_lm_head.weight": (draft, hidden),
        "verifier_norm.weight": (hidden,),
    }
    if draft != vocab:
        want |= {"lm_head.weight": (draft, hidden), "d2t": (draft,), "t2d": (vocab,)}
    return want, optional


def _target_refusals(fields: Qwen3Fields, facts: _Facts, target: Target | None) -> tuple[str, ...]:
    if target is None:
        return ()
    refusals: list[str] = []
    stated = (target.vocab_size, target.hidden_size)
    if stated != (fields.vocab_size, fields.geometry.hidden_size):
        refusals.append(
            f"The verifier's embedding is {stated[0]} x {stated[1]}, and the library loads it into "
            f"{fields.vocab_size} x {fields.geometry.hidden_size}."
        )
    highest = max(facts.aux_layer_ids)
    if highest > target.num_hidden_layers or min(facts.aux_layer_ids) < 0:
        refusals.append(
            f"aux_hidden_state_layer_ids must lie within 0 and {target.num_hidden_layers}."
        )
    return tuple(refusals)
