"""What we derive from files, against what the engines themselves do with the same files.

vLLM's config classes and draft model, speculators' loader and mask code, and z-lab's model are
imported and run here; vLLM 0.33 can't be installed beside 0.32, so its two differences are not.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from engine_files import (
    ABSENT,
    BLOCK_SIZE,
    HEAD_DIM,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    TARGET_CONFIG,
    VOCAB,
    contents,
    dflash,
    native,
    shapes,
    speculators,
    target,
    universal,
)
from vllm_lab import VllmLab, vllm_lab, write

from dflash_pack.drafter import DraftLayer
from dflash_pack.engines import speculators as speculators_engine
from dflash_pack.engines import vllm as vllm_engine
from dflash_pack.engines import zlab as zlab_engine
from dflash_pack.engines.meaning import EngineMeaning

# Found, not imported: collecting the tests must stay fast.
NEEDED = ("vllm", "speculators", "dflash")
pytestmark = [
    pytest.mark.engine,
    # Warnings of the engines' own imports are theirs.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        not all(find_spec(name) for name in NEEDED), reason=f"needs {', '.join(NEEDED)}"
    ),
]

FULL, SLIDING = "full_attention", "sliding_attention"
SLIDING_KEYS = {"use_sliding_window": True, "sliding_window": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


# --------------------------------------------------------------------------- vLLM


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmLab]:
    """One vLLM for the whole module: importing it takes seconds."""
    with vllm_lab(tmp_path_factory.mktemp("vllm")) as made:
        yield made


ATTENTION: dict[str, dict[str, Any]] = {
    "absent": {},
    "full": {"layer_types": [FULL, FULL]},
    "sliding": {"layer_types": [SLIDING, SLIDING], **SLIDING_KEYS},
    "mixed": {"layer_types": [SLIDING, FULL], **SLIDING_KEYS},
    "nulled": {"layer_types": [SLIDING, FULL], "sliding_window": 32},
    "derived": {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1},
    "legacy names": {"layer_types": ["attention", "attention"]},
}
TOP_CAUSAL: dict[str, dict[str, Any]] = {
    "-": {},
    "is_causal": {"is_causal": True},
    "not is_causal": {"is_causal": False},
    "null is_causal": {"is_causal": None},
}
SECTION: dict[str, dict[str, Any]] = {
    "-": {},
    "causal": {"causal": True},
    "not causal": {"causal": False},
    "use_swa": {"use_swa": True},
    "use_swa with window": {"use_swa": True, "swa_window_size": 16},
    "null swa window": {"swa_window_size": None},
}


def both_native(lab: VllmLab, config: dict[str, Any], **options: Any) -> None:
    """Derive and run, then compare."""
    tensors = options.get("tensors")
    derived = vllm_engine.derive(contents(config, tensors), target(), version="0.32")
    lab.assert_agrees(derived, lab.read(config, tensors, load=options.get("load", True)))


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("top", TOP_CAUSAL)
def test_vllm_native_windows_and_causality(lab: VllmLab, attention: str, top: str) -> None:
    for section in SECTION.values():
        config = native(**ATTENTION[attention], **TOP_CAUSAL[top], dflash_config=dflash(**section))
        both_native(lab, config, load=False)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("flag", [True, False, None, ABSENT])
def test_vllm_speculators_windows_and_causality(lab: VllmLab, attention: str, flag: object) -> None:
    for causal in TOP_CAUSAL.values():
        config = speculators(layer=ATTENTION[attention] | causal, sliding_window_non_causal=flag)
        both_native(lab, config, load=False)


ROPES: dict[str, dict[str, Any]] = {
    "absent": {},
    "flat": {"rope_theta": 7e4},
    "flat whole number": {"rope_theta": 70000},
    "flat null": {"rope_theta": None},
    "flat yarn": {"rope_theta": 7e4, "rope_scaling": YARN},
    "flat yarn, old type key": {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    "scaling null": {"rope_theta": 7e4, "rope_scaling": None},
    "nested": {"rope_parameters": {"rope_type": "default", "rope_theta": 7e4}},
    "nested null": {"rope_parameters": None},
    "nested empty": {"rope_parameters": {}},
    "nested without theta": {"rope_parameters": {"rope_type": "default"}},
    "nested null theta": {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
    "nested yarn": {"rope_parameters": YARN | {"rope_theta": 7e4, "beta_fast": 16.0}},
    "nested yarn with mscale": {
        "rope_parameters": YARN | {"rope_theta": 7e4, "mscale": 1.2, "mscale_all_dim": 0.8}
    },
    "yarn without length": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
    "yarn with top length": {
        "rope_parameters": YARN | {"rope_theta": 1e4},
        "original_max_position_embeddings": 32,
    },
    "llama3": {"rope_scaling": LLAMA3, "rope_theta": 1e4},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "linear without factor": {"rope_scaling": {"rope_type": "linear"}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "both styles": {
        "rope_theta": 7e4,
        "rope_scaling": YARN,
        "rope_parameters": {"rope_type": "default", "rope_theta": 9e4},
    },
    "both styles, null last": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 9e4},
        "rope_scaling": None,
    },
    "both styles, null first": {
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 9e4},
    },
    "partial at top": {"rope_theta": 7e4, "partial_rotary_factor": 0.5},
    "partial alone": {"partial_rotary_factor": 0.5},
    "partial nested": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 7e4,
            "partial_rotary_factor": 0.5,
        }
    },
    "rotary_pct": {"rotary_pct": 0.5, "rope_theta": 7e4},
    "rotary_emb_base": {"rotary_emb_base": 7e4},
    "per layer type": {
        "layer_types": [SLIDING, FULL],
        **SLIDING_KEYS,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 1e4},
            FULL: {"rope_type": "default", "rope_theta": 7e4},
        },
    },
    "per full layer": {
        "layer_types": [FULL, FULL],
        "rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 7e4}},
    },
    "unknown kind": {"rope_parameters": {"rope_type": "spiral", "rope_theta": 7e4}},
    "conflicting types": {"rope_parameters": {"rope_type": "yarn", "type": "linear", "factor": 2}},
    "longrope": {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 7e4,
            "factor": 4.0,
            "short_factor": [1.0] * (HEAD_DIM // 2),
            "long_factor": [2.0] * (HEAD_DIM // 2),
            "original_max_position_embeddings": 64,
        }
    },
}


@pytest.mark.parametrize("name", ROPES)
def test_vllm_native_rope(lab: VllmLab, name: str) -> None:
    both_native(lab, _in_order(native(), ROPES[name]))


@pytest.mark.parametrize("name", ROPES)
def test_vllm_speculators_rope(lab: VllmLab, name: str) -> None:
    config = speculators()
    config["transformer_layer_config"] = _in_order(config["transformer_layer_config"], ROPES[name])
    both_native(lab, config)


def _in_order(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    # In the Speculators path the order of the rope keys in the file decides.
    kept = {name: value for name, value in config.items() if name != "rope_parameters"}
    return {**{name: value for name, value in kept.items() if name not in changes}, **changes}


FIELDS: dict[str, dict[str, Any]] = {
    "head_dim absent": {"head_dim": ABSENT},
    "head_dim null": {"head_dim": None},
    "kv heads absent": {"num_key_value_heads": ABSENT},
    "kv heads null": {"num_key_value_heads": None},
    "kv heads equal heads": {"num_key_value_heads": 4},
    "eps absent": {"rms_norm_eps": ABSENT},
    "eps whole number": {"rms_norm_eps": 1},
    "hidden size as float": {"hidden_size": float(HIDDEN)},
    "hidden size as bool": {"hidden_size": True},
    "bias null": {"attention_bias": None},
    "bias": {"attention_bias": True},
    "hidden_act": {"hidden_act": "gelu"},
    "too few layer types": {"layer_types": [FULL]},
    "unknown layer type": {"layer_types": [FULL, "spiral"]},
    "chunked layer type": {"layer_types": [FULL, "chunked_attention"]},
    "use_sliding_window as int": {"use_sliding_window": 1},
    "target hidden size": {"target_hidden_size": HIDDEN // 2},
    "depth": {"num_hidden_layers": 3},
}


FIELD_TENSORS = {"bias": shapes(bias=True), "depth": shapes(layers=3)}


def check_fields(lab: VllmLab, name: str, config: dict[str, Any]) -> None:
    """Compare what is built from the config; tensors count only where we refuse them."""
    tensors = FIELD_TENSORS.get(name, shapes())
    derived = vllm_engine.derive(contents(config, tensors), None, version="0.32")
    real = lab.read(config, tensors, load=False)
    if derived.refusals and real.error is None:
        real = lab.read(config, tensors, load=True)
    lab.assert_agrees(derived, real)


@pytest.mark.parametrize("name", FIELDS)
def test_vllm_native_fields(lab: VllmLab, name: str) -> None:
    check_fields(lab, name, native(**FIELDS[name]))


@pytest.mark.parametrize("name", FIELDS)
def test_vllm_speculators_fields(lab: VllmLab, name: str) -> None:
    check_fields(lab, name, speculators(layer=FIELDS[name]))


KEYS: dict[str, dict[str, Any]] = {
    "plain": native(),
    "architectures absent": native(architectures=ABSENT),
    "architectures Qwen3ForCausalLM": native(architectures=["Qwen3ForCausalLM"]),
    "architectures DraftModel": native(architectures=["DraftModel"]),
    "model_type dflash": native(model_type="dflash"),
    "model_type absent": native(model_type=ABSENT),
    "model_type null": native(model_type=None),
    "dflash_config null": native(dflash_config=None),
    "mask at top": native(dflash_config=dflash(mask_token_id=ABSENT), mask_token_id=5),
    "mask twice": native(mask_token_id=5),
    "mask null": native(dflash_config=dflash(mask_token_id=None), mask_token_id=5),
    "mask pard": native(dflash_config=dflash(mask_token_id=ABSENT), pard_token=6),
    "mask noise": native(dflash_config=dflash(mask_token_id=ABSENT), dspark_noise_token_id=7),
    "mask absent": native(dflash_config=dflash(mask_token_id=ABSENT)),
    "ids eagle first": native(eagle_aux_hidden_state_layer_ids=[1, 6]),
    "ids embedding output": native(eagle_aux_hidden_state_layer_ids=[0, 6]),
    "ids unsorted": native(dflash_config=dflash(target_layer_ids=[3, 1])),
    "ids at top": native(dflash_config=dflash(target_layer_ids=ABSENT), target_layer_ids=[0, 5]),
    "ids plain": native(dflash_config=dflash(target_layer_ids=ABSENT, layer_ids=[1, 6])),
    "ids of the embedding": native(dflash_config=dflash(target_layer_ids=[-1, 2])),
    "aux state off": native(dflash_config=dflash(use_aux_hidden_state=False)),
    "speculators plain": speculators(),
    "speculators aux null": speculators(aux_hidden_state_layer_ids=None),
    "speculators aux absent": speculators(aux_hidden_state_layer_ids=ABSENT),
    "speculators aux unsorted": speculators(aux_hidden_state_layer_ids=[4, 2]),
    "speculators mask absent": speculators(mask_token_id=ABSENT),
    "speculators mask null": speculators(mask_token_id=None),
    "speculators layer absent": speculators(transformer_layer_config=ABSENT),
    "speculators layer a list": speculators(transformer_layer_config=[]),
    "speculators xpress": speculators(speculators_model_type="xpress"),
    "speculators config null": speculators(speculators_config=None),
    "speculators draft vocabulary absent": speculators(draft_vocab_size=ABSENT),
    "speculators with null model_type": speculators(model_type=None),
    "speculators layer dflash_config": speculators(
        layer={"dflash_config": {"use_swa": True, "swa_window_size": 4, "causal": True}}
    ),
    "universal": universal(),
    "universal mixed": universal(layer_types=[SLIDING, FULL], **SLIDING_KEYS),
}
# vLLM accepts these and drafts garbage, or only its V2 runner refuses: we refuse.
STRICTER = {"aux state off"}


@pytest.mark.parametrize("name", KEYS)
def test_vllm_keys(lab: VllmLab, name: str) -> None:
    config = KEYS[name]
    derived = vllm_engine.derive(contents(config), target(), version="0.32")
    real = lab.read(config)
    if name in STRICTER:
        assert derived.refusals
        assert real.error is None
    else:
        lab.assert_agrees(derived, real)


def with_tensors(**changes: Any) -> dict[str, tuple[int, ...]]:
    """Return the complete tensors, changed; dots are written as double underscores."""
    merged = shapes() | {name.replace("__", "."): shape for name, shape in changes.items()}
    return {name: shape for name, shape in merged.items() if shape is not ABSENT}


QUERY = "layers.0.self_attn.{}_proj.weight"
TENSORS: dict[str, dict[str, tuple[int, ...]]] = {
    "own embedding": with_tensors(embed_tokens__weight=(VOCAB, HIDDEN)),
    "own embedding, other size": with_tensors(embed_tokens__weight=(VOCAB + 1, HIDDEN)),
    "own head": with_tensors(lm_head__weight=(VOCAB, HIDDEN)),
    "model prefix": {f"model.{name}": shape for name, shape in shapes().items()},
    "extra": with_tensors(verifier_norm__weight=(HIDDEN,)),
    "extra head": with_tensors(verifier_lm_head__weight=(VOCAB, HIDDEN)),
    "extra layer": with_tensors(layers__2__input_layernorm__weight=(HIDDEN,)),
    "d2t without a reduced vocabulary": with_tensors(d2t=(VOCAB,)),
    "t2d without a reduced vocabulary": with_tensors(t2d=(VOCAB,)),
    "stray bias": with_tensors(layers__0__self_attn__q_proj__bias=(64,)),
    "bias of no module": with_tensors(foo__bias=(64,)),
    "mask_hidden": with_tensors(mask_hidden=(HIDDEN,)),
    "mask_embedding": with_tensors(mask_embedding=(HIDDEN,)),
    "rotary buffer": with_tensors(layers__0__self_attn__rotary_emb__inv_freq=(8,)),
    "sinks without the flag": with_tensors(layers__0__self_attn__attention_sink_bias=(4,)),
    "muse names": {
        name.replace("hidden_norm.", "encoder.output_norm_enc.").replace("fc.", "encoder.fc."): s
        for name, s in shapes().items()
    },
    "narrow fc": with_tensors(fc__weight=(HIDDEN, HIDDEN)),
    "short norm": with_tensors(norm__weight=(HIDDEN // 2,)),
    "fused projections": {
        **{
            name: shape
            for name, shape in shapes().items()
            if name not in {QUERY.format(part) for part in "qkv"}
        },
        "layers.0.self_attn.qkv_proj.weight": (64 + 2 * KV_HEADS * HEAD_DIM, HIDDEN),
    },
}
SILENT: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "fc missing": (native(), with_tensors(fc__weight=ABSENT)),
    "up_proj missing": (native(), with_tensors(layers__1__mlp__up_proj__weight=ABSENT)),
    "norm missing": (native(), with_tensors(norm__weight=ABSENT)),
    "biases missing": (native(attention_bias=True), shapes()),
    "d2t missing": (
        native(draft_vocab_size=VOCAB // 2),
        with_tensors(lm_head__weight=(VOCAB // 2, HIDDEN)),
    ),
    "reduced head missing": (
        speculators(draft_vocab_size=VOCAB // 2),
        with_tensors(d2t=(VOCAB // 2,)),
    ),
}


@pytest.mark.parametrize("name", TENSORS)
def test_vllm_tensors(lab: VllmLab, name: str) -> None:
    for config in (native(), speculators()):
        both_native(lab, config, tensors=TENSORS[name])


@pytest.mark.parametrize("name", SILENT)
def test_what_vllm_loads_without_a_word_is_refused_here(lab: VllmLab, name: str) -> None:
    config, tensors = SILENT[name]
    assert lab.read(config, tensors).error is None
    derived = vllm_engine.derive(contents(config, tensors), target(), version="0.32")
    assert any("without a word" in text for text in derived.refusals)


def test_vllm_reduced_vocabulary(lab: VllmLab) -> None:
    half = VOCAB // 2
    for config in (native(draft_vocab_size=half), speculators(draft_vocab_size=half)):
        both_native(lab, config, tensors=shapes(draft_vocab=half))


def test_vllm_attention_sinks(lab: VllmLab) -> None:
    sinks = {f"layers.{i}.self_attn.attention_sink_bias": (4,) for i in range(LAYERS)}
    both_native(
        lab,
        native(dflash_config=dflash(attention_sink_bias=True)),
        tensors=shapes() | sinks,
    )
    both_native(
        lab, speculators(layer={"add_swa_attention_sink_bias": True}), tensors=shapes() | sinks
    )


def test_vllm_auto_serve_takes_k_from_the_file(lab: VllmLab, tmp_path: Path) -> None:
    from vllm.transformers_utils.config import maybe_override_with_speculators

    for number, config in enumerate((speculators(), universal())):
        folder = write(tmp_path / str(number), config, {})
        model, _, spec = maybe_override_with_speculators(str(folder), None, False)
        derived = vllm_engine.derive(contents(config), None)
        assert (model, spec["method"]) == ("owner/target", "dflash")
        assert derived.speculative_tokens == spec["num_speculative_tokens"] == BLOCK_SIZE - 1
        assert not any("fails" in note or "refuses" in note for note in derived.notes)


@pytest.mark.parametrize(
    "config",
    [
        speculators(speculators_config={"verifier": {"name_or_path": "a/b"}}),
        universal(transformer_layer_config=ABSENT),
        universal(speculators_config={"proposal_methods": []}),
    ],
)
def test_vllm_auto_serve_faults(lab: VllmLab, tmp_path: Path, config: dict[str, Any]) -> None:
    from vllm.transformers_utils.config import maybe_override_with_speculators

    folder = write(tmp_path / "draft", config, {})
    with pytest.raises((ValueError, TypeError)):
        maybe_override_with_speculators(str(folder), None, False)
    derived = vllm_engine.derive(contents(config), None)
    assert not derived.refusals
    assert any("on this folder alone fails" in note for note in derived.notes)


def test_vllm_repository_ids_are_told_from_paths_as_the_hub_does(lab: VllmLab) -> None:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    from dflash_pack.engines.vllm_serving import is_repository_id

    names = ["owner/name", "name", "a/b/c", "/abs/path", "./here", "..", "a--b/c", "x/y.git", ""]
    rng = random.Random(7)
    names += ["".join(rng.choices("aZ0-_./ ", k=rng.randint(1, 8))) for _ in range(2000)]
    for name in [*names, "o/" + "n" * 96, "o/" + "n" * 97]:
        try:
            validate_repo_id(name)
            valid = True
        except HFValidationError:
            valid = False
        assert is_repository_id(name) == valid, name


# ---------------------------------------------------------------------- speculators


class Library:
    """The real speculators library over folders written here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counter = itertools.count()
        embedding = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (VOCAB, HIDDEN))
        self.target = write(
            folder / "target", TARGET_CONFIG, embedding | {"model.norm.weight": (HIDDEN,)}
        )

    def verifier_weights(self) -> dict[str, Any]:
        """Return the target's tensors."""
        from safetensors.torch import load_file

        return load_file(str(self.target / "model.safetensors"))

    def load(self, config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> Any:
        """Return the library's model, or its error."""
        import speculators.models.dflash.core  # noqa: F401 - registers the model class
        from speculators.model import SpeculatorModel

        folder = write(self.folder / f"case{next(self.counter)}", config, tensors)
        try:
            return SpeculatorModel.from_pretrained(str(folder))
        except Exception as error:  # noqa: BLE001 - any failure of the library is an answer
            return error


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """One target for all drafters of the library's tests."""
    return Library(tmp_path_factory.mktemp("speculators"))


def library_layers(model: Any) -> tuple[DraftLayer, ...]:
    """Read window and causality off the masks that the library itself builds for training."""
    import torch
    from torch.nn.attention.flex_attention import create_mask

    length = 4 * 32
    model._create_mask_fn = create_mask
    loss_mask = torch.zeros(1, length, dtype=torch.bool)
    loss_mask[0, length - model.block_size - 1] = True
    full, sliding, anchors, _ = model._build_attention_mask(
        loss_mask, 1, torch.zeros(1, length, dtype=torch.long), torch.device("cpu")
    )

    def layer(mask: Any) -> DraftLayer:
        rows = mask[0, 0]
        context, block = rows[:, :length], rows[:, length:]
        seen = int(context[0].sum())
        everything = seen == int(anchors[0])
        return DraftLayer(None if everything else seen, causal=not bool(block[0, -1]))

    return tuple(
        layer(sliding if index in model.sliding_window_indices else full)
        for index in range(len(model.layers))
    )


def assert_library_agrees(
    library: Library,
    config: dict[str, Any],
    tensors: Mapping[str, tuple[int, ...]] | None = None,
) -> EngineMeaning:
    """Derive and load, then compare every fact that both state."""
    import torch

    config["speculators_config"] = config.get("speculators_config") and {
        **config["speculators_config"],
        "verifier": {
            "name_or_path": str(library.target),
            "architectures": ["Qwen3ForCausalLM"],
        },
    }
    tensors = shapes() if tensors is None else tensors
    derived = speculators_engine.derive(contents(config, tensors), target())
    real = library.load(config, tensors)
    if isinstance(real, Exception):
        assert derived.refusals, f"the library fails: {real!r}"
        return derived
    assert not derived.refusals, derived.refusals
    assert derived.layers == library_layers(real)
    assert derived.target_layer_ids == tuple(item - 1 for item in real.target_layer_ids)
    assert derived.fc_input_size == real.fc.in_features
    assert derived.mask_token_id == real.mask_token_id
    assert derived.draft_vocab_size == real.lm_head.out_features
    assert derived.sample_from_anchor == real.config.sample_from_anchor
    method = real.config.speculators_config.proposal_methods[0]
    assert derived.speculative_tokens == method.speculative_tokens
    attention = real.layers[0].self_attn
    assert derived.head_dim == attention.head_dim
    assert derived.rms_norm_eps == attention.q_norm.variance_epsilon
    assert derived.attention_bias == (attention.q_proj.bias is not None)
    same_rotation(derived, real.rotary_emb, attention.head_dim)
    verifier = library.verifier_weights()
    assert (derived.embedding == "target") == torch.equal(
        real.embed_tokens.weight, verifier["model.embed_tokens.weight"]
    )
    if derived.head == "target":
        assert torch.equal(real.lm_head.weight, verifier["lm_head.weight"])
    return derived


def same_rotation(derived: EngineMeaning, real: Any, head_dim: int) -> None:
    """Compare transformers' frequencies with those of a config that states our derived rope."""
    import torch
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Config, Qwen3RotaryEmbedding

    assert derived.rope is not None
    config = Qwen3Config(
        head_dim=head_dim,
        hidden_size=HIDDEN,
        num_attention_heads=4,
        max_position_embeddings=real.config.max_position_embeddings,
        rope_parameters=derived.rope.parameters(),
    )
    ours = Qwen3RotaryEmbedding(config)
    assert ours.rope_type == real.rope_type
    assert ours.attention_scaling == real.attention_scaling
    assert torch.equal(ours.inv_freq, real.inv_freq)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("flag", [True, False, None, ABSENT])
def test_speculators_windows_and_causality(library: Library, attention: str, flag: object) -> None:
    config = speculators(
        layer=ATTENTION[attention] | {"is_causal": True}, sliding_window_non_causal=flag
    )
    derived = assert_library_agrees(library, config)
    if not derived.refusals:
        assert "transformer_layer_config.is_causal" in derived.ignored


@pytest.mark.parametrize("name", ROPES)
def test_speculators_rope(library: Library, name: str) -> None:
    config = speculators()
    config["transformer_layer_config"] = _in_order(config["transformer_layer_config"], ROPES[name])
    assert_library_agrees(library, config)


LIBRARY_KEYS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": speculators,
    "universal": universal,
    "aux null": lambda: speculators(aux_hidden_state_layer_ids=None),
    "aux absent": lambda: speculators(aux_hidden_state_layer_ids=ABSENT),
    "anchor": lambda: speculators(sample_from_anchor=True),
    "anchor null": lambda: speculators(sample_from_anchor=None),
    "block size null": lambda: speculators(block_size=None),
    "draft vocabulary null": lambda: speculators(draft_vocab_size=None),
    "draft vocabulary absent": lambda: speculators(draft_vocab_size=ABSENT),
    "layer model_type absent": lambda: speculators(layer={"model_type": ABSENT}),
    "head_dim absent": lambda: speculators(layer={"head_dim": ABSENT}),
    "eps as whole number": lambda: speculators(layer={"rms_norm_eps": 1}),
    "bias": lambda: speculators(layer={"attention_bias": True}),
    "target hidden size": lambda: speculators(target_hidden_size=HIDDEN // 2),
    "no kind": lambda: speculators(speculators_model_type=ABSENT),
    "native": native,
    "type eagle3": lambda: speculators(speculators_model_type="eagle3"),
    "unsorted ids": lambda: speculators(aux_hidden_state_layer_ids=[4, 2]),
}


@pytest.mark.parametrize("name", LIBRARY_KEYS)
def test_speculators_keys(library: Library, name: str) -> None:
    config = LIBRARY_KEYS[name]()
    assert_library_agrees(library, config, shapes(bias=name == "bias"))


@pytest.mark.parametrize("changes", [{"default_proposal_method": "x"}, {"algorithm": None}])
def test_speculators_header_faults(library: Library, changes: dict[str, Any]) -> None:
    config = speculators()
    config["speculators_config"] |= changes
    derived = assert_library_agrees(library, config)
    assert derived.refusals


def test_speculators_overwrites_an_own_embedding_and_head(library: Library) -> None:
    own = shapes() | {"embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    derived = assert_library_agrees(library, speculators(), own)
    assert {"embed_tokens.weight", "lm_head.weight"} <= set(derived.ignored)


def test_speculators_keeps_a_reduced_head(library: Library) -> None:
    half = VOCAB // 2
    derived = assert_library_agrees(
        library, speculators(draft_vocab_size=half), shapes(draft_vocab=half)
    )
    assert (derived.head, derived.draft_vocab_size) == ("own", half)


def test_speculators_goes_on_with_random_weights_where_tensors_are_missing(
    library: Library,
) -> None:
    tensors = with_tensors(fc__weight=ABSENT)
    config = speculators(verifier=str(library.target))
    assert not isinstance(library.load(config, tensors), Exception)
    assert speculators_engine.derive(contents(config, tensors), target()).refusals


def test_speculators_skips_extra_tensors_and_strips_a_prefix(library: Library) -> None:
    derived = assert_library_agrees(library, speculators(), shapes() | {"foo.weight": (1,)})
    assert "foo.weight" in derived.ignored
    assert_library_agrees(library, speculators(), {f"model.{n}": s for n, s in shapes().items()})


# ---------------------------------------------------------------------------- z-lab


def zlab_load(folder: Path) -> tuple[Any, Any]:
    """Return the package's model and loading report, or None and its error."""
    from dflash import DFlashDraftModel

    try:
        return DFlashDraftModel.from_pretrained(str(folder), output_loading_info=True)
    except Exception as error:  # noqa: BLE001 - any failure of the package is an answer
        return None, error


def assert_zlab_agrees(
    folder: Path, config: dict[str, Any], tensors: Mapping[str, tuple[int, ...]] | None = None
) -> EngineMeaning:
    """Derive and load, then compare every fact that both state."""

    tensors = shapes() if tensors is None else tensors
    derived = zlab_engine.derive(contents(config, tensors), target())
    real, info = zlab_load(write(folder, config, tensors))
    if real is None:
        assert derived.refusals, f"z-lab's dflash fails: {info}"
        return derived
    if info["missing_keys"] or real.mask_token_id is None:
        assert derived.refusals
        return derived
    assert not derived.refusals, derived.refusals
    assert derived.layers == tuple(
        DraftLayer(layer.self_attn.sliding_window, layer.self_attn.is_causal)
        for layer in real.layers
    )
    assert derived.target_layer_ids == tuple(real.target_layer_ids)
    assert derived.fc_input_size == real.fc.in_features
    assert derived.speculative_tokens == real.block_size - 1
    assert derived.mask_token_id == real.mask_token_id
    attention = real.layers[0].self_attn
    assert derived.head_dim == attention.head_dim
    assert derived.rms_norm_eps == attention.q_norm.variance_epsilon
    assert derived.attention_bias == (attention.q_proj.bias is not None)
    same_rotation(derived, real.rotary_emb, attention.head_dim)
    # The loader's report leaves rotary buffers out.
    skipped = {name for name in derived.ignored if name in tensors and "inv_freq" not in name}
    assert set(info["unexpected_keys"]) == skipped
    return derived


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("top", TOP_CAUSAL)
def test_zlab_windows_and_causality(tmp_path: Path, attention: str, top: str) -> None:
    for number, section in enumerate(SECTION.values()):
        config = native(**ATTENTION[attention], **TOP_CAUSAL[top], dflash_config=dflash(**section))
        derived = assert_zlab_agrees(tmp_path / str(number), config)
        assert {f"dflash_config.{name}" for name in section} <= set(derived.ignored)


# The frequencies load, and the first forward pass then fails on their shape.
ZLAB_STRICTER = {"partial yarn": {"rope_parameters": YARN | {"partial_rotary_factor": 0.5}}}


@pytest.mark.parametrize("name", ROPES)
def test_zlab_rope(tmp_path: Path, name: str) -> None:
    assert_zlab_agrees(tmp_path / "draft", _in_order(native(), ROPES[name]))


def test_zlab_partial_scaled_rope_fails_only_when_it_runs(tmp_path: Path) -> None:
    import torch
    from dflash import DFlashDraftModel

    config = _in_order(native(), ZLAB_STRICTER["partial yarn"])
    model = DFlashDraftModel.from_pretrained(str(write(tmp_path / "draft", config, shapes())))
    with pytest.raises(RuntimeError):
        model(
            position_ids=torch.arange(3 + BLOCK_SIZE)[None],
            noise_embedding=torch.zeros(1, BLOCK_SIZE, HIDDEN),
            target_hidden=torch.zeros(1, 3, 2 * HIDDEN),
        )
    assert zlab_engine.derive(contents(config), None).refusals


ZLAB_KEYS: dict[str, dict[str, Any]] = {
    "plain": native(),
    "new style": native(block_size=ABSENT, dflash_config=dflash(block_size=4)),
    "block size twice": native(dflash_config=dflash(block_size=4)),
    "block size absent": native(block_size=ABSENT),
    "block size null": native(block_size=None),
    "everything at top": native(dflash_config=ABSENT, mask_token_id=3, target_layer_ids=[0, 5]),
    "depth absent": native(num_target_layers=ABSENT),
    "depth null": native(num_target_layers=None),
    "ids absent": native(dflash_config=dflash(target_layer_ids=ABSENT)),
    "ids null": native(dflash_config=dflash(target_layer_ids=None)),
    "ids unsorted": native(dflash_config=dflash(target_layer_ids=[3, 1])),
    "mask absent": native(dflash_config=dflash(mask_token_id=ABSENT)),
    "section null": native(dflash_config=None),
    "other model_type": native(model_type="dflash"),
    "no model_type": native(model_type=ABSENT),
    "head_dim absent": native(head_dim=ABSENT),
    "target hidden size": native(target_hidden_size=HIDDEN // 2),
    "universal": universal(),
    "speculators": speculators(),
}


@pytest.mark.parametrize("name", ZLAB_KEYS)
def test_zlab_keys(tmp_path: Path, name: str) -> None:
    assert_zlab_agrees(tmp_path / "draft", ZLAB_KEYS[name])


@pytest.mark.parametrize("name", TENSORS)
def test_zlab_tensors(tmp_path: Path, name: str) -> None:
    assert_zlab_agrees(tmp_path / "draft", native(), TENSORS[name])


def test_zlab_default_layer_ids() -> None:
    from dflash.model import build_target_layer_ids

    for depth, draft in itertools.product(range(1, 90), range(1, 12)):
        assert zlab_engine.default_layer_ids(depth, draft) == tuple(
            build_target_layer_ids(depth, draft)
        )


@pytest.mark.parametrize("value", [30.0, 0, None, ABSENT])
def test_zlab_caps_its_logits(tmp_path: Path, value: object) -> None:
    import torch
    from dflash import DFlashDraftModel

    config = native(final_logit_softcapping=value)
    model = DFlashDraftModel.from_pretrained(str(write(tmp_path / "draft", config, shapes())))
    logits = model.compute_logits(torch.full((1, 1), 1000.0), lambda hidden: hidden)
    derived = zlab_engine.derive(contents(config), None)
    expected = 1000.0 if derived.final_logit_softcapping is None else 30.0
    assert logits.item() == pytest.approx(expected)


def test_the_same_universal_files_mean_the_same_everywhere(
    lab: VllmLab, library: Library, tmp_path: Path
) -> None:
    config = universal(verifier=str(library.target))
    both_native(lab, config)
    assert_library_agrees(library, dict(config))
    assert_zlab_agrees(tmp_path / "draft", config)
