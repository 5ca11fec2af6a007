"""Settings and contexts: what is chosen, what is refused and with which words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from console.actions import ACTIONS, TOUCHING_KEYS, check_keys
from console.settings import (
    Settings,
    context_from_json,
    demo_contexts,
    find_context,
    load_context,
    load_settings,
    runtime_folder,
)
from console.sources.session import host_of
from jobs.errors import Refused, Usage

CONFIGS = Path(__file__).parents[2] / "data" / "configs"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"RAYDECK_CONFIG_DIR": str(tmp_path / "config"), "XDG_RUNTIME_DIR": str(tmp_path)}


def write(folder: str, name: str, text: str) -> None:
    Path(folder).mkdir(exist_ok=True)
    (Path(folder) / name).write_text(text)


def test_without_a_file_the_defaults_hold(environ: dict[str, str]) -> None:
    assert load_settings(environ) == Settings()


def test_the_environment_beats_the_file(environ: dict[str, str]) -> None:
    write(environ["RAYDECK_CONFIG_DIR"], "settings.yaml", "theme: raydeck-light\n")
    assert load_settings(environ).theme == "raydeck-light"
    assert load_settings({**environ, "RAYDECK_THEME": "raydeck-16", "RAYDECK_READ_ONLY": "1"}).theme == "raydeck-16"
    assert load_settings({**environ, "RAYDECK_READ_ONLY": "1"}).read_only
    assert not load_settings({**environ, "RAYDECK_READ_ONLY": "0"}).read_only


@pytest.mark.parametrize(
    ("text", "words"), [("themee: x", "themee"), ("read_only: maybe", "read_only"), ("a: [", "not YAML")]
)
def test_a_wrong_settings_file_is_refused_with_its_field(environ: dict[str, str], text: str, words: str) -> None:
    write(environ["RAYDECK_CONFIG_DIR"], "settings.yaml", text)
    with pytest.raises(Refused, match=words):
        load_settings(environ)


def test_the_source_documents_cluster_file_is_a_context(environ: dict[str, str]) -> None:
    context = find_context(str(CONFIGS / "cluster.yaml"), Settings(), environ)
    assert [(node.name, node.role, node.accelerators) for node in context.nodes] == [
        ("control-01", "head", None),
        ("worker-01", "worker", 8),
        ("worker-02", "worker", 8),
    ]
    assert context.metadata_store == "/data/cluster/meta"
    assert "/mnt/output" in context.disks


def test_a_context_file_says_how_hosts_are_reached(environ: dict[str, str]) -> None:
    text = "ssh: {user: ops, jump: bastion}\nnodes:\n- {name: a, address: 10.0.0.2, role: head, ssh: {port: 2222}}\n"
    write(environ["RAYDECK_CONFIG_DIR"], "lab.yaml", text)
    settings = Settings(contexts={"lab": Path("lab.yaml")})
    context = find_context(None, settings, environ)
    host = host_of(context.nodes[0], context.ssh)
    assert (host.address, host.user, host.port, host.jump) == ("10.0.0.2", "ops", 2222, "bastion")


CLUSTER = """cluster:
  name: lab
  control_nodes: [{host: control-01}]
  worker_nodes:
    - {host: worker-01, accelerators: 8}
    - {host: worker-02, accelerators: 4, ray_start: "~/start.sh {host}"}
  access:
    ray: {start: "ray start --address={head}:6379 --num-gpus={accelerators}", stop: "ray stop --force"}
"""


def test_a_cluster_file_says_how_ray_is_started_and_ended_on_each_node(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    nodes = {node.name: node for node in find_context(str(tmp_path / "cluster.yaml"), Settings(), {}).nodes}
    assert nodes["worker-01"].ray_start == "ray start --address=control-01:6379 --num-gpus=8"
    assert nodes["worker-02"].ray_start == "~/start.sh worker-02"
    assert {nodes[name].ray_stop for name in ("worker-01", "worker-02")} == {"ray stop --force"}
    assert nodes["control-01"].ray_start == ""  # the others join it


def test_a_context_file_says_it_for_its_nodes_and_goes_before_the_cluster_file(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "lab.yaml").write_text(
        "cluster_file: cluster.yaml\nnodes:\n"
        "- {name: w1, address: worker-01, ray_start: 'join {head} {host} {accelerators}'}\n"
        "- {name: w2, address: worker-02}\n"
    )
    nodes = {node.name: node for node in load_context(tmp_path / "lab.yaml").nodes}
    assert nodes["w1"].ray_start == "join control-01 worker-01 8"
    assert (nodes["w2"].ray_start, nodes["w2"].accelerators) == ("~/start.sh worker-02", 4)
    assert nodes["w1"].ray_stop == "ray stop --force"
    again = context_from_json(load_context(tmp_path / "lab.yaml").to_json(), tmp_path / "lab.json")
    assert {node.name: node.ray_start for node in again.nodes} == {name: nodes[name].ray_start for name in nodes}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("join {haed}", r"nodes.1.ray_start: has a \{haed\} that stands for nothing.*Did you mean \{head\}"),
        ("join {accelerators}", "nodes.1.ray_start: the node says nothing of its accelerators"),
    ],
)
def test_a_wrong_command_in_a_context_file_is_refused_with_its_place(tmp_path: Path, command: str, words: str) -> None:
    path = tmp_path / "lab.yaml"
    rows = "- {name: h, address: h, role: head}\n- {name: w1, address: w, ray_start: '%s'}\n" % command  # noqa: UP031
    path.write_text("nodes:\n" + rows)
    with pytest.raises(Refused, match=words):
        load_context(path)


@pytest.mark.parametrize(
    ("text", "words"), [("nodes: []", "names no node"), ("nodes: 5", "nodes"), ("hosts: []", "hosts")]
)
def test_a_wrong_context_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(text)
    with pytest.raises(Refused, match=words):
        load_context(path)


def test_an_unknown_context_names_those_that_are_known(environ: dict[str, str]) -> None:
    with pytest.raises(Usage, match="Known are: lab"):
        find_context("lba", Settings(contexts={"lab": Path("lab.yaml")}), environ)
    with pytest.raises(Usage, match="raydeck demo"):
        find_context(None, Settings(), environ)


def test_only_demos_whose_keeper_lives_are_listed(environ: dict[str, str]) -> None:
    folder = runtime_folder(environ)
    folder.mkdir()
    context = {"name": "demo", "nodes": [{"name": "head", "address": "127.0.0.1"}]}
    body = {"demo": "x", "folder": "/nowhere", "context": context}
    (folder / "demo.json").write_text(json.dumps({**body, "pid": os.getpid()}))
    (folder / "demo-2.json").write_text(json.dumps({**body, "pid": 2**22 + 1}))
    (folder / "demo-3.json").write_text("half a li")
    assert list(demo_contexts(environ)) == ["demo"]
    assert find_context(None, Settings(), environ).name == "demo"


def test_nothing_may_take_the_place_of_a_key_that_touches() -> None:
    assert check_keys({"log": "ctrl+l"}) == {"log": "ctrl+l"}
    with pytest.raises(Refused, match="K changes something"):
        check_keys({"log": "K"})
    with pytest.raises(Refused, match="no action 'logg'"):
        check_keys({"logg": "x"})


def test_lower_case_looks_and_upper_case_touches() -> None:
    looks = {key for action in ACTIONS if not action.touches for key in action.keys}
    assert not looks & TOUCHING_KEYS
    for action in ACTIONS:
        letters = [key for key in action.keys if len(key) == 1 and key.isalpha() and key not in "GN"]
        assert all(key.isupper() == action.touches for key in letters), action.name


def test_no_two_actions_of_a_screen_share_a_key() -> None:
    for scopes in (("everywhere", "table", "fleet"), ("everywhere", "table", "runs"), ("everywhere", "log")):
        keys = [key for action in ACTIONS if action.scope in scopes for key in action.keys]
        assert len(keys) == len(set(keys)), scopes
