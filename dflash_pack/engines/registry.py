"""The engines whose reading of a checkpoint is known, in the order in which they are reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dflash_pack.checkpoint import Contents
from dflash_pack.engines import sglang, speculators, tensorrt_llm, vllm, zlab
from dflash_pack.engines.meaning import EngineMeaning
from dflash_pack.target import Target


@dataclass(frozen=True)
class Engine:
    """One engine: its name and what it makes of files."""

    name: str
    derive: Callable[[Contents, Target | None], EngineMeaning]


ENGINES: tuple[Engine, ...] = (
    Engine("vllm", vllm.derive_supported),
    Engine("speculators", speculators.derive),
    Engine("zlab", zlab.derive),
    Engine("sglang", sglang.derive),
    Engine("tensorrt_llm", tensorrt_llm.derive),
)


def derive_all(contents: Contents, target: Target | None) -> tuple[EngineMeaning, ...]:
    """Return what every engine will do with ``contents``, in the order of :data:`ENGINES`.

    An engine that does not read the form at hand answers with a refusal that names the ``--format``
    it reads.
    """
    return tuple(engine.derive(contents, target) for engine in ENGINES)
