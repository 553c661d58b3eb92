"""Facts of the target model, from its config and tokenizer; never its weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from dflash_pack.checkpoint import (
    CONFIG_NAME,
    INDEX_NAME,
    SUFFIX,
    WEIGHTS_NAME,
    TensorInfo,
    is_repository,
    not_a_folder,
    read_shard,
    read_weight_map,
)
from dflash_pack.errors import CheckpointError, UsageError
from dflash_pack.strict_json import (
    MIB,
    decode_at,
    object_members,
    parse_json,
    read_bounded,
    read_json_object,
)

TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
# All that is read of a target; the files to download when it is on the Hub.
TARGET_FILES = (CONFIG_NAME, TOKENIZER_NAME, TOKENIZER_CONFIG_NAME)
MAX_TOKENIZER_BYTES = 64 * MIB
_MAX_TOKENIZER_VALUES = 8_000_000
# Merges written as pairs are one list each, at most some 600,000 in the wild; each costs memory.
_MAX_TOKENIZER_CONTAINERS = 1_200_000
_MAX_TOKENS = 1 << 24

# Names under which transformers 5 and vLLM 0.32 targets store the two matrices.
EMBEDDING_NAMES = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "embed_tokens.weight",
    "transformer.wte.weight",
)
HEAD_NAMES = (
    "lm_head.weight",
    "language_model.lm_head.weight",
    "model.lm_head.weight",
    "model.language_model.lm_head.weight",
)


@dataclass(frozen=True)
class Target:
    """The model that verifies.

    Attributes:
        path: Local folder the facts were read from.
        identifier: What is written as verifier: a Hub id, or the folder's path where none is known.
        revision: Pinned revision, None for a plain folder.
        architectures: As in its config.json.
        model_type: As in the (nested) text config.
        hidden_size: Width of its hidden states.
        num_hidden_layers: T, number of decoder layers.
        vocab_size: Rows of its embedding.
        max_position_embeddings: Longest context in tokens, None where the config does not say.
        special_tokens: Id -> text of tokens the tokenizer marks as special; None without tokenizer.
        tokenizer_size: Number of ids the tokenizer can produce; None without tokenizer.
        config: The whole config.json.
    """

    path: Path
    identifier: str
    revision: str | None
    architectures: tuple[str, ...]
    model_type: str
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    max_position_embeddings: int | None
    special_tokens: Mapping[int, str] | None
    tokenizer_size: int | None
    config: Mapping[str, Any]

    @property
    def is_hub_id(self) -> bool:
        """Whether ``identifier`` is a Hub id (``owner/name``) rather than a local path."""
        return is_repository(self.identifier)


def read_target(location: str, *, identifier: str | None, revision: str | None = None) -> Target:
    """Return the facts of the target in the folder ``location``.

    Sizes come from ``text_config`` where the config nests one (Qwen3.5, Gemma 4, Kimi-K2.5), else
    from the top level; architectures always from the top level.

    Args:
        location: The target's folder.
        identifier: Hub id to name as verifier; None takes it from a Hub cache path, else the path.
        revision: Commit that the folder holds; None takes it from a Hub cache path.

    Raises:
        MissingHereError: ``location`` is the name of a Hub repository, not a folder.
        CheckpointError: A file is missing or broken, or the config lacks a size.
        UsageError: ``identifier`` is not of the form ``owner/name``.
    """
    folder = Path(location)
    if not folder.is_dir():
        raise not_a_folder(location, TARGET_FILES, of="target")
    if identifier is not None and not is_repository(identifier):
        what = f"{identifier!r} is not a Hub id of the form owner/name"
        raise UsageError(what, field="--target-id", remedy="Give the target's id on the Hub")
    cached_id, cached_revision = _hub_cache_names(folder.resolve())
    path = folder / CONFIG_NAME
    if not os.path.lexists(path):
        raise CheckpointError("is missing", where=path, remedy="Give the target's folder")
    config = read_json_object(path)
    _refuse_drafter(config, path)
    text = text_config(config)
    nested = "text_config." if text is not config else ""
    special_tokens, tokenizer_size = _tokenizer_facts(folder)
    return Target(
        path=folder,
        identifier=identifier or cached_id or str(folder.resolve()),
        revision=revision or cached_revision,
        architectures=_architectures(config, path),
        model_type=_model_type(config, text, path),
        hidden_size=_required(config, text, "hidden_size", path, nested),
        num_hidden_layers=_required(config, text, "num_hidden_layers", path, nested),
        vocab_size=_vocab_size(config, text, folder, nested),
        max_position_embeddings=_size(config, text, "max_position_embeddings", path, nested),
        special_tokens=special_tokens,
        tokenizer_size=tokenizer_size,
        config=config,
    )


def is_drafter(config: Mapping[str, Any]) -> bool:
    """Return whether a ``config.json`` is a drafter's, by what no target has."""
    stated = str(config.get("architectures"))
    marks = ("dflash_config", "speculators_model_type", "speculators_config")
    return any(mark in config for mark in marks) or "DFlash" in stated or "DSpark" in stated


def _refuse_drafter(config: Mapping[str, Any], path: Path) -> None:
    """Refuse a drafter in the target's place.

    Raises:
        CheckpointError: If the config is one.
    """
    if is_drafter(config):
        raise CheckpointError(
            "is a drafter's, not of the model that verifies",
            where=path,
            remedy="Give the target's folder with --target",
        )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a target's config that describes its language model."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def find_target_tensor(target: Target, kind: str) -> TensorInfo | None:
    """Return the target's ``embedding`` or ``head`` [vocab, hidden], None where it is not here.

    Only headers are read. A head that is tied is the embedding. A folder with only config and
    tokenizer holds neither.

    Raises:
        CheckpointError: A safetensors file or the index of the target is broken.
        ValueError: ``kind`` is something else.
    """
    if kind not in ("embedding", "head"):
        raise ValueError(f"no such kind of target tensor: {kind}")
    text = text_config(target.config)
    tied = text.get("tie_word_embeddings", target.config.get("tie_word_embeddings"))
    if kind == "embedding" or tied is True:
        return _find_tensor(target.path, EMBEDDING_NAMES)
    head = _find_tensor(target.path, HEAD_NAMES)
    if head is None and tied is None:
        # Some model types are tied by default, and then no head is stored.
        return _find_tensor(target.path, EMBEDDING_NAMES)
    return head


def _find_tensor(folder: Path, names: Sequence[str]) -> TensorInfo | None:
    found: dict[str, TensorInfo] = {}
    for shard in _shards_with(folder, names):
        found |= {tensor.name: tensor for tensor in read_shard(shard).tensors}
    return next((found[name] for name in names if name in found), None)


def _shards_with(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the weight files here that may hold one of ``names``."""
    if (folder / INDEX_NAME).is_file():
        weight_map = read_weight_map(folder / INDEX_NAME)
        homes = dict.fromkeys(folder / weight_map[name] for name in names if name in weight_map)
        return [path for path in homes if path.is_file()]
    if (folder / WEIGHTS_NAME).is_file():
        return [folder / WEIGHTS_NAME]
    return sorted(folder.glob("*" + SUFFIX))


def _architectures(config: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    value = config.get("architectures")
    if not isinstance(value, list) or not value or not all(isinstance(a, str) for a in value):
        raise CheckpointError(
            "does not name the target's model class",
            where=path,
            field="architectures",
            remedy="Give the folder of the target model, not of an adapter or a tokenizer",
        )
    return tuple(value)


def _model_type(config: Mapping[str, Any], text: Mapping[str, Any], path: Path) -> str:
    value = text.get("model_type", config.get("model_type"))
    if not isinstance(value, str):
        raise CheckpointError("is missing or not a string", where=path, field="model_type")
    return value


def _vocab_size(
    config: Mapping[str, Any], text: Mapping[str, Any], folder: Path, nested: str
) -> int:
    path = folder / CONFIG_NAME
    size = _size(config, text, "vocab_size", path, nested)
    if size is None:
        # Gemma 3 leaves it to the default of its config class; the embedding has it as rows.
        embedding = _find_tensor(folder, EMBEDDING_NAMES)
        size = embedding.spec.shape[0] if embedding and embedding.spec.shape else None
    return size if size is not None else _required(config, text, "vocab_size", path, nested)


def _required(
    config: Mapping[str, Any], text: Mapping[str, Any], name: str, path: Path, nested: str
) -> int:
    value = _size(config, text, name, path, nested)
    if value is None:
        raise CheckpointError(
            "is missing, so the drafter can't be checked against this target",
            where=path,
            field=nested + name,
            remedy="Add it to the target's config.json",
        )
    return value


def _size(
    config: Mapping[str, Any], text: Mapping[str, Any], name: str, path: Path, nested: str
) -> int | None:
    value = text.get(name)
    if value is None:
        value, nested = config.get(name), ""
    if value is not None and (type(value) is not int or not 0 < value < 1 << 40):
        what = f"is {str(value)[:40]!r} where a positive whole number belongs"
        raise CheckpointError(what, where=path, field=nested + name)
    return value


def _hub_cache_names(folder: Path) -> tuple[str | None, str | None]:
    """Return id and revision that a Hub cache path states (models--owner--name/snapshots/rev)."""
    repository = folder.parent.parent.name
    if folder.parent.name != "snapshots" or not repository.startswith("models--"):
        return None, None
    name = repository.removeprefix("models--").replace("--", "/")
    return (name, folder.name) if is_repository(name) else (None, None)


def _tokenizer_facts(folder: Path) -> tuple[dict[int, str] | None, int | None]:
    """Return id -> text of the special tokens, and the number of ids the tokenizer can produce."""
    special: dict[int, str] | None = None
    size: int | None = None
    path = folder / TOKENIZER_NAME
    if path.is_file():
        special, size = _read_tokenizer(path)
    path = folder / TOKENIZER_CONFIG_NAME
    if path.is_file():
        decoder = read_json_object(path).get("added_tokens_decoder")
        if isinstance(decoder, dict):
            entries = [
                {**entry, "id": int(key)}
                for key, entry in decoder.items()
                if isinstance(entry, dict) and key.isascii() and key.isdecimal() and len(key) < 10
            ]
            stated, highest = _added_tokens(entries, path)
            special = {**stated, **(special or {})}
            # Without tokenizer.json the ordinary tokens are unknown, and so is the size.
            size = None if size is None else max(size, highest + 1)
    return special, size


def _read_tokenizer(path: Path) -> tuple[dict[int, str], int | None]:
    """Return the special tokens and the size of a ``tokenizer.json`` (up to 35 MB in the wild).

    Read as Latin-1, one byte a character, and only ``added_tokens`` and the vocabulary are parsed:
    the merges of a large tokenizer would take more memory than the rest of the tool.
    """
    data = read_bounded(path, MAX_TOKENIZER_BYTES)
    where = str(path)
    text = data.decode("latin-1")
    if text.count(",") > _MAX_TOKENIZER_VALUES:
        raise CheckpointError(f"holds more than {_MAX_TOKENIZER_VALUES} values", where=path)
    if text.count("[") + text.count("{") > _MAX_TOKENIZER_CONTAINERS:
        what = f"holds more than {_MAX_TOKENIZER_CONTAINERS} lists and objects"
        raise CheckpointError(what, where=path)
    special: dict[int, str] = {}
    highest, vocabulary = -1, -1
    wanted = {"added_tokens", "model"}
    for key, position in object_members(text, where):
        if key == "added_tokens":
            _, end = decode_at(text, position, where)
            entries = parse_json(data[position:end], where)
            special, highest = _added_tokens(entries, path)
        elif key == "model":
            vocabulary = _highest_id(text, position, path)
        wanted.discard(key)
        if not wanted:
            break
    size = max(highest, vocabulary) + 1
    return special, size if vocabulary >= 0 else None


def _highest_id(text: str, start: int, path: Path) -> int:
    """Return the highest id of the vocabulary of the tokenizer model at ``start``, -1 if none."""
    for key, position in object_members(text, str(path), start):
        if key == "vocab":
            vocabulary, _ = decode_at(text, position, str(path))
            if isinstance(vocabulary, list):  # Unigram: the id is the position.
                return len(vocabulary) - 1
            if isinstance(vocabulary, dict) and all(map(_is_token_id, vocabulary.values())):
                return max(vocabulary.values(), default=-1)
            what = "is not a list of tokens or an object of token ids"
            raise CheckpointError(what, where=path, field="model.vocab")
    return -1


def _added_tokens(entries: object, path: Path) -> tuple[dict[int, str], int]:
    """Return id -> text of those marked special, and the highest id of all (-1 if none)."""
    special: dict[int, str] = {}
    highest = -1
    for entry in entries if isinstance(entries, list) else ():
        facts = entry if isinstance(entry, dict) else {}
        token, content = facts.get("id"), facts.get("content")
        if not _is_token_id(token) or not isinstance(content, str):
            what = "has a token without id or text"
            raise CheckpointError(what, where=path, field="added_tokens")
        highest = max(highest, token)
        if facts.get("special") is True:
            special[token] = content
    return special, highest


def _is_token_id(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _MAX_TOKENS
