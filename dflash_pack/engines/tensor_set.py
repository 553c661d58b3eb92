"""The tensors an engine's module tree holds, against those of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.drafter import (
    Drafter,
    DraftLayer,
    Geometry,
    Parts,
    Rope,
    Vocabulary,
    core_tensor_shapes,
)

_SHOWN = 4
_QUANTISED_FILES = frozenset({"hf_quant_config.json"})


@dataclass(frozen=True)
class TensorFindings:
    """How a checkpoint's tensors differ from what an engine builds.

    Attributes:
        missing: Parameters of the engine that the file lacks.
        unexpected: Tensors of the file that the engine has no parameter for.
        misshapen: Sentences about tensors of another shape than the engine's.
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    misshapen: tuple[str, ...] = ()


def engine_shapes(
    geometry: Geometry,
    layer_count: int,
    fc_columns: int,
    *,
    parts: Parts | None = None,
    vocabulary: tuple[int, int] = (1, 1),
    captured: int = 1,
) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of the core parameters: ``fc`` [H, fc_columns], norms and layers.

    Args:
        geometry: Sizes that the engine builds with.
        layer_count: L, number of draft layers.
        fc_columns: Width of the concatenated captured states.
        parts: What a relative adds.
        vocabulary: Rows of the embedding and of the draft head, for those parts.
        captured: Number of captured layers, for those parts.
    """
    size, draft_size = vocabulary
    drafter = Drafter(
        geometry=geometry,
        layers=(DraftLayer(window=None, causal=False),) * layer_count,
        target_layer_ids=tuple(range(captured)),
        target_hidden_size=fc_columns // captured,
        block_size=2,
        rope=Rope("default", 1.0),
        vocabulary=Vocabulary(size=size, draft_size=draft_size, mask_token_id=0),
        dtype="F32",
        parts=parts,
    )
    shapes = core_tensor_shapes(drafter)
    for name in ("d2t", "t2d"):
        shapes.pop(name, None)
    return shapes


def compare_tensors(
    have: Mapping[str, TensorSpec], want: Mapping[str, tuple[int, ...]], *, quantised: bool = False
) -> TensorFindings:
    """Return how ``have`` differs from ``want``.

    With ``quantised`` the weights may be packed under other names and shapes, so a parameter counts
    as present when any tensor of its module is there, and shapes are left alone.
    """
    if quantised:
        modules = {name.rpartition(".")[0] for name in have}
        missing = tuple(
            name for name in want if name not in have and name.rpartition(".")[0] not in modules
        )
        known = {name.rpartition(".")[0] for name in want}
        stray = tuple(
            sorted(
                name for name in have if name not in want and name.rpartition(".")[0] not in known
            )
        )
        return TensorFindings(missing, stray)
    misshapen = tuple(
        f"{name} has shape {list(have[name].shape)}, and the config asks for {list(shape)}."
        for name, shape in want.items()
        if name in have and have[name].shape != shape
    )
    return TensorFindings(
        missing=tuple(name for name in want if name not in have),
        unexpected=tuple(sorted(name for name in have if name not in want)),
        misshapen=misshapen,
    )


def is_quantised(contents: Contents) -> bool:
    """Return whether the files declare quantised weights."""
    declared = contents.config.get("quantization_config") is not None
    return declared or not _QUANTISED_FILES.isdisjoint(contents.side_files)


def name_some(names: Sequence[str]) -> str:
    """Return at most four of ``names`` for a sentence, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
