"""The journal: what was promised is there after a kill, and a change behind its back is found."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.controller.journal import Act, Journal, JournalError, JournalThread
from jobs.controller.record import Record
from jobs.model import Launch, Run, RunState
from jobs.wire import Release


def make_record(run: str = "lm-aaaaaa", state: RunState = RunState.QUEUED, at: float = 1.0) -> Record:
    return Record(
        run=Run(id=run, workflow="lm", release="r1", state=state, nodes=1, gpus=0, submitted_at=at),
        launch=Launch(
            run=run,
            attempt=1,
            workflow="lm",
            script=["train.py"],
            nodes=1,
            processes_per_node=1,
            gpus_per_node=0,
            cpus_per_node=1,
            run_directory="/tmp/none",
        ),
        package="0" * 64,
    )


def make_act(action: str = "launch", allowed: bool = True, reason: str = "") -> Act:
    return Act("alice", action, "lm-aaaaaa", allowed, reason)


def test_what_was_accepted_is_there_after_a_restart(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    release = Release(id="r1", workflow="lm", created_at=1.0, user="alice", config={"a": 1}, code_digest="d")
    journal.accept(make_record(), make_act(), 1.0, request="request-1", digest="d1", release=release)
    journal.put_run(make_record("lm-bbbbbb", RunState.FAILED, at=2.0))
    journal.close()
    again = Journal(tmp_path / "journal.sqlite")
    answered = again.answered("request-1")
    assert answered is not None
    assert (answered.run, answered.digest) == ("lm-aaaaaa", "d1")
    assert again.answered("request-2") is None
    assert [record.id for record in again.active()] == ["lm-aaaaaa"]
    assert [record.id for record in again.newest(10)] == ["lm-bbbbbb", "lm-aaaaaa"]
    assert again.run("lm-aaaaaa") == make_record()
    assert again.releases() == [release]
    assert again.releases("other") == []
    assert again.verify() == ""
    again.close()


def test_a_request_id_counts_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    journal.accept(make_record(), make_act(), 1.0, request="request-1", digest="d1")
    with pytest.raises(JournalError):
        journal.accept(make_record("lm-bbbbbb"), make_act(), 2.0, request="request-1", digest="d1")
    # All of the second one was taken back, and the chain goes on from the first.
    assert [record.id for record in journal.active()] == ["lm-aaaaaa"]
    journal.audit(make_act("stop"), 3.0)
    assert [entry.seq for entry in journal.entries(10)] == [2, 1]
    assert journal.verify() == ""
    journal.close()


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    journal.audit(make_act(), 1.0)
    assert (tmp_path / "journal.sqlite").stat().st_mode & 0o077 == 0
    assert (tmp_path / "journal.sqlite-wal").stat().st_mode & 0o077 == 0
    journal.close()


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("UPDATE audit SET reason = 'nothing' WHERE seq = 2", "entry 2 (stop lm-aaaaaa by alice) was changed"),
        ("UPDATE audit SET allowed = 0 WHERE seq = 2", "entry 2"),
        ("DELETE FROM audit WHERE seq = 2", "entry 2 is missing"),
        ("UPDATE audit SET hash = 'f' WHERE seq = 3", "entry 3"),
    ],
)
def test_a_change_behind_its_back_is_found(tmp_path: Path, statement: str, sentence: str) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    for action in ("launch", "stop", "launch"):
        journal.audit(make_act(action), 1.0)
    journal.close()
    database = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        database.execute(statement)
    database.execute("DROP TRIGGER audit_is_final")
    database.execute("DROP TRIGGER audit_is_kept")
    database.execute(statement)
    database.commit()
    database.close()
    journal = Journal(path)
    assert sentence in journal.verify()
    journal.close()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.text(max_size=20), st.text(max_size=20), st.text(max_size=40), st.booleans(), st.floats(0, 2e9)),
        max_size=8,
    )
)
def test_the_chain_holds_for_any_text(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[str, str, str, bool, float]]
) -> None:
    path = tmp_path_factory.mktemp("chain") / "journal.sqlite"
    journal = Journal(path)
    for user, action, reason, allowed, at in entries:
        clean = [text.encode("utf-8", "replace").decode() for text in (user, action, reason)]
        journal.audit(Act(clean[0], clean[1], "target", allowed, clean[2]), at)
    journal.close()
    again = Journal(path)
    assert again.verify() == ""
    assert len(again.entries(100)) == len(entries)
    again.close()


def test_a_newer_file_is_refused_in_words(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "journal.sqlite")
    database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(JournalError, match="newer raydeck"):
        Journal(tmp_path / "journal.sqlite")


def test_a_file_that_is_no_database_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"not a database, though long enough to look at" * 40)
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal(tmp_path / "journal.sqlite")


_WRITER = """
import sys
from pathlib import Path
from jobs.controller.journal import Journal
from tests.unit.jobs.test_controller_journal import make_act, make_record
journal = Journal(Path(sys.argv[1]))
number = len(journal.entries(100000))
while True:
    number += 1
    journal.accept(make_record(f"lm-{number}"), make_act(), 1.0, request=f"request-{number}", digest="d")
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""


def test_nothing_promised_is_lost_when_the_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    for writes in (1, 7, 20):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        promised = [int(writer.stdout.readline()) for _ in range(writes)]
        os.kill(writer.pid, signal.SIGKILL)
        promised += [int(line) for line in writer.stdout.read().splitlines()]
        writer.wait(10)
        writer.stdout.close()
        journal = Journal(path)
        assert journal.verify() == ""
        kept = len(journal.entries(100_000))
        # One more than was promised may be there: it was written when the kill came.
        assert promised[-1] <= kept <= promised[-1] + 1
        for number in promised:
            assert journal.answered(f"request-{number}") is not None
            assert journal.run(f"lm-{number}") is not None
        journal.close()


async def test_the_thread_gives_back_what_the_journal_says(tmp_path: Path) -> None:
    journal = JournalThread(tmp_path / "journal.sqlite")
    await journal(Journal.put_run, make_record())
    assert [record.id for record in await journal(Journal.active)] == ["lm-aaaaaa"]
    await journal(Journal.accept, make_record(), make_act(), 1.0, request="request-1", digest="d")
    with pytest.raises(JournalError):
        await journal(Journal.accept, make_record(), make_act(), 1.0, request="request-1", digest="d")
    journal.close()
