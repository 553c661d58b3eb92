"""The static checks of ``validate``: headers, bytes and meanings; no engine runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from dflash_pack.agreement import mask_token_problem, target_problems, tensor_problems, view_engines
from dflash_pack.checkpoint import (
    MANIFEST_NAME,
    Checkpoint,
    TensorInfo,
    is_repository,
)
from dflash_pack.conversion import comparable
from dflash_pack.converters.reading import CONFIG, Reading
from dflash_pack.converters.registry import read_drafter
from dflash_pack.converters.side_files import MASK_EMBEDDING, QUANT_CONFIG, READ_BY_ENGINES
from dflash_pack.converters.tensor_facts import EMBEDDING, HEAD
from dflash_pack.drafter import Drafter
from dflash_pack.engines.launch import shell
from dflash_pack.engines.limits import speculators_form_problems
from dflash_pack.errors import DflashPackError
from dflash_pack.file_reading import same_bytes
from dflash_pack.finite_scan import scan_finite
from dflash_pack.forms import form_of, must_agree
from dflash_pack.hub.manifest import Manifest, read_manifest
from dflash_pack.hub.manifest import read_drafter as recorded_drafter
from dflash_pack.mask_embedding import require_mask_embedding
from dflash_pack.results import Check, Status
from dflash_pack.target import Target, find_target_tensor
from dflash_pack.torch_file import read_plain_tensors
from dflash_pack.vocabulary_map import vocabulary_problem

_PICKLES = ("*.pt", "*.pth", "*.bin", "*.pkl", "*.pickle", "*.ckpt")
_KNOWN_FILES = (
    "README.md",
    "LICENSE*",
    "NOTICE*",
    MANIFEST_NAME,
    MASK_EMBEDDING,
    QUANT_CONFIG,
    "generation_config.json",
    ".gitattributes",
)


@dataclass(frozen=True)
class StaticResult:
    """All static checks, and the meaning they are about; None where the config can't be read."""

    checks: tuple[Check, ...]
    reading: Reading | None


def static_checks(
    checkpoint: Checkpoint, target: Target | None, digests: dict[str, str]
) -> StaticResult:
    """Run every check that needs no engine.

    Args:
        checkpoint: The checkpoint.
        target: The model that verifies; without it the checks about it are not run.
        digests: Name -> sha256 of the folder's files.
    """
    try:
        reading = read_drafter(checkpoint.contents)
    except DflashPackError as error:
        failed = Check("config.meaning", "failed", error.finding(), _at_convert(error))
        return StaticResult((failed, *_files(checkpoint, None), *_finite(checkpoint)), None)
    drafter = reading.drafter
    checks = [
        Check(
            "config.meaning",
            "passed",
            f"read as {reading.format}: every key and tensor is accounted for, window, rope, block "
            "size and mask token are stated once or equal",
        ),
        *_tensors(checkpoint, reading),
        *_finite(checkpoint),
        *_layers(drafter),
        *_mask_token(drafter, target),
        *_vocabulary(checkpoint, reading),
        *_dtype(checkpoint, reading),
        *_target(drafter, target),
        *_rope_cache(drafter, target),
        *_verifier(drafter, reading),
        *_shared(checkpoint, reading, target),
        *_files(checkpoint, drafter),
        *_record(checkpoint, reading, digests),
        *_engines(checkpoint, reading, target),
    ]
    return StaticResult(tuple(checks), reading)


def _at_convert(error: DflashPackError) -> str:
    """Return the remedy; what names an option is for ``convert``, which has it."""
    remedy = error.remedy or "Correct the file, or convert the source again"
    return f"{remedy} (to dflash-pack convert)" if "--" in remedy else remedy


def _tensors(checkpoint: Checkpoint, reading: Reading) -> Iterator[Check]:
    present = reading.canonical(checkpoint.contents)
    problems = tensor_problems(reading.drafter, present)
    if not problems:
        yield Check("tensors.set", "passed", f"exactly the {len(present)} tensors of this geometry")
    for problem in problems:
        yield Check(
            "tensors.set",
            "failed",
            problem,
            "Export the drafter again: engines load this silently and draft garbage",
        )


def _finite(checkpoint: Checkpoint) -> Iterator[Check]:
    result = scan_finite(checkpoint)
    for bad in result.non_finite:
        yield Check(
            "tensors.finite",
            "failed",
            f"{bad.name} holds {bad.nan} NaN and {bad.infinite} infinite values",
            "Export the drafter again from a sound training state",
        )
    if result.unscanned:
        yield Check(
            "tensors.finite",
            "warning",
            f"{len(result.unscanned)} tensors are of a dtype that is not scanned",
            "None needed for integer and packed weights",
        )
    elif result.clean:
        yield Check("tensors.finite", "passed", "every weight is finite")


def _layers(drafter: Drafter) -> Iterator[Check]:
    ids = drafter.target_layer_ids
    if list(ids) == sorted(set(ids)):
        yield Check("target_layers.order", "passed", f"target layers {list(ids)} ascend")
    else:
        yield Check(
            "target_layers.order",
            "failed",
            f"target layers {list(ids)} do not ascend: vLLM and TensorRT-LLM capture in layer "
            "order, so the slices of fc would meet other layers",
            "Sort the ids together with the column slices of fc",
        )
    k, block = drafter.speculative_tokens, drafter.block_size
    yield Check("block_size.tokens", "passed", f"a block of {block} gives k = {k}")


def _mask_token(drafter: Drafter, target: Target | None) -> Iterator[Check]:
    mask = drafter.vocabulary.mask_token_id
    used = {value: name for name, value in drafter.token_ids if isinstance(value, int)}
    if mask in used:
        yield Check(
            "mask_token.unused",
            "warning",
            f"mask token {mask} is also {used[mask]}",
            "Check that the drafter was trained with it",
        )
        return
    if target is None or target.special_tokens is None or target.tokenizer_size is None:
        yield Check("mask_token.unused", "not run", "no tokenizer of the target is at hand")
        return
    problem = mask_token_problem(drafter, target)
    if problem is not None:
        yield Check(
            "mask_token.unused",
            "failed",
            problem,
            "State the id that the drafter was trained with: --set ...mask_token_id=ID at convert",
        )
    elif mask in target.special_tokens:
        name = target.special_tokens[mask]
        yield Check("mask_token.unused", "passed", f"mask token {mask} is the special token {name}")
    else:
        yield Check(
            "mask_token.unused", "passed", f"mask token {mask} is an id that no text produces"
        )


def _vocabulary(checkpoint: Checkpoint, reading: Reading) -> Iterator[Check]:
    vocabulary = reading.drafter.vocabulary
    if not vocabulary.reduced:
        yield Check("vocabulary.map", "passed", f"full vocabulary of {vocabulary.size}")
        return
    tensors = _by_canonical_name(checkpoint, reading)
    if not {"d2t", "t2d", HEAD} <= tensors.keys():
        yield Check(
            "vocabulary.map",
            "failed",
            "a reduced vocabulary needs d2t, t2d and a head of its own",
            "Export the drafter again with its vocabulary map",
        )
        return
    problem = vocabulary_problem(tensors["d2t"], tensors["t2d"], vocabulary.size)
    if problem is None:
        yield Check(
            "vocabulary.map",
            "passed",
            f"{vocabulary.draft_size} of {vocabulary.size} tokens, d2t and t2d agree",
        )
    else:
        yield Check("vocabulary.map", "failed", problem, "Export the drafter again")


def _dtype(checkpoint: Checkpoint, reading: Reading) -> Iterator[Check]:
    present = reading.canonical(checkpoint.contents)
    kinds = sorted({spec.dtype for name, spec in present.items() if name not in ("d2t", "t2d")})
    if len(kinds) == 1:
        yield Check("dtype.uniform", "passed", f"all weights are {kinds[0]}")
    else:
        yield Check(
            "dtype.uniform",
            "warning",
            f"weights are of several dtypes: {', '.join(kinds)}",
            "None needed: engines load the drafter in the target's dtype",
        )


def _target(drafter: Drafter, target: Target | None) -> Iterator[Check]:
    if target is None:
        yield Check("target.fit", "not run", "no target was given: pass --target")
        return
    problems = target_problems(drafter, target)
    for check, sentence in problems:
        status: Status = "warning" if check == "target.architecture" else "failed"
        yield Check(check, status, sentence, "Give the target the drafter was trained for")
    if not problems:
        yield Check(
            "target.fit",
            "passed",
            f"width {target.hidden_size}, vocabulary {target.vocab_size} and "
            f"{target.num_hidden_layers} layers fit the target",
        )


def _rope_cache(drafter: Drafter, target: Target | None) -> Iterator[Check]:
    """Check that vLLM's rope table reaches as far as the target's context.

    vllm 0.32 makes it ``max_position_embeddings`` long for DFlash, for yarn factor x original
    (layers/rotary_embedding); beyond it, it reads what lies behind the table.
    """
    longest = None if target is None else target.max_position_embeddings
    if longest is None:
        return
    rope, extras = drafter.rope, dict(drafter.rope.extras)
    rows = drafter.geometry.max_position_embeddings
    factor, original = extras.get("factor"), extras.get("original_max_position_embeddings")
    if rope.kind == "yarn" and isinstance(factor, int | float) and isinstance(original, int):
        rows = int(factor * original)
    if rows >= longest:
        yield Check("rope.cache", "passed", f"its table of {rows} rows covers the target's context")
    else:
        yield Check(
            "rope.cache",
            "warning",
            f"its table has {rows} rows, the target's context {longest} tokens: vLLM 0.32 reads "
            "outside it in longer contexts",
            f"Serve with --max-model-len {rows}",
        )


def _verifier(drafter: Drafter, reading: Reading) -> Iterator[Check]:
    if reading.format != "speculators":
        return
    name = drafter.verifier
    if name and is_repository(name):
        yield Check("verifier.hub_id", "passed", f"the verifier is {name}")
    else:
        yield Check(
            "verifier.hub_id",
            "warning",
            f"the verifier is {name!r}, no Hub id: vLLM 0.33 won't serve this checkpoint alone",
            "Convert with --target-id OWNER/NAME before you publish",
        )


def _shared(checkpoint: Checkpoint, reading: Reading, target: Target | None) -> Iterator[Check]:
    tensors = _by_canonical_name(checkpoint, reading)
    for canonical, kind in ((EMBEDDING, "embedding"), (HEAD, "head")):
        mine = tensors.get(canonical)
        if mine is None or (kind == "head" and reading.drafter.vocabulary.reduced):
            continue
        theirs = None if target is None else find_target_tensor(target, kind)
        if theirs is not None and same_bytes(mine, theirs):
            yield Check(
                "weights.shared",
                "warning",
                f"{canonical} equals the target's {theirs.name} and only takes space",
                "Convert again with the target's weights at hand to leave it out",
            )
        else:
            yield Check("weights.shared", "passed", f"the drafter has its own {kind}")


def _files(checkpoint: Checkpoint, drafter: Drafter | None) -> Iterator[Check]:
    names = [file.name for file in checkpoint.side_files]
    pickles = [n for n in names if _matches(n, _PICKLES) and n != MASK_EMBEDDING]
    code = [n for n in names if n.endswith(".py")]
    unknown = [n for n in names if n not in (*pickles, *code) and not _matches(n, _KNOWN_FILES)]
    if pickles:
        yield Check(
            "files.no_pickles",
            "failed",
            f"pickles lie here: {', '.join(pickles[:4])}",
            "Remove them",
        )
    if code or "auto_map" in checkpoint.config:
        what = ", ".join(code[:4]) if code else f"auto_map in {CONFIG}"
        yield Check(
            "files.no_remote_code", "failed", f"remote code: {what}", "Convert: the result has none"
        )
    if MASK_EMBEDDING in names:
        path = next(f.path for f in checkpoint.side_files if f.name == MASK_EMBEDDING)
        try:
            finding = _mask_embedding(path, drafter)
        except DflashPackError as error:
            yield Check("files.mask_embedding", "failed", error.finding(), error.remedy or "")
        else:
            yield Check("files.mask_embedding", "passed", f"{MASK_EMBEDDING} holds {finding}")
    if unknown:
        yield Check(
            "files.known",
            "warning",
            f"files that no engine reads: {', '.join(unknown[:4])}",
            "Leave them out of the release; push does",
        )
    if not pickles and not code and not unknown:
        yield Check("files.known", "passed", "no pickle, no code, no stray file")


def _mask_embedding(path: Path, drafter: Drafter | None) -> str:
    """Return what the file holds, which is less where the config can't be read.

    Raises:
        DflashPackError: If it is not what belongs there.
    """
    if drafter is None:
        read_plain_tensors(path)
        return "tensors only"
    require_mask_embedding(path, drafter)
    return "one embedding, for the mask token"


def _record(checkpoint: Checkpoint, reading: Reading, digests: dict[str, str]) -> Iterator[Check]:
    folder = checkpoint.path
    if MANIFEST_NAME not in digests:
        return
    try:
        manifest = read_manifest(folder)
    except DflashPackError as error:
        remedy = error.remedy or "Convert the source again: the record speaks of it"
        yield Check("files.record", "failed", error.finding(), remedy)
        return
    problem = _record_problem(manifest, checkpoint, reading, digests)
    if problem is not None:
        yield Check(
            "files.record",
            "failed",
            problem,
            "Convert again, or validate the changed folder as a source of its own",
        )
    else:
        yield Check(
            "files.record", "passed", f"all {len(manifest.files)} files are as convert wrote them"
        )


def _record_problem(
    manifest: Manifest, checkpoint: Checkpoint, reading: Reading, digests: dict[str, str]
) -> str | None:
    """Return in what the folder is not what its record says, None if it is."""
    read = {CONFIG, *(shard.name for shard in checkpoint.shards)}
    read |= READ_BY_ENGINES & digests.keys()
    unlisted = sorted(read - manifest.files.keys())
    if unlisted:
        return f"{unlisted[0]} is read by engines, but {MANIFEST_NAME} does not list it"
    for name, record in manifest.files.items():
        if digests.get(name) != record.sha256:
            return f"{name} is not what convert wrote (sha256 in {MANIFEST_NAME})"
    form = form_of(checkpoint.config)
    if form != manifest.format:
        return f"{MANIFEST_NAME} says format {manifest.format}, the files are {form}"
    recorded = recorded_drafter(manifest, where=checkpoint.path / MANIFEST_NAME)
    if comparable(recorded) != comparable(reading.drafter):
        return f"the drafter in {MANIFEST_NAME} is not what the files mean"
    verifier = reading.drafter.verifier
    if verifier is not None and verifier != manifest.target.identifier:
        return f"{MANIFEST_NAME} names target {manifest.target.identifier}, {CONFIG} {verifier}"
    return None


def _engines(checkpoint: Checkpoint, reading: Reading, target: Target | None) -> Iterator[Check]:
    form = form_of(checkpoint.config)
    views = view_engines(reading.drafter, checkpoint.contents, target)
    aim = "TARGET" if target is None else target.path
    # Never the form that can't carry it: the command is to be taken at its word.
    other = ("--format", "universal") if speculators_form_problems(reading.drafter) else ()
    command = ("dflash-pack", "convert", str(checkpoint.path), "--target", str(aim), *other)
    mend = f"Mend it: {shell((*command, '--output', 'NEW_FOLDER'))}"
    for view in views:
        engine = view.meaning.engine
        name, served = f"engine.{engine}", must_agree(form, engine, views)
        label = f"{engine} {view.meaning.versions}"
        if view.agrees:
            yield Check(name, "passed", f"{label} will do what is meant")
        elif served:
            for problem in view.problems():
                yield Check(name, "failed", problem.rstrip("."), mend)
        elif view.meaning.refusals:
            yield Check(name, "not run", view.meaning.refusals[0].rstrip("."))
        else:
            for difference in view.differences:
                yield Check(
                    name, "warning", difference.sentence(), "Serve with vLLM, which does as meant"
                )


def _by_canonical_name(checkpoint: Checkpoint, reading: Reading) -> dict[str, TensorInfo]:
    tensors = checkpoint.tensors
    return {to: tensors[n] for n, to in reading.tensor_names.items() if to is not None}


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name.rsplit("/", 1)[-1], pattern) for pattern in patterns)
