from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from peak_memory import peak_mib
from raw_safetensors import raw, safetensors_bytes, write_index

from dflash_pack.checkpoint import TensorSpec, tensor_bytes
from dflash_pack.errors import CheckpointError, MissingHereError, UsageError
from dflash_pack.target import find_target_tensor, read_target

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 36,
    "vocab_size": 300,
    "max_position_embeddings": 40960,
}
# The shape of Qwen3.5 and Gemma 4 configs: sizes of the language model nested, a decoy outside.
NESTED = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "hidden_size": 9,
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 64,
        "num_hidden_layers": 32,
        "vocab_size": 300,
        "max_position_embeddings": 262144,
    },
    "vision_config": {"hidden_size": 1},
}
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [
        {"id": 4, "content": "<|im_end|>", "special": True},
        {"id": 6, "content": "<tööl>", "special": False},
        {"id": 5, "content": "<|fin✓|>", "special": True},
    ],
    "normalizer": {"type": "NFC"},
    "model": {
        "type": "BPE",
        "vocab": {"a": 0, "é": 1, "😀": 2, "a\u2028b": 3},
        "merges": [["a", "b"]],
    },
}
EMBEDDING = raw("BF16", 300, 64, seed=1)
HEAD = raw("BF16", 300, 64, seed=2)


def write_target(
    folder: Path, config: dict[str, Any] = QWEN3, tokenizer: dict[str, Any] | None = None
) -> str:
    """Write a target of config and perhaps tokenizer; return its location."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer is not None:
        text = json.dumps(tokenizer, ensure_ascii=False, indent=1)
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    return str(folder)


def test_plain_config(tmp_path: Path):
    location = write_target(tmp_path)
    target = read_target(location, identifier="Qwen/Qwen3-8B", revision="abc")
    assert (target.identifier, target.revision) == ("Qwen/Qwen3-8B", "abc")
    assert target.is_hub_id
    assert target.architectures == ("Qwen3ForCausalLM",)
    assert target.model_type == "qwen3"
    assert (target.hidden_size, target.num_hidden_layers, target.vocab_size) == (64, 36, 300)
    assert target.max_position_embeddings == 40960
    assert target.special_tokens is None
    assert target.tokenizer_size is None
    assert target.config == QWEN3


def test_nested_text_config(tmp_path: Path):
    target = read_target(write_target(tmp_path, NESTED), identifier=None)
    assert target.architectures == ("Qwen3_5ForConditionalGeneration",)
    assert target.model_type == "qwen3_5_text"
    assert (target.hidden_size, target.num_hidden_layers, target.vocab_size) == (64, 32, 300)
    assert target.max_position_embeddings == 262144


def test_size_that_only_the_top_level_states(tmp_path: Path):
    text = {k: v for k, v in NESTED["text_config"].items() if k != "vocab_size"}
    location = write_target(tmp_path, {**NESTED, "text_config": text, "vocab_size": 299})
    assert read_target(location, identifier=None).vocab_size == 299


def test_vocabulary_that_only_the_embedding_states(tmp_path: Path):
    """Gemma 3 leaves vocab_size to the default of its config class."""
    text = {k: v for k, v in NESTED["text_config"].items() if k != "vocab_size"}
    location = write_target(tmp_path, {**NESTED, "text_config": text})
    with pytest.raises(CheckpointError, match=r"text_config\.vocab_size: is missing"):
        read_target(location, identifier=None)
    tensors = {"model.language_model.embed_tokens.weight": EMBEDDING}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    assert read_target(location, identifier=None).vocab_size == 300


def test_without_id_the_path_is_the_identifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_target(tmp_path / "qwen")
    monkeypatch.chdir(tmp_path)
    target = read_target("qwen", identifier=None)
    assert target.identifier == str(tmp_path / "qwen")
    assert not target.is_hub_id
    assert target.revision is None


def test_hub_cache_path_tells_id_and_revision(tmp_path: Path):
    revision = "0a1b2c3d" * 5
    location = write_target(tmp_path / "models--Qwen--Qwen3-8B" / "snapshots" / revision)
    target = read_target(location, identifier=None)
    assert (target.identifier, target.revision) == ("Qwen/Qwen3-8B", revision)
    given = read_target(location, identifier="me/fork", revision="main")
    assert (given.identifier, given.revision) == ("me/fork", "main")


@pytest.mark.parametrize(
    "identifier", ["Qwen3-8B", "a/b/c", "/abs/path", "a/", "", "a b/c", "../x"]
)
def test_identifier_that_is_no_hub_id(identifier, tmp_path: Path):
    with pytest.raises(UsageError, match="is not a Hub id of the form owner/name"):
        read_target(write_target(tmp_path), identifier=identifier)


def test_hub_id_as_location_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingHereError) as caught:
        read_target("Qwen/Qwen3-8B", identifier=None)
    assert str(caught.value).endswith(
        "Run: hf download Qwen/Qwen3-8B config.json tokenizer.json tokenizer_config.json "
        "--local-dir Qwen--Qwen3-8B."
    )
    with pytest.raises(MissingHereError, match="--revision v1 --local-dir"):
        read_target("Qwen/Qwen3-8B@v1", identifier=None)
    with pytest.raises(CheckpointError, match="does not exist"):
        read_target(str(tmp_path / "nothing"), identifier=None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": None}, "hidden_size: is missing"),
        ({"num_hidden_layers": None}, "num_hidden_layers: is missing"),
        ({"vocab_size": None}, "vocab_size: is missing"),
        ({"hidden_size": "64"}, "hidden_size: is '64' where a positive whole number belongs"),
        ({"hidden_size": 64.0}, "positive whole number"),
        ({"hidden_size": True}, "positive whole number"),
        ({"hidden_size": 0}, "positive whole number"),
        ({"vocab_size": -1}, "positive whole number"),
        ({"num_hidden_layers": 10**30}, "positive whole number"),
        ({"max_position_embeddings": [1]}, "max_position_embeddings: is '[1]' where"),
        ({"architectures": None}, "architectures: does not name the target's model class"),
        ({"architectures": []}, "architectures: does not name"),
        ({"architectures": "Qwen3ForCausalLM"}, "architectures: does not name"),
        ({"architectures": [1]}, "architectures: does not name"),
        ({"model_type": None}, "model_type: is missing or not a string"),
    ],
)
def test_config_that_lacks_or_garbles_a_fact(change, said, tmp_path: Path):
    location = write_target(tmp_path, {**QWEN3, **change})
    with pytest.raises(CheckpointError) as caught:
        read_target(location, identifier=None)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/config.json: ")


def test_missing_and_broken_config(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"config\.json: is missing"):
        read_target(str(tmp_path), identifier=None)
    (tmp_path / "config.json").write_text('{"hidden_size": 64,}')
    with pytest.raises(CheckpointError, match="trailing comma"):
        read_target(str(tmp_path), identifier=None)


# Tokenizer


def test_tokenizer_json(tmp_path: Path):
    target = read_target(write_target(tmp_path, QWEN3, TOKENIZER), identifier=None)
    assert target.special_tokens == {4: "<|im_end|>", 5: "<|fin✓|>"}
    assert target.tokenizer_size == 7


def test_vocabulary_larger_than_the_added_tokens(tmp_path: Path):
    tokenizer = {**TOKENIZER, "model": {"type": "BPE", "vocab": {"a": 0, "b": 99}}}
    target = read_target(write_target(tmp_path, QWEN3, tokenizer), identifier=None)
    assert target.tokenizer_size == 100


def test_unigram_vocabulary_is_a_list(tmp_path: Path):
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.5]] * 50}
    target = read_target(
        write_target(tmp_path, QWEN3, {**TOKENIZER, "model": model}), identifier=None
    )
    assert target.tokenizer_size == 50


def test_members_in_another_order(tmp_path: Path):
    model = TOKENIZER["model"]
    reordered = {
        "model": {key: model[key] for key in ("merges", "vocab", "type")},
        "added_tokens": TOKENIZER["added_tokens"],
    }
    target = read_target(write_target(tmp_path, QWEN3, reordered), identifier=None)
    assert target.tokenizer_size == 7
    assert target.special_tokens == {4: "<|im_end|>", 5: "<|fin✓|>"}


def test_tokenizer_config_adds_to_tokenizer_json(tmp_path: Path):
    location = write_target(tmp_path, QWEN3, TOKENIZER)
    decoder = {
        "4": {"content": "<|im_end|>", "special": True},
        "8": {"content": "<|mask|>", "special": True},
        "9": {"content": "word", "special": False},
    }
    text = json.dumps({"added_tokens_decoder": decoder, "chat_template": "{{ x }}"})
    (tmp_path / "tokenizer_config.json").write_text(text)
    target = read_target(location, identifier=None)
    assert target.special_tokens == {4: "<|im_end|>", 5: "<|fin✓|>", 8: "<|mask|>"}
    assert target.tokenizer_size == 10
    (tmp_path / "tokenizer.json").unlink()
    alone = read_target(location, identifier=None)
    assert alone.special_tokens == {4: "<|im_end|>", 8: "<|mask|>"}
    assert alone.tokenizer_size is None


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [
        ([], "holds no JSON object where one belongs"),
        ({**TOKENIZER, "model": 3}, "holds no JSON object where one belongs"),
        ({**TOKENIZER, "model": {"vocab": "x"}}, "model.vocab: is not a list of tokens"),
        ({**TOKENIZER, "model": {"vocab": {"a": -1}}}, "model.vocab: is not a list of tokens"),
        ({**TOKENIZER, "model": {"vocab": {"a": 2**60}}}, "model.vocab: is not a list of tokens"),
        ({**TOKENIZER, "model": {"vocab": {"a": [1]}}}, "model.vocab: is not a list of tokens"),
        ({**TOKENIZER, "added_tokens": [3]}, "added_tokens: has a token without id or text"),
        ({**TOKENIZER, "added_tokens": [{"id": 3}]}, "added_tokens: has a token without id"),
        ({**TOKENIZER, "added_tokens": [{"id": "3", "content": "x"}]}, "added_tokens: has a"),
    ],
)
def test_garbled_tokenizer(tokenizer, said, tmp_path: Path):
    location = write_target(tmp_path, QWEN3, tokenizer)
    with pytest.raises(CheckpointError) as caught:
        read_target(location, identifier=None)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/tokenizer.json: ")


def test_tokenizer_that_is_cut_off_or_absurdly_large(tmp_path: Path):
    location = write_target(tmp_path, QWEN3, TOKENIZER)
    path = tmp_path / "tokenizer.json"
    os.truncate(path, 60)
    with pytest.raises(CheckpointError, match="is not valid JSON"):
        read_target(location, identifier=None)
    os.truncate(path, 65 << 20)
    with pytest.raises(CheckpointError, match="is larger than 64 MiB"):
        read_target(location, identifier=None)


def test_large_tokenizer_fits_the_memory_of_the_tool(tmp_path: Path):
    """As large as Gemma's: 262 000 tokens, half a million merges, 30 MB; peak of a child."""
    vocabulary = {(f"tök{n}" if n % 7 else f"😀{n}"): n for n in range(262_000)}
    merges = [[f"aa{n}", f"bé{n}"] for n in range(520_000)]
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges}
    location = write_target(tmp_path, QWEN3, {**TOKENIZER, "model": model})
    code = """
import sys
from dflash_pack.target import read_target
assert read_target(sys.argv[1], identifier=None).tokenizer_size == 262_000
"""
    assert peak_mib(code, location) < 150


# Embedding and head


def found(folder: Path, kind: str, **config: Any) -> tuple[str, bytes] | None:
    """Return name and bytes of the tensor that is found."""
    target = read_target(write_target(folder, {**QWEN3, **config}), identifier=None)
    info = find_target_tensor(target, kind)
    return None if info is None else (info.name, tensor_bytes(info))


def test_target_without_weights(tmp_path: Path):
    assert found(tmp_path, "embedding") is None
    assert found(tmp_path, "head") is None


@pytest.mark.parametrize(
    ("embedding", "head"),
    [
        ("model.embed_tokens.weight", "lm_head.weight"),
        ("model.language_model.embed_tokens.weight", "lm_head.weight"),
        ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight"),
    ],
)
def test_names_of_embedding_and_head(embedding, head, tmp_path: Path):
    tensors = {"other": raw("F32", 2), embedding: EMBEDDING, head: HEAD}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    assert found(tmp_path, "embedding") == (embedding, EMBEDDING[2])
    assert found(tmp_path, "head") == (head, HEAD[2])


def test_tied_head_is_the_embedding(tmp_path: Path):
    name, head = "model.embed_tokens.weight", "lm_head.weight"
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({name: EMBEDDING}))
    assert found(tmp_path, "head", tie_word_embeddings=True) == (name, EMBEDDING[2])
    assert found(tmp_path, "head") == (name, EMBEDDING[2])
    assert found(tmp_path, "head", tie_word_embeddings=False) is None
    nested = {**QWEN3, "text_config": {**QWEN3, "tie_word_embeddings": True}}
    assert found(tmp_path, "head", **nested, tie_word_embeddings=False) == (name, EMBEDDING[2])
    both = {name: EMBEDDING, head: HEAD}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(both))
    assert found(tmp_path, "head", tie_word_embeddings=True) == (name, EMBEDDING[2])
    assert found(tmp_path, "head") == (head, HEAD[2])


def test_only_the_shards_that_matter_are_read(tmp_path: Path):
    """A target's other shards may be absent or of any size; the index says where to look."""
    shards = ["a.safetensors", "b.safetensors", "absent.safetensors"]
    (tmp_path / shards[0]).write_bytes(b"broken")
    tensors = {"model.embed_tokens.weight": EMBEDDING}
    (tmp_path / shards[1]).write_bytes(safetensors_bytes(tensors))
    write_index(
        tmp_path,
        {"x": shards[0], "model.embed_tokens.weight": shards[1], "lm_head.weight": shards[2]},
    )
    assert found(tmp_path, "embedding") == ("model.embed_tokens.weight", EMBEDDING[2])
    assert found(tmp_path, "head", tie_word_embeddings=False) is None


def test_broken_weights_are_named(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is truncated"):
        found(tmp_path, "embedding")


def test_unknown_kind_is_a_bug(tmp_path: Path):
    with pytest.raises(ValueError, match="no such kind"):
        found(tmp_path, "tail")


def test_found_tensor_has_a_spec(tmp_path: Path):
    (tmp_path / "weights.safetensors").write_bytes(
        safetensors_bytes({"model.embed_tokens.weight": EMBEDDING})
    )
    target = read_target(write_target(tmp_path), identifier=None)
    info = find_target_tensor(target, "embedding")
    assert info is not None
    assert info.spec == TensorSpec("BF16", (300, 64))


@pytest.mark.parametrize("piece", ['{"a":0},', "[0],"])
def test_a_tokenizer_of_countless_small_objects_is_refused_before_it_is_parsed(tmp_path, piece):
    folder = target_of_containers(tmp_path, piece)
    with pytest.raises(CheckpointError, match="lists and objects"):
        read_target(str(folder), identifier=None)


def target_of_containers(folder: Path, piece: str) -> Path:
    """Write a target whose tokenizer holds that piece 1.3 million times."""
    config = {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 16, "model_type": "qwen3"}
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["A"]}))
    (folder / "tokenizer.json").write_text('{"x": [' + piece * 1_300_000 + "0]}")
    return folder


DRAFTERS = {
    "zlab": {"dflash_config": {"mask_token_id": 5}},
    "speculators": {"speculators_model_type": "dflash"},
    "universal": {"speculators_config": {}},
    "bare": {"architectures": ["DFlashDraftModel"]},
    "dspark": {"architectures": ["Qwen3DSparkModel"]},
}


@pytest.mark.parametrize("marks", DRAFTERS.values(), ids=DRAFTERS)
def test_a_drafter_in_the_targets_place_is_told(tmp_path, marks):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3 | marks))
    with pytest.raises(CheckpointError, match="is a drafter's") as caught:
        read_target(str(tmp_path), identifier=None)
    assert "--target" in str(caught.value.remedy)


def test_what_is_no_target_is_asked_for_as_one(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CheckpointError, match="Give the target's folder"):
            read_target(str(folder), identifier=None)
