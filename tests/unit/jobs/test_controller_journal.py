"""The journal: what was promised is there after a kill, and a change behind its back is found."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jobs.controller import schema
from jobs.controller.journal import Act, Journal, JournalError, JournalThread
from jobs.controller.record import Record, moved
from jobs.model import MOVES, Attempt, Launch, Move, Outcome, Run, RunState
from jobs.wire import Release, Rollback

DATA = Path(__file__).parents[2] / "data"


def make_record(run: str = "lm-aaaaaa", state: RunState = RunState.QUEUED, at: float = 1.0, **changes: Any) -> Record:
    return Record(
        run=Run(
            id=run, workflow="lm", release="r1", state=state, nodes=1, gpus=0, submitted_at=at,
            ended_at=at if state.ended else None,
        ).model_copy(update=changes),
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
    )  # fmt: skip


def make_release(name: str = "r1", at: float = 1.0, workflow: str = "lm") -> Release:
    return Release(id=name, workflow=workflow, created_at=at, user="alice", config={"a": 1}, code_digest="d")


def make_act(action: str = "launch", allowed: bool = True, reason: str = "") -> Act:
    return Act("alice", action, "lm-aaaaaa", allowed, reason)


@pytest.fixture
def journal(tmp_path: Path) -> Generator[Journal]:
    opened = Journal(tmp_path / "journal.sqlite")
    yield opened
    opened.close()


def test_what_was_accepted_is_there_after_a_restart(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    release = make_release()
    journal.accept(
        [make_record()], make_act(), 1.0, request="request-1", digest="d1", answer="lm-aaaaaa", releases=[release]
    )
    journal.put_run(make_record("lm-bbbbbb", RunState.FAILED, at=2.0))
    journal.close()
    again = Journal(tmp_path / "journal.sqlite")
    answered = again.answered("request-1")
    assert answered is not None
    assert (answered.answer, answered.digest) == ("lm-aaaaaa", "d1")
    assert again.answered("request-2") is None
    assert [record.id for record in again.active()] == ["lm-aaaaaa"]
    assert [record.id for record in again.newest(10)] == ["lm-bbbbbb", "lm-aaaaaa"]
    assert [record.id for record in again.ended(10)] == ["lm-bbbbbb"]
    assert again.run("lm-aaaaaa") == make_record()
    assert again.releases() == [release]
    assert again.releases("other") == []
    assert again.release("r1") == release
    assert again.verify() == ""
    again.close()


def test_a_sweep_is_written_whole_or_not_at_all(journal: Journal) -> None:
    points = [make_record(f"lm-s-{number:03d}", sweep="lm-s") for number in range(1, 4)]
    journal.accept(
        points, make_act(), 1.0, request="request-1", digest="d", answer="lm-s",
        releases=[make_release(f"r{number}") for number in range(3)],
    )  # fmt: skip
    assert [record.id for record in journal.newest(10, "lm-s")] == ["lm-s-001", "lm-s-002", "lm-s-003"]
    assert journal.newest(10, "lm-t") == []
    assert len(journal.releases()) == 3
    more = [make_record("lm-x"), make_record("lm-y")]
    with pytest.raises(JournalError):
        journal.accept(
            more, make_act(), 2.0, request="request-1", digest="d", answer="lm-x", releases=[make_release("r9")]
        )
    # All of the second one was taken back, and the chain goes on from the first.
    assert len(journal.active()) == 3
    assert journal.release("r9") is None
    journal.audit(make_act("stop"), 3.0)
    assert [entry.seq for entry in journal.entries(10)] == [2, 1]
    assert journal.verify() == ""


def test_each_move_of_a_run_is_kept_in_its_order(journal: Journal) -> None:
    launch = Move(at=1.0, after=RunState.QUEUED, cause="launched by alice", actor="alice")
    record = make_record().model_copy(update={"unwritten": [launch]})
    journal.accept([record], make_act(), 1.0, request="request-1", digest="d", answer=record.id)
    assert journal.run(record.id) == record.model_copy(update={"unwritten": []})
    gone = moved(record.model_copy(update={"unwritten": []}), RunState.ADMITTED, "on worker-1", 2.0)
    gone = moved(gone, RunState.STARTING, "", 3.0)
    journal.put_run(gone)
    journal.put_run(gone.model_copy(update={"unwritten": []}))
    assert [(move.before, move.after, move.cause, move.actor) for move in journal.moves(record.id)] == [
        (None, RunState.QUEUED, "launched by alice", "alice"),
        (RunState.QUEUED, RunState.ADMITTED, "on worker-1", "raydeck"),
        (RunState.ADMITTED, RunState.STARTING, "", "raydeck"),
    ]
    assert journal.moves("none") == []


def test_how_long_runs_take_is_the_median_of_the_last_ones(journal: Journal) -> None:
    for number in range(40):
        seconds = 1000.0 if number < 20 else float(number)
        ran = make_record(f"lm-{number}", RunState.SUCCEEDED, at=float(number)).model_copy(
            update={"ran_seconds": seconds}
        )
        journal.put_run(ran)
    journal.put_run(make_record("lm-f", RunState.FAILED, at=99.0).model_copy(update={"ran_seconds": 1.0}))
    other = make_record("x-1", RunState.SUCCEEDED, at=1.0, workflow="x", started_at=10.0, ended_at=15.0)
    journal.put_run(other)
    assert journal.durations() == {"lm": 29.5, "x": 5.0}


def test_a_rollback_is_kept_and_its_undoing(journal: Journal) -> None:
    first = Rollback(id="lm-rb-1", workflow="lm", at=1.0, user="alice", to_release="r1", stopped=["lm-b"])
    journal.accept(
        [make_record()], make_act("rollback"), 1.0, request="request-1", digest="d", answer=first.id, rollback=first
    )
    journal.put_rollback(first.model_copy(update={"id": "x-rb-2", "workflow": "x", "at": 2.0}))
    assert [each.id for each in journal.rollbacks()] == ["x-rb-2", "lm-rb-1"]
    assert [each.id for each in journal.rollbacks("lm")] == ["lm-rb-1"]
    undone = first.model_copy(update={"undone_at": 5.0, "undone_by": "bob"})
    journal.put_rollback(undone)
    assert journal.rollback("lm-rb-1") == undone
    assert journal.rollback("none") is None


def test_releases_are_counted_without_reading_their_runs(journal: Journal) -> None:
    journal.accept(
        [], make_act(), 1.0, request="request-1", digest="d", answer="-",
        releases=[make_release("r1", 1.0), make_release("r2", 2.0), make_release("x1", 3.0, "x")],
    )  # fmt: skip
    saved = Attempt(number=1, job_id="j", outcome=Outcome(verdict="failed", checkpoint_step=40))
    journal.put_run(make_record("lm-1", RunState.SUCCEEDED, at=10.0, attempts=[saved]))
    journal.put_run(make_record("lm-2", RunState.FAILED, at=20.0, rollback="lm-rb-1"))
    journal.put_run(make_record("lm-3", RunState.RUNNING, at=15.0, release="r2"))
    (first, second) = sorted(journal.standings("lm"), key=lambda each: each.release)
    assert (first.release, first.runs, first.succeeded, first.newest, first.newest_at) == ("r1", 2, 1, "lm-2", 20.0)
    assert (first.launched_at, first.place, first.saved, first.checkpoint) == (10.0, 10.0, "lm-1", 40)
    assert (second.release, second.runs, second.succeeded, second.saved) == ("r2", 1, 0, None)
    assert journal.standings("x") == []
    assert [record.id for record in journal.runs_of_release("r1")] == ["lm-2", "lm-1"]
    assert sorted(journal.some(["lm-1", "none", "lm-3"])) == ["lm-1", "lm-3"]
    assert journal.some([]) == {}


def test_what_is_old_is_pruned_and_the_audit_stays(journal: Journal) -> None:
    step = Move(at=1.0, after=RunState.QUEUED)
    for name, state, at in (
        ("old", RunState.FAILED, 10.0),
        ("late", RunState.FAILED, 90.0),
        ("on", RunState.QUEUED, 1.0),
    ):
        record = make_record(name, state, at=at).model_copy(update={"unwritten": [step]})
        journal.accept([record], make_act(), at, request=f"request-{name}", digest="d", answer=name)
    assert journal.prune(50.0) == 3
    assert journal.prune(50.0) == 0
    assert [name for name in ("old", "late", "on") if journal.moves(name)] == ["late", "on"]
    assert journal.answered("request-old") is journal.answered("request-on") is None
    assert journal.answered("request-late") is not None
    assert journal.run("old") is not None
    assert len(journal.entries(10)) == 3
    assert journal.verify() == ""


# --- schema ---------------------------------------------------------------------------------------------------------


def schema_1(path: Path) -> None:
    """A file that schema 1 wrote."""
    database = sqlite3.connect(path)
    database.executescript((DATA / "journal-schema-1.sql").read_text())
    database.close()


def test_a_file_of_schema_1_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    schema_1(path)
    for _ in range(2):
        journal = Journal(path)
        assert [record.id for record in journal.newest(10)] == ["search-bbbbbb", "lm-aaaaaa"]
        (active,) = journal.active()
        assert (active.id, active.launch.kind, active.launch.script) == (
            "search-bbbbbb", "ray", ["python", "search.py", "--trials", "3"],
        )  # fmt: skip
        assert active.stop is not None
        assert active.stop.purpose == "stop"
        assert journal.durations() == {"lm": 100.0}
        (standing,) = journal.standings("lm")
        assert (standing.runs, standing.succeeded, standing.checkpoint) == (1, 1, 40)
        answered = journal.answered("request-a")
        assert answered is not None
        assert answered.answer == "lm-aaaaaa"
        assert journal.verify() == ""
        assert journal.moves("lm-aaaaaa") == []
        journal.audit(make_act(), 2.0)
        journal.close()
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (schema.VERSION,)


def test_a_file_of_schema_2_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal(path).close()
    database = sqlite3.connect(path)
    database.executescript("DROP TABLE holds; DROP TABLE drains; DROP TABLE permits")
    database.executescript("DROP TABLE alerts; DROP TABLE silences; DROP TABLE remembered; PRAGMA user_version = 2")
    database.close()
    journal = Journal(path)
    assert (journal.holds(), journal.drains(), journal.permit("p")) == ([], [], None)
    journal.close()
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (schema.VERSION,)


def test_a_file_of_schema_3_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal(path).close()
    database = sqlite3.connect(path)
    database.executescript("DROP TABLE alerts; DROP TABLE silences; DROP TABLE remembered; PRAGMA user_version = 3")
    database.close()
    journal = Journal(path)
    assert (journal.alerts(), journal.silences(), journal.remembered()) == ([], [], {})
    journal.close()


def test_a_migration_that_fails_has_done_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    schema_1(path)
    database = sqlite3.connect(path)
    database.execute("UPDATE runs SET body = json_remove(body, '$.package') WHERE id = 'search-bbbbbb'")
    database.commit()
    before = list(database.iterdump())
    database.close()
    with pytest.raises(JournalError, match="holds a run that cannot be understood"):
        Journal(path)
    database = sqlite3.connect(path)
    assert list(database.iterdump()) == before
    assert database.execute("PRAGMA user_version").fetchone() == (1,)
    database.close()


def test_a_run_that_cannot_be_understood_is_never_passed_over(tmp_path: Path, journal: Journal) -> None:
    journal.put_run(make_record())
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.sqlite")) as database:
        database.execute("UPDATE runs SET body = json_set(body, '$.run.state', 'dancing')")
        database.commit()
    with pytest.raises(JournalError, match=r"holds a record that cannot be understood: run.state") as refused:
        journal.active()
    assert "raydeck controller restore" in refused.value.hint


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


# --- what can go wrong with the file ---------------------------------------------------------------------------------


def test_garbage_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"not a database, though long enough to look at" * 40)
    (tmp_path / "journal.sqlite-wal").write_bytes(b"what was written last")
    with pytest.raises(JournalError, match="is damaged") as refused:
        Journal(tmp_path / "journal.sqlite")
    assert "raydeck controller restore" in refused.value.hint
    (tmp_path / "journal.sqlite").unlink()
    with pytest.raises(JournalError, match=r"is gone, and its log journal.sqlite-wal is still there"):
        Journal(tmp_path / "journal.sqlite")
    assert (tmp_path / "journal.sqlite-wal").exists()


def filled(path: Path, runs: int = 200) -> None:
    journal = Journal(path)
    for number in range(runs):
        record = make_record(f"lm-{number:04d}")
        journal.accept([record], make_act(), 1.0, request=f"request-{number}", digest="d", answer=record.id)
    journal.close()


def test_a_file_that_was_cut_off_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    filled(path)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(JournalError, match="is damaged") as refused:
        Journal(path)
    assert "raydeck controller restore" in refused.value.hint


def test_pages_that_were_overwritten_are_found_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    filled(path)
    with path.open("r+b") as file:
        file.seek(4096 * 7)
        file.write(os.urandom(4096 * 3))
    with pytest.raises(JournalError, match="is damaged"):
        Journal(path)


def test_a_damage_that_comes_while_it_is_open_is_told_where_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    filled(path, 400)
    journal = Journal(path)
    journal._db.execute("PRAGMA cache_size=1")
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    with pytest.raises(JournalError, match="is damaged") as refused:
        journal.active()
    assert "raydeck controller restore" in refused.value.hint
    journal.close()


def test_a_file_that_another_process_has_locked_is_refused_in_words(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal._db.execute("PRAGMA busy_timeout=50")
    other = sqlite3.connect(tmp_path / "journal.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalError, match="cannot be written: another process has had it locked") as refused:
        journal.audit(make_act(), 1.0)
    assert "Nothing was changed" in refused.value.hint
    assert journal.trouble == str(refused.value)
    assert journal.entries(1) == []
    other.execute("ROLLBACK")
    journal.audit(make_act(), 2.0)
    assert journal.trouble == ""
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    journal.close()
    other.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr("jobs.controller.database.BUSY_SECONDS", 0.05)
    with pytest.raises(JournalError, match="cannot be opened: another process has had it locked"):
        Journal(tmp_path / "journal.sqlite")
    other.close()


def test_a_full_disk_refuses_and_takes_nothing_apart(journal: Journal) -> None:
    """The database may not grow: SQLite says what it says on a disk without room."""
    journal.audit(make_act(), 1.0)
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count={pages}")

    def fill() -> None:
        for number in range(100):
            record = make_record(f"lm-{number}", reason="x" * 2000)
            journal.accept([record], make_act(), 1.0, request=f"request-{number}", digest="d", answer=record.id)

    with pytest.raises(JournalError, match="there is no room left on its disk") as refused:
        fill()
    assert "free space under" in refused.value.hint
    whole = len(journal.active())
    assert len(journal.entries(1000)) == 1 + whole
    journal._db.execute("PRAGMA max_page_count=100000")
    journal.put_run(make_record("lm-last"))
    assert len(journal.active()) == whole + 1
    assert journal.verify() == ""


def test_a_folder_that_may_not_be_written_is_refused_in_words(tmp_path: Path) -> None:
    filled(tmp_path / "journal.sqlite", 1)
    script = (
        "import os, sys; from pathlib import Path; from jobs.controller.journal import Journal, JournalError\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "try: Journal(Path(sys.argv[1]))\n"
        "except JournalError as error: print(error.sentence, error.hint)\n"
    )
    tmp_path.chmod(0o555)
    (tmp_path / "journal.sqlite").chmod(0o444)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o055)
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "journal.sqlite")], capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
    finally:
        tmp_path.chmod(0o755)
    assert "cannot be opened: Permission denied" in done.stdout, done.stderr
    assert "Check who owns" in done.stdout


def test_a_journal_that_is_gone_while_there_are_backups_is_not_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir()
    (tmp_path / "backups" / "journal-20260101T000000Z.sqlite").touch()
    with pytest.raises(JournalError, match="is gone, and there are backups"):
        Journal(tmp_path / "journal.sqlite")
    (tmp_path / "journal.sqlite").touch()
    with pytest.raises(JournalError, match="is gone, and there are backups"):
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
    record = make_record(f"lm-{number}")
    journal.accept([record], make_act(), 1.0, request=f"request-{number}", digest="d", answer=record.id)
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
    await journal(Journal.accept, [make_record()], make_act(), 1.0, request="request-1", digest="d", answer="a")
    with pytest.raises(JournalError):
        await journal(Journal.accept, [make_record()], make_act(), 1.0, request="request-1", digest="d", answer="a")
    assert journal.trouble
    journal.close()


class Crashes(RuleBasedStateMachine):
    """Whatever was written, a copy of the files at any moment is a whole journal with all of it: that is a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="rd-journal-"))
        self.journal = Journal(self.folder / "journal.sqlite")
        self.copies = 0
        self.runs: dict[str, Record] = {}
        self.requests: dict[str, str] = {}
        self.moves: dict[str, int] = {}
        self.acts = 0

    def teardown(self) -> None:
        self.journal.close()
        shutil.rmtree(self.folder)

    @rule(count=st.integers(1, 3), text=st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
    def accept(self, count: int, text: str) -> None:
        names = [f"lm-{len(self.runs) + number}" for number in range(count)]
        move = Move(at=1.0, after=RunState.QUEUED, cause=text)
        records = [make_record(name).model_copy(update={"unwritten": [move]}) for name in names]
        request = f"request-{len(self.requests)}"
        act = make_act(reason=text)
        self.journal.accept(records, act, 1.0, request=request, digest="d", answer=names[0])
        self.requests[request] = names[0]
        self.acts += 1
        for record in records:
            self.runs[record.id] = record.model_copy(update={"unwritten": []})
            self.moves[record.id] = 1

    @rule(count=st.integers(1, 3))
    def accept_twice(self, count: int) -> None:
        if not self.requests:
            return
        records = [make_record(f"never-{number}") for number in range(count)]
        with pytest.raises(JournalError):
            self.journal.accept(records, make_act(), 1.0, request="request-0", digest="d", answer="never")

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.runs)))
        record = self.runs[name]
        after = data.draw(st.sampled_from(sorted(MOVES[record.run.state], key=lambda state: state.value)))
        record = moved(record, after, "because", 2.0)
        self.journal.put_run(record)
        self.runs[name] = record.model_copy(update={"unwritten": []})
        self.moves[name] += 1

    @rule(reason=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
    def audit(self, reason: str) -> None:
        self.journal.audit(make_act("stop", False, reason), 3.0)
        self.acts += 1

    @rule()
    def reopen(self) -> None:
        self.journal.close()
        self.journal = Journal(self.folder / "journal.sqlite")

    @invariant()
    def a_copy_is_whole(self) -> None:
        self.copies += 1
        copy = self.folder / f"copy-{self.copies}"
        copy.mkdir()
        # The index of the log lies in shared memory, and does not survive a crash.
        for end in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(self.folder / f"journal.sqlite{end}", copy / f"journal.sqlite{end}")
        found = Journal(copy / "journal.sqlite")
        try:
            assert {record.id: record for record in found.newest(1000)} == self.runs
            assert {name: len(found.moves(name)) for name in self.runs} == self.moves
            for request, answer in self.requests.items():
                answered = found.answered(request)
                assert answered is not None
                assert answered.answer == answer
            assert len(found.entries(1000)) == self.acts
            assert found.verify() == ""
        finally:
            found.close()
            shutil.rmtree(copy)


Crashes.TestCase.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
TestCrashes = Crashes.TestCase
