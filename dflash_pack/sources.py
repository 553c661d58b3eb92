"""Where trained weights lie: plain checkpoint folders, trainers' output folders, torch files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dflash_pack.checkpoint import (
    CONFIG_NAME,
    MAX_FILES,
    PICKLES,
    Checkpoint,
    not_a_folder,
    open_checkpoint,
)
from dflash_pack.errors import CheckpointError, UsageError
from dflash_pack.strict_json import read_json_object
from dflash_pack.target import is_drafter
from dflash_pack.training_state import STATE_NAME, open_torch_checkpoint

# speculators 0.9, speculators/train/checkpointer.py: numbered epochs beside a link to the best.
BEST_LINK = "checkpoint_best"
_INTERRUPTED = "interrupted"
# SpecForge 0.2.0, specforge/training/checkpoint.py: RUN-stepN beside RUN-latest and RUN-best.
_POINTER = re.compile(r".+-(latest|best)")
_STEP = re.compile(r".+-step\d+")
# Where a target's repository keeps its drafter (MiMo-V2.5).
DRAFTER_FOLDER = "dflash"
# A distributed checkpoint of torch, as FSDP trainers write it (TorchSpec: iter_N/model).
_SHARDED_MARK, _SHARDED_END = ".metadata", ".distcp"


def open_source(path: Path, *, draft_config: Path | None = None) -> Checkpoint:
    """Return the drafter that lies at ``path``, wherever its trainer left it.

    A folder with a ``config.json`` is opened as it is. Of a Speculators trainer's output folder it
    is the best epoch, of SpecForge's the one checkpoint that its pointers name; what more than one
    could be meant by is refused with the choices.

    Args:
        path: A folder, or a file that ``torch.save`` wrote.
        draft_config: The drafter's config, for weights that come without one.

    Raises:
        MissingHereError: ``path`` is the name of a Hub repository.
        UsageError: ``draft_config`` is missing, or given where a config is already there.
        CheckpointError: There is no drafter, the choice is not clear, or a file is broken, hostile
            or leads out of the folder.
    """
    if _is(path, stat.S_ISREG):
        return _open_file(path, draft_config)
    if not _is(path, stat.S_ISDIR):
        raise not_a_folder(str(path))
    names = _names(path)
    if STATE_NAME in names and CONFIG_NAME not in names:
        return open_torch_checkpoint(path / STATE_NAME, draft_config, folder=path)
    chosen = path if CONFIG_NAME in names else _chosen(path, names)
    if chosen != path and _is(chosen / STATE_NAME, stat.S_ISREG):
        return open_torch_checkpoint(chosen / STATE_NAME, draft_config, folder=chosen)
    if draft_config is not None and _is(chosen / CONFIG_NAME, stat.S_ISREG):
        raise UsageError(
            f"has a {CONFIG_NAME} of its own",
            where=chosen,
            remedy="Leave --draft-config out; --set FIELD=VALUE states single values",
        )
    _refuse_target(chosen)
    return open_checkpoint(chosen)


def _open_file(path: Path, draft_config: Path | None) -> Checkpoint:
    if path.name == STATE_NAME:
        return open_torch_checkpoint(path, draft_config, folder=path.parent)
    if path.suffix not in PICKLES:
        raise CheckpointError(
            "is a file", where=path, remedy="Give the folder, or a file that torch.save wrote"
        )
    return open_torch_checkpoint(path, draft_config)


def _names(folder: Path) -> list[str]:
    """Return the sorted names in ``folder``.

    Raises:
        CheckpointError: If it can't be listed, or holds absurdly many.
    """
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > MAX_FILES:
                    raise CheckpointError(
                        f"holds more than {MAX_FILES} files, which no checkpoint does", where=folder
                    )
    except OSError as error:
        raise CheckpointError(f"can't be listed ({error.strerror})", where=folder) from error
    return sorted(names)


def _chosen(folder: Path, names: Sequence[str]) -> Path:
    """Return the checkpoint inside a trainer's output folder, or ``folder`` where it is none.

    Raises:
        CheckpointError: If none or several could be meant.
    """
    _refuse_sharded(folder, names)
    if BEST_LINK in names:
        return _inside(folder, BEST_LINK)
    pointers = [name for name in names if _POINTER.fullmatch(name) and _is_state(folder, name)]
    if pointers:
        return _pointed(folder, pointers)
    epochs = [name for name in names if name.isascii() and (name.isdigit() or name == _INTERRUPTED)]
    epochs = sorted((name for name in epochs if _holds(folder, name, CONFIG_NAME)), key=_number)
    steps = [name for name in names if _STEP.fullmatch(name) and _is_state(folder, name)]
    if epochs:
        raise _unclear(folder, f"holds trained epochs and no {BEST_LINK}", epochs)
    if steps:
        raise _unclear(folder, "holds training steps and no RUN-latest", sorted(steps, key=_number))
    files = [name for name in names if name.endswith(PICKLES)]
    if files and not any(name.endswith(".safetensors") for name in names):
        what = f"holds no {CONFIG_NAME} but torch files"
        raise _unclear(folder, what, files, also=" with --draft-config")
    return folder


def _pointed(folder: Path, pointers: Sequence[str]) -> Path:
    """Return the one checkpoint that SpecForge's pointers lead to.

    Raises:
        CheckpointError: If they lead to several, be it of one run or of several.
    """
    targets = {name: _inside(folder, name) for name in pointers}
    if len(set(targets.values())) > 1:
        raise _unclear(folder, "holds several checkpoints", pointers)
    return targets[pointers[0]]


def _inside(folder: Path, name: str) -> Path:
    """Return the folder that ``name`` is or links to, as a path through ``folder``.

    Raises:
        CheckpointError: If it leads to nothing, to a file or out of ``folder``.
    """
    link, root = folder / name, folder.resolve()
    try:
        real = link.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            "is a link to nothing",
            where=link,
            remedy="Give the folder of the checkpoint itself",
        ) from error
    if not _is(real, stat.S_ISDIR):
        raise CheckpointError("is not a folder", where=link)
    if real == root or not real.is_relative_to(root):
        raise CheckpointError(
            "is a symbolic link that leaves the folder",
            where=link,
            remedy="Give the folder that it leads to",
        )
    return folder / real.relative_to(root)


def _is_state(folder: Path, name: str) -> bool:
    """Return whether ``name`` could be a training checkpoint: broken links count, to be named."""
    link = folder / name
    broken = link.is_symlink() and not _is(link, stat.S_ISDIR)
    return broken or _holds(folder, name, STATE_NAME)


def _holds(folder: Path, name: str, inner: str) -> bool:
    return _is(folder / name / inner, stat.S_ISREG)


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    """Return whether ``path`` is of that kind; what can't be looked at is of none."""
    try:
        return kind(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _refuse_sharded(folder: Path, names: Iterable[str]) -> None:
    """Refuse torch's distributed checkpoints, whose tensors lie in pieces over many files.

    Raises:
        CheckpointError: With the tool that joins them.
    """
    held = list(names)
    if "model" in held and _holds(folder, "model", _SHARDED_MARK):
        held = _names(folder / "model")
    if _SHARDED_MARK in held or any(name.endswith(_SHARDED_END) for name in held):
        raise CheckpointError(
            f"is a distributed checkpoint ({_SHARDED_MARK}, *{_SHARDED_END}), in pieces",
            where=folder,
            remedy=(
                "Join it with TorchSpec's scripts/tools/extract_dflash_checkpoint.py "
                f"--checkpoint_dir {folder} --output draft.pt, and pass draft.pt with "
                "--draft-config"
            ),
        )


def _refuse_target(folder: Path) -> None:
    """Refuse a target that keeps its drafter in a subfolder.

    Raises:
        CheckpointError: With the subfolder to pass.
    """
    if not _holds(folder, DRAFTER_FOLDER, CONFIG_NAME):
        return
    if not is_drafter(read_json_object(folder / CONFIG_NAME)):
        raise CheckpointError(
            f"is a target; its drafter lies in the subfolder {DRAFTER_FOLDER}",
            where=folder,
            remedy=f"Pass {folder / DRAFTER_FOLDER}",
        )


def _number(name: str) -> tuple[int, str]:
    """Return the key that sorts epochs and steps by their number, what has none last."""
    digits = re.search(r"\d{1,18}$", name)
    return (int(digits[0]) if digits else 1 << 62, name)


def _unclear(
    folder: Path, what: str, names: Sequence[str], *, also: str = "", limit: int = 8
) -> CheckpointError:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return CheckpointError(
        f"{what}: {', '.join(names[:limit])}{more}",
        where=folder,
        remedy=f"Pass the one you mean, for example {folder / names[-1]}{also}",
    )
