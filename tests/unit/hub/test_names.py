"""What the Hub and git take as names."""

from __future__ import annotations

import subprocess

import pytest

from dflash_pack.errors import UsageError
from dflash_pack.hub.names import (
    check_branch,
    check_licence,
    check_message,
    check_repo,
    check_tag,
    is_hub_id,
)

BAD_REFS = [
    "",
    "a b",
    "a..b",
    "a~1",
    "a^",
    "a:b",
    "a?",
    "a*",
    "a[b",
    "a\\b",
    "a@{b",
    "a//b",
    "/a",
    "a/",
    "a.",
    ".a",
    "a/.b",
    "a.lock",
    "a.lock/b",
    "-a",
    "a\x7f",
    "a\nb",
]
GOOD_REFS = ["v1.0", "1.0.0-rc.1", "release/2026-12", "a@b", "w/e", "x.locked"]


@pytest.mark.parametrize("repo", ["acme/Qwen3-8B-DFlash", "a/b", "A_b.c/x-y"])
def test_repositories_of_the_hub_pass(repo: str) -> None:
    """Names as published drafters have them."""
    check_repo(repo)
    assert is_hub_id(repo)


@pytest.mark.parametrize(
    "repo",
    [
        "name",
        "a/b/c",
        "/a",
        "a/",
        "acme/a--b",
        "acme/a..b",
        "acme/x.git",
        "acme/-x",
        "acme/x-",
        "acme/caf\u00e9",
        "acme/a b",
        "acme/a\n",
        "../target",
        "./target",
        "acme/" + "x" * 97,
        "https://huggingface.co/acme/x",
        "",
    ],
)
def test_other_repositories_are_refused(repo: str) -> None:
    """Whatever the Hub or vLLM would refuse is refused before any request."""
    with pytest.raises(UsageError, match="Give it as owner/name"):
        check_repo(repo)
    assert not is_hub_id(repo)


@pytest.mark.parametrize("name", BAD_REFS)
def test_refs_that_git_refuses_are_refused(name: str) -> None:
    """Git itself is asked, so that the rule can't be stricter or laxer on these."""
    found = subprocess.run(
        ["git", "check-ref-format", f"refs/tags/{name}"], check=False, capture_output=True
    )
    # A tag named -a is legal for plumbing alone; git tag refuses it.
    assert found.returncode != 0 or name == "-a"
    with pytest.raises(UsageError, match="--tag"):
        check_tag(name)
    with pytest.raises(UsageError, match="--branch"):
        check_branch(name)


@pytest.mark.parametrize("name", GOOD_REFS)
def test_refs_that_git_takes_pass(name: str) -> None:
    """Usual names of releases."""
    subprocess.run(["git", "check-ref-format", f"refs/tags/{name}"], check=True)
    check_tag(name)
    check_branch(name)


@pytest.mark.parametrize("name", ["a" * 40, "refs/heads/x", "HEAD", "x" * 201])
def test_refs_that_mislead_are_refused(name: str) -> None:
    """A tag that reads as a commit or as another ref pins nothing."""
    with pytest.raises(UsageError):
        check_tag(name)
    with pytest.raises(UsageError):
        check_branch(name)


def test_an_open_pull_request_is_a_branch_but_no_tag() -> None:
    """To add to a pull request one commits to refs/pr/N."""
    check_branch("refs/pr/12")
    for name in ("refs/pr/0", "refs/pr/", "refs/pr/1x"):
        with pytest.raises(UsageError):
            check_branch(name)
    with pytest.raises(UsageError):
        check_tag("refs/pr/12")


@pytest.mark.parametrize("licence", ["apache-2.0", "mit", "other", "cc-by-nc-nd-4.0", "c-uda"])
def test_licence_ids_pass(licence: str) -> None:
    """Ids as the Hub spells them."""
    check_licence(licence)


@pytest.mark.parametrize("licence", ["", "Apache-2.0", "MIT License", "mit\nbase_model: x", "é"])
def test_other_licences_are_refused(licence: str) -> None:
    """Text that is no id would break the front matter or show as unknown."""
    with pytest.raises(UsageError, match="--license"):
        check_licence(licence)


@pytest.mark.parametrize("message", ["Add drafter", "Title\n\nBody of the message"])
def test_messages_pass(message: str) -> None:
    """A line, or a title and a body."""
    check_message(message)


@pytest.mark.parametrize("message", ["", "  ", "\nbody", "a\x1b[31mb", "x" * 4001, "a\x00"])
def test_other_messages_are_refused(message: str) -> None:
    """Empty, endless or with control characters."""
    with pytest.raises(UsageError, match="--message"):
        check_message(message)
