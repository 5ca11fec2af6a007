"""The command line: exit codes, JSON, and clear words for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from console.cli.main import command_line

runner = CliRunner()


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYDECK_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("RAYDECK_CONTEXT", raising=False)


def call(*arguments: str) -> tuple[int, str, str]:
    result = runner.invoke(command_line, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_help_tells_every_command() -> None:
    code, out, _ = call("--help")
    assert code == 0
    for name in ("demo", "nodes", "gpus", "runs", "logs", "launch", "stop", "check", "controller", "audit"):
        assert name in out


def test_without_a_context_it_says_what_to_do() -> None:
    code, _, err = call("nodes")
    assert code == 2
    assert "raydeck demo" in err


def test_unknown_options_are_wrong_usage() -> None:
    assert call("nodes", "--jsno")[0] == 2


def test_a_change_without_a_terminal_needs_yes() -> None:
    code, _, err = call("launch", "lm")
    assert code == 2
    assert "--yes" in err


def test_read_only_refuses_changes() -> None:
    code, _, err = call("--read-only", "launch", "lm", "--yes")
    assert code == 2
    assert "read-only" in err


def test_check_finds_nothing_in_a_sample() -> None:
    code, out, _ = call("check", "lm")
    assert (code, "without mistakes" in out) == (0, True)
    code, out, _ = call("check", "lm", "--json")
    assert json.loads(out)["resolved"]["name"] == "lm"


def test_check_names_every_mistake_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("workflow:\n  name: x\n  resources:\n    nodez: 2\n    accelerators_per_node: many\n")
    code, _, err = call("check", str(path))
    assert code == 1
    assert f"{path}:4:5:" in err
    assert "nodes" in err
    assert f"{path}:5:" in err


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    code, _, err = call("check", str(tmp_path / "none.yaml"))
    assert code == 1
    assert "cannot be read" in err


def test_a_cluster_that_cannot_be_reached_is_exit_code_3(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(
        "nodes:\n- {name: head, address: 127.0.0.1, role: head, ssh: {port: 1}}\nssh: {config: /dev/null}\n"
    )
    code, out, err = call("-c", str(path), "nodes", "--json")
    assert code == 3
    assert json.loads(out)[0]["ssh"] in ("waiting", "refused")
    assert "127.0.0.1" in err
    assert call("-c", str(path), "runs")[0] == 3
