"""All formats: which one a source is, and the readers and writers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dflash_pack.checkpoint import Contents
from dflash_pack.converters import (
    automodel,
    dflash2,
    dspark,
    laguna,
    mimo,
    modelopt,
    muse,
    nemotron,
    relatives,
    specforge,
    speculators,
    torchspec,
    universal,
    zlab,
)
from dflash_pack.converters.reading import CONFIG, Reading
from dflash_pack.converters.writing import WrittenForm
from dflash_pack.drafter import Drafter
from dflash_pack.errors import CheckpointError, DflashPackError, UsageError
from dflash_pack.target import Target


@dataclass(frozen=True)
class Reader:
    """One source format."""

    name: str
    detect: Callable[[Contents], bool]
    read: Callable[[Contents], Reading]


# Each answers only to its own marks; two that answer are refused.
NATIVE_READERS: tuple[Reader, ...] = (
    Reader(specforge.NAME, specforge.detect, specforge.read),
    Reader(modelopt.NAME, modelopt.detect, modelopt.read),
    Reader(torchspec.NAME, torchspec.detect, torchspec.read),
    Reader(automodel.NAME, automodel.detect, automodel.read),
    Reader(mimo.NAME, mimo.detect, mimo.read),
    Reader(nemotron.NAME, nemotron.detect, nemotron.read),
    Reader(muse.NAME, muse.detect, muse.read),
    Reader(laguna.NAME, laguna.detect, laguna.read),
    Reader(dflash2.NAME, dflash2.detect, dflash2.read),
    Reader(dspark.NAME, dspark.detect, dspark.read),
)
# Plain native DFlash that no other reader knows as its own.
FALLBACK = Reader(zlab.NAME, zlab.detect, zlab.read)


def _read_native_half(contents: Contents) -> Reading:
    return _only(contents, NATIVE_READERS).read(contents)


READERS: tuple[Reader, ...] = (
    Reader(speculators.NAME, speculators.detect, speculators.read),
    Reader(
        universal.NAME, universal.detect, partial(universal.read, read_native=_read_native_half)
    ),
    *NATIVE_READERS,
)
# z-lab's form is the native one: both names are understood.
ALIASES: Mapping[str, str] = {"native": "zlab", "native-new": "zlab"}


def _write_native(drafter: Drafter, target: Target, *, style: zlab.Style = "old") -> WrittenForm:
    write = laguna.write if drafter.family == "laguna" else zlab.write
    return write(drafter, target, style=style)


WRITERS: Mapping[str, Callable[[Drafter, Target], WrittenForm]] = {
    "speculators": speculators.write,
    "native": _write_native,
    "native-new": partial(_write_native, style="new"),
    "universal": universal.write,
}


def read_drafter(
    contents: Contents,
    *,
    source_format: str | None = None,
    folder: Path | None = None,
    config_file: Path | None = None,
) -> Reading:
    """Return the meaning of a source in whatever format it is.

    Args:
        contents: Config, tensor headers and side file names.
        source_format: Name of the reader, None to detect it.
        folder: Where the source lies, for messages.
        config_file: What stands for its ``config.json``, where that lies elsewhere.

    Raises:
        UsageError: If ``source_format`` is no reader's name.
        CheckpointError: If no reader takes it, or it is of a family that none converts.
    """
    reader = _reader(contents, source_format)
    try:
        return reader.read(contents)
    except DflashPackError as error:
        if source_format is not None and not reader.detect(contents):
            leave = f"leave --from {source_format} out if the source is in another format"
            error.advise(f"{error.remedy}, or {leave}" if error.remedy else leave.capitalize())
        if folder is not None and not isinstance(error, UsageError):
            error.locate(folder, config_file)
        raise


def _reader(contents: Contents, source_format: str | None) -> Reader:
    if source_format is not None:
        wanted = ALIASES.get(source_format, source_format)
        known = (*READERS, FALLBACK)
        reader = next((r for r in known if r.name == wanted), None)
        if reader is None:
            raise UsageError(
                f"--from {source_format} is no known format",
                remedy=f"Use one of {', '.join(r.name for r in known)}",
            )
        return reader
    refused = relatives.refusal(contents)
    if refused is not None:
        raise refused
    return _only(contents, READERS)


def _only(contents: Contents, readers: Sequence[Reader]) -> Reader:
    """Return the one reader that knows ``contents``, or the fallback.

    Raises:
        CheckpointError: If several do, or none.
    """
    found = [reader for reader in readers if reader.detect(contents)]
    if len(found) > 1:
        names = [reader.name for reader in found]
        raise CheckpointError(
            f"could be in any of the formats {', '.join(names)}",
            where=CONFIG,
            remedy=f"Pass {' or '.join(f'--from {name}' for name in names)}",
        )
    if found:
        return found[0]
    if FALLBACK.detect(contents):
        return FALLBACK
    raise CheckpointError(
        "holds neither dflash_config nor speculators_model_type, so it is no DFlash drafter",
        where=CONFIG,
        remedy="Give the folder of the drafter, not of the target",
    )


def writer(form: str) -> Callable[[Drafter, Target], WrittenForm]:
    """Return the writer of an output form.

    Raises:
        UsageError: If there is none of that name.
    """
    try:
        return WRITERS[form]
    except KeyError:
        raise UsageError(
            f"--format {form} is no form that this version writes",
            remedy=f"Use one of {', '.join(WRITERS)}",
        ) from None
