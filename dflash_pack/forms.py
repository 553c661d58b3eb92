"""The output forms: which one a config is in, and what its engines must make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dflash_pack.agreement import EngineView

Form = Literal["speculators", "native", "universal"]

# The engine that a form is written for must do what is meant; the others are only told about.
MUST_SERVE: Mapping[Form, tuple[str, ...]] = {
    "speculators": ("vllm",),
    "universal": ("vllm",),
    "native": (),
}


def form_of(config: Mapping[str, Any]) -> Form:
    """Return the form that a ``config.json`` is in.

    ``universal`` has the native keys beside the Speculators ones: with ``model_type`` there,
    engines of the native form read it.
    """
    if "speculators_model_type" not in config and "speculators_config" not in config:
        return "native"
    return "speculators" if config.get("model_type") is None else "universal"


def must_agree(form: Form, engine: str, views: Sequence[EngineView]) -> bool:
    """Return whether ``engine`` has to do what is meant for ``form`` to be of use.

    The native form is read by many engines, each with limits of its own (z-lab's knows no sinks,
    vLLM no factor on embeddings): one that does what is meant is enough.
    """
    if form == "native":
        return not any(view.agrees for view in views) and engine == "vllm"
    return engine in MUST_SERVE[form]
