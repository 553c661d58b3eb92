"""What ``inspect`` finds out, from config and headers alone."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_pack.accounting import LedgerBuilder
from dflash_pack.agreement import require_tensors, view_engines
from dflash_pack.checkpoint import Checkpoint
from dflash_pack.converters.registry import read_drafter
from dflash_pack.engine_table import verdict_on
from dflash_pack.overrides import Override, apply_overrides
from dflash_pack.results import InspectionReport, TargetFacts, WeightFacts
from dflash_pack.target import Target


def inspect_checkpoint(
    checkpoint: Checkpoint,
    target: Target | None,
    *,
    source_format: str | None = None,
    overrides: Sequence[Override] = (),
) -> InspectionReport:
    """Return the meaning of ``checkpoint`` and what each engine would make of its files.

    The engines are shown the files as they are; ``overrides`` only help to read the meaning. A
    source that none can load (a training checkpoint) is shown to none.

    Raises:
        DflashPackError: If the checkpoint can't be understood.
    """
    stated = LedgerBuilder()
    contents = apply_overrides(checkpoint.contents, overrides, stated)
    reading = read_drafter(
        contents,
        source_format=source_format,
        folder=checkpoint.path,
        config_file=checkpoint.config_path,
    )
    require_tensors(reading.drafter, reading.canonical(contents), where=str(checkpoint.path))
    engines = (
        view_engines(reading.drafter, checkpoint.contents, target) if checkpoint.loadable else ()
    )
    return InspectionReport(
        checkpoint=str(checkpoint.path),
        format=reading.format,
        drafter=reading.drafter,
        speculative_tokens=reading.drafter.speculative_tokens,
        weights=WeightFacts(
            weight_bytes=checkpoint.weight_bytes,
            tensors=len(checkpoint.tensors),
            shards=len(checkpoint.shards),
        ),
        target=None if target is None else target_facts(target),
        engines=engines,
        verdicts={view.meaning.engine: verdict_on(view) for view in engines},
        ledger=reading.ledger.entries,
        notes=(*(f"{e.name}: {e.detail}." for e in stated.build().entries), *reading.notes),
    )


def target_facts(target: Target) -> TargetFacts:
    """Return the part of ``target`` that reports show."""
    return TargetFacts(
        identifier=target.identifier,
        revision=target.revision,
        architectures=target.architectures,
        hidden_size=target.hidden_size,
        num_hidden_layers=target.num_hidden_layers,
        vocab_size=target.vocab_size,
    )
