"""A person's own ssh to a node, with the same options as the console's connection."""

from __future__ import annotations

import subprocess

from console.settings import NodeEntry, SshOptions


def shell_argv(entry: NodeEntry, common: SshOptions) -> list[str]:
    """The command for an interactive shell on a node."""
    own = entry.ssh
    argv = ["ssh"]
    for option, value in (
        ("-F", own.config or common.config),
        ("-p", own.port or common.port),
        ("-l", own.user or common.user),
        ("-J", own.jump or common.jump),
    ):
        if value is not None:
            argv += [option, str(value)]
    for file in own.identity_files or common.identity_files:
        argv += ["-i", str(file.expanduser())]
    known_hosts = own.known_hosts or common.known_hosts
    if known_hosts is not None:
        argv += ["-o", f"UserKnownHostsFile={known_hosts.expanduser()}"]
    return [*argv, "--", entry.address]


def run_shell(argv: list[str]) -> int:
    """Hand the terminal to ssh until it ends; its exit code, 127 where there is no ssh."""
    try:
        return subprocess.call(argv)
    except FileNotFoundError:
        return 127
