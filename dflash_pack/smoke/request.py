"""What is to be decoded: prompts and a request that travels to the child process as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from dflash_pack.errors import CheckpointError, UsageError
from dflash_pack.strict_json import read_bounded

Device = Literal["cpu", "cuda"]
ENGINE_DTYPES = ("float32", "bfloat16", "float16")
DEVICES: tuple[Device, ...] = ("cpu", "cuda")

MAX_PROMPTS_BYTES = 16 << 20
MAX_PROMPTS = 10_000


@dataclass(frozen=True)
class Message:
    """One turn of a chat."""

    role: str
    content: str


@dataclass(frozen=True)
class Prompt:
    """A chat for the target's template, or raw text; exactly one of the two.

    Attributes:
        messages: The chat's turns; empty for raw text. A target without a chat template gets
            their contents joined by newlines.
        text: Text that goes to the tokenizer as it is.
    """

    messages: tuple[Message, ...] = ()
    text: str | None = None

    def __post_init__(self) -> None:
        """Refuse a prompt that is both or neither."""
        if bool(self.messages) == (self.text is not None):
            raise ValueError("a prompt has either messages or text")

    def to_json(self) -> dict[str, object]:
        """Return the prompt in the form of one line of a prompts file."""
        if self.text is not None:
            return {"text": self.text}
        return {"messages": [asdict(message) for message in self.messages]}

    @classmethod
    def from_json(cls, data: object) -> Prompt:
        """Return the prompt of one parsed line; keys other than ``messages``, ``text`` are ignored.

        Raises:
            ValueError: The line holds no usable prompt; the message says why, as a clause.
        """
        if not isinstance(data, Mapping):
            raise ValueError("is no JSON object")
        text, messages = data.get("text"), data.get("messages")
        if (text is None) == (messages is None):
            raise ValueError('needs exactly one of "messages" and "text"')
        if messages is None:
            if not isinstance(text, str) or not text:
                raise ValueError('has a "text" that is no string or is empty')
            return cls(text=text)
        if not isinstance(messages, list) or not messages:
            raise ValueError('has "messages" that are no list or are empty')
        return cls(messages=tuple(_message(item) for item in messages))


def _message(item: object) -> Message:
    role = item.get("role") if isinstance(item, Mapping) else None
    content = item.get("content") if isinstance(item, Mapping) else None
    if not isinstance(role, str) or not isinstance(content, str):
        raise ValueError('has a message whose "role" or "content" is no string')
    return Message(role, content)


def load_prompts(path: Path) -> tuple[Prompt, ...]:
    """Read prompts from a JSON Lines file: ``{"messages": [...]}`` or ``{"text": "..."}`` a line.

    Args:
        path: UTF-8 file of at most 16 MiB and 10,000 prompts; empty lines are skipped.

    Raises:
        UsageError: There is no such file.
        CheckpointError: The file is too large, holds no prompt, or a line is broken.
    """
    if not path.exists():
        raise UsageError("there is no such prompts file", where=path, remedy="Correct --prompts")
    return _parse(read_bounded(path, MAX_PROMPTS_BYTES), path)


def builtin_prompts() -> tuple[Prompt, ...]:
    """Return the eight prompts that are used when no file is given."""
    source = resources.files("dflash_pack.smoke") / "prompts.jsonl"
    return _parse(source.read_bytes(), Path("prompts.jsonl"))


def _parse(data: bytes, path: Path) -> tuple[Prompt, ...]:
    prompts: list[Prompt] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        if len(prompts) == MAX_PROMPTS:
            raise CheckpointError(f"has more than {MAX_PROMPTS} prompts", where=path)
        try:
            prompts.append(Prompt.from_json(json.loads(line.decode())))
        except (UnicodeDecodeError, RecursionError, ValueError) as error:
            raise CheckpointError(
                f"line {number} {_why(error)}",
                where=path,
                remedy='Write one {"messages": [...]} or {"text": "..."} a line',
            ) from None
    if not prompts:
        raise CheckpointError("holds no prompt", where=path)
    return tuple(prompts)


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"is no JSON ({error.msg} at column {error.colno})"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    return str(error)


def prompts_sha256(prompts: Sequence[Prompt]) -> str:
    """Return the sha256 of the prompts' contents in their order, equal for equal prompts only."""
    canonical = json.dumps([prompt.to_json() for prompt in prompts], sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class DecodeRequest:
    """One decode of one drafter with its target.

    Attributes:
        target: Folder or Hub id of the target.
        drafter: Folder or Hub id of the drafter.
        speculative_tokens: k; with ``auto_serve`` the engine takes k from the checkpoint instead.
        device: ``cpu`` or ``cuda``.
        dtype: Of target and drafter, as vLLM names it (``float32``, ``bfloat16``, ``auto``).
        prompts: At least one.
        max_tokens: Most tokens to generate for each prompt.
        max_model_len: Context in tokens; None = what the longest prompt and its answer need.
        seed: The engine's seed; greedy decoding doesn't draw from it.
        check_lossless: Whether each emitted token is checked against the target's own choice.
        near_tie_gap: Log-probability gap in nats up to which another choice counts as a near-tie.
        kv_cache_gib: Size of the KV cache in GiB per device; None = the engine's own choice.
        tensor_parallel_size: Passed through to vLLM.
        pipeline_parallel_size: Passed through to vLLM.
        distributed_executor_backend: ``mp``, ``ray`` or None, passed through to vLLM.
        attention_backend: The target's, as vLLM names it; None = the engine's own choice.
        auto_serve: Whether the engine is given the drafter alone and takes target, method and k
            from its Speculators config; ``target`` must then name the same target, since the
            tokenizer is taken from it.
        draft_attention_backend: The drafter's; None = the engine's own choice.
        quantization: Passed through to vLLM; None = as the target's config says.
        target_revision: Commit or branch of a Hub target.
        drafter_revision: Commit or branch of a Hub drafter.
    """

    target: str
    drafter: str
    speculative_tokens: int
    device: Device
    dtype: str
    prompts: tuple[Prompt, ...]
    max_tokens: int = 128
    max_model_len: int | None = None
    seed: int = 0
    check_lossless: bool = True
    near_tie_gap: float = 0.0
    kv_cache_gib: float | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    distributed_executor_backend: str | None = None
    attention_backend: str | None = None
    auto_serve: bool = False
    draft_attention_backend: str | None = None
    quantization: str | None = None
    target_revision: str | None = None
    drafter_revision: str | None = None

    def __post_init__(self) -> None:
        """Refuse a request that can't be meant.

        Raises:
            UsageError: A size is not positive, there is no prompt, or the device is unknown.
        """
        if self.device not in DEVICES:
            raise UsageError(f"is neither {' nor '.join(DEVICES)}", field=f"device {self.device}")
        if not self.prompts:
            raise UsageError("a decode needs at least one prompt")
        for name in (
            "speculative_tokens",
            "max_tokens",
            "tensor_parallel_size",
            "pipeline_parallel_size",
        ):
            if getattr(self, name) < 1:
                raise UsageError("must be at least 1", field=name)
        if self.kv_cache_gib is not None and not self.kv_cache_gib > 0:
            raise UsageError("must be more than 0", field="kv_cache_gib")
        if not self.near_tie_gap >= 0:
            raise UsageError("must be at least 0", field="near_tie_gap")

    @property
    def local(self) -> bool:
        """Whether target and drafter are folders here, so that nothing is fetched."""
        return Path(self.target).is_dir() and Path(self.drafter).is_dir()

    @property
    def prompts_sha256(self) -> str:
        """The prompts' hash."""
        return prompts_sha256(self.prompts)

    def to_json(self) -> dict[str, object]:
        """Return the request as JSON data."""
        return asdict(self) | {"prompts": [prompt.to_json() for prompt in self.prompts]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DecodeRequest:
        """Return the request that :meth:`to_json` gave."""
        prompts = tuple(Prompt.from_json(item) for item in data["prompts"])
        return cls(**{**data, "prompts": prompts})
