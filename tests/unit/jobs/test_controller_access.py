"""Who may do what: by the cluster file, and by the kernel's word on a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jobs.controller.access import Access, Caller, NotAllowed, Role
from jobs.errors import Refused
from jobs.spec import Roles
from tests.unit.jobs.controller_harness import Harness, controller, short_folder, stop_request
from tests.unit.jobs.ray_stand_in import RayStandIn

ROLES = Roles(admins=["ann", "@wheel"], operators=["otto"], submitters=["sam", "@research"])


@pytest.mark.parametrize(
    ("user", "groups", "role"),
    [
        ("ann", set[str](), Role.ADMIN),
        ("zoe", {"wheel", "users"}, Role.ADMIN),
        ("otto", set[str](), Role.OPERATOR),
        ("otto", {"wheel"}, Role.ADMIN),
        ("sam", set[str](), Role.SUBMITTER),
        ("kim", {"research"}, Role.SUBMITTER),
        ("wheel", set[str](), Role.VIEWER),
        ("eve", {"ann"}, Role.VIEWER),
    ],
)
def test_the_highest_role_counts(user: str, groups: set[str], role: Role) -> None:
    assert Access(ROLES, own_uid=500).role(1000, user, frozenset(groups)) is role


def test_without_roles_only_the_owner_and_root_change_anything() -> None:
    access = Access(Roles(), own_uid=500)
    assert access.role(500, "ray", frozenset()) is Role.ADMIN
    assert access.role(0, "root", frozenset()) is Role.ADMIN
    assert access.role(1000, "alice", frozenset()) is Role.VIEWER
    with pytest.raises(NotAllowed, match="alice is a viewer here and may not launch: that takes a submitter"):
        access.require(Caller(1000, "alice", Role.VIEWER), Role.SUBMITTER, "launch")


def test_named_viewers_shut_the_others_out() -> None:
    access = Access(Roles(viewers=["vic"], submitters=["sam"]), own_uid=500)
    assert access.role(1, "vic", frozenset()) is Role.VIEWER
    assert access.role(2, "sam", frozenset()) is Role.SUBMITTER
    assert access.role(3, "eve", frozenset()) is Role.NOBODY


async def test_a_user_without_a_name_is_known_by_number() -> None:
    assert (await Access(Roles()).caller(3_999_999)).user == "uid 3999999"


async def ask_as(uid: int, store: Path, method: str, path: str, body: str = "") -> tuple[int, dict[str, Any]]:
    """One request by another user of this machine."""
    script = (
        "import http.client,os,socket,sys\n"
        "os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))\n"
        "c=http.client.HTTPConnection('x'); c.sock=socket.socket(socket.AF_UNIX); c.sock.connect(sys.argv[2])\n"
        "c.request(sys.argv[3], sys.argv[4], sys.argv[5]); a=c.getresponse()\n"
        "print(a.status); print(a.read().decode())\n"
    )
    command = [
        shutil.which("python3") or "python3",
        "-c",
        script,
        str(uid),
        f"{store}/controller.sock",
        method,
        path,
        body,
    ]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=20, check=True)
    status, answer = done.stdout.split("\n", 1)
    return int(status), json.loads(answer)


CLUSTER = """\
cluster:
  name: c
  control_nodes: [{host: localhost}]
  storage: {output_path: OUT}
  roles: {submitters: [SUBMITTER]}
"""


@pytest.mark.skipif(os.getuid() != 0, reason="becomes other users, which takes root")
async def test_the_kernel_says_who_asks() -> None:
    nobody, daemon = pwd.getpwnam("nobody"), pwd.getpwnam("daemon")
    async with short_folder() as store, RayStandIn().serving() as ray:
        store.chmod(0o711)
        cluster = CLUSTER.replace("OUT", f"{store}/out").replace("SUBMITTER", "daemon")
        async with controller(ray, store, cluster, ticks=False) as desk:
            await _try(desk, nobody.pw_uid, daemon.pw_uid)


async def _try(desk: Harness, nobody: int, daemon: int) -> None:
    ours = (await desk.client.launch(desk.request()))[0]
    code, status = await ask_as(nobody, desk.store, "GET", "/v1/status")
    assert (code, status["you"], status["role"]) == (200, "nobody", "viewer")
    launch = desk.request().model_dump_json()
    code, answer = await ask_as(nobody, desk.store, "POST", "/v1/runs", launch)
    assert code == 403
    assert "nobody is a viewer here and may not launch" in json.dumps(answer)
    stop = stop_request().model_dump_json()
    assert (await ask_as(nobody, desk.store, "POST", f"/v1/runs/{ours.id}/stop", stop))[0] == 403
    assert (await ask_as(nobody, desk.store, "PUT", f"/v1/packages/{'ab' * 32}", "x"))[0] == 403
    code, answer = await ask_as(daemon, desk.store, "POST", "/v1/runs", launch)
    (theirs,) = answer["runs"]
    assert (code, theirs["user"]) == (201, "daemon")
    code, answer = await ask_as(
        daemon, desk.store, "POST", f"/v1/runs/{ours.id}/stop", stop_request().model_dump_json()
    )
    assert code == 403
    assert "a run of root" in json.dumps(answer)
    assert (await ask_as(daemon, desk.store, "POST", f"/v1/runs/{theirs['id']}/stop", stop))[0] == 200
    audit = [(entry.user, entry.action, entry.allowed) for entry in reversed(await desk.client.audit())]
    assert audit == [
        ("root", "launch", True),
        ("nobody", "launch", False),
        ("nobody", "stop", False),
        ("nobody", "package", False),
        ("daemon", "launch", True),
        ("daemon", "stop", False),
        ("daemon", "stop", True),
    ]
    for name in ("journal.sqlite", "packages"):
        assert (desk.store / name).stat().st_mode & 0o077 == 0
    with pytest.raises(Refused):
        await desk.client.run("none")
