"""What the README shows can be typed and loaded: its files have no mistakes, its commands exist with their options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from console.cli.main import command_line
from jobs.load import load_cluster, load_workflow

TEXT = (Path(__file__).parents[3] / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
FRAGMENTS = [
    text for kind, text in BLOCKS if kind == "yaml" and re.search(r"^ *(workflow|scheduler|roles|cluster):", text)
]
LINES = [
    line.partition("#")[0].strip()
    for kind, text in BLOCKS
    if kind == "sh"
    for command in text.splitlines()
    for line in command.partition("#")[0].split("&&")
    if line.strip().startswith("raydeck ")
]


@pytest.mark.parametrize("text", FRAGMENTS)
def test_its_files_have_no_mistakes(text: str) -> None:
    if re.search(r"^workflow:", text, re.MULTILINE):
        named = text if "  name:" in text else text.replace("workflow:\n", "workflow:\n  name: x\n", 1)
        load_workflow(named, "README.md")
    elif "cluster:\n" in text:
        load_cluster(text, "README.md")
    else:
        load_cluster("cluster:\n  name: x\n  control_nodes: [{host: h}]\n" + text, "README.md")


def test_it_shows_enough_files_and_commands() -> None:
    assert len(FRAGMENTS) >= 5
    assert len(LINES) >= 15


@pytest.mark.parametrize("line", LINES)
def test_its_commands_exist_with_their_options(line: str) -> None:
    words = shlex.split(line)[1:]
    if words[:1] == ["--context"]:
        words = words[2:]
    command: click.Command = command_line
    while words and isinstance(command, click.Group):
        name = words.pop(0)
        assert name in command.commands, f"raydeck has no command {name!r}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("-")} <= known
