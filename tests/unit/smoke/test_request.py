"""Prompts files and the request that travels to the engine's process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_pack.errors import CheckpointError, UsageError
from dflash_pack.smoke import request as request_module
from dflash_pack.smoke.request import (
    DecodeRequest,
    Message,
    Prompt,
    builtin_prompts,
    load_prompts,
    prompts_sha256,
)

CHAT = Prompt(messages=(Message("system", "Be brief."), Message("user", "Grüße\n第二行")))
TEXT = Prompt(text="Once upon")


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_file_may_mix_chats_texts_empty_lines_and_further_keys(tmp_path):
    lines = [
        json.dumps(CHAT.to_json(), ensure_ascii=False),
        "",
        '{"id": 7, "text": "Once upon"}',
    ]
    path = written(tmp_path / "p.jsonl", ("\r\n".join(lines) + "\n").encode())
    assert load_prompts(path) == (CHAT, TEXT)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"text": "x"', "is no JSON"),
        (b'{"text": "\xff"}', "is not UTF-8"),
        (b'"text"', "is no JSON object"),
        (b"{}", 'needs exactly one of "messages" and "text"'),
        (b'{"text": "x", "messages": []}', 'needs exactly one of "messages" and "text"'),
        (b'{"text": ""}', 'has a "text" that is no string or is empty'),
        (b'{"text": 5}', 'has a "text" that is no string or is empty'),
        (b'{"messages": []}', 'has "messages" that are no list or are empty'),
        (b'{"messages": {"role": "user"}}', 'has "messages" that are no list or are empty'),
        (b'{"messages": ["hi"]}', 'has a message whose "role" or "content" is no string'),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "text"}]}]}',
            'has a message whose "role" or "content" is no string',
        ),
        (b"[" * 200_000, "is nested too deeply"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, line, why):
    path = written(tmp_path / "p.jsonl", b'{"text": "fine"}\n\n' + line + b"\n")
    with pytest.raises(CheckpointError) as caught:
        load_prompts(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: line 3 {why}")
    assert sentence.endswith('Write one {"messages": [...]} or {"text": "..."} a line.')


def test_an_absent_file_is_a_fault_of_the_command(tmp_path):
    with pytest.raises(UsageError, match="no such prompts file"):
        load_prompts(tmp_path / "none.jsonl")


def test_a_folder_and_an_empty_file_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="not a regular file"):
        load_prompts(tmp_path)
    with pytest.raises(CheckpointError, match="holds no prompt"):
        load_prompts(written(tmp_path / "empty.jsonl", b"\n\n"))


def test_size_and_count_are_bounded(tmp_path, monkeypatch):
    path = written(tmp_path / "p.jsonl", b'{"text": "x"}\n' * 3)
    monkeypatch.setattr(request_module, "MAX_PROMPTS", 2)
    with pytest.raises(CheckpointError, match="has more than 2 prompts"):
        load_prompts(path)
    monkeypatch.setattr(request_module, "MAX_PROMPTS_BYTES", 20)
    with pytest.raises(CheckpointError, match="is larger than"):
        load_prompts(path)


def test_the_built_in_prompts_are_eight_different_chats():
    prompts = builtin_prompts()
    assert len(set(prompts)) == 8
    assert all(prompt.messages[-1].role == "user" for prompt in prompts)


def test_the_hash_tells_prompts_and_their_order_apart():
    assert prompts_sha256([CHAT, TEXT]) == prompts_sha256([CHAT, TEXT])
    hashes = {
        prompts_sha256(prompts)
        for prompts in ([CHAT, TEXT], [TEXT, CHAT], [CHAT], [Prompt(text="Once  upon")])
    }
    assert len(hashes) == 4


def test_a_prompt_is_a_chat_or_a_text():
    for wrong in ({}, {"messages": CHAT.messages, "text": "x"}):
        with pytest.raises(ValueError, match="either messages or text"):
            Prompt(**wrong)


def made(**changes) -> DecodeRequest:
    values = {
        "target": "/t",
        "drafter": "owner/drafter",
        "speculative_tokens": 7,
        "device": "cpu",
        "dtype": "float32",
        "prompts": (CHAT, TEXT),
    }
    return DecodeRequest(**{**values, **changes})


def test_a_request_survives_its_way_through_json():
    request = made(kv_cache_gib=0.5, near_tie_gap=1e-4, max_model_len=512, auto_serve=True)
    assert DecodeRequest.from_json(json.loads(json.dumps(request.to_json()))) == request


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"device": "tpu"}, "device tpu: is neither cpu nor cuda."),
        ({"prompts": ()}, "a decode needs at least one prompt."),
        ({"speculative_tokens": 0}, "speculative_tokens: must be at least 1."),
        ({"max_tokens": 0}, "max_tokens: must be at least 1."),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size: must be at least 1."),
        ({"kv_cache_gib": 0.0}, "kv_cache_gib: must be more than 0."),
        ({"kv_cache_gib": float("nan")}, "kv_cache_gib: must be more than 0."),
        ({"near_tie_gap": -1.0}, "near_tie_gap: must be at least 0."),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(changes, sentence):
    with pytest.raises(UsageError) as caught:
        made(**changes)
    assert str(caught.value) == sentence


def test_a_request_is_local_only_when_both_models_are_folders(tmp_path):
    assert made(target=str(tmp_path), drafter=str(tmp_path)).local
    assert not made(target=str(tmp_path)).local
