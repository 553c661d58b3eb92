"""Peak memory of a piece of code, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

# VmHWM starts anew with the program; ru_maxrss would start with what the tests' process uses.
_REPORT = """
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def peak_mib(code: str, *arguments: str) -> float:
    """Run ``code`` with ``sys.argv[1:]`` set and return the MiB it needed at most."""
    done = subprocess.run(
        [sys.executable, "-c", code + _REPORT, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.splitlines()[-1]) / 1024
