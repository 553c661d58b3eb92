"""``launch``: the command that serves a checkpoint in an engine that does what is meant."""

from __future__ import annotations

from dflash_pack.agreement import view_engines
from dflash_pack.checkpoint import Checkpoint, is_repository
from dflash_pack.converters.registry import read_drafter
from dflash_pack.draft_length import draft_length
from dflash_pack.engines.recipes import Architecture, EngineName, Serving, recipe
from dflash_pack.errors import CheckFailedError, UsageError
from dflash_pack.forms import form_of
from dflash_pack.results import LaunchReport
from dflash_pack.target import Target


def plan_launch(
    checkpoint: Checkpoint,
    engine: EngineName,
    target: Target | None,
    *,
    target_name: str | None = None,
    speculative_tokens: int | None = None,
    architecture: Architecture | None = None,
) -> LaunchReport:
    """Return how ``engine`` is told to serve ``checkpoint``.

    Args:
        checkpoint: The drafter.
        engine: Who serves it.
        target: The target, where its files are at hand: the engine is then held against it too.
        target_name: Folder or Hub id that the engine is given; None takes the drafter's verifier.
        speculative_tokens: k, None for the drafter's own.
        architecture: The GPUs' architecture, None where it is not known.

    Raises:
        UsageError: If no target is known, or k is more than a block gives.
        CheckFailedError: If the engine would not load the files, or do other than they mean.
        DflashPackError: If the checkpoint can't be read.
    """
    drafter = read_drafter(checkpoint.contents, folder=checkpoint.path).drafter
    k = draft_length(drafter, speculative_tokens)
    name = target_name or drafter.verifier
    if name is None:
        raise UsageError(
            "names no target", where=checkpoint.path, remedy="Pass --target FOLDER or OWNER/NAME"
        )
    views = view_engines(drafter, checkpoint.contents, target)
    view = next(view for view in views if view.meaning.engine == engine)
    if not view.agrees:
        able = ", ".join(other.meaning.engine for other in views if other.agrees)
        raise CheckFailedError(
            f"would not be served as it is meant: {view.problems()[0].rstrip('.')}",
            where=checkpoint.path,
            remedy=f"Convert it to another --format, or serve it with one of: {able}"
            if able
            else "Convert it to another --format",
        )
    by_itself = form_of(checkpoint.config) != "native" and is_repository(drafter.verifier or "")
    serving = Serving(
        target=name,
        draft=str(checkpoint.path),
        drafter=drafter,
        speculative_tokens=k,
        by_itself=by_itself and name == drafter.verifier,
        architecture=architecture,
    )
    return LaunchReport(
        checkpoint=str(checkpoint.path),
        target=name,
        speculative_tokens=k,
        recipe=recipe(engine, serving),
        conditions=view.meaning.notes,
    )
