"""A cut-down ssh config means the same to the SSH library as the whole one."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import asyncssh
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.sources.sshconfig import UserConfig

NAMES = ["gpu-1", "gpu-22", "GPU-1", "head", "10.0.0.7", "a.b.example"]

patterns = st.sampled_from(
    [*NAMES, "*", "gpu-*", "gpu-?", "!gpu-1", "*.example", "10.0.0.*", '"gpu-1"', "g[p]u-1", "!*"]
)
values = st.integers(1, 65535)
option = st.one_of(
    values.map(lambda port: f"  Port {port}"),
    values.map(lambda number: f"User u{number}"),
    values.map(lambda number: f"\tHostName=h{number}.example"),
    values.map(lambda number: f"  ProxyJump j{number}"),
    st.just("# a comment"),
    st.just(""),
    # Without %p: the library fills it in at the end of each file, which differs where one file includes another.
    st.just("  ProxyCommand ssh -W %n jump"),
)
header = st.one_of(
    st.lists(patterns, min_size=1, max_size=3).map(lambda found: "Host " + " ".join(found)),
    st.lists(patterns, min_size=1, max_size=2).map(lambda found: "host=" + ",".join(found)),
    patterns.map(lambda pattern: f"Match host {pattern.strip(chr(34))}"),
    st.just("Match all"),
)
config_lines = st.lists(st.one_of(header, option, option), max_size=14)


def meaning(path: Path | None, name: str) -> dict[str, object] | str:
    try:
        found = asyncssh.SSHClientConnectionOptions(
            config=[str(path)] if path else None, host=name, client_keys=None, known_hosts=None, agent_path=None
        )
    except ValueError as error:
        return type(error).__name__
    return {
        "host": found.host,
        "port": found.port,
        "user": found.username,
        "jump": found.tunnel,
        "command": found.proxy_command,
    }


@settings(max_examples=60, deadline=None)
@given(config_lines, st.sampled_from(NAMES), st.one_of(st.none(), config_lines))
def test_the_cut_means_the_same(lines: list[str], name: str, included: list[str] | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "config"
        if included is not None:
            (Path(folder) / "more").write_text("\n".join(included) + "\n")
            lines = [f"Include {folder}/mor*", *lines]
        whole.write_text("\n".join(lines) + "\n")
        config = UserConfig(whole)
        try:
            assert meaning(config.for_host(name), name) == meaning(whole, name)
        finally:
            config.close()


def test_hosts_with_the_same_lines_share_a_file_that_goes_away(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("Host worker-*\n  Port 2222\nHost head\n  Port 22\n")
    config = UserConfig(path)
    first, second = config.for_host("worker-1"), config.for_host("worker-2")
    assert first is not None
    assert first == second
    assert first.read_text().split() == ["Host", "worker-*", "Port", "2222"]
    assert os.stat(first.parent).st_mode & 0o077 == 0
    assert config.for_host("elsewhere") is None
    config.close()
    assert not first.parent.exists()


def test_a_file_that_is_not_there_is_an_empty_one(tmp_path: Path) -> None:
    assert UserConfig(tmp_path / "none").for_host("x") is None


def test_one_of_500_hosts_costs_a_small_part_of_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("".join(f"Host node-{i}\n  HostName 10.0.0.{i % 250}\n  User ops\n  Port 22\n" for i in range(500)))
    config = UserConfig(path)

    def seconds(work: Path | None) -> float:
        began = time.perf_counter()
        assert meaning(work, "node-250") != {}
        return time.perf_counter() - began

    whole = min(seconds(path) for _ in range(3))
    began = time.perf_counter()
    reduced = config.for_host("node-250")
    cut = time.perf_counter() - began + min(seconds(reduced) for _ in range(3))
    config.close()
    assert cut < whole / 4


@pytest.mark.parametrize("text", ["Include", "Include /nonexistent/*", "Host\n Port 1", "\x00\xff"])
def test_odd_files_are_cut_without_harm(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    config = UserConfig(path)
    config.for_host("x")
    config.close()
