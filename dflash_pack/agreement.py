"""Whether a drafter fits its own tensors and its target, and what every engine makes of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dflash_pack.checkpoint import Contents, TensorSpec
from dflash_pack.drafter import Drafter, core_tensor_shapes
from dflash_pack.engines.meaning import Difference, EngineMeaning, differences
from dflash_pack.engines.registry import derive_all
from dflash_pack.errors import CheckpointError, TargetMismatchError
from dflash_pack.quantized_tensors import quantised_problems
from dflash_pack.target import Target


@dataclass(frozen=True)
class EngineView:
    """One engine's derived meaning of some files, compared with what is meant."""

    meaning: EngineMeaning
    differences: tuple[Difference, ...]

    @property
    def agrees(self) -> bool:
        """Whether the engine loads the files and does what is meant."""
        return not self.meaning.refusals and not self.differences

    def problems(self) -> tuple[str, ...]:
        """Return refusals and differences as sentences."""
        return (*self.meaning.refusals, *(d.sentence() for d in self.differences))


def view_engines(
    drafter: Drafter, contents: Contents, target: Target | None
) -> tuple[EngineView, ...]:
    """Return what each engine would do with ``contents``, compared with ``drafter``."""
    return tuple(
        EngineView(meaning, differences(drafter, meaning))
        for meaning in derive_all(contents, target)
    )


def tensor_problems(drafter: Drafter, tensors: Mapping[str, TensorSpec]) -> tuple[str, ...]:
    """Return one sentence per tensor that is missing, too many or of another shape.

    Engines accept missing tensors silently (vllm 0.32, models/qwen3_dflash.py, load_weights), so
    the exact set is checked here, of quantised weights as their way of packing has it.
    """
    if drafter.quantization is not None:
        return quantised_problems(drafter, tensors)
    expected = core_tensor_shapes(drafter)
    found: list[str] = []
    missing = sorted(expected.keys() - tensors.keys())
    if missing:
        found.append(f"{len(missing)} tensors are missing: {_some(missing)}")
    extra = sorted(tensors.keys() - expected.keys())
    if extra:
        found.append(f"{len(extra)} tensors have no place in this geometry: {_some(extra)}")
    found.extend(
        f"{name} has shape {list(tensors[name].shape)}, but the config means {list(shape)}"
        for name, shape in sorted(expected.items())
        if name in tensors and tensors[name].shape != shape
    )
    return tuple(found)


def require_tensors(drafter: Drafter, tensors: Mapping[str, TensorSpec], *, where: str) -> None:
    """Check the exact tensor set.

    Raises:
        CheckpointError: With the first problem of :func:`tensor_problems` and their number.
    """
    problems = tensor_problems(drafter, tensors)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise CheckpointError(
            problems[0] + more,
            where=where,
            remedy="Correct config.json, or export the drafter again",
        )


def target_problems(drafter: Drafter, target: Target) -> tuple[tuple[str, str], ...]:
    """Return (check, sentence) for each way in which ``drafter`` can't draft for ``target``."""
    depth = target.num_hidden_layers
    found: dict[str, str] = {}
    if drafter.target_hidden_size != target.hidden_size:
        found["target.hidden_size"] = (
            f"the drafter takes states of width {drafter.target_hidden_size}, "
            f"the target's are {target.hidden_size} wide"
        )
    if drafter.vocabulary.size != target.vocab_size and not is_padded(drafter, target):
        found["target.vocab_size"] = (
            f"the drafter was made for a vocabulary of {drafter.vocabulary.size}, "
            f"the target has {target.vocab_size}"
        )
    if drafter.target_depth not in (None, depth):
        found["target.depth"] = (
            f"the drafter was made for {drafter.target_depth} target layers, the target has {depth}"
        )
    outside = [i for i in drafter.target_layer_ids if i >= depth]
    if outside:
        found["target_layers.range"] = (
            f"target layer ids {outside} lie outside the target's {depth} layers"
        )
    expected = drafter.verifier_architectures
    if expected and target.architectures and expected != target.architectures:
        found["target.architecture"] = (
            f"the checkpoint names a verifier of {list(expected)}, "
            f"the target is {list(target.architectures)}"
        )
    return tuple(found.items())


def mask_token_problem(drafter: Drafter, target: Target) -> str | None:
    """Return what is wrong with a mask token that text produces too; None where it can't be told.

    The drafter would take each such token of a prompt for one that it is to fill in.
    """
    mask = drafter.vocabulary.mask_token_id
    if target.special_tokens is None or target.tokenizer_size is None:
        return None
    if mask in target.special_tokens or mask >= target.tokenizer_size:
        return None
    return f"mask token {mask} is an ordinary token of the target"


def is_padded(drafter: Drafter, target: Target) -> bool:
    """Return whether the target's vocabulary is the drafter's and rows that no token uses.

    Then embedding and head are the target's, and engines draft with their first rows (MiMo-V2.5:
    152064 of 152576; vllm 0.32, models/qwen3_dflash.py, takes draft ids for the target's own).
    """
    vocabulary = drafter.vocabulary
    shared = vocabulary.embedding == vocabulary.head == "target" and not vocabulary.reduced
    tokens = target.tokenizer_size
    return shared and tokens is not None and tokens <= vocabulary.size < target.vocab_size


def require_target(drafter: Drafter, target: Target) -> None:
    """Check that ``drafter`` was made for ``target``.

    Raises:
        TargetMismatchError: With the first of :func:`target_problems`. The verifier's architecture
            alone is no reason: speculators 0.5 wrote the draft's own there.
    """
    for check, sentence in target_problems(drafter, target):
        if check != "target.architecture":
            raise TargetMismatchError(
                sentence,
                where=target.path,
                remedy="Give the target that the drafter was trained for with --target",
            )


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
