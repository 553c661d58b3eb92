#!/usr/bin/env bash
# mypy --strict on the installed wheel: type checkers do not follow setuptools' package-dir mapping,
# so in the source tree they would miss dflash_pack.converters and dflash_pack.schemas.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly root python="$root/.venv/bin/python"
[[ -x $python ]] || {
  echo 'typecheck: .venv is missing; run: bash scripts/setup.sh' >&2
  exit 1
}

temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT

quiet() { "$@" >"$temp/log" 2>&1 || {
  cat "$temp/log" >&2
  exit 1
}; }

# Built from a copy, since setuptools leaves build/ and *.egg-info beside the sources.
mkdir "$temp/tree"
cp -r "$root"/{pyproject.toml,README.md,LICENSE,dflash_pack,converters,schemas} "$temp/tree"
# setuptools of .venv is used as it is: no download for each check.
quiet "$python" -m build --no-isolation --wheel --outdir "$temp" "$temp/tree"
quiet "$python" -m pip install --no-deps --no-compile --no-index --target "$temp/site" "$temp"/*.whl

# From the folder with the wheel's contents: there it comes before the editable install in .venv.
cd "$temp/site"
"$python" -m mypy --strict --config-file "$root/pyproject.toml" \
  --python-executable "$python" --cache-dir "$root/.mypy_cache" -p dflash_pack
