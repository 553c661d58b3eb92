"""Text renderers: one function a result, all of them onto a rich console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dflash_pack.accounting import Entry
from dflash_pack.agreement import EngineView
from dflash_pack.drafter import Drafter, Quantization
from dflash_pack.engine_table import show_engines
from dflash_pack.engines.launch import shell
from dflash_pack.engines.meaning import describe_layer, describe_parts, describe_rope
from dflash_pack.errors import printable
from dflash_pack.results import (
    ConversionReport,
    InspectionReport,
    LaunchReport,
    TargetFacts,
    ValidationReport,
    WeightFacts,
)
from dflash_pack.smoke.result import DecodeResult

if TYPE_CHECKING:
    from rich.console import Console

_QUANTISED_BY = ("quant_method", "quant_algo", "format", "bits")
_MARKS = {"passed": "[green]ok[/]", "warning": "[yellow]warn[/]", "failed": "[red]FAIL[/]"}


def render_inspection(report: InspectionReport, console: Console, *, verbose: bool = False) -> None:
    """Show what a checkpoint means and what each engine would do with it.

    Args:
        report: What was found.
        console: Where to.
        verbose: Whether to name all that engines ignore and all reasons why they refuse.
    """
    _say(console, f"{report.checkpoint}: {report.format} form")
    _facts(console, drafter_facts(report.drafter, report.weights, report.target))
    if report.engines:
        _engines(console, "these files", report.engines, verbose=verbose)
    else:
        _say(console, "\nNo engine loads a training state: convert it.")
    _sentences(console, "Notes", report.notes)


def render_conversion(report: ConversionReport, console: Console) -> None:
    """Show what was accounted for, what engines will do, and what was written."""
    goes = f"written to {report.out}" if report.out else "would be written (dry run)"
    _say(console, f"{report.source}: {report.source_format} -> {report.form}, {goes}")
    _facts(console, drafter_facts(report.drafter, report.weights, report.target))
    _ledger(console, report.ledger)
    _engines(console, "the result", report.engines)
    _sentences(console, "Notes", (*report.notes, *report.warnings))
    if report.out:
        _say(console, "")
        for file in report.files:
            digest = f"  sha256 {file.sha256}" if file.sha256 else ""
            _say(console, f"  {file.size:>14,}  {file.name}{digest}")
        _say(console, f"Done in {report.seconds:.2f} s.")


def render_launch(report: LaunchReport, console: Console) -> None:
    """Show the command, bare on a line of its own, then its files and what else is to be known."""
    recipe = report.recipe
    console.out(shell(recipe.command), highlight=False)
    for name, text in recipe.files.items():
        _say(console, f"\n{name}:")
        console.out(text.rstrip("\n"), highlight=False)
    _sentences(console, "Notes", (*recipe.notes, *report.conditions))


def render_validation(report: ValidationReport, console: Console) -> None:
    """Show every check, the decode's figures and the verdict."""
    from rich.markup import escape

    _say(console, f"{report.checkpoint}: checked at level {report.level}")
    for check in report.checks:
        mark = _MARKS.get(check.status, "[dim]-[/]")
        console.print(f"  {mark:<4} [bold]{check.id}[/]  {escape(printable(check.finding))}")
        if check.status in ("failed", "warning") and check.remedy:
            console.print(f"       [dim]{escape(printable(check.remedy))}[/]")
    if report.decode is not None:
        _decode(console, report.decode, report.against)
    counts = Counter(check.status for check in report.checks)
    verdict = "[green]passed[/]" if report.passed else "[red]FAILED[/]"
    tally = ", ".join(
        f"{counts[s]} {s}" for s in ("passed", "warning", "failed", "not run") if counts[s]
    )
    console.print(f"{verdict}: {tally}; {report.seconds:.1f} s")


def drafter_facts(
    drafter: Drafter, weights: WeightFacts, target: TargetFacts | None
) -> list[tuple[str, str]]:
    """Return label and value of what one wants to know of a drafter."""
    vocabulary = drafter.vocabulary
    ids = list(drafter.target_layer_ids)
    depth = target.num_hidden_layers if target else drafter.target_depth
    draft = f", drafts over {vocabulary.draft_size}" if vocabulary.reduced else ""
    facts = [
        ("kind", describe_parts(drafter.parts)),
        ("draft layers", _layer_runs(drafter)),
        ("geometry", _sizes(drafter)),
        ("block size", _block(drafter)),
        ("target layers", f"{ids} of {depth}" if depth else str(ids)),
        ("mask token", str(vocabulary.mask_token_id)),
        ("vocabulary", f"{vocabulary.size}{draft}; {_matrices(drafter)}"),
        ("rope", describe_rope(drafter.rope)),
        ("weights", _weights(drafter, weights)),
    ]
    extras = _extras(drafter)
    if extras:
        facts.insert(-1, ("extras", "; ".join(extras)))
    if drafter.quantization is not None:
        facts.append(("quantised", _quantisation(drafter.quantization)))
    if target is not None:
        facts.insert(
            0, ("target", f"{target.identifier} ({', '.join(target.architectures) or 'unknown'})")
        )
    return facts


def _block(drafter: Drafter) -> str:
    anchor = "; the anchor predicts too" if drafter.sample_from_anchor else ""
    return f"{drafter.block_size}, so k = {drafter.speculative_tokens}{anchor}"


def _extras(drafter: Drafter) -> list[str]:
    """Return what few drafters have, each as a short phrase."""
    found: list[str] = []
    if drafter.geometry.attention_bias:
        found.append("attention biases")
    if drafter.attention_sinks:
        found.append("a sink for each head")
    if drafter.vocabulary.mask_embedding:
        found.append("a mask embedding of its own")
    for what, factor in (
        ("attention values", drafter.attention_value_scale),
        ("embeddings", drafter.input_embedding_scale),
        ("logits", drafter.output_multiplier),
    ):
        if factor != 1.0:
            found.append(f"{what} x {factor:g}")
    if drafter.final_logit_softcapping is not None:
        found.append(f"logits capped at {drafter.final_logit_softcapping:g}")
    if drafter.target_hidden_size != drafter.geometry.hidden_size:
        found.append(f"target states {drafter.target_hidden_size} wide")
    return found


def _quantisation(quantization: Quantization) -> str:
    stated = quantization.value()
    named = [str(stated[name]) for name in _QUANTISED_BY if stated.get(name) is not None]
    files = ["hf_quant_config.json"] if quantization.side_file else []
    return ", ".join([*(named or ["as the config says"] if stated else []), *files])


def _sizes(drafter: Drafter) -> str:
    g = drafter.geometry
    heads = f"{g.num_attention_heads} heads, {g.num_key_value_heads} kv heads of {g.head_dim}"
    return f"hidden {g.hidden_size}, ffn {g.intermediate_size}, {heads}"


def _matrices(drafter: Drafter) -> str:
    whose = {"own": "its own", "target": "the target's"}
    vocabulary = drafter.vocabulary
    return f"embedding {whose[vocabulary.embedding]}, head {whose[vocabulary.head]}"


def _weights(drafter: Drafter, weights: WeightFacts) -> str:
    files = f"{weights.shards} file{'s' if weights.shards > 1 else ''}"
    return f"{weights.weight_bytes:,} bytes {drafter.dtype}, {weights.tensors} tensors, {files}"


def _layer_runs(drafter: Drafter) -> str:
    """Return e.g. ``0-3: sliding 2048, causal; 4: full, bidirectional``."""
    runs: list[tuple[int, int, str]] = []
    for index, layer in enumerate(drafter.layers):
        text = describe_layer(layer)
        if runs and runs[-1][2] == text:
            runs[-1] = (runs[-1][0], index, text)
        else:
            runs.append((index, index, text))
    if len(runs) == 1:
        return f"{len(drafter.layers)}, all {runs[0][2]}"
    return "; ".join(f"{a}-{b}: {text}" if a != b else f"{a}: {text}" for a, b, text in runs)


def _engines(
    console: Console, what: str, engines: Sequence[EngineView], *, verbose: bool = False
) -> None:
    show_engines(console, f"What each engine will do with {what}", engines, verbose=verbose)
    _sentences(
        console,
        "Conditions",
        dict.fromkeys(f"{v.meaning.engine}: {note}" for v in engines for note in v.meaning.notes),
    )


def _ledger(console: Console, entries: Iterable[Entry]) -> None:
    kinds: dict[str, Counter[str]] = {}
    for entry in entries:
        kinds.setdefault(entry.kind, Counter())[entry.fate] += 1
    parts = [
        f"{_counted(sum(fates.values()), kind)} ({', '.join(f'{n} {f}' for f, n in fates.items())})"
        for kind, fates in kinds.items()
    ]
    _say(console, f"\nAccounted for: {'; '.join(parts)}.")
    for entry in entries:
        if entry.fate != "mapped":
            _say(console, f"  {entry.fate} {entry.kind} {printable(entry.name)}: {entry.detail}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _decode(console: Console, result: DecodeResult, against: DecodeResult | None) -> None:
    from rich.table import Table

    engine = result.engine
    _say(
        console,
        f"\nDecoded {len(result.outputs)} prompts in {engine.name} {engine.version} on "
        f"{engine.device_name}, {engine.dtype}, greedy, k = {result.k}:",
    )
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in (
        "",
        "steps",
        "drafted",
        "accepted",
        "acceptance length",
        "accepted per position",
    ):
        table.add_column(column)
    rows = [("checkpoint", result)] + ([("source", against)] if against else [])
    for label, row in rows:
        acceptance = row.acceptance
        table.add_row(
            label,
            str(acceptance.drafts),
            str(acceptance.draft_tokens),
            str(acceptance.accepted),
            f"{acceptance.acceptance_length:.3f}",
            " ".join(map(str, acceptance.accepted_per_position)),
        )
    console.print(table)
    if engine.mends:
        _say(
            console,
            f"Put right in {engine.name}, which computes it otherwise than on a GPU: "
            f"{', '.join(engine.mends)}.",
        )


def _facts(console: Console, facts: Sequence[tuple[str, str]]) -> None:
    width = max(len(label) for label, _ in facts)
    for label, value in facts:
        _say(console, f"  {label:<{width}}  {printable(value)}")


def _sentences(console: Console, title: str, sentences: Iterable[str]) -> None:
    listed = list(sentences)
    if listed:
        _say(console, f"\n{title}:")
        for sentence in listed:
            _say(console, f"  - {printable(sentence)}")


def _say(console: Console, text: str) -> None:
    # Paths and names in it may be hostile; only our own line breaks stay.
    console.print("\n".join(printable(line) for line in text.split("\n")), markup=False)
