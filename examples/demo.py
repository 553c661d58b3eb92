"""The main job on the bundled pair: inspect, convert, prove by decoding, plan the publish.

Run by ``make demo``; every step prints the command that it runs, so that it can be run by hand.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOL = Path(sys.executable).parent / "dflash-pack"
TARGET, DRAFTER = "examples/tiny/target", "examples/tiny/drafter"
PROMPTS = "examples/tiny/prompts.jsonl"

STEPS = (
    (
        "1. What is this drafter, and what would each engine do with its files as they are?",
        ["inspect", DRAFTER, "--target", TARGET],
    ),
    (
        """2. Convert it. Every config key and tensor is accounted for before a byte is written.
   (--target-id is what the Hub calls the target; here a made-up name.)""",
        ["convert", DRAFTER, "--target", TARGET, "--target-id", "example/tiny-target"],
    ),
    (
        """3. Prove it: a real vLLM decodes with the source and with the result, on this CPU. The
   accepted tokens must be equal at each position, the output the target's own.""",
        ["validate", "--target", TARGET, "--cpu", "--against", DRAFTER, "--prompts", PROMPTS],
    ),
    (
        "4. What would be published: files, hashes and the model card, made from the facts above.",
        ["push", "example/tiny-dflash", "--dry-run", "--license", "apache-2.0"],
    ),
)


def main() -> int:
    """Run the four steps in a temporary folder; return the first exit code that is not 0."""
    with tempfile.TemporaryDirectory(prefix="dflash-pack-demo-") as folder:
        out = str(Path(folder) / "tiny-dflash")
        for title, (command, *rest) in STEPS:
            arguments = [command, *rest]
            if command == "convert":
                arguments += ["--output", out]
            elif command in ("validate", "push"):
                arguments.insert(1, out)
            width = min(shutil.get_terminal_size().columns, 100)
            print(
                f"\n{'=' * width}\n{title}\n\n$ dflash-pack {shlex.join(arguments)}\n", flush=True
            )
            code = subprocess.run([TOOL, *arguments], cwd=ROOT, check=False).returncode
            if code != 0:
                print(f"\nThis step ended with exit code {code}.", file=sys.stderr)
                return code
    print("\nDone: the result drafts exactly as its source, and nothing was sent anywhere.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
