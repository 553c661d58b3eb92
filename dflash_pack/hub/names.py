"""Names the user gives for the Hub: repository, branch, tag, licence, commit message."""

from __future__ import annotations

import re

from dflash_pack.errors import UsageError, printable

# The Hub's alphabet; huggingface_hub before 2.x also lets other letters through.
_REPO = re.compile(r"[A-Za-z0-9._-]{1,96}/[A-Za-z0-9._-]{1,96}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PULL_REQUEST = re.compile(r"refs/pr/[1-9][0-9]{0,8}")
# git-check-ref-format(1): what a branch or tag name must not contain.
_BAD_REF = re.compile(r"[^\x21-\x7e]|[~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)|^[-./@]$|^[-./]|[./]$")
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}")
_MAX_REF = 200
_MAX_MESSAGE = 4000


def is_hub_id(identifier: str) -> bool:
    """Return whether ``identifier`` is ``owner/name`` as the Hub and vLLM's auto-serve take it.

    vLLM 0.33 (transformers_utils/config.py, maybe_override_with_speculators) asks huggingface_hub's
    ``validate_repo_id``; that also takes a bare name, which can't be told from a folder's.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(identifier)
    except HFValidationError:
        return False
    return _REPO.fullmatch(identifier) is not None


def check_repo(repo: str) -> None:
    """Check that ``repo`` is a repository the Hub could create.

    Raises:
        UsageError: If it is not ``owner/name``, or breaks the Hub's rules.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    remedy = "Give it as owner/name, of letters, digits, '-', '_' and '.'"
    if repo.count("/") != 1:
        raise UsageError(f"the repository {_shown(repo)} is not owner/name", remedy=remedy)
    try:
        validate_repo_id(repo)
    except HFValidationError:
        pass
    else:
        if _REPO.fullmatch(repo):
            return
    raise UsageError(f"the Hub allows no repository {_shown(repo)}", remedy=remedy)


def check_branch(branch: str) -> None:
    """Check a branch name; ``refs/pr/N`` is an open pull request.

    Raises:
        UsageError: If git or the Hub would not take it.
    """
    if not _PULL_REQUEST.fullmatch(branch):
        _check_ref("--branch", branch)


def check_tag(tag: str) -> None:
    """Check a tag name.

    Raises:
        UsageError: If git or the Hub would not take it.
    """
    _check_ref("--tag", tag)


def check_licence(licence: str) -> None:
    """Check that ``licence`` looks like the Hub's ids; the list of ids is the Hub's own.

    Raises:
        UsageError: If it does not.
    """
    if not _LICENCE.fullmatch(licence):
        raise UsageError(
            f"{_shown(licence)} is no licence id of the Hub",
            field="--license",
            remedy="Give a lower-case id such as apache-2.0, mit or other",
        )


def check_message(message: str) -> None:
    """Check a commit message: first line the summary, the rest the description.

    Raises:
        UsageError: If it is empty, too long or holds control characters.
    """
    problem = ""
    if not message.strip() or not message.splitlines()[0].strip():
        problem = "has no first line"
    elif len(message) > _MAX_MESSAGE:
        problem = f"is longer than {_MAX_MESSAGE} characters"
    elif not message.replace("\n", "").isprintable():
        problem = "holds control characters"
    if problem:
        raise UsageError(problem, field="--message", remedy="Give one line of text")


def _check_ref(option: str, name: str) -> None:
    bad = len(name) > _MAX_REF or not name or _BAD_REF.search(name)
    if bad or _COMMIT.fullmatch(name) or name.startswith("refs/") or name == "HEAD":
        raise UsageError(
            f"{_shown(name)} is no name that git gives to a branch or tag",
            field=option,
            remedy="Give a plain name such as v1.0",
        )


def _shown(text: str) -> str:
    return printable(repr(text))[:120]
