"""What every test can count on: no network, no token, no user's cache, one terminal width."""

from __future__ import annotations

import os
import tempfile

from hypothesis import settings

# Set before any test module is imported: huggingface_hub reads its variables once, on import.
# Children (the engine, the command line) inherit all of it.
_cache = tempfile.TemporaryDirectory(prefix="dflash-pack-tests-", ignore_cleanup_errors=True)

# Whatever the machine of a developer or of CI sets, the tests see the same.
_FOREIGN_PREFIXES = ("DFLASH_PACK_", "HF_", "HUGGING", "HUGGINGFACE_", "TRANSFORMERS_", "VLLM_")
_FOREIGN_NAMES = {
    "CI",  # changes how progress is shown
    "CLICOLOR_FORCE",
    "FORCE_COLOR",
    "GITHUB_ACTIONS",  # makes typer and rich force colours
    "PY_COLORS",
    "PYTHONDONTWRITEBYTECODE",  # makes each child compile the engine again
    "PYTHONPATH",
    "TERMINAL_WIDTH",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
}
for _name in list(os.environ):
    if _name.startswith(_FOREIGN_PREFIXES) or _name in _FOREIGN_NAMES:
        del os.environ[_name]

os.environ.update(
    COLUMNS="100",
    LINES="40",
    NO_COLOR="1",
    TZ="UTC",
    LC_ALL="C.UTF-8",
    HF_HOME=f"{_cache.name}/huggingface",
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    VLLM_CACHE_ROOT=f"{_cache.name}/vllm",
    VLLM_NO_USAGE_STATS="1",
    XDG_CACHE_HOME=f"{_cache.name}/xdg",
)

# Two shared cores make time limits per example flaky, and a failure must be the same for everyone.
settings.register_profile("dflash-pack", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("dflash-pack")
