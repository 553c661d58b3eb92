"""How transformers' from_pretrained takes a drafter's tensors (z-lab and Speculators load with it).

Source: transformers 5.19, modeling_utils.py and core_model_loading.py, as run with dflash 0.1.0:
missing parameters are re-initialised and extra tensors skipped, both only reported; other shapes
are an error; a ``model.`` prefix is stripped.
"""

from __future__ import annotations

from collections.abc import Mapping

from dflash_pack.checkpoint import Contents
from dflash_pack.engines.tensor_set import compare_tensors, is_quantised, name_some

_PREFIX = "model."


def read_tensors(
    contents: Contents,
    want: Mapping[str, tuple[int, ...]],
    optional: Mapping[str, tuple[int, ...]],
    *,
    engine: str,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tensors that are skipped, and refusals.

    A missing tensor counts as a refusal: the engine would go on with random weights.

    Args:
        contents: The files.
        want: Parameters that the checkpoint must hold.
        optional: Parameters that are loaded where present.
        engine: Name for the sentences.
    """
    names = {name: name.removeprefix(_PREFIX) for name in contents.tensors}
    have = {names[name]: spec for name, spec in contents.tensors.items()}
    wanted = dict(want) | {name: shape for name, shape in optional.items() if name in have}
    found = compare_tensors(have, wanted, quantised=is_quantised(contents))
    skipped = tuple(sorted(name for name in names if names[name] in found.unexpected))
    refusals: tuple[str, ...] = found.misshapen
    if found.missing:
        names_missing = name_some(found.missing)
        text = f"Tensors are missing: {names_missing}. {engine} goes on with random weights."
        refusals = (text, *refusals)
    return skipped, refusals
