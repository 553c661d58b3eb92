"""The command: parses, plans, renders, returns the code."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from dflash_pack.commands.push import push
from dflash_pack.errors import CheckFailedError, MissingHereError

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(push)


def run(*arguments: object) -> Any:
    """Run the command in this process as ``dflash_pack.cli`` does: errors pass through."""
    return CliRunner().invoke(app, [str(a) for a in arguments], standalone_mode=False)


def test_a_dry_run_shows_the_plan(packed: Any) -> None:
    """Exit code 0 and text on stdout."""
    result = run(packed.folder, "me/X", "--dry-run", "--private", "--tag", "v1")
    assert result.return_value == 0
    assert result.stdout.startswith("Push plan (nothing was sent)\n")
    assert "private where the repository is new" in result.stdout
    assert result.stderr == ""


def test_json_is_one_document(packed: Any) -> None:
    """Nothing else is on stdout."""
    result = run(packed.folder, "me/X", "--dry-run", "--json", "--show-card")
    document = json.loads(result.stdout)
    assert (document["document"], document["version"]) == ("push", 1)
    assert document["result"]["repo"] == "me/X"
    assert document["result"]["card"].startswith("---\n")


def test_publishing_is_not_built_yet(packed: Any) -> None:
    """Exit code 3, and the next step."""
    result = run(packed.folder, "me/X")
    assert isinstance(result.exception, MissingHereError)
    assert result.exception.exit_code == 3
    assert "--dry-run" in result.exception.sentence()
    assert "hf upload me/X" in result.exception.sentence()
    assert result.stdout == ""


def test_a_refusal_comes_before_that(packed: Any) -> None:
    """A folder that could not be published is refused for its own reason."""
    packed.update(validation=None)
    result = run(packed.folder, "me/X")
    assert isinstance(result.exception, CheckFailedError)
    assert run(packed.folder, "me/X", "--dry-run", "--allow-unvalidated").return_value == 0


def test_options_come_from_the_environment(packed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option has a variable, shown in help."""
    values = {
        "DRY_RUN": "1",
        "JSON": "1",
        "PRIVATE": "1",
        "TAG": "v9",
        "BRANCH": "dev",
        "MESSAGE": "From CI",
        "LICENSE": "mit",
        "SHOW_CARD": "1",
    }
    for name, value in values.items():
        monkeypatch.setenv(f"DFLASH_PACK_{name}", value)
    result = json.loads(run(packed.folder, "me/X").stdout)["result"]
    assert (result["visibility"], result["tag"], result["revision"]) == ("private", "v9", "dev")
    assert (result["message"], result["licence"]) == ("From CI", "mit")
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
    for name in (*values, "CREATE_PR", "ALLOW_UNVALIDATED", "QUIET"):
        assert f"DFLASH_PACK_{name}" in shown
