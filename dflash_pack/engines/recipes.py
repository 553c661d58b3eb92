"""How each engine is told to serve a drafter: commands and files, from one place.

Sources: vllm 0.32 and 0.33 (config/speculative.py, transformers_utils/config.py); sglang 0.5.23
(srt/arg_groups/fields/spec.py, speculative_hook.py); TensorRT-LLM 1.3.0rc27 and 1.4.0rc1 (reference
pages of DFlashDecodingConfig and DSparkDecodingConfig), whose package was not at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from dflash_pack.drafter import Drafter
from dflash_pack.engines.launch import VLLM_VERSIONS, shell, vllm_auto_command, vllm_command

EngineName = Literal["vllm", "sglang", "tensorrt_llm"]
Architecture = Literal["blackwell", "hopper"]
CONFIG_FILE = "dflash.yaml"


@dataclass(frozen=True)
class Serving:
    """What is to be served.

    Attributes:
        target: Hub id or folder of the target.
        draft: Hub id or folder of the drafter.
        drafter: What it means.
        speculative_tokens: k, tokens proposed per verification step.
        by_itself: Whether the drafter's own config names a target on the Hub.
        architecture: The GPUs' architecture, None where it is not known.
    """

    target: str
    draft: str
    drafter: Drafter
    speculative_tokens: int
    by_itself: bool = False
    architecture: Architecture | None = None


@dataclass(frozen=True)
class Recipe:
    """How one engine is started.

    Attributes:
        engine: Its name.
        versions: The versions whose argument names were looked up.
        command: Program and arguments.
        files: Name -> text of the files that the command reads from where it is run.
        notes: Sentences worth knowing.
    """

    engine: EngineName
    versions: str
    command: tuple[str, ...]
    files: Mapping[str, str]
    notes: tuple[str, ...] = ()


def recipe(engine: EngineName, serving: Serving) -> Recipe:
    """Return how ``engine`` is started.

    Args:
        engine: One of :data:`ENGINES`.
        serving: What is to be served; that the engine does so as meant is the caller's to check.
    """
    return ENGINES[engine](serving)


def _vllm(serving: Serving) -> Recipe:
    k = serving.speculative_tokens
    notes = []
    if serving.by_itself and k == serving.drafter.speculative_tokens:
        short = shell(vllm_auto_command(serving.draft))
        notes.append(f"The drafter's config names target, method and k, so {short} does too.")
    command = vllm_command(
        target=serving.target,
        draft=serving.draft,
        speculative_tokens=k,
        family=serving.drafter.family,
    )
    return Recipe("vllm", VLLM_VERSIONS, command, {}, tuple(notes))


def _sglang(serving: Serving) -> Recipe:
    """SGLang counts the verified block for DFlash (k and the anchor), and k for DSpark."""
    k = serving.speculative_tokens
    dspark = serving.drafter.family == "dspark"
    command = [
        *("python", "-m", "sglang.launch_server", "--model-path", serving.target),
        *("--speculative-algorithm", "DSPARK" if dspark else "DFLASH"),
        *("--speculative-draft-model-path", serving.draft),
    ]
    if dspark:
        command += ["--speculative-dspark-block-size", str(k)]
    else:
        command += ["--speculative-num-draft-tokens", str(k + 1)]
    notes = []
    if _has_symmetric_windows(serving.drafter) and serving.architecture == "blackwell":
        command += ["--speculative-draft-attention-backend", "fa4"]
        notes.append(
            "trtllm_mha, Blackwell's default, narrows the windows of layers that look both ways "
            "(sglang#35209), so the drafter gets fa4."
        )
    return Recipe("sglang", "0.5.23", tuple(command), {}, tuple(notes))


def _tensorrt_llm(serving: Serving) -> Recipe:
    import yaml  # type: ignore[import-untyped]

    dspark = serving.drafter.family == "dspark"
    config = {
        "speculative_config": {
            "decoding_type": "DSpark" if dspark else "DFlash",
            "speculative_model": serving.draft,
            "max_draft_len": serving.speculative_tokens,
        }
    }
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    command = ("trtllm-serve", serving.target, "--config", CONFIG_FILE)
    notes = (
        "Older versions call the option --extra_llm_api_options.",
        "The argument names are those of the reference pages; it was not run.",
    )
    return Recipe("tensorrt_llm", "1.3.0rc27 and 1.4.0rc1", command, {CONFIG_FILE: text}, notes)


def _has_symmetric_windows(drafter: Drafter) -> bool:
    return any(layer.sliding and not layer.causal for layer in drafter.layers)


ENGINES: Mapping[EngineName, Callable[[Serving], Recipe]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tensorrt_llm": _tensorrt_llm,
}
