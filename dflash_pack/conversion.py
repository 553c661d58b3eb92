"""From a source checkpoint to a written one: a plan that is checked whole, then one write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dflash_pack.accounting import Ledger, LedgerBuilder
from dflash_pack.agreement import (
    EngineView,
    mask_token_problem,
    require_target,
    require_tensors,
    view_engines,
)
from dflash_pack.checkpoint import DTYPE_NAMES, Checkpoint, Contents, TensorInfo, is_repository
from dflash_pack.converters.reading import Reading
from dflash_pack.converters.registry import read_drafter, writer
from dflash_pack.converters.side_files import MASK_EMBEDDING
from dflash_pack.converters.tensor_facts import EMBEDDING, HEAD
from dflash_pack.converters.writing import WrittenForm
from dflash_pack.drafter import Drafter
from dflash_pack.errors import ContradictionError, DflashPackError, NotRepresentableError
from dflash_pack.file_reading import same_bytes
from dflash_pack.forms import Form, form_of, must_agree
from dflash_pack.layer_order import in_ascending_order, in_dtype
from dflash_pack.mask_embedding import require_mask_embedding
from dflash_pack.overrides import Override, accept_losses, apply_overrides, blame_overrides
from dflash_pack.target import Target, find_target_tensor
from dflash_pack.tensors import TensorPlan, plan_tensors
from dflash_pack.vocabulary_map import require_vocabulary_map


@dataclass(frozen=True)
class Conversion:
    """A conversion that is known to be right before a byte of it is written.

    Attributes:
        source: The checkpoint that is read.
        target: The model that verifies.
        reading: What the source means, as its format says it.
        drafter: What will be written: the reading less what equals the target's.
        form: Config of the output form.
        tensors: What goes where in the output's safetensors files.
        ledger: Fate of everything in the source.
        source_engines: What engines make of the source as it is; empty where none can load it.
        engines: What engines will make of the result.
        notes: Sentences the user should know.
        warnings: Sentences about engines that will not do what is meant, but don't serve this form.
    """

    source: Checkpoint
    target: Target
    reading: Reading
    drafter: Drafter
    form: WrittenForm
    tensors: TensorPlan
    ledger: Ledger
    source_engines: tuple[EngineView, ...]
    engines: tuple[EngineView, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def plan_conversion(
    source: Checkpoint,
    target: Target,
    *,
    form: str = "speculators",
    source_format: str | None = None,
    overrides: Sequence[Override] = (),
    allow_lossy: Sequence[str] = (),
    dtype: str | None = None,
) -> Conversion:
    """Return the conversion of ``source`` into ``form``, checked against headers alone.

    Args:
        source: The checkpoint to convert.
        target: The model it drafts for.
        form: ``speculators``, ``native``, ``native-new`` or ``universal``.
        source_format: Name of the reader, None to detect it.
        overrides: Config values the user states.
        allow_lossy: Config keys and tensors the user gives up.
        dtype: Safetensors code that floating-point weights are cast to, None to keep theirs.

    Raises:
        DflashPackError: If anything of the source is unknown, contradictory, doesn't fit the target
            or can't be carried by ``form``.
    """
    write = writer(form)
    losses = LedgerBuilder()
    contents = apply_overrides(source.contents, overrides, losses)
    contents = accept_losses(contents, allow_lossy, losses)
    try:
        reading = read_drafter(
            contents,
            source_format=source_format,
            folder=source.path,
            config_file=source.config_path,
        )
    except ContradictionError as error:
        blame_overrides(error, overrides)
        raise
    target, verifier_notes = _named_by_source(target, reading.drafter)
    require_tensors(reading.drafter, reading.canonical(contents), where=str(source.path))
    require_target(reading.drafter, target)
    require_vocabulary_map(source, reading)
    _require_side_files(source, reading)
    drafter, names, shared_notes = _share_with_target(source, target, reading, losses)
    ordered = in_ascending_order(drafter, names)
    drafter = in_dtype(ordered.drafter, dtype)
    if dtype is not None:
        was, now = DTYPE_NAMES[ordered.drafter.dtype], DTYPE_NAMES[dtype]
        losses.state("config key", "dtype", f"{now} by --dtype; most weights were {was}")
    try:
        written = write(drafter, target)
    except DflashPackError as error:
        error.locate(source.path, source.config_path)
        raise
    lost = {entry.name: None for entry in losses.build().entries if entry.kind == "tensor"}
    plan = plan_tensors(
        source,
        {**ordered.names, **lost},
        row_splits=reading.row_splits,
        column_orders=ordered.column_orders,
        dtype=dtype,
    )
    planned = Contents(
        config=written.config,
        tensors=plan.tensors,
        side_files=frozenset(reading.copied_files),
    )
    _require_same_meaning(drafter, planned, written, target)
    engines = view_engines(drafter, planned, target)
    warnings = _judge(engines, form_of(written.config), source)
    source_engines = (
        view_engines(reading.drafter, source.contents, target) if source.loadable else ()
    )
    return Conversion(
        source=source,
        target=target,
        reading=reading,
        drafter=drafter,
        form=written,
        tensors=plan,
        ledger=_merge(reading.ledger, losses.build()),
        source_engines=source_engines,
        engines=engines,
        notes=(
            *_statements(losses.build()),
            *(f"Of the source as it is, {text}." for text in _source_problems(source_engines)),
            *reading.notes,
            *verifier_notes,
            *_mask_token_notes(drafter, target),
            *shared_notes,
            *ordered.notes,
            *written.notes,
        ),
        warnings=warnings,
    )


def _mask_token_notes(drafter: Drafter, target: Target) -> Iterator[str]:
    problem = mask_token_problem(drafter, target)
    if problem is not None:
        yield (
            f"The {problem}, so that validate will fail: state the id that the drafter was trained "
            "with, by --set ...mask_token_id=ID."
        )


def _named_by_source(target: Target, drafter: Drafter) -> tuple[Target, tuple[str, ...]]:
    """Return the target by the Hub id that the source has for it, where none is given."""
    name = drafter.verifier
    if target.is_hub_id or name is None or not is_repository(name):
        return target, ()
    note = f"The source's own verifier, {name}, is kept: the target given has no Hub id."
    return replace(target, identifier=name), (note,)


def _share_with_target(
    source: Checkpoint, target: Target, reading: Reading, ledger: LedgerBuilder
) -> tuple[Drafter, dict[str, str | None], list[str]]:
    """Drop own embedding and full head where the target's own bytes are equal."""
    drafter, names = reading.drafter, dict(reading.tensor_names)
    notes: list[str] = []
    tensors = source.tensors
    for canonical, kind in ((EMBEDDING, "embedding"), (HEAD, "head")):
        name = next((n for n, to in names.items() if to == canonical), None)
        if name is None or (kind == "head" and drafter.vocabulary.reduced):
            continue
        theirs: TensorInfo | None = find_target_tensor(target, kind)
        if theirs is None:
            notes.append(
                f"{name} is kept: the target's weights are not at hand to compare it with. vLLM "
                "compares when it loads, and shares the target's where they are equal."
            )
        elif same_bytes(tensors[name], theirs):
            names[name] = None
            ledger.drop("tensor", name, f"equal to the target's {theirs.name}")
            vocabulary = drafter.vocabulary
            shared = (
                replace(vocabulary, embedding="target")
                if kind == "embedding"
                else replace(vocabulary, head="target")
            )
            drafter = replace(drafter, vocabulary=shared)
        else:
            notes.append(f"{name} is kept: it differs from the target's {theirs.name}.")
    return drafter, names, notes


def _require_same_meaning(
    drafter: Drafter, planned: Contents, written: WrittenForm, target: Target
) -> None:
    """Read the planned files back; a difference is a bug of a writer, not of the source."""
    back = read_drafter(planned).drafter
    longest = target.max_position_embeddings or 0
    if comparable(back, longest) != comparable(drafter, longest):
        raise AssertionError(
            f"the {written.format} writer changed the drafter: {drafter} became {back}"
        )


def comparable(drafter: Drafter, longest: int = 0) -> Drafter:
    """Return ``drafter`` without what a form may add (verifier, depth) or raise (cache length).

    Args:
        drafter: The drafter.
        longest: Length in tokens up to which a form may raise the cache.
    """
    length = max(drafter.geometry.max_position_embeddings, longest)
    return replace(
        drafter,
        geometry=replace(drafter.geometry, max_position_embeddings=length),
        target_depth=None,
        verifier=None,
        verifier_architectures=(),
    )


def _source_problems(engines: Sequence[EngineView]) -> list[str]:
    """Return what engines that read the source's form would do otherwise than it means."""
    return [d.sentence() for view in engines for d in view.differences]


def _require_side_files(source: Checkpoint, reading: Reading) -> None:
    for file in source.side_files:
        if file.name == MASK_EMBEDDING and file.name in reading.copied_files:
            require_mask_embedding(file.path, reading.drafter)


def _judge(engines: Sequence[EngineView], form: Form, source: Checkpoint) -> tuple[str, ...]:
    """Refuse what an engine of this form would do otherwise; return the others' problems.

    Raises:
        NotRepresentableError: If an engine that serves the form would not do what is meant.
    """
    warnings: list[str] = []
    for view in engines:
        problems = view.problems()
        if problems and must_agree(form, view.meaning.engine, engines):
            raise NotRepresentableError(
                f"the {form} form would not be served as meant: {problems[0].rstrip('.')}",
                where=source.path,
                remedy="Choose another --format, or correct the source",
            )
        warnings.extend(d.sentence() for d in view.differences)
    return tuple(warnings)


def _statements(ledger: Ledger) -> list[str]:
    """Return one sentence for each value or loss that the user decided on."""
    return [f"{e.name}: {e.detail}." for e in ledger.entries if e.fate in ("stated", "lossy")]


def _merge(first: Ledger, second: Ledger) -> Ledger:
    merged = {(e.kind, e.name): e for e in (*first.entries, *second.entries)}
    return Ledger(tuple(sorted(merged.values(), key=lambda e: (e.kind, e.name))))
