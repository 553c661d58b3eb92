"""How each engine is told to serve a drafter: the one place that commands, card and tests share.

Source of the rules: vLLM 0.32 and 0.33, config/speculative.py and transformers_utils/config.py.
"""

from __future__ import annotations

import json
import shlex

from dflash_pack.drafter import Family
from dflash_pack.errors import CheckpointError

VLLM_VERSIONS = "0.32 and 0.33"


def vllm_command(
    *,
    target: str,
    draft: str,
    speculative_tokens: int,
    draft_revision: str | None = None,
    family: Family = "dflash",
) -> tuple[str, ...]:
    """Return the command that serves ``target`` with ``draft`` in vLLM.

    ``method`` is always stated: where neither it nor the draft's path says ``dflash``, vLLM runs
    the drafter as an ordinary draft model and accepts nothing.

    Args:
        target: Hub id or folder of the target.
        draft: Hub id or folder of the drafter.
        speculative_tokens: k, tokens proposed per verification step (B-1 for DFlash).
        draft_revision: Branch, tag or commit of the drafter, None for its default.
        family: Kind of drafter; DSpark has a method of its own, the others are run by DFlash's.

    Raises:
        CheckpointError: If k is below 1.
    """
    if speculative_tokens < 1:
        raise CheckpointError(
            f"is {speculative_tokens}, but a drafter proposes at least one token", field="k"
        )
    config: dict[str, object] = {
        "method": method(family),
        "model": draft,
        "num_speculative_tokens": speculative_tokens,
    }
    if draft_revision is not None:
        config["revision"] = draft_revision
    text = json.dumps(config, separators=(",", ":"), ensure_ascii=False)
    return ("vllm", "serve", _positional(target), "--speculative-config", text)


def method(family: Family) -> str:
    """Return vLLM's speculative method for a family (vllm 0.32, config/speculative.py)."""
    return "dspark" if family == "dspark" else "dflash"


def vllm_auto_command(draft: str) -> tuple[str, ...]:
    """Return the command by which vLLM takes target, method and k from the drafter's own config.

    For drafters with Speculators keys whose verifier is a Hub id. There is no pinned form: vLLM
    would ask the *target's* repository for a ``--revision`` given here, as it replaces the model by
    the verifier and keeps the revision (engine/arg_utils.py).
    """
    return ("vllm", "serve", _positional(draft))


def shell(command: tuple[str, ...]) -> str:
    """Return ``command`` as one line for a POSIX shell."""
    return shlex.join(command)


def _positional(name: str) -> str:
    # A folder whose name starts with a dash would be taken for an option.
    return f"./{name}" if name.startswith("-") else name
