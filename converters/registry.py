"""All formats: which one a source is, and the readers and writers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dflash_pack.checkpoint import Contents
from dflash_pack.converters import speculators, zlab
from dflash_pack.converters.reading import CONFIG, Reading
from dflash_pack.converters.tensor_facts import relative_of
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


READERS: tuple[Reader, ...] = (
    Reader(speculators.NAME, speculators.detect, speculators.read),
    Reader(zlab.NAME, zlab.detect, zlab.read),
)
# z-lab's form is the native one: both names are understood.
ALIASES: Mapping[str, str] = {"native": "zlab", "native-new": "zlab"}
WRITERS: Mapping[str, Callable[[Drafter, Target], WrittenForm]] = {
    "speculators": speculators.write,
    "native": zlab.write,
    "zlab": zlab.write,
    "native-new": partial(zlab.write, style="new"),
}


def read_drafter(
    contents: Contents, *, source_format: str | None = None, folder: Path | None = None
) -> Reading:
    """Return the meaning of a source in whatever format it is.

    Args:
        contents: Config, tensor headers and side file names.
        source_format: Name of the reader, None to detect it.
        folder: Where the source lies, for messages.

    Raises:
        UsageError: If ``source_format`` is no reader's name.
        CheckpointError: If no reader takes it, or it is of a family that none converts.
    """
    try:
        return _reader(contents, source_format).read(contents)
    except DflashPackError as error:
        if folder is not None and not isinstance(error, UsageError):
            error.locate(folder)
        raise


def _reader(contents: Contents, source_format: str | None) -> Reader:
    if source_format is not None:
        wanted = ALIASES.get(source_format, source_format)
        reader = next((r for r in READERS if r.name == wanted), None)
        if reader is None:
            known = ", ".join(r.name for r in READERS)
            raise UsageError(
                f"--from {source_format} is no known format", remedy=f"Use one of {known}"
            )
        return reader
    family = _foreign_family(contents)
    if family is not None:
        raise CheckpointError(
            f"this is a {family} drafter, which this version does not convert",
            remedy="It converts plain DFlash in z-lab's native form and in Speculators form",
        )
    for reader in READERS:
        if reader.detect(contents):
            return reader
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
            remedy=f"Use one of {', '.join(name for name in WRITERS if name != 'zlab')}",
        ) from None


def _foreign_family(contents: Contents) -> str | None:
    """Return the family of a drafter that is not plain DFlash, by config and tensor names."""
    config: Mapping[str, Any] = contents.config
    kind = config.get("speculators_model_type")
    if isinstance(kind, str) and kind != "dflash":
        return f"Speculators {kind}"
    if kind is not None and "model_type" in config and "dflash_config" in config:
        return "hybrid (native and Speculators keys in one config.json)"
    architectures = config.get("architectures")
    for name in architectures if isinstance(architectures, list) else ():
        for mark, family in (
            ("DFlash2", "DFlash2"),
            ("DSpark", "DSpark"),
            ("Laguna", "Laguna"),
            ("MuseGlimmer", "Muse Glimmer"),
        ):
            if mark in str(name):
                return family
    section = config.get("dflash_config")
    projector = section.get("projector_type") if isinstance(section, Mapping) else None
    if projector not in (None, "dflash"):
        return str(projector)
    if config.get("model_type") == "dflash" and "target_num_hidden_layers" in config:
        return "TorchSpec"
    if "has_embed_tokens" in config:
        return "Nemotron"
    return relative_of(contents.tensors)
