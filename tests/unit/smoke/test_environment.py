"""What the engine's process gets, and whether the engine is here."""

from __future__ import annotations

import pytest

from dflash_pack.errors import MissingHereError
from dflash_pack.smoke.environment import (
    child_environment,
    intel_openmp,
    require_engine,
    usable_cores,
)
from dflash_pack.smoke.request import DecodeRequest, Prompt


def made(folder, device="cpu", drafter=None) -> DecodeRequest:
    return DecodeRequest(
        target=str(folder),
        drafter=drafter or str(folder),
        speculative_tokens=3,
        device=device,
        dtype="float32",
        prompts=(Prompt(text="x"),),
    )


def distribution(site, name, version, record=""):
    """Make an installed distribution as pip leaves it."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(record)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages that is searched before all others."""
    folder = tmp_path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def vllm(site, version):
    (site / "vllm").mkdir()
    (site / "vllm" / "__init__.py").write_text("raise SystemExit('must not be imported')\n")
    distribution(site, "vllm", version)


def test_the_build_for_the_device_is_enough(site):
    vllm(site, "0.33.0")
    require_engine("cuda")


def test_the_gpu_build_does_not_do_for_a_cpu(site):
    vllm(site, "0.33.0")
    with pytest.raises(MissingHereError) as caught:
        require_engine("cpu")
    assert str(caught.value) == (
        "the vLLM installed here is built for cuda and can't decode on cpu. Install the other one"
        " in an environment of its own: pip install '.[cpu]' in a clone of dflash-pack."
    )
    assert caught.value.exit_code == 3


def test_a_cpu_build_does_not_do_for_a_gpu(site):
    vllm(site, "0.33.0+cpu")
    require_engine("cpu")
    with pytest.raises(MissingHereError, match=r"pip install '\.\[gpu\]' in a clone"):
        require_engine("cuda")


def test_tokens_stay_here_when_nothing_is_fetched(tmp_path):
    base = {"HF_TOKEN": "hf_x", "HUGGING_FACE_HUB_TOKEN": "hf_y", "PATH": "/bin"}
    env = child_environment([made(tmp_path)], base, tmp_path)
    assert not [value for value in env.values() if value.startswith("hf_")]
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["PATH"] == "/bin"
    assert base["HF_TOKEN"] == "hf_x"


def test_a_token_goes_along_when_one_of_several_must_be_fetched(tmp_path):
    requests = [made(tmp_path), made(tmp_path, drafter="owner/drafter")]
    env = child_environment(requests, {"HF_TOKEN": "hf_x"}, tmp_path)
    assert env["HF_TOKEN"] == "hf_x"
    assert "HF_HUB_OFFLINE" not in env


def test_the_cpu_process_runs_alone_eager_and_within_its_cores(tmp_path):
    base = {"VLLM_CPU_KVCACHE_SPACE": "40", "OMP_NUM_THREADS": ""}
    env = child_environment([made(tmp_path)], base, tmp_path)
    assert env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert env["TORCHDYNAMO_DISABLE"] == "1"
    assert env["OMP_NUM_THREADS"] == str(usable_cores())
    assert env["TMPDIR"] == str(tmp_path)
    assert "VLLM_CPU_KVCACHE_SPACE" not in env
    assert (
        child_environment([made(tmp_path)], {"OMP_NUM_THREADS": "1"}, tmp_path)["OMP_NUM_THREADS"]
        == "1"
    )


def test_the_gpu_process_keeps_compilation_and_the_users_threads(tmp_path):
    env = child_environment([made(tmp_path, device="cuda")], {}, tmp_path)
    assert env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert not {"TORCHDYNAMO_DISABLE", "OMP_NUM_THREADS", "LD_PRELOAD", "TMPDIR"} & set(env)


def test_intel_openmp_is_found_and_goes_before_what_is_preloaded(site, tmp_path):
    library = tmp_path / "libiomp5.so"
    library.touch()
    distribution(site, "intel_openmp", "2024.2.1", "../../libiomp5.so,,\n../../libiomp5_db.so,,\n")
    assert intel_openmp() == library
    env = child_environment([made(tmp_path)], {"LD_PRELOAD": "/lib/other.so"}, tmp_path)
    assert env["LD_PRELOAD"] == f"{library}:/lib/other.so"
    own = {"LD_PRELOAD": "/lib/libiomp5.so"}
    assert child_environment([made(tmp_path)], own, tmp_path)["LD_PRELOAD"] == "/lib/libiomp5.so"


def test_a_record_of_a_library_that_is_gone_is_not_believed(site, tmp_path):
    distribution(site, "intel_openmp", "2024.2.1", "../../libiomp5.so,,\n")
    assert intel_openmp() is None
    assert "LD_PRELOAD" not in child_environment([made(tmp_path)], {}, tmp_path)


def test_at_least_one_core_is_usable():
    assert usable_cores() >= 1
