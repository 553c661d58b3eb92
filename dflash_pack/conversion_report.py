"""The report of a conversion, planned or done."""

from __future__ import annotations

from dflash_pack.conversion import Conversion
from dflash_pack.inspection import target_facts
from dflash_pack.packing import Packed
from dflash_pack.results import ConversionReport, OutputFile, WeightFacts


def report_conversion(
    conversion: Conversion, packed: Packed | None, *, seconds: float
) -> ConversionReport:
    """Return what ``conversion`` does, and what was written where ``packed`` is given."""
    if packed is None:
        files = tuple(OutputFile(s.name, s.nbytes, None) for s in conversion.tensors.shards)
    else:
        files = tuple(OutputFile(f.name, f.size, f.sha256) for f in packed.files)
    return ConversionReport(
        source=str(conversion.source.path),
        source_format=conversion.reading.format,
        out=None if packed is None else str(packed.out),
        form=conversion.form.format,
        target=target_facts(conversion.target),
        drafter=conversion.drafter,
        config=conversion.form.config,
        fields=conversion.form.fields,
        ledger=conversion.ledger.entries,
        source_engines=conversion.source_engines,
        engines=conversion.engines,
        notes=conversion.notes,
        warnings=conversion.warnings,
        weights=WeightFacts(
            weight_bytes=conversion.tensors.total_bytes,
            tensors=len(conversion.tensors.tensors),
            shards=len(conversion.tensors.shards),
        ),
        files=files,
        seconds=seconds,
    )
