"""The plan of a push: what one commit would hold, worked out without a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_pack.checkpoint import CONFIG_NAME, MANIFEST_NAME
from dflash_pack.drafter import Drafter
from dflash_pack.engines.launch import vllm_command
from dflash_pack.errors import (
    CheckFailedError,
    CheckpointError,
    ContradictionError,
    DflashPackError,
    UsageError,
    printable,
)
from dflash_pack.hub.card import SPECULATORS_FORMS, CardFacts, Licence, render_card
from dflash_pack.hub.folder import (
    LeftOut,
    LocalFile,
    check_unchanged,
    check_weights,
    config_of,
    content_file,
    hash_file,
    list_folder,
    read_text,
)
from dflash_pack.hub.manifest import Manifest, read_drafter, read_manifest
from dflash_pack.hub.names import (
    check_branch,
    check_licence,
    check_message,
    check_repo,
    check_tag,
    is_hub_id,
)
from dflash_pack.hub.readme import Readme, parse_readme
from dflash_pack.hub.validation import CARD_NAME, ValidationState, assess


@dataclass(frozen=True)
class PlannedFile:
    """One file of the commit.

    Attributes:
        name: Its path in the repository.
        action: ``add``; what it replaces is known only once the Hub is asked.
        size: In bytes.
        sha256: In hex.
        path: Where its content lies, None for the card, which is :attr:`PushPlan.card`.
    """

    name: str
    action: str
    size: int
    sha256: str
    path: Path | None


@dataclass(frozen=True)
class PushPlan:
    """One commit, its place on the Hub, and what is known of its content.

    Attributes:
        folder: The converted checkpoint.
        repo: ``owner/name``.
        private: Visibility that the repository gets where it is new.
        revision: Branch or ``refs/pr/N`` that is committed to; the base where a PR is opened.
        create_pr: Whether a new pull request is opened.
        tag: Tag to set on the commit, None for none.
        message: Commit message.
        target: Hub id of the target.
        files: What is published.
        left_out: What of the folder is not, and why.
        card: Text of README.md.
        licence: Licence in the card's front matter, None where none is known.
        validation: What is proven of these files.
        serve: The command that will serve it in vLLM.
        notes: Sentences the user should read.
    """

    folder: Path
    repo: str
    private: bool
    revision: str
    create_pr: bool
    tag: str | None
    message: str
    target: str
    files: tuple[PlannedFile, ...]
    left_out: tuple[LeftOut, ...]
    card: str
    licence: str | None
    validation: ValidationState
    serve: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def total_size(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.files)


def plan_push(
    folder: Path,
    repo: str,
    *,
    private: bool = False,
    branch: str | None = None,
    create_pr: bool = False,
    tag: str | None = None,
    allow_unvalidated: bool = False,
    message: str | None = None,
    licence: str | None = None,
) -> PushPlan:
    """Return the plan of publishing ``folder`` as ``repo``; writes and sends nothing.

    Args:
        folder: An output of convert.
        repo: ``owner/name`` on the Hub.
        private: Make a new repository private.
        branch: Branch or ``refs/pr/N`` to commit to; None for ``main``.
        create_pr: Open a pull request instead of committing to the branch.
        tag: Tag for the commit.
        allow_unvalidated: Plan even where no validation holds for these files; the card says so.
        message: Commit message; None for one made from the facts.
        licence: Licence id of the Hub; None for what README.md or the source's card states.

    Raises:
        UsageError: If names or options don't go together.
        CheckpointError: If the folder is no sound output of convert, or README.md is broken.
        ContradictionError: If manifest, config and README.md disagree.
        CheckFailedError: If a file changed since convert, or no validation holds.
    """
    _check_options(repo, branch, create_pr, tag, message, licence)
    if not folder.is_dir():
        raise CheckpointError(
            "is not a folder" if folder.exists() else "does not exist",
            where=folder,
            remedy="Give the folder that dflash-pack convert wrote",
        )
    manifest = read_manifest(folder)
    drafter = read_drafter(manifest, where=folder / MANIFEST_NAME)
    target = manifest.target.identifier
    _check_target(target, repo, where=folder)

    listing = list_folder(folder, manifest.files)
    files: list[LocalFile] = []
    for name in listing.chosen:
        file = hash_file(folder / name)
        if name in manifest.files:
            check_unchanged(file, manifest.files[name])
        files.append(file)
    check_weights(folder, listing.chosen)
    _check_config(config_of(folder), manifest, drafter, where=folder / CONFIG_NAME)
    files.append(hash_file(folder / MANIFEST_NAME))

    validation = assess(manifest, where=folder / MANIFEST_NAME)
    if not validation.proven and not allow_unvalidated:
        raise CheckFailedError(
            f"is not validated: {validation.problem}",
            where=folder,
            remedy="Run dflash-pack validate on it, or pass --allow-unvalidated: the card says so",
        )

    card_path = folder / CARD_NAME
    readme = Readme({}, "")
    if listing.has_card:
        readme = parse_readme(read_text(card_path), where=card_path)
    found = _find_licence(licence, readme, manifest, where=card_path)
    facts = CardFacts(repo, tag, manifest, drafter, validation, tuple(files), found)
    card = render_card(facts, readme, where=card_path)
    files.append(content_file(CARD_NAME, card.encode(), card_path))

    stated = found.identifier if found else readme.metadata.get("license")
    return PushPlan(
        folder=folder,
        repo=repo,
        private=private,
        revision=branch or "main",
        create_pr=create_pr,
        tag=tag,
        message=message or _default_message(manifest),
        target=target,
        files=tuple(_planned(file) for file in sorted(files, key=lambda item: item.name)),
        left_out=listing.left_out,
        card=card,
        licence=None if stated is None else str(stated),
        validation=validation,
        serve=vllm_command(
            target=target,
            draft=repo,
            speculative_tokens=drafter.speculative_tokens,
            draft_revision=tag,
            family=drafter.family,
        ),
        notes=tuple(_notes(manifest, repo, validation, readme, stated)),
    )


def _check_options(
    repo: str,
    branch: str | None,
    create_pr: bool,
    tag: str | None,
    message: str | None,
    licence: str | None,
) -> None:
    check_repo(repo)
    if branch is not None:
        check_branch(branch)
    if tag is not None:
        check_tag(tag)
    if message is not None:
        check_message(message)
    if licence is not None:
        check_licence(licence)
    if create_pr and branch is not None:
        # huggingface_hub 2.4, hf_api.py: create_pr takes no revision but the default branch.
        raise UsageError(
            "--create-pr opens a pull request on main, so --branch can't be given too",
            remedy="Pass one of the two; --branch refs/pr/N adds to an open pull request",
        )
    if tag is not None and (create_pr or (branch or "").startswith("refs/pr/")):
        raise UsageError(
            "--tag would mark a pull request's commit, which merging replaces by another",
            remedy="Push with --tag once the pull request is merged",
        )


def _check_target(target: str, repo: str, *, where: Path) -> None:
    if not is_hub_id(target):
        raise CheckpointError(
            f"names {target!r} as target, which is no Hub id owner/name: vLLM 0.33 does not "
            "auto-serve a drafter whose verifier is a local path",
            where=where / MANIFEST_NAME,
            field="target.identifier",
            remedy="Convert again with --target-id owner/name and --overwrite",
        )
    if target.lower() == repo.lower():
        raise UsageError(
            f"{repo} is the target itself, and a drafter would replace its files",
            remedy="Give the drafter a repository of its own",
        )


def _check_config(
    config: Mapping[str, Any], manifest: Manifest, drafter: Drafter, *, where: Path
) -> None:
    """Check that what the card will say is what engines will read."""
    speculators = manifest.format in SPECULATORS_FORMS
    for field, read, meant in _pairs(config, manifest, drafter):
        if read is None and not (speculators and field.startswith("speculators_config")):
            continue
        if read != meant:
            raise ContradictionError(
                field,
                (CONFIG_NAME, read),
                (MANIFEST_NAME, meant),
                where=where,
                remedy="Convert the source again",
            )


def _pairs(
    config: Mapping[str, Any], manifest: Manifest, drafter: Drafter
) -> Iterator[tuple[str, object, object]]:
    k, ids = drafter.speculative_tokens, list(drafter.target_layer_ids)
    mask = drafter.vocabulary.mask_token_id
    proposals = _at(config, "speculators_config", "proposal_methods")
    first = proposals[0] if isinstance(proposals, list) and proposals else None
    tokens = first.get("speculative_tokens") if isinstance(first, dict) else None
    verifier = _at(config, "speculators_config", "verifier", "name_or_path")
    yield "speculators_config.verifier.name_or_path", verifier, manifest.target.identifier
    yield "speculators_config.proposal_methods.0.speculative_tokens", tokens, k
    yield "block_size", config.get("block_size"), drafter.block_size
    yield "mask_token_id", config.get("mask_token_id"), mask
    yield (
        "aux_hidden_state_layer_ids",
        config.get("aux_hidden_state_layer_ids"),
        [index + 1 for index in ids],
    )
    yield "dflash_config.mask_token_id", _at(config, "dflash_config", "mask_token_id"), mask
    yield "dflash_config.target_layer_ids", _at(config, "dflash_config", "target_layer_ids"), ids


def _at(value: object, *keys: str) -> Any:
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def _find_licence(
    option: str | None, readme: Readme, manifest: Manifest, *, where: Path
) -> Licence | None:
    """Return the licence to put into the card; None where README.md states one, or nobody does."""
    stated = readme.metadata.get("license")
    if option is None:
        return _source_licence(manifest) if stated is None else None
    if stated is not None and stated != option:
        raise ContradictionError(
            "license",
            ("--license", option),
            (CARD_NAME, stated),
            where=where,
            remedy="Correct the one that is wrong",
        )
    # The Hub shows a licence of type other by a name and a link.
    if option == "other" and not (
        readme.metadata.get("license_name") and readme.metadata.get("license_link")
    ):
        raise UsageError(
            "the licence other needs license_name and license_link",
            field="--license",
            remedy=f"Write both into the front matter of {where}",
        )
    return Licence(option)


def _source_licence(manifest: Manifest) -> Licence | None:
    """Return the licence in the source folder's card, if that is the card that was converted."""
    path = Path(manifest.source.identity) / CARD_NAME
    digest = manifest.source.files.get(CARD_NAME)
    if digest is None or not path.is_file():
        return None
    try:
        # Resolved: in the Hub's cache every file of a snapshot is a link, and the digest guards it.
        if hash_file(path.resolve()).sha256 != digest:
            return None
        metadata = parse_readme(read_text(path), where=path).metadata
    except DflashPackError:
        return None
    identifier = metadata.get("license")
    if not isinstance(identifier, str):
        return None
    name, link = metadata.get("license_name"), metadata.get("license_link")
    return Licence(
        identifier,
        name if isinstance(name, str) else None,
        link if isinstance(link, str) else None,
    )


def _planned(file: LocalFile) -> PlannedFile:
    path = None if file.name == CARD_NAME else file.path
    return PlannedFile(file.name, "add", file.size, file.sha256, path)


def _default_message(manifest: Manifest) -> str:
    version = printable(manifest.tool_version)[:40]
    return f"Add DFlash drafter for {manifest.target.identifier} (dflash-pack {version})"


def _notes(
    manifest: Manifest, repo: str, validation: ValidationState, readme: Readme, licence: object
) -> Iterator[str]:
    identity, target = manifest.source.identity, manifest.target.identifier
    if not validation.proven:
        yield f"Published without validation: {validation.problem}; the card says so."
    elif validation.level == "static":
        yield "Only the static checks were run: no engine decoded with these files."
    if licence is None:
        yield "No licence is known, so the card states none; give it with --license."
    if manifest.target.revision is None:
        yield f"The revision of {target} that was converted for is not pinned."
    if manifest.source.revision is None and not is_hub_id(identity):
        yield (
            f"{MANIFEST_NAME} is published and names the source by its local path "
            f"{printable(repr(identity))}."
        )
    if identity.lower() == repo.lower():
        yield f"{repo} is the source itself: the commit replaces files of the same name there."
    if Path(target).exists():
        yield (
            f"A folder {target} lies in the current folder; vLLM 0.33 does not auto-serve from a "
            "folder that holds one."
        )
    own = readme.metadata.get("library_name")
    if own not in (None, "speculators") and manifest.format in SPECULATORS_FORMS:
        yield f"README.md says library_name {printable(repr(own))[:80]}; speculators is published."
