"""The command line: exit codes, JSON, and clear words for what is wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from console.cli import output
from console.cli.main import command_line
from console.render.cells import Cell, Column

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
    commands = "demo nodes gpus runs show logs queue explain events checkpoints sweep launch stop restart hold release "
    commands += "priority move releases rollback rollbacks audit check contexts controller"
    listed = {line.split()[0] for line in out.partition("Commands:")[2].splitlines() if line.startswith("  ")}
    assert set(commands.split()) <= listed


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


def test_check_sees_whether_a_cluster_can_run_it(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    nodes = "control_nodes: [{host: h}]\n  worker_nodes: [{host: w, accelerators: 1}]\n  storage: {output_path: /o}\n"
    cluster.write_text(f"cluster:\n  name: c\n  {nodes}")
    assert call("check", "lm-single", "--cluster", str(cluster))[:2] == (
        0,
        f"lm-single: a workflow file without mistakes, and {cluster} can run it\n",
    )
    code, _, err = call("check", "lm", "--cluster", str(cluster))
    assert code == 1
    assert "has 2 accelerators; the most that one has is 1" in err
    cluster.write_text("cluster:\n  nam: c\n")
    code, _, err = call("check", str(tmp_path / "none.yaml"), "--cluster", str(cluster))
    assert (code, "cannot be read" in err) == (1, True)


def test_mistakes_in_two_files_are_counted_together(tmp_path: Path) -> None:
    workflow, cluster = tmp_path / "w.yaml", tmp_path / "c.yaml"
    workflow.write_text("workflow:\n  name: w\n  quue: a\n")
    cluster.write_text("cluster:\n  name: c\n  control_nodes: [{host: h}]\n  netwrk: {}\n")
    code, _, err = call("check", str(workflow), "--cluster", str(cluster))
    assert (code, err.splitlines()) == (
        1,
        [
            f"{cluster}:4:3: unknown key 'netwrk' (did you mean network?)",
            f"{workflow}:3:3: unknown key 'quue' (did you mean queue?)",
            f"raydeck: 2 mistakes in {cluster} and {workflow}",
        ],
    )


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


@dataclass(frozen=True)
class Thing:
    """A row."""

    name: str
    size: int
    note: str = ""


THINGS: tuple[Column[Thing], ...] = (
    Column("name", "NAME", 6, lambda thing: Cell(thing.name)),
    Column("size", "SIZE", 4, lambda thing: Cell(str(thing.size)), align="right", drop=1),
    Column("extra", "EXTRA", 5, lambda thing: Cell("")),
    Column("note", "NOTE", 8, lambda thing: (Cell("! ", "warn"), Cell(thing.note)), grow=True),
)


@pytest.mark.parametrize(
    ("cells", "lines"),
    [
        (80, ["NAME    SIZE  NOTE", "a          1  ! all is well here", "longer  1000  !"]),
        (26, ["NAME    SIZE", "a          1", "      ! all is well here", "longer  1000", "      !"]),
        (16, ["NAME    SIZE", "a          1", "      ! all is", "      well here", "longer  1000", "      !"]),
        (10, ["NAME", "a", "      ! all is", "      well", "      here", "longer", "      !"]),
    ],
)
def test_a_table_is_as_wide_as_it_needs_and_as_narrow_as_it_must(
    cells: int, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "width", lambda: cells)
    output.columns(THINGS, [Thing("a", 1, "all is well here"), Thing("longer", 1000)], "none")
    assert capsys.readouterr().out.splitlines() == lines
    output.columns(THINGS, [], "none")
    assert capsys.readouterr() == ("", "none\n")


@pytest.mark.parametrize(
    ("cells", "lines"),
    [
        (40, ["ID  LAST STEP  REASON", "a   7          it is told here in full"]),
        (24, ["ID  LAST STEP", "a   7", "      it is told here in", "      full"]),
    ],
)
def test_a_table_of_documents_loses_nothing_either(
    cells: int, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "width", lambda: cells)
    output.table([{"id": "a", "last_step": 7, "reason": "it is told here in full"}], ("id", "last_step", "reason"), "")
    assert capsys.readouterr().out.splitlines() == lines


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
