"""``dflash-pack push``: plan the publish of a converted checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from dflash_pack.commands.options import (
    JsonOption,
    NoColorOption,
    QuietOption,
    local_folder,
    output,
)

Checkpoint = Annotated[
    str, typer.Argument(metavar="CKPT", help="Folder that dflash-pack convert wrote.")
]
Repo = Annotated[str, typer.Argument(metavar="REPO", help="Repository on the Hub, owner/name.")]
Private = Annotated[
    bool,
    typer.Option("--private", envvar="DFLASH_PACK_PRIVATE", help="Make a new repository private."),
]
Branch = Annotated[
    str | None,
    typer.Option(
        envvar="DFLASH_PACK_BRANCH", help="Branch, or refs/pr/N, to commit to instead of main."
    ),
]
CreatePr = Annotated[
    bool,
    typer.Option(
        "--create-pr",
        envvar="DFLASH_PACK_CREATE_PR",
        help="Open a pull request instead of committing to main.",
    ),
]
Tag = Annotated[
    str | None, typer.Option(envvar="DFLASH_PACK_TAG", help="Tag to set on the commit.")
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        envvar="DFLASH_PACK_DRY_RUN",
        help="Show the plan only; needs no network and writes nothing.",
    ),
]
AllowUnvalidated = Annotated[
    bool,
    typer.Option(
        "--allow-unvalidated",
        envvar="DFLASH_PACK_ALLOW_UNVALIDATED",
        help="Go on where no validation holds for these files; the card says so.",
    ),
]
Message = Annotated[str | None, typer.Option(envvar="DFLASH_PACK_MESSAGE", help="Commit message.")]
Licence = Annotated[
    str | None,
    typer.Option(
        "--license",
        metavar="ID",
        envvar="DFLASH_PACK_LICENSE",
        help="Licence id of the Hub for the card, e.g. apache-2.0.",
    ),
]
ShowCard = Annotated[
    bool,
    typer.Option(
        "--show-card",
        envvar="DFLASH_PACK_SHOW_CARD",
        help="Show the model card that would be published as README.md.",
    ),
]


def push(
    ckpt: Checkpoint,
    repo: Repo,
    private: Private = False,
    branch: Branch = None,
    create_pr: CreatePr = False,
    tag: Tag = None,
    dry_run: DryRun = False,
    allow_unvalidated: AllowUnvalidated = False,
    message: Message = None,
    licence: Licence = None,
    show_card: ShowCard = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    no_color: NoColorOption = False,
) -> int:
    """Plan the publish of a converted checkpoint: files, model card, one commit.

    Publishing itself is not built yet: pass --dry-run.
    """
    from dflash_pack.engines.launch import shell
    from dflash_pack.errors import EXIT_DONE, MissingHereError
    from dflash_pack.hub.plan import plan_push
    from dflash_pack.hub.render import report, text, upload_command

    plan = plan_push(
        local_folder(ckpt),
        repo,
        private=private,
        branch=branch,
        create_pr=create_pr,
        tag=tag,
        allow_unvalidated=allow_unvalidated,
        message=message,
        licence=licence,
    )
    if not dry_run:
        raise MissingHereError(
            "can be published, but this version does not publish yet",
            where=ckpt,
            remedy="Pass --dry-run for the plan; by hand, save the card that --show-card shows as "
            f"README.md in it and run: {shell(upload_command(plan))}",
        )
    output(as_json, quiet, no_color).emit(
        "push",
        report(plan, show_card=show_card),
        # Console.out neither wraps nor reads markup: names and commands stay as they are.
        lambda console: console.out(text(plan, show_card=show_card), highlight=False),
    )
    return EXIT_DONE
