"""Speed and memory of ``dflash-pack convert`` against cp, sha256sum and ``speculators convert``.

Every figure is of a whole process, from start to exit. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
GB = 1_000_000_000
# convert hashes and scans, so the hash is its floor; without either it is a copy that is durable.
GOALS = {
    "convert": ("sha256sum", 1.25, 0.5),
    "convert --no-verify": ("cp", 1.3, 0.5),
}
MAX_PEAK_MB = 250


@dataclass(frozen=True)
class Case:
    """A command to measure; ``out`` is removed before each run."""

    name: str
    command: tuple[str, ...]
    out: Path | None
    runs: int


@dataclass(frozen=True)
class Run:
    """One run of a whole process: wall and CPU seconds, peak resident memory in bytes."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def main() -> int:
    """Measure, print a table, and return 1 where ``--check`` is given and a goal is missed."""
    arguments = _arguments()
    console = Console(width=120)
    load = os.getloadavg()[0]
    # Ended from outside, the temporary folder has to go all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="dflash-pack-bench-", dir=arguments.folder) as name:
        folder = Path(name)
        with_speculators = not arguments.skip_speculators and _has("speculators")
        weight_bytes = _make(folder, arguments.size, with_speculators)
        cases = list(_cases(folder, arguments, with_speculators))
        results = _measure(cases)
    report = _report(arguments.size, weight_bytes, load, cases, results)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    _print(console, report)
    return 1 if arguments.check and not all(goal["met"] for goal in report["goals"]) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--runs", type=int, default=5, help="of everything but speculators")
    parser.add_argument("--speculators-runs", type=int, default=1)
    parser.add_argument("--skip-speculators", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--folder", type=Path, help="where to make the temporary folder")
    parser.add_argument("--check", action="store_true", help="exit 1 where a goal is missed")
    return parser.parse_args()


def _make(folder: Path, size: str, target_weights: bool) -> int:
    """Make source and target; return the size of the weights' file."""
    from synthetic import SIZES

    needed = 2 * SIZES[size].weight_bytes + SIZES[size].target_bytes * target_weights + GB
    free = shutil.disk_usage(folder).free
    if free < needed:
        sys.exit(
            f"{folder.parent} has {free / GB:.1f} GB free, {needed / GB:.1f} GB are needed; give "
            "another --folder"
        )
    command = [sys.executable, str(HERE / "synthetic.py"), str(folder), size]
    subprocess.run(command + ["--target-weights"] * target_weights, check=True)
    return (folder / "source" / "model.safetensors").stat().st_size


def _cases(folder: Path, arguments: argparse.Namespace, with_speculators: bool) -> Iterator[Case]:
    source, target = str(folder / "source"), str(folder / "target")
    weights = f"{source}/model.safetensors"
    out = folder / "out"
    copy = str(folder / "copy")
    convert = [_tool("dflash-pack"), "convert", source, "--target", target, "-o", str(out)]
    convert += ["--target-id", "owner/name", "--quiet"]
    digest = "import hashlib, sys; hashlib.file_digest(open(sys.argv[1], 'rb'), 'sha256')"
    runs = arguments.runs
    yield Case("convert", tuple(convert), out, runs)
    yield Case("convert --no-verify", (*convert, "--no-verify"), out, runs)
    yield Case("cp", ("cp", weights, copy), Path(copy), runs)
    sync = 'cp "$1" "$2" && sync "$2"'
    yield Case("cp, then sync", ("sh", "-c", sync, "sh", weights, copy), Path(copy), runs)
    yield Case("sha256sum", ("sha256sum", weights), None, runs)
    yield Case("sha256 by OpenSSL", (sys.executable, "-c", digest, weights), None, runs)
    if with_speculators:
        command = [_tool("speculators"), "convert", source, "--algorithm", "dflash"]
        command += ["--verifier", target, "--output-path", str(out)]
        yield Case("speculators convert", tuple(command), out, arguments.speculators_runs)


def _measure(cases: Sequence[Case]) -> dict[str, list[Run]]:
    """Run the cases in turns, so that a slow minute of the machine hits all of them."""
    results: dict[str, list[Run]] = {case.name: [] for case in cases}
    for turn in range(max(case.runs for case in cases)):
        for case in cases:
            if turn < case.runs:
                results[case.name].append(_run(case))
    return results


def _run(case: Case) -> Run:
    _remove(case.out)
    os.sync()  # What the case before left to write must not slow this one.
    started = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(case.command, stdout=log, stderr=subprocess.STDOUT)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            tail = log.read()[-2000:].decode(errors="replace")
            sys.exit(f"{case.name} ended with {process.returncode}:\n{tail}")
    _remove(case.out)
    # A child starts with its parent's peak on its account, which is why sources are made elsewhere.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert own < MAX_PEAK_MB * 1000 // 2, "the benchmark itself is too large to measure others"
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def _report(
    size: str,
    weight_bytes: int,
    load: float,
    cases: Sequence[Case],
    results: Mapping[str, Sequence[Run]],
) -> dict[str, Any]:
    medians = {n: statistics.median(r.seconds for r in runs) for n, runs in results.items()}
    peaks = {n: max(r.peak_bytes for r in runs) for n, runs in results.items()}
    goals = []
    for name, (reference, factor, extra) in GOALS.items():
        limit = factor * medians[reference] + extra
        what = f"{name}: at most {factor} x ({reference}) + {extra} s"
        goals.append(_goal(what, medians[name], limit, "s"))
        what = f"{name}: peak memory under {MAX_PEAK_MB} MB"
        goals.append(_goal(what, peaks[name] / 1e6, MAX_PEAK_MB, "MB"))
    return {
        "size": size,
        "weight_bytes": weight_bytes,
        "machine": {
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "load": load,
            "cache": "warm: sources were just written and are read from memory",
        },
        "versions": {
            "python": platform.python_version(),
            **{n: _version(n) for n in ("dflash-pack", "speculators", "torch", "safetensors")},
        },
        "cases": {
            case.name: {
                "median_seconds": medians[case.name],
                "times_cp": medians[case.name] / medians["cp"],
                "times_sha256sum": medians[case.name] / medians["sha256sum"],
                "peak_bytes": peaks[case.name],
                "runs": [asdict(run) for run in results[case.name]],
            }
            for case in cases
        },
        "goals": goals,
    }


def _goal(what: str, value: float, limit: float, unit: str) -> dict[str, Any]:
    return {"goal": what, "value": value, "limit": limit, "unit": unit, "met": value <= limit}


def _print(console: Console, report: Mapping[str, Any]) -> None:
    machine, versions = report["machine"], report["versions"]
    console.print(
        f"{report['weight_bytes'] / GB:.2f} GB of weights, {machine['cores']} cores of "
        f"{machine['cpu']}, Linux {machine['kernel']}, load {machine['load']:.1f} before, "
        f"cache {machine['cache']}.",
        highlight=False,
    )
    console.print(", ".join(f"{n} {v}" for n, v in versions.items() if v) + "\n", highlight=False)
    table = Table(box=box.MARKDOWN)
    table.add_column("command")
    for column in ("median s", "min-max s", "CPU s", "x cp", "x sha256sum", "peak MB", "runs"):
        table.add_column(column, justify="right")
    for name, case in report["cases"].items():
        seconds = [run["seconds"] for run in case["runs"]]
        cpu = statistics.median(run["cpu_seconds"] for run in case["runs"])
        table.add_row(
            name,
            f"{case['median_seconds']:.2f}",
            f"{min(seconds):.2f}-{max(seconds):.2f}",
            f"{cpu:.2f}",
            f"{case['times_cp']:.2f}",
            f"{case['times_sha256sum']:.2f}",
            f"{case['peak_bytes'] / 1e6:.0f}",
            str(len(seconds)),
        )
    console.print(table)
    for goal in report["goals"]:
        verdict = "met" if goal["met"] else "MISSED"
        console.print(
            f"{verdict}: {goal['goal']} ({goal['value']:.2f} of {goal['limit']:.2f} "
            f"{goal['unit']})",
            highlight=False,
        )


def _remove(path: Path | None) -> None:
    if path is None:
        return
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _tool(name: str) -> str:
    """Return the program that belongs to this Python, never another one on PATH."""
    return str(Path(sys.executable).parent / name)


def _has(tool: str) -> bool:
    if Path(_tool(tool)).exists():
        return True
    print(f"{tool} is not installed, so it is not measured", file=sys.stderr)
    return False


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "?")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
