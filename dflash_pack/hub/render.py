"""A push plan for people and for programs: two pure functions over one result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dflash_pack.engines.launch import shell
from dflash_pack.errors import printable
from dflash_pack.hub.card import human_size
from dflash_pack.hub.folder import LeftOut
from dflash_pack.hub.plan import PushPlan
from dflash_pack.hub.validation import Level

_MOST_LEFT_OUT = 200


@dataclass(frozen=True)
class ReportedValidation:
    """What is proven of the files; ``acceptance_length`` is None without a decode that holds."""

    level: Literal["none"] | Level
    proven: bool
    problem: str | None
    acceptance_length: float | None


@dataclass(frozen=True)
class ReportedFile:
    """One file of the commit; ``generated`` where it is made for it, as the card is."""

    name: str
    action: str
    size: int
    sha256: str
    generated: bool


@dataclass(frozen=True)
class PushReport:
    """A push plan as ``push --json`` prints it; see :class:`~dflash_pack.hub.plan.PushPlan`."""

    folder: str
    repo: str
    visibility: Literal["public", "private"]
    revision: str
    create_pr: bool
    tag: str | None
    message: str
    target: str
    licence: str | None
    validation: ReportedValidation
    files: tuple[ReportedFile, ...]
    total_size: int
    left_out: tuple[LeftOut, ...]
    serve: tuple[str, ...]
    notes: tuple[str, ...]
    card: str | None


def text(plan: PushPlan, *, show_card: bool = False) -> str:
    """Return the plan as lines for a terminal, names in it made printable."""
    lines = ["Push plan (nothing was sent)", ""]
    lines += _table(
        [
            ("repository", plan.repo),
            (
                "visibility",
                f"{'private' if plan.private else 'public'} where the repository is new",
            ),
            ("goes to", _destination(plan)),
            ("commit", f"one commit: {plan.message.splitlines()[0]}"),
            ("tag", plan.tag or "none"),
            ("target", plan.target),
            ("licence", plan.licence or "none stated"),
            ("validation", _validation(plan)),
        ]
    )
    lines += ["", f"Files ({len(plan.files)}, {human_size(plan.total_size)})"]
    lines += _table(
        [("action", "size", "sha256", "name")]
        + [(f.action, human_size(f.size), f.sha256[:12], f.name) for f in plan.files]
    )
    if plan.left_out:
        lines += ["", f"Left out ({len(plan.left_out)})"]
        lines += _table([(item.name, item.reason) for item in plan.left_out[:_MOST_LEFT_OUT]])
        if len(plan.left_out) > _MOST_LEFT_OUT:
            lines.append(f"  and {len(plan.left_out) - _MOST_LEFT_OUT} more")
    lines += ["", "Once published, serve it with", f"  {printable(shell(plan.serve))}"]
    if plan.notes:
        lines += ["", "Notes", *(f"  - {printable(note)}" for note in plan.notes)]
    if show_card:
        card = plan.card.replace("\r\n", "\n").split("\n")
        lines += ["", "README.md", "", *map(printable, card)]
    return "\n".join(lines)


def report(plan: PushPlan, *, show_card: bool = False) -> PushReport:
    """Return the plan as data for ``--json``; names that no UTF-8 can hold are escaped."""
    state = plan.validation
    decode = state.record.decode if state.record is not None and state.proven else None
    return PushReport(
        folder=printable(str(plan.folder)),
        repo=plan.repo,
        visibility="private" if plan.private else "public",
        revision=plan.revision,
        create_pr=plan.create_pr,
        tag=plan.tag,
        message=plan.message,
        target=plan.target,
        licence=plan.licence,
        validation=ReportedValidation(
            level=state.level,
            proven=state.proven,
            problem=state.problem or None,
            acceptance_length=None if decode is None else decode.acceptance_length,
        ),
        files=tuple(
            ReportedFile(f.name, f.action, f.size, f.sha256, f.path is None) for f in plan.files
        ),
        total_size=plan.total_size,
        left_out=tuple(LeftOut(printable(item.name), item.reason) for item in plan.left_out),
        serve=plan.serve,
        notes=plan.notes,
        card=plan.card if show_card else None,
    )


def upload_command(plan: PushPlan) -> tuple[str, ...]:
    """Return the command of huggingface_hub that uploads exactly the planned files by hand.

    It expects the card as ``README.md`` in the folder; names have no glob characters, as only
    allowlisted names are planned (:mod:`dflash_pack.hub.folder`).
    """
    include = [part for file in plan.files for part in ("--include", file.name)]
    place = ["--create-pr"] if plan.create_pr else ["--revision", plan.revision]
    private = ["--private"] if plan.private else []
    message = ["--commit-message", plan.message.splitlines()[0]]
    return ("hf", "upload", plan.repo, str(plan.folder), ".", *include, *place, *private, *message)


def _destination(plan: PushPlan) -> str:
    return f"a new pull request on {plan.revision}" if plan.create_pr else plan.revision


def _validation(plan: PushPlan) -> str:
    state = plan.validation
    if not state.proven:
        return f"none that holds: {state.problem}"
    decode = state.record.decode if state.record else None
    if decode is None:
        return f"{state.level}, passed on these files"
    return (
        f"{state.level}, passed on these files: acceptance length {decode.acceptance_length:.3f} "
        f"at k={decode.speculative_tokens}"
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the rows with two spaces before, and columns padded but the last."""
    cells = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    widths[-1] = 0
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]
