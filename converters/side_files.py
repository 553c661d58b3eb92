"""Which files beside config and weights belong to a drafter, and why the others stay behind."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch

from dflash_pack.accounting import LedgerBuilder
from dflash_pack.checkpoint import MANIFEST_NAME
from dflash_pack.errors import CheckpointError

MASK_EMBEDDING = "mask_embedding.pt"
QUANT_CONFIG = "hf_quant_config.json"
# Files beside config and weights that vLLM reads by itself when they are there.
READ_BY_ENGINES = frozenset({MASK_EMBEDDING, QUANT_CONFIG})

# Pattern -> reason; the first match counts. Nothing here is ever opened.
_LEFT_BEHIND: tuple[tuple[str, str], ...] = (
    ("*.py", "remote code, which is never shipped"),
    ("optimizer_state*", "training state"),
    ("scheduler_state*", "training state"),
    ("training_state*", "training state"),
    ("*.pt", "a pickle that no engine reads"),
    ("*.pth", "a pickle that no engine reads"),
    ("*.bin", "a pickle that no engine reads"),
    ("*.pkl", "a pickle that no engine reads"),
    ("README*", "the model card is written anew from facts"),
    (MANIFEST_NAME, "the record of an earlier conversion; a new one is written"),
    ("generation_config.json", "the target's sampling settings count"),
    ("*tokenizer*", "the target's tokenizer counts"),
    ("special_tokens_map.json", "the target's tokenizer counts"),
    ("vocab.json", "the target's tokenizer counts"),
    ("merges.txt", "the target's tokenizer counts"),
    ("chat_template.*", "the target's chat template counts"),
)


def account_side_files(
    names: Iterable[str], ledger: LedgerBuilder, *, quantised: bool = False
) -> tuple[str, ...]:
    """Give every side file a fate and return those that go along unchanged.

    ``mask_embedding.pt`` goes along because vLLM and SGLang read it, ``hf_quant_config.json`` with
    quantised weights, licences because they bind.

    Raises:
        CheckpointError: If a file says that weights are quantised and the drafter's aren't.
    """
    copied: list[str] = []
    for name in sorted(names):
        if name == QUANT_CONFIG and not quantised:
            raise CheckpointError(
                "marks a quantised drafter, and the weights are not quantised",
                where=name,
                remedy="Remove it from the source, or export the drafter unquantised",
            )
        binding = "/" not in name and any(fnmatch(name, p) for p in ("LICENSE*", "NOTICE*"))
        if name in (MASK_EMBEDDING, QUANT_CONFIG) or binding:
            ledger.map("file", name, name)
            copied.append(name)
            continue
        reason = next(
            (why for pattern, why in _LEFT_BEHIND if fnmatch(name.rsplit("/", 1)[-1], pattern)),
            "no engine reads it",
        )
        ledger.drop("file", name, reason)
    return tuple(copied)
