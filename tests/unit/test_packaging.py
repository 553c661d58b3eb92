"""The distribution: what is in wheel and sdist, and that it works where only the wheel is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Folder in the source tree -> folder in the wheel.
MAPPED = {
    "dflash_pack": "dflash_pack",
    "converters": "dflash_pack/converters",
    "schemas": "dflash_pack/schemas",
}
SHIPPED = ("*.py", "py.typed", "*.j2", "*.jsonl", "*.schema.json")

# Modules that are run inside an engine's child process may need the engine on import. None so far.
NEEDS_AN_ENGINE: set[str] = set()

CHILD = """
import importlib, json, pkgutil, sys

site = sys.argv[1]
# The editable install of the source tree would stand in for whatever the wheel lacks.
sys.meta_path = [f for f in sys.meta_path if "editable" not in f"{f!r} {type(f)!r}"]
sys.path.insert(0, site)


class NoEngine:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "vllm", "speculators", "dflash"}:
            raise ImportError(f"the core must not import {name}")


sys.meta_path.insert(0, NoEngine())
import dflash_pack

files = {"dflash_pack": dflash_pack.__file__}
for module in pkgutil.walk_packages(dflash_pack.__path__, "dflash_pack."):
    if module.name.endswith("__main__") or module.name in set(sys.argv[2:]):
        continue
    files[module.name] = importlib.import_module(module.name).__file__
print(json.dumps(files))
"""


def shipped_files(root):
    """The files of the tree that belong into the wheel, by their name there."""
    return {
        f"{there}/{file.relative_to(root / here).as_posix()}"
        for here, there in MAPPED.items()
        for pattern in SHIPPED
        for file in (root / here).rglob(pattern)
    }


def build(tree, out, *what):
    # Without isolation: the setuptools of this environment, and no download.
    command = [sys.executable, "-m", "build", "--no-isolation", *what, "--outdir", out, tree]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of what the build reads: setuptools leaves build/ and egg-info beside its sources."""
    copy = tmp_path_factory.mktemp("tree")
    for name in MAPPED:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    build(tree, out, "--wheel")
    (file,) = out.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """A folder with the wheel installed and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*command, "--no-compile", "--target", folder, wheel], check=True)
    return folder


@pytest.fixture(scope="module")
def wheel_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_wheel_holds_every_module_and_data_file_and_nothing_else(tree, wheel):
    assert contents(wheel) == shipped_files(tree)


def test_sdist_is_enough_to_build_the_same_wheel(tree, wheel, tmp_path):
    build(tree, tmp_path)  # an sdist, and a wheel from that sdist
    (from_sdist,) = tmp_path.glob("*.whl")
    assert contents(from_sdist) == contents(wheel)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        top_level = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml"} <= top_level


def test_every_module_imports_from_the_wheel_without_an_engine(tree, site, tmp_path):
    command = [sys.executable, "-I", "-c", CHILD, str(site), *NEEDS_AN_ENGINE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)
    outside = {name: file for name, file in files.items() if not Path(file).is_relative_to(site)}
    assert outside == {}
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in shipped_files(tree)
        if name.endswith(".py") and not name.endswith("__main__.py")
    }
    assert set(files) == modules - NEEDS_AN_ENGINE


@pytest.mark.parametrize("folder", MAPPED)
def test_editable_install_reads_the_source_tree(folder, tmp_path):
    module = MAPPED[folder].replace("/", ".")
    code = f"import {module}; print({module}.__file__)"
    command = [sys.executable, "-I", "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert Path(out.strip()) == ROOT / folder / "__init__.py"


def test_console_script_starts_the_command_line(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/entry_points.txt"))
        lines = archive.read(name).decode().split("\n")
    assert "dflash-pack = dflash_pack.cli:main" in lines
    (script,) = metadata.entry_points(group="console_scripts", name="dflash-pack")
    assert callable(script.load())


def test_core_dependencies_are_light(wheel_metadata):
    required = wheel_metadata.get_all("Requires-Dist")
    core = {re.match(r"[\w-]+", line).group() for line in required if "extra ==" not in line}
    light = "PyYAML huggingface_hub jinja2 numpy pydantic rich safetensors typer"
    assert core == set(light.split())


def test_licence_is_in_the_wheel(wheel, wheel_metadata):
    assert wheel_metadata["License-Expression"] == "Apache-2.0"
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in archive.namelist())


def test_changelog_begins_with_this_version():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE).group(1)
    assert newest == PROJECT["version"]
