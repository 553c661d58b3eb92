"""``dflash-pack launch``: the command line and files that serve a drafter."""

from __future__ import annotations

from typing import Annotated

import typer

from dflash_pack.commands.options import (
    JsonOption,
    NoColorOption,
    QuietOption,
    output,
)

_ARCHITECTURES = ("blackwell", "hopper")


def launch(
    ckpt: Annotated[str, typer.Argument(metavar="CKPT", help="Folder of the drafter.")],
    engine: Annotated[
        str,
        typer.Option(
            envvar="DFLASH_PACK_ENGINE", metavar="NAME", help="vllm, sglang or tensorrt-llm."
        ),
    ] = "vllm",
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            envvar="DFLASH_PACK_TARGET",
            metavar="FOLDER|OWNER/NAME",
            help="The model that verifies; default the verifier that the drafter names.",
        ),
    ] = None,
    speculative_tokens: Annotated[
        int | None,
        typer.Option(
            "--k", envvar="DFLASH_PACK_K", min=1, help="Tokens to draft; default the drafter's own."
        ),
    ] = None,
    gpu_arch: Annotated[
        str | None,
        typer.Option(envvar="DFLASH_PACK_GPU_ARCH", metavar="NAME", help="blackwell or hopper."),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    no_color: NoColorOption = False,
) -> int:
    """Show the command that serves a drafter in an engine, if that does what is meant."""
    from dflash_pack.checkpoint import open_checkpoint
    from dflash_pack.commands.options import given_path, given_target, local_folder
    from dflash_pack.engines.recipes import ENGINES
    from dflash_pack.errors import UsageError
    from dflash_pack.launching import plan_launch
    from dflash_pack.report import render_launch

    names = {name.replace("_", "-"): name for name in ENGINES}
    if engine not in names:
        raise UsageError(
            f"--engine {engine} is none that is known", remedy=f"Use one of {', '.join(names)}"
        )
    if gpu_arch not in (None, *_ARCHITECTURES):
        raise UsageError(
            f"--gpu-arch {gpu_arch} is none that is known",
            remedy=f"Use one of {', '.join(_ARCHITECTURES)}",
        )
    checkpoint = open_checkpoint(local_folder(ckpt))
    here = target is not None and given_path(target, "--target").is_dir()
    report = plan_launch(
        checkpoint,
        names[engine],
        given_target(target) if target is not None and here else None,
        target_name=target,
        speculative_tokens=speculative_tokens,
        architecture=gpu_arch,  # type: ignore[arg-type]  # checked above
    )
    output(as_json, quiet, no_color).emit(
        "launch", report, lambda console: render_launch(report, console)
    )
    return 0
