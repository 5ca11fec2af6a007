"""Submitters act on their own runs, operators on all, viewers look; whoever the file does not name sees nothing."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import AsyncGenerator, Awaitable, Generator
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import Refused
from jobs.wire import ArrangeRequest, StopRequest
from tests.hosts import accounts
from tests.hosts.accounts import Account
from tests.hosts.town import Town, launch_request, town
from tests.ssh.servers import SSHD

PEOPLE = ("alice", "bob", "ops", "eve", "mallory")


@pytest.fixture(scope="module")
def folder() -> Generator[Path]:
    """Short enough for a socket in it; everybody may pass through to their home and the socket."""
    made = Path(tempfile.mkdtemp(prefix="rd-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def people(folder: Path) -> Generator[tuple[dict[str, Account], dict[str, str]]]:
    """Accounts for all, ``ops`` in a group of operators."""
    reason = accounts.why_not() or ("" if Path(SSHD).exists() else "OpenSSH's sshd is not installed")
    if reason:
        pytest.skip(reason)
    homes = folder / "home"
    homes.mkdir(mode=0o755)
    with accounts.accounts(homes, PEOPLE, {"ops": "operators"}) as made:
        yield made


@pytest.fixture
async def shared(
    folder: Path, people: tuple[dict[str, Account], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Town]:
    """A controller that knows alice and bob as submitters, the group as operators, eve as a viewer."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    known, groups = people
    roles = (
        f"    operators: ['@{groups['operators']}']\n"
        f"    submitters: [{known['alice'].name}, {known['bob'].name}]\n"
        f"    viewers: [{known['eve'].name}]\n"
    )
    own = folder / uuid.uuid4().hex[:4]
    own.mkdir(mode=0o711)
    own.chmod(0o711)
    async with town(own, known, roles) as made:
        yield made


async def refused(asked: Awaitable[Any]) -> str:
    """Why it was refused. Fails if it was not."""
    with pytest.raises(Refused) as caught:
        await asked
    return caught.value.sentence


def stop(reason: str = "") -> StopRequest:
    return StopRequest(request_id=uuid.uuid4().hex, reason=reason)


def arrange(**changes: Any) -> ArrangeRequest:
    return ArrangeRequest(request_id=uuid.uuid4().hex, **changes)


async def audit(town: Town) -> list[tuple[str, str, str, bool]]:
    """Who asked for what, oldest first, by the names that the test uses."""
    entries = await town.desks["eve"].audit(1000)
    names = {account.name: person for person, account in town.accounts.items()}
    return [(names[entry.user], entry.action, entry.target, entry.allowed) for entry in reversed(entries)]


async def test_the_kernel_says_who_asks_and_the_file_what_they_may(shared: Town) -> None:
    told = {person: await shared.desks[person].status() for person in PEOPLE if person != "mallory"}
    assert {person: (status.you, status.role) for person, status in told.items()} == {
        "alice": (shared.name("alice"), "submitter"),
        "bob": (shared.name("bob"), "submitter"),
        "ops": (shared.name("ops"), "operator"),
        "eve": (shared.name("eve"), "viewer"),
    }
    words = f"{shared.name('mallory')} is a nobody here and may not look: that takes a viewer"
    assert await refused(shared.desks["mallory"].status()) == words
    assert await refused(shared.desks["mallory"].runs()) == words


async def test_a_submitter_stops_their_own_runs_and_an_operator_everybodys(shared: Town) -> None:
    desks = shared.desks
    first, second = await shared.launch("alice"), await shared.launch("bob")
    assert (first.user, second.user) == (shared.name("alice"), shared.name("bob"))
    assert await refused(desks["bob"].stop(first.id, stop())) == (
        f"{shared.name('bob')} is a submitter here and may not stop {first.id}, a run of {shared.name('alice')}: "
        "that takes an operator"
    )
    assert "is a viewer here and may not launch" in await refused(desks["eve"].launch(launch_request()))
    assert "is a viewer here and may not stop" in await refused(desks["eve"].stop(first.id, stop()))
    assert "may not" in await refused(desks["mallory"].launch(launch_request()))
    assert (await desks["alice"].stop(first.id, stop("enough"))).reason == f"to be stopped by {first.user}: enough"
    assert (await desks["ops"].stop(second.id, stop("drill"))).reason == f"to be stopped by {shared.name('ops')}: drill"
    # Everybody who may look sees all of it, refusals too.
    assert await audit(shared) == [
        ("alice", "launch", first.id, True),
        ("bob", "launch", second.id, True),
        ("bob", "stop", first.id, False),
        ("eve", "launch", "", False),
        ("eve", "stop", first.id, False),
        ("mallory", "launch", "", False),
        ("alice", "stop", first.id, True),
        ("ops", "stop", second.id, True),
    ]
    assert await desks["eve"].audit_broken() == ""


async def test_a_submitter_arranges_their_own_runs_and_not_what_an_operator_decided(shared: Town) -> None:
    alice, bob, ops = (shared.desks[person] for person in ("alice", "bob", "ops"))
    run = (await shared.launch("alice", hold=True)).id
    other = (await shared.launch("bob", hold=True)).id
    assert "may not" in await refused(bob.arrange(run, arrange(hold=False)))
    assert "may not" in await refused(shared.desks["eve"].arrange(run, arrange(priority="low")))
    assert (await alice.arrange(run, arrange(priority="high"))).priority == "high"
    assert "above high" in await refused(alice.arrange(run, arrange(priority="500")))
    assert "may not" in await refused(alice.arrange(run, arrange(place="first")))
    assert (await ops.arrange(run, arrange(hold=True, reason="maintenance"))).held is not None
    assert "holds" in await refused(alice.arrange(run, arrange(hold=False)))
    assert (await ops.arrange(run, arrange(priority="500"))).priority == "500"
    assert (await ops.arrange(run, arrange(hold=False))).held is None
    assert (await bob.arrange(other, arrange(hold=False))).held is None
    assert await audit(shared) == [
        ("alice", "launch", run, True),
        ("bob", "launch", other, True),
        ("bob", "release", run, False),
        ("eve", "priority", run, False),
        ("alice", "priority", run, True),
        ("alice", "priority", run, False),
        ("alice", "move", run, False),
        ("ops", "hold", run, True),
        ("alice", "release", run, False),
        ("ops", "priority", run, True),
        ("ops", "release", run, True),
        ("bob", "release", other, True),
    ]
    assert await ops.audit_broken() == ""
