"""Decode in a child process: started, watched, killed with all it started, and read."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dflash_pack.errors import CheckFailedError, MissingHereError
from dflash_pack.smoke.child import IMPORT_FAILED, segment_mark
from dflash_pack.smoke.environment import child_environment, require_engine
from dflash_pack.smoke.log import BoundedLog, telling
from dflash_pack.smoke.request import DecodeRequest
from dflash_pack.smoke.result import DecodeResult

GRACE_S = 3.0


class DecodeFailedError(CheckFailedError):
    """The engine crashed, refused the checkpoint, or didn't end in time.

    Attributes:
        log: The engine's log.
        telling: The part of the log that says why, empty when it says nothing.
    """

    def __init__(self, request: DecodeRequest, what: str, log: Path, telling: str = "") -> None:
        self.log = log
        self.telling = telling
        super().__init__(
            f"{what}: {telling}" if telling else what,
            where=request.drafter,
            remedy=f"The engine's log is {log}",
        )


def decode(request: DecodeRequest, *, timeout_s: float, log: Path) -> DecodeResult:
    """Decode in a real vLLM and return what it measured.

    Args:
        request: What to decode.
        timeout_s: Seconds for everything, the engine's imports and load included.
        log: File for the engine's output, overwritten; at most about 4.5 MiB.

    Raises:
        MissingHereError: There is no vLLM for the request's device here.
        DecodeFailedError: The engine crashed, refused the files, timed out or drafted nothing.
    """
    outcome = decode_many((request,), timeout_s=timeout_s, log=log)[0]
    if isinstance(outcome, DecodeFailedError):
        raise outcome
    return outcome


def decode_many(
    requests: Sequence[DecodeRequest], *, timeout_s: float, log: Path
) -> tuple[DecodeResult | DecodeFailedError, ...]:
    """Decode several requests one after the other; a failed one does not stop the others.

    On CPU they share one child process, which imports vLLM once and forks for each. On GPU each
    has a process of its own and a log of its own (``NAME.1.log``, ``NAME.2.log`` ...), since CUDA
    must not be forked and its load dwarfs the imports.

    Args:
        requests: All for the same device.
        timeout_s: Seconds for all of them together.
        log: As for :func:`decode`.

    Returns:
        For each request its result, or the error that :func:`decode` would have raised.

    Raises:
        MissingHereError: There is no vLLM for the requests' device here.
        ValueError: The requests are for different devices.
    """
    devices = {request.device for request in requests}
    if len(devices) != 1:
        raise ValueError(f"requests for {sorted(devices)} can't share an engine process")
    require_engine(requests[0].device)
    if requests[0].device == "cpu" or len(requests) == 1:
        return _in_one_child(requests, timeout_s, log)
    outcomes: list[DecodeResult | DecodeFailedError] = []
    left = timeout_s
    for number, request in enumerate(requests, start=1):
        started = time.monotonic()
        own_log = log.with_suffix(f".{number}{log.suffix}")
        outcomes += _in_one_child((request,), left, own_log)
        left = max(0.0, left - (time.monotonic() - started))
    return tuple(outcomes)


def _in_one_child(
    requests: Sequence[DecodeRequest], timeout_s: float, log: Path
) -> tuple[DecodeResult | DecodeFailedError, ...]:
    with tempfile.TemporaryDirectory(prefix="dflash-pack-") as folder:
        scratch = Path(folder)
        arguments: list[str] = []
        results: list[Path] = []
        for number, request in enumerate(requests):
            asked = scratch / f"request-{number}.json"
            asked.write_text(json.dumps(request.to_json()), encoding="utf-8")
            results.append(scratch / f"result-{number}.json")
            arguments += [str(asked), str(results[-1])]
        env = child_environment(requests, os.environ, scratch)
        status = _run(arguments, env, timeout_s, log)
        text = log.read_text(encoding="utf-8", errors="replace")
        if status == IMPORT_FAILED:
            raise _engine_does_not_load(telling(text), log)
        return tuple(
            _outcome(request, result, status, timeout_s, log, _segment(text, number, len(requests)))
            for number, (request, result) in enumerate(zip(requests, results, strict=True))
        )


def _run(arguments: list[str], env: dict[str, str], timeout_s: float, log: Path) -> int | None:
    """Run the child to its end; return its exit status, None when its time was up."""
    with BoundedLog(log) as output:
        process = subprocess.Popen(
            # -P: the working folder may be a checkpoint's, and must not be imported from.
            [sys.executable, "-P", "-m", "dflash_pack.smoke.child", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output.fileno(),
            stderr=subprocess.STDOUT,
            env=env,
            # A group of its own: it can be killed whole, and Ctrl-C reaches only us.
            start_new_session=True,
        )
        output.hand_over()
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the child and everything that it started and that stayed in its group."""
    if process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # nothing of the group is left
        os.killpg(process.pid, number)


def _engine_does_not_load(why: str, log: Path) -> MissingHereError:
    # A torchvision that was built for another torch breaks `import transformers`.
    media = any(name in why for name in ("torchvision", "torchaudio", "torchcodec"))
    return MissingHereError(
        f"vLLM is installed here but does not load: {why}",
        remedy="Run: pip uninstall -y torchvision torchaudio torchcodec (not needed here)"
        if media
        else f"Install it anew in an environment of its own; its log is {log}",
    )


def _segment(text: str, number: int, count: int) -> str:
    """Return the part of a shared log that belongs to one request."""
    if count == 1:
        return text
    _, mark, rest = text.partition(segment_mark(number) + "\n")
    return rest.partition(segment_mark(number + 1) + "\n")[0] if mark else text


def _outcome(
    request: DecodeRequest,
    result: Path,
    status: int | None,
    timeout_s: float,
    log: Path,
    output: str,
) -> DecodeResult | DecodeFailedError:
    data = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else None
    if data is None or "exit_status" in data:
        own_status = status if data is None else data["exit_status"]
        if own_status is None:
            return DecodeFailedError(request, f"vLLM did not end within {timeout_s:g} s", log)
        return DecodeFailedError(request, _ending(own_status), log, telling(output))
    decoded = DecodeResult.from_json(data)
    if not decoded.acceptance.drafts:
        return DecodeFailedError(
            request, "vLLM verified no draft: every answer ended at its first token", log
        )
    return decoded


def _ending(status: int) -> str:
    if status >= 0:
        return "vLLM failed"
    name = signal.Signals(-status).name
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"vLLM was killed by {name}{hint}"
