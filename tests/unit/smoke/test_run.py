"""The engine's process from outside: how it is started, watched, killed and read.

A stand-in for the engine does here what a real one can't be asked to do: hang, crash, flood.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from dflash_pack.errors import MissingHereError
from dflash_pack.smoke import run as run_module
from dflash_pack.smoke.request import DecodeRequest, Prompt
from dflash_pack.smoke.run import DecodeFailedError, decode, decode_many

HANGS = """
    import os, subprocess, sys, time
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(90)"])
    with open(os.environ["PIDS"] + ".new", "w") as file:
        file.write(f"{os.getpid()} {worker.pid}")
    os.rename(os.environ["PIDS"] + ".new", os.environ["PIDS"])
    time.sleep(90)
"""


def made(folder: Path, **changes) -> DecodeRequest:
    values = {
        "target": str(folder),
        "drafter": str(folder),
        "speculative_tokens": 3,
        "device": "cpu",
        "dtype": "float32",
        "prompts": (Prompt(text="x"),),
    }
    return DecodeRequest(**{**values, **changes})


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Return a function that puts a package named vllm before the real one.

    The given code runs when the engine is asked for, or with ``on_import`` when vllm is imported.
    """

    def write(code: str, *, on_import: bool = False) -> None:
        package = tmp_path / "site" / "vllm"
        for module in ("tokenizers", "entrypoints/llm", "v1/worker/cpu_worker"):
            path = package / f"{module}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        text = textwrap.dedent(code)
        if not on_import:
            text = f"def __getattr__(name):\n    exec({text!r}, {{'__name__': 'engine'}})\n"
        (package / "__init__.py").write_text(text)
        info = tmp_path / "site" / "vllm-0.32.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")

    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    monkeypatch.setattr(run_module, "GRACE_S", 0.5)
    return write


def failure(tmp_path, timeout_s=60.0) -> DecodeFailedError:
    started = time.monotonic()
    with pytest.raises(DecodeFailedError) as caught:
        decode(made(tmp_path), timeout_s=timeout_s, log=tmp_path / "engine.log")
    assert time.monotonic() - started < timeout_s + 30
    return caught.value


def wait_until(condition, seconds=30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def pids(tmp_path) -> list[int]:
    return [int(pid) for pid in (tmp_path / "pids").read_text().split()]


def test_an_exception_of_the_engine_is_told_with_checkpoint_and_log(engine, tmp_path):
    engine("raise ValueError('no such rope')")
    error = failure(tmp_path)
    log = tmp_path / "engine.log"
    assert str(error) == (
        f"{tmp_path}: vLLM failed: ValueError: no such rope. The engine's log is {log}."
    )
    assert error.exit_code == 1
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        ("operator torchvision::nms does not exist", "pip uninstall -y torchvision"),
        ("no module named xgrammar", "Install it anew"),
    ],
)
def test_an_engine_that_does_not_load_is_missing_here(engine, tmp_path, why, remedy):
    engine(f"raise RuntimeError({why!r})", on_import=True)
    with pytest.raises(MissingHereError) as caught:
        decode(made(tmp_path), timeout_s=60, log=tmp_path / "engine.log")
    assert why in str(caught.value)
    assert remedy in str(caught.value)


def test_a_crash_is_told_by_its_signal(engine, tmp_path):
    engine("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert failure(tmp_path).what == (
        "vLLM was killed by SIGSEGV: Fatal Python error: Segmentation fault"
    )


def test_a_silent_kill_hints_at_the_memory(engine, tmp_path):
    engine("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert failure(tmp_path).what == "vLLM was killed by SIGKILL (out of memory?)"


def test_a_process_that_ends_without_a_result_is_a_failure(engine, tmp_path):
    engine("import os; os._exit(0)")
    assert failure(tmp_path).what == "vLLM failed"


def test_an_engine_out_of_time_is_killed_with_all_it_started(engine, tmp_path):
    engine(HANGS)
    log = tmp_path / "engine.log"
    error = failure(tmp_path, timeout_s=5.0)
    assert str(error) == f"{tmp_path}: vLLM did not end within 5 s. The engine's log is {log}."
    started = pids(tmp_path)
    assert len(started) == 2
    assert wait_until(lambda: not any(map(running, started)))


def test_an_engine_that_ignores_termination_is_killed(engine, tmp_path):
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    engine(ignores + textwrap.dedent(HANGS))
    failure(tmp_path, timeout_s=5.0)
    assert wait_until(lambda: not any(map(running, pids(tmp_path))))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_engine_does_not_outlive_us(engine, tmp_path, number):
    engine(HANGS)
    script = f"""
        from pathlib import Path
        from dflash_pack.smoke.request import DecodeRequest
        from dflash_pack.smoke.run import decode
        request = DecodeRequest.from_json({made(tmp_path).to_json()!r})
        decode(request, timeout_s=300, log=Path({str(tmp_path / "log")!r}))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # killed, it leaves its scratch folder
    )
    assert wait_until((tmp_path / "pids").exists)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    engine_pid, worker_pid = pids(tmp_path)
    assert wait_until(lambda: not running(engine_pid))
    if number == signal.SIGINT:
        assert b"KeyboardInterrupt" in errors
        assert wait_until(lambda: not running(worker_pid))
    else:  # nobody was left to kill the group; a worker of vLLM's notices its parent's end itself
        os.kill(worker_pid, signal.SIGKILL)


def test_the_engine_reads_nothing_from_our_input(engine, tmp_path):
    engine("import sys; raise ValueError(repr(sys.stdin.read()))")
    ours, writer = os.pipe()
    os.write(writer, b"typed at us")
    os.close(writer)
    kept = os.dup(0)
    try:
        os.dup2(ours, 0)
        assert failure(tmp_path).telling == "ValueError: ''"
        assert os.read(0, 100) == b"typed at us"
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(ours)


def test_a_flood_of_output_neither_blocks_nor_fills_the_disk(engine, tmp_path):
    engine("""
        import sys
        for _ in range(2000):
            sys.stderr.write("x" * 9999 + "\\n")
        raise ValueError("at last")
    """)
    error = failure(tmp_path)
    assert error.telling == "ValueError: at last"
    assert (tmp_path / "engine.log").stat().st_size < 5 << 20


def test_a_module_in_the_working_folder_is_not_imported(engine, tmp_path, monkeypatch):
    engine("raise ValueError('the installed one')")
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "json.py").write_text("raise ValueError('the folder's own')")
    monkeypatch.chdir(tmp_path / "cwd")
    assert failure(tmp_path).telling == "ValueError: the installed one"


def test_several_requests_fail_each_for_itself(engine, tmp_path):
    engine("raise ValueError('no such rope')")
    requests = [made(tmp_path), made(tmp_path / "second")]
    outcomes = decode_many(requests, timeout_s=60, log=tmp_path / "engine.log")
    assert [str(outcome).partition(":")[0] for outcome in outcomes] == [
        str(tmp_path),
        str(tmp_path / "second"),
    ]
    assert all("no such rope" in str(outcome) for outcome in outcomes)


def test_requests_for_different_devices_are_not_mixed(tmp_path):
    requests = [made(tmp_path), made(tmp_path, device="cuda")]
    with pytest.raises(ValueError, match="can't share an engine process"):
        decode_many(requests, timeout_s=1, log=tmp_path / "engine.log")


def test_without_vllm_nothing_is_started(tmp_path):
    script = f"""
        import importlib.machinery, sys

        sys.meta_path[:] = [
            type("Finder", (), {{"find_spec": staticmethod(
                lambda name, path=None, target=None, inner=finder:
                    None if name.split(".")[0] == "vllm" else inner.find_spec(name, path, target)
            )}}) if finder is importlib.machinery.PathFinder else finder
            for finder in sys.meta_path
        ]
        from pathlib import Path
        from dflash_pack.errors import MissingHereError
        from dflash_pack.smoke.request import DecodeRequest
        from dflash_pack.smoke.run import decode
        request = DecodeRequest.from_json({made(tmp_path).to_json()!r})
        try:
            decode(request, timeout_s=5, log=Path({str(tmp_path / "log")!r}))
        except MissingHereError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "vLLM is not installed here. Install it with: pip install '.[cpu]' in a clone of "
        "dflash-pack after torch==2.13.0+cpu, or run make setup there.\n"
    )
    assert not (tmp_path / "log").exists()
    assert MissingHereError.exit_code == 3
