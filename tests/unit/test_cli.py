"""The command line: exit codes, one sentence on stderr, JSON, and nothing imported too early."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import typer
from made import MIXED, NATIVE, checkpoint, native, target_folder
from no_privilege import without_override
from raw_safetensors import raw, write_checkpoint, write_index
from torch_files import save_step

from dflash_pack.checkpoint import VALIDATION_NAMES
from dflash_pack.cli import app

HEAVY = ("torch", "transformers", "speculators", "vllm", "huggingface_hub", "pydantic", "numpy")


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(*arguments, env=None):
    """Run a command in this process, which is ten times faster than a new one."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as stopped:
            app([*map(str, arguments)], prog_name="dflash-pack")
    return Done(stopped.value.code or 0, stdout.getvalue(), stderr.getvalue())


def run_apart(code, *arguments, env=None):
    """Run Python code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | (env or {}),
        check=False,
    )


IMPORTED = (
    "import sys\n"
    "from dflash_pack.cli import app\n"
    "try: app(sys.argv[2:], prog_name='dflash-pack')\n"
    "except SystemExit as stopped: assert not stopped.code\n"
    "print([m for m in sys.argv[1].split() if m in sys.modules], file=sys.stderr)\n"
)


def refused(done, code, *words):
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stderr.startswith("dflash-pack: ")
    for word in words:
        assert word in done.stderr


@pytest.fixture
def pair(tmp_path):
    return checkpoint(tmp_path / "source", NATIVE), target_folder(tmp_path / "target")


def snapshot(folder: Path):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_help_and_version_import_nothing_heavy():
    done = run_apart(IMPORTED, " ".join(HEAVY), "--help")
    assert done.stderr.strip() == "[]"
    for command in ("inspect", "convert", "validate", "launch", "push", "schema"):
        assert command in done.stdout
    assert run("--version").stdout.startswith("dflash-pack 0.")


def test_convert_and_inspect_never_import_torch(pair, tmp_path):
    source, target = pair
    out = tmp_path / "out"
    for arguments in (
        ["inspect", source, "-t", target],
        ["convert", source, "-t", target, "-o", out, "--target-id", "owner/target"],
        ["validate", out, "-t", target],
        ["launch", out],
        ["push", out, "owner/name", "--dry-run"],
    ):
        done = run_apart(IMPORTED, " ".join(HEAVY[:4]), *arguments)
        assert done.stderr.strip().splitlines()[-1] == "[]", done.stderr


def test_every_option_has_its_environment_variable():
    seen = 0
    for name, command in typer.main.get_command(app).commands.items():
        for option in command.params:
            if option.param_type_name == "option":
                seen += 1
                assert str(option.envvar).startswith("DFLASH_PACK_"), (name, option.name)
    assert seen > 30


def test_an_environment_variable_stands_for_its_option(pair, tmp_path):
    source, target = pair
    env = {"DFLASH_PACK_TARGET": str(target), "DFLASH_PACK_OUTPUT": str(tmp_path / "out")}
    assert run("convert", source, env=env).returncode == 0
    assert (tmp_path / "out" / "config.json").is_file()


def test_usage_errors_exit_2(pair, tmp_path):
    source, target = pair
    assert run("convert", source).returncode == 2
    assert run("nonsense").returncode == 2
    refused(
        run("convert", source, "-t", target, "-o", tmp_path / "o", "--format", "gguf"),
        2,
        "--format gguf is no form that this version writes",
    )
    refused(run("convert", source, "-t", target, "-o", tmp_path / "o", "--set", "x"), 2, "--set x")


DECODE_OPTIONS = {
    "--against": "folder",
    "--from": "zlab",
    "--set": "a=1",
    "--allow-lossy": "a",
    "--prompts": "file",
    "--k": 3,
    "--max-tokens": 8,
    "--dtype": "bfloat16",
    "--near-tie-gap": 0.5,
    "--min-acceptance-length": 2,
    "--baseline": "file",
    "--tolerance": 0.1,
    "--seed": 1,
    "--timeout": 9,
}
SOURCE_OPTIONS = ("--from", "--set", "--allow-lossy")


@pytest.mark.parametrize("option", DECODE_OPTIONS)
def test_an_option_that_would_do_nothing_is_refused(pair, option):
    source, target = pair
    value = DECODE_OPTIONS[option]
    refused(run("validate", source, option, value), 2, f"{option} is about a decode", "--cpu")
    if option in SOURCE_OPTIONS:
        done = run("validate", source, "-t", target, "--cpu", option, value)
        refused(done, 2, f"{option} is about a source", "--against")


def test_every_option_of_a_decode_is_among_them():
    """Whatever is new has to be said to be about a decode, or to be about every validation."""
    options = typer.main.get_command(app).commands["validate"].params
    names = {p.opts[0] for p in options if p.param_type_name == "option"}
    always = {"--target", "--cpu", "--gpu", "--report", "--json", "--quiet", "--no-color"}
    assert names - always == set(DECODE_OPTIONS)


def test_launch_prints_a_command_that_can_be_copied(pair, tmp_path):
    source, target = pair
    out = tmp_path / "out with a space"
    run("convert", source, "-t", target, "-o", out, "--format", "universal", "--target-id", "o/t")
    for engine, program in (("vllm", "vllm"), ("sglang", "python"), ("tensorrt-llm", "trtllm")):
        done = run("launch", out, "--engine", engine)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(program)
        document = json.loads(run("launch", out, "--engine", engine, "--json").stdout)
        jsonschema.validate(document, schema_of("launch"))
        words = shlex.split(done.stdout.splitlines()[0])
        assert words == document["result"]["recipe"]["command"]
    assert run("launch", out, "-t", target).returncode == 0
    refused(run("launch", out, "--engine", "mlx"), 2, "--engine mlx", "vllm, sglang")
    refused(run("launch", out, "--gpu-arch", "x"), 2, "--gpu-arch x", "blackwell")
    refused(run("launch", out, "--k", 4), 2, "--k 4", "at most 3")
    refused(run("launch", source), 2, "names no target", "--target")
    refused(run("launch", out, "-t", source), 1, "is a drafter's")


def test_what_the_environment_gives_may_be_for_another_command(pair):
    source, target = pair
    env = {"DFLASH_PACK_MAX_TOKENS": "8", "DFLASH_PACK_SET": "block_size=4"}
    assert run("validate", source, "-t", target, env=env).returncode == 0


def test_a_checkpoint_is_not_held_against_itself(pair, tmp_path):
    """It would always be equal, and prove nothing."""
    source, target = pair
    (tmp_path / "link").symlink_to(source)
    for same in (source, tmp_path / "link", f"{source}/."):
        done = run("validate", source, "-t", target, "--cpu", "--against", same)
        refused(done, 2, "is the checkpoint itself")


def test_a_decode_in_no_type_that_a_drafter_is_decoded_in(pair):
    source, target = pair
    done = run("validate", source, "-t", target, "--cpu", "--dtype", "int4")
    refused(done, 2, "--dtype int4", "float32, bfloat16, float16")


def path_commands(path, source, target, tmp_path):
    """Yield each place of a path in each command, with ``path`` there."""
    out = tmp_path / "out"
    yield "inspect", path
    yield "inspect", source, "-t", path
    yield "inspect", source, "--draft-config", path
    yield "convert", path, "-t", target, "-o", out
    yield "convert", source, "-t", path, "-o", out
    yield "convert", source, "-t", target, "-o", path
    yield "convert", source, "-t", target, "-o", out, "--draft-config", path
    yield "validate", path
    yield "validate", source, "-t", path
    yield "validate", source, "--report", path
    yield "validate", source, "-t", target, "--cpu", "--against", path
    yield "validate", source, "-t", target, "--cpu", "--prompts", path
    yield "validate", source, "-t", target, "--cpu", "--baseline", path
    yield "launch", path
    yield "launch", source, "-t", path
    yield "push", path, "owner/name", "--dry-run"


NO_PATHS = {
    # What an unset variable of a shell leaves; it is not the folder one stands in.
    "empty": ("", "is empty"),
    "a loop": ("LOOP", "leads nowhere"),
    "through a loop": ("LOOP/x", "leads nowhere"),
    "a long name": ("a" * 300, "leads nowhere"),
    "below a long name": ("a" * 300 + "/x", "leads nowhere"),
    "a long path": ("a/" * 3000, "leads nowhere"),
    "nobody's home": ("~nobody-of-that-name/x", "names no user's home"),
    "a zero byte": ("a\0b", "is no path"),
    "not UTF-8": ("\udcff", "not UTF-8"),
}


@pytest.mark.parametrize(("path", "words"), NO_PATHS.values(), ids=NO_PATHS)
def test_what_no_file_system_holds_is_a_fault_of_the_command(pair, tmp_path, path, words):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    path = path.replace("LOOP", str(tmp_path / "loop"))
    before = sorted(p.name for p in tmp_path.iterdir())
    for command in path_commands(path, *pair, tmp_path):
        refused(run(*command), 2, words)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.fixture
def closed(pair):
    """The pair's folder, and in it one that nobody can enter."""
    root = pair[0].parent
    folder = root / "closed"
    (folder / "source").mkdir(parents=True)
    folder.chmod(0)
    with without_override():
        yield root
    folder.chmod(0o755)


@pytest.mark.parametrize("inner", ["closed/source", "closed/absent/x"])
def test_what_the_user_has_no_right_to_is_said(closed, inner):
    path = closed / inner
    for command in path_commands(path, closed / "source", closed / "target", closed):
        refused(run(*command), 3, str(path), "Permission denied")


def test_a_folder_that_cannot_be_listed(closed):
    for command in path_commands(closed / "closed", closed / "source", closed / "target", closed):
        done = run(*command)
        assert done.returncode in (1, 2, 3), done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_full_disk_is_no_bug_of_ours(pair, tmp_path, monkeypatch):
    """A stand-in: no disk can be filled here. Anything but such faults keeps its traceback."""
    source, target = pair
    command = ("validate", source, "-t", target)

    def fails(number):
        def failing(*_, **__):
            raise OSError(number, os.strerror(number), "/disk/file")

        return failing

    monkeypatch.setattr("dflash_pack.validation.file_digests", fails(errno.ENOSPC))
    refused(run(*command), 3, "/disk/file", "No space left on device")
    monkeypatch.setattr("dflash_pack.validation.file_digests", fails(errno.EBADF))
    with pytest.raises(OSError, match="Bad file descriptor"):
        app([*map(str, command)], prog_name="dflash-pack")


def test_the_home_folder_is_meant_everywhere(pair, tmp_path):
    """A shell leaves ~ alone in --output=~/x; no folder of that name is made."""
    env = {"HOME": str(tmp_path)}
    done = run("convert", "~/source", "--target=~/target", "--output=~/out", env=env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "config.json").is_file()
    done = run("validate", "~/out", "--target=~/target", "--report=~/report", env=env)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "report" / "validation.json").is_file()
    assert not Path("~").exists()


def test_a_hub_name_exits_3_with_the_command_that_brings_it(tmp_path):
    refused(run("inspect", "z-lab/Qwen3-8B-DFlash-b16"), 3, "hf download z-lab/Qwen3-8B-DFlash-b16")


def test_a_gpu_decode_is_not_claimed(pair):
    refused(run("validate", pair[0], "--gpu"), 3, "GPU")


def test_a_decode_without_vllm_exits_3_with_the_install_command(pair, tmp_path):
    source, target = pair
    # A package of that name that is no vLLM hides the real one, as on a machine without it.
    hide = "import sys; sys.modules['vllm'] = None"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import importlib.metadata as m, importlib.util as u\n"
        "find, version = u.find_spec, m.version\n"
        "def hidden(name, *a):\n"
        "    if name.startswith('vllm'): raise m.PackageNotFoundError(name)\n"
        "    return version(name, *a)\n"
        "m.version = hidden\n"
        "u.find_spec = lambda name, *a: None if name.startswith('vllm') else find(name, *a)\n"
        f"{hide}\n"
    )
    code = "from dflash_pack.cli import main; main()"
    command = ("validate", source, "-t", target, "--cpu")
    done = run_apart(code, *command, env={"PYTHONPATH": str(tmp_path / "site")})
    assert done.returncode == 3, done.stderr
    assert "pip install '.[cpu]' in a clone of dflash-pack" in done.stderr
    assert "Traceback" not in done.stderr


BROKEN = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json"),
    "no JSON": (lambda f: (f / "config.json").write_text("{"), "config.json"),
    "trailing comma": (lambda f: (f / "config.json").write_text('{"a": 1,}'), "comma"),
    "a list": (lambda f: (f / "config.json").write_text("[]"), "config.json"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "safetensors"),
    "truncated": (
        lambda f: (f / "model.safetensors").write_bytes(
            (f / "model.safetensors").read_bytes()[:-5]
        ),
        "model.safetensors",
    ),
    "cut header": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 9), "model.safetens"),
    "absent shard": (
        lambda f: (
            (f / "model.safetensors").unlink(),
            write_index(f, {"fc.weight": "model-00001-of-00002.safetensors"}),
        ),
        "model-00001-of-00002.safetensors",
    ),
    "only pickles": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "pytorch_model.bin",
    ),
}


@pytest.mark.parametrize("command", ["inspect", "convert", "validate"])
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_source_is_one_sentence_and_nothing_is_written(pair, tmp_path, command, fault):
    source, target = pair
    break_it, words = BROKEN[fault]
    break_it(source)
    before = snapshot(tmp_path)
    out = ["-o", tmp_path / "out"] if command == "convert" else []
    refused(run(command, source, "-t", target, *out), 1, words)
    assert snapshot(tmp_path) == before
    assert not (tmp_path / "out").exists()


CONFIGS = {
    "missing mask token": (native(dflash_config__mask_token_id=None), "mask_token_id"),
    "unknown key": (native(mystery=1), "mystery"),
    "mixed layers": (native(**MIXED), "Use --format universal"),
    "contradiction": (native(mask_token_id=9), "mask_token_id"),
}


@pytest.mark.parametrize(("config", "words"), CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_source_that_cannot_be_converted_leaves_nothing(tmp_path, config, words, dry):
    source = checkpoint(tmp_path / "source", config)
    target = target_folder(tmp_path / "target")
    refused(run("convert", source, "-t", target, "-o", tmp_path / "out", *dry), 1, words)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source", "target"]


TENSORS = {
    "missing": (lambda t: t.pop("norm.weight"), "norm.weight"),
    "too many": (lambda t: t.update({"extra": raw("BF16", 1)}), "extra"),
    "shape": (lambda t: t.update({"norm.weight": raw("BF16", 17)}), "norm.weight has shape [17]"),
}


@pytest.mark.parametrize(("change", "words"), TENSORS.values(), ids=TENSORS)
def test_another_tensor_set(tmp_path, change, words):
    from made import specs

    tensors = {name: raw(spec.dtype, *spec.shape) for name, spec in specs(NATIVE).items()}
    change(tensors)
    source = write_checkpoint(tmp_path / "source", tensors, config=NATIVE)
    target = target_folder(tmp_path / "target")
    refused(run("convert", source, "-t", target, "-o", tmp_path / "out"), 1, words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("changes", [{"hidden_size": 32}, {"vocab_size": 65}])
def test_another_target(tmp_path, changes):
    source = checkpoint(tmp_path / "source", NATIVE)
    target = target_folder(tmp_path / "target", **changes)
    refused(run("convert", source, "-t", target, "-o", tmp_path / "out"), 1, "--target")


def test_an_existing_output_is_left_alone(pair, tmp_path):
    source, target = pair
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    before = snapshot(tmp_path)
    refused(run("convert", source, "-t", target, "-o", tmp_path / "out"), 1, "already exists")
    refused(run("convert", source, "-t", target, "-o", tmp_path / "out", "--overwrite"), 1, "out")
    assert snapshot(tmp_path) == before


def test_overwrite_deletes_nothing_that_the_user_put_there(pair, tmp_path):
    source, target = pair
    out = tmp_path / "out"
    command = ("convert", source, "-t", target, "-o", out)
    assert run(*command).returncode == 0
    for name in ("notes.txt", "sub"):
        (out / name).write_text("mine") if "." in name else (out / name).mkdir()
        refused(run(*command, "--overwrite"), 1, name)
        assert (out / name).exists()
        (out / name).unlink() if "." in name else (out / name).rmdir()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("mine")
    (tmp_path / "thesis" / "dflash_pack.json").write_text("")
    command = ("convert", source, "-t", target, "-o", tmp_path / "thesis", "--overwrite")
    refused(run(*command), 1, "thesis")
    assert (tmp_path / "thesis" / "thesis.txt").exists()


def test_the_target_is_never_an_output(pair, tmp_path):
    source, target = pair
    (target / "dflash_pack.json").write_text('{"files": {"config.json": {}}}')
    before = snapshot(tmp_path)
    for out in (target, tmp_path):
        done = run("convert", source, "-t", target, "-o", out, "--overwrite")
        assert done.returncode in (1, 2)
    assert snapshot(tmp_path) == before


def test_the_given_config_is_never_replaced(pair, tmp_path):
    """It may lie in a former output, whose other files are all this tool's own."""
    source, target = pair
    out = tmp_path / "out"
    assert run("convert", source, "-t", target, "-o", out).returncode == 0
    state = save_step(tmp_path / "run")
    before = snapshot(out)
    command = ("convert", state, "--draft-config", out / "config.json", "-t", target)
    refused(run(*command, "-o", out, "--overwrite"), 2, "config.json, which would be lost")
    assert snapshot(out) == before


def test_overwrite_deletes_nothing_among_the_reports(pair, tmp_path):
    source, target = pair
    out = tmp_path / "out"
    assert run("convert", source, "-t", target, "-o", out).returncode == 0
    assert run("validate", out, "-t", target).returncode == 0
    reports = out / ".dflash-pack"
    for name in ("decode.log", "decode.2.log", ".validation.json.x1"):
        (reports / name).touch()
    for mine in (reports / "notes.txt", reports / "kept" / "notes.txt"):
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("mine")
        done = run("convert", source, "-t", target, "-o", out, "--overwrite")
        refused(done, 1, f".dflash-pack/{mine.relative_to(reports).parts[0]}")
        assert mine.read_text() == "mine"
        mine.unlink()
        if mine.parent != reports:
            mine.parent.rmdir()
    assert run("convert", source, "-t", target, "-o", out, "--overwrite").returncode == 0


@pytest.mark.parametrize("name", VALIDATION_NAMES)
@pytest.mark.parametrize("content", [None, "mine", '{"document": "other"}'])
def test_a_report_overwrites_nothing_of_the_users(pair, tmp_path, name, content):
    source, target = pair
    folder = tmp_path / "reports"
    folder.mkdir()
    if content is None:
        (folder / name).mkdir()
    else:
        (folder / name).write_text(content)
    before = snapshot(tmp_path)
    done = run("validate", source, "-t", target, "--report", folder)
    refused(done, 3 if content is None else 1, str(folder), "--report")
    assert snapshot(tmp_path) == before


def test_a_report_follows_a_former_one(pair, tmp_path):
    source, target = pair
    for _ in range(2):
        assert run("validate", source, "-t", target, "--report", tmp_path / "r").returncode == 0
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == [
        "validation.json",
        "validation.md",
        "validation.xml",
    ]


def test_a_verdict_is_told_where_no_report_can_be_kept(pair, tmp_path):
    source, target = pair
    out = tmp_path / "out"
    assert run("convert", source, "-t", target, "-o", out).returncode == 0
    (out / ".dflash-pack" / "validation.json").mkdir()
    done = run("validate", out, "-t", target)
    assert done.returncode == 0
    assert "passed" in done.stdout


def test_a_path_that_no_record_could_hold(pair, tmp_path):
    bad = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    for arguments in (
        ["inspect", bad],
        ["convert", pair[0], "-t", bad, "-o", tmp_path / "o"],
        ["convert", pair[0], "-t", pair[1], "-o", bad],
    ):
        refused(run(*arguments), 2, "not UTF-8")


def test_a_name_too_long_for_any_file_system(pair, tmp_path):
    refused(run("convert", *pair[:1], "-t", pair[1], "-o", tmp_path / ("n" * 300)), 2, "too long")


def test_control_characters_of_a_folder_are_escaped(tmp_path):
    source = checkpoint(tmp_path / "s\x1b[31m", NATIVE)
    target = target_folder(tmp_path / "t\x1b[31m")
    for arguments in (["inspect"], ["convert", "-o", tmp_path / "o\x1b[31m"]):
        done = run(*arguments, source, "-t", target)
        assert done.returncode == 0
        assert "\x1b" not in done.stdout + done.stderr


def test_overwrite_replaces_what_this_tool_made(pair, tmp_path):
    source, target = pair
    command = ("convert", source, "-t", target, "-o", tmp_path / "out")
    assert run(*command).returncode == 0
    (tmp_path / "out" / "config.json").write_text("{}")
    refused(run(*command), 1, "already exists")
    assert run(*command, "--overwrite").returncode == 0
    assert run("validate", tmp_path / "out", "-t", target).returncode == 0


def test_a_dry_run_writes_nothing(pair, tmp_path):
    source, target = pair
    before = snapshot(tmp_path)
    done = run("convert", source, "-t", target, "-o", tmp_path / "out", "--dry-run")
    assert done.returncode == 0
    assert "would be written (dry run)" in done.stdout
    assert snapshot(tmp_path) == before


def test_a_failed_check_exits_1_and_is_told_on_stdout(pair, tmp_path):
    source, target = pair
    assert run("convert", source, "-t", target, "-o", tmp_path / "out").returncode == 0
    config = tmp_path / "out" / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"sliding_window_non_causal": true', '"mystery": true'))
    done = run("validate", tmp_path / "out", "-t", target)
    assert done.returncode == 1
    assert "FAIL" in done.stdout
    assert "mystery" in done.stdout


def test_a_local_path_as_verifier_is_warned_about(pair, tmp_path):
    source, target = pair
    command = ("convert", source, "-t", target, "-o", tmp_path / "out")
    assert "--target-id" in run(*command).stderr
    done = run(*command, "--overwrite", "--target-id", "owner/target")
    assert done.stderr == ""


def schema_of(kind):
    return json.loads((files("dflash_pack.schemas") / f"{kind}.schema.json").read_text())


def test_json_is_one_valid_document_and_nothing_else(pair, tmp_path):
    source, target = pair
    out = tmp_path / "out"
    for kind, command in (
        ("inspection", ("inspect", source, "-t", target)),
        ("conversion", ("convert", source, "-t", target, "-o", out, "--dry-run")),
        ("conversion", ("convert", source, "-t", target, "-o", out)),
        ("validation", ("validate", out, "-t", target)),
    ):
        done = run(*command, "--json", "--quiet")
        document = json.loads(done.stdout)
        assert document["document"] == kind
        assert done.stderr == ""
        jsonschema.validate(document, schema_of(kind))


def test_the_full_report_is_kept_beside_the_weights(pair, tmp_path):
    source, target = pair
    out = tmp_path / "out"
    printed = json.loads(run("convert", source, "-t", target, "-o", out, "--json").stdout)
    assert json.loads((out / ".dflash-pack" / "conversion.json").read_text()) == printed


def test_errors_are_a_document_too(tmp_path):
    done = run("inspect", tmp_path / "absent", "--json")
    document = json.loads(done.stdout)
    jsonschema.validate(document, schema_of("error"))
    assert done.returncode == document["result"]["exit_code"] == 1
    assert document["result"]["sentence"] in done.stderr


def test_schemas_are_printed_by_name():
    names = run("schema").stdout.split()
    assert {"zlab", "speculators", "dflash_pack", "inspection", "conversion"} <= set(names)
    for name in names:
        jsonschema.Draft202012Validator.check_schema(json.loads(run("schema", name).stdout))
    refused(run("schema", "nonsense"), 2, "nonsense")


def test_terminal_controls_in_names_are_escaped(tmp_path):
    source = checkpoint(tmp_path / "source", native(**{"evil\x1b[31m\nkey": 1}))
    done = run("inspect", source)
    refused(done, 1, r"evil\x1b[31m\nkey")
