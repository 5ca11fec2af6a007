"""Backups: whole ones while the journal is written, five of them, and one put back without losing what was there."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs import package
from jobs.controller import backup
from jobs.controller.backup import Backups, backups, make, restore
from jobs.controller.database import RESTORING_NAME
from jobs.controller.door import StoreLock
from jobs.controller.journal import Act, Journal, JournalError, JournalThread
from jobs.errors import Refused
from tests.unit.jobs.test_controller_journal import make_act, make_record, schema_1

ROOT = Path(package.__file__).resolve().parents[1]
NOON = 1_800_000_000.0


def written(store: Path, runs: int) -> Journal:
    """A journal with so many runs, open."""
    journal = Journal(store / "journal.sqlite")
    for number in range(runs):
        record = make_record(f"lm-{number}")
        journal.accept([record], make_act(), NOON, request=f"request-{number}", digest="d", answer=record.id)
    return journal


def ids(path: Path | str) -> list[str]:
    journal = Journal(Path(path))
    try:
        assert journal.verify() == ""
        return [record.id for record in journal.active()]
    finally:
        journal.close()


def test_a_backup_is_a_whole_journal_for_its_owner_alone(tmp_path: Path) -> None:
    journal = written(tmp_path, 3)
    made = make(tmp_path / "journal.sqlite", NOON)
    assert made.path == tmp_path / "backups" / "journal-20270115T080000Z.sqlite"
    assert made.path.stat().st_mode & 0o777 == 0o600
    assert made.path.parent.stat().st_mode & 0o777 == 0o700
    journal.put_run(make_record("lm-later"))
    journal.close()
    assert sorted(os.listdir(made.path.parent)) == [made.path.name]
    assert backups(tmp_path) == [made]
    assert ids(shutil.copy(made.path, tmp_path / "copy.sqlite")) == ["lm-0", "lm-1", "lm-2"]


def test_five_are_kept(tmp_path: Path) -> None:
    journal = written(tmp_path, 1)
    for number in range(7):
        make(tmp_path / "journal.sqlite", NOON + number)
    journal.close()
    assert [each.at - NOON for each in backups(tmp_path)] == [6, 5, 4, 3, 2]


def test_a_backup_is_made_while_others_write(tmp_path: Path) -> None:
    journal = written(tmp_path, 1)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            journal.put_run(make_record(f"lm-more-{number}"))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        made = [make(tmp_path / "journal.sqlite", NOON + number) for number in range(3)]
    finally:
        stop.set()
        writer.join(10)
    journal.close()
    counts = [len(ids(shutil.copy(each.path, tmp_path / f"copy-{index}"))) for index, each in enumerate(made)]
    assert counts == sorted(counts)


def test_a_short_disk_is_said_and_nothing_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = written(tmp_path, 1)
    made = make(tmp_path / "journal.sqlite", NOON)
    monkeypatch.setattr(backup, "SPARE_BYTES", 2**62)
    with pytest.raises(Refused, match=r"no backup of the journal was made: .* MiB are free"):
        make(tmp_path / "journal.sqlite", NOON + 1)
    journal.close()
    assert backups(tmp_path) == [made]


def test_a_damaged_journal_pushes_no_whole_backup_out(tmp_path: Path) -> None:
    journal = written(tmp_path, 300)
    journal.close()
    for number in range(5):
        make(tmp_path / "journal.sqlite", NOON + number)
    with (tmp_path / "journal.sqlite").open("r+b") as file:
        file.seek(4096 * 5)
        file.write(os.urandom(4096 * 20))
    with pytest.raises(Refused, match=r"damaged|malformed"):
        make(tmp_path / "journal.sqlite", NOON + 9)
    assert [each.at - NOON for each in backups(tmp_path)] == [4, 3, 2, 1, 0]
    assert [name for name in os.listdir(tmp_path / "backups") if "incoming" in name] == []


async def until(store: Path, count: int) -> None:
    """Wait for so many backups."""
    deadline = time.monotonic() + 10
    while len(backups(store)) < count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_one_at_the_start_and_then_only_when_something_changed(tmp_path: Path) -> None:
    journal = JournalThread(tmp_path / "journal.sqlite")
    now = [NOON]
    keeper = Backups(journal, every_seconds=0.01, wall=lambda: now[0])
    task = asyncio.create_task(keeper.run())

    try:
        await until(tmp_path, 1)
        now[0] += 1
        await asyncio.sleep(0.05)
        assert len(backups(tmp_path)) == 1
        await journal(Journal.audit, make_act(), NOON)
        await until(tmp_path, 2)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        journal.close()


async def test_one_that_is_started_again_and_again_makes_no_more_of_them(tmp_path: Path) -> None:
    for number in range(3):
        journal = JournalThread(tmp_path / "journal.sqlite")
        await journal(Journal.audit, make_act(), NOON)
        keeper = Backups(journal, wall=lambda number=number: NOON + 10 * number)
        task = asyncio.create_task(keeper.run())
        await until(tmp_path, 1)
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        journal.close()
    assert [each.at for each in backups(tmp_path)] == [NOON]


async def test_a_backup_that_cannot_be_made_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = JournalThread(tmp_path / "journal.sqlite")
    keeper = Backups(journal, wall=lambda: NOON)
    monkeypatch.setattr(backup, "SPARE_BYTES", 2**62)
    await keeper.make_if_changed()
    assert "no backup of the journal was made" in keeper.trouble
    monkeypatch.setattr(backup, "SPARE_BYTES", 0)
    await keeper.make_if_changed()
    assert keeper.trouble == ""
    assert len(backups(tmp_path)) == 1
    journal.close()


# --- restore --------------------------------------------------------------------------------------------------------


def test_a_restore_moves_aside_what_was_there(tmp_path: Path) -> None:
    journal = written(tmp_path, 2)
    made = make(tmp_path / "journal.sqlite", NOON)
    journal.close()
    garbage = b"garbage" * 1000
    (tmp_path / "journal.sqlite").write_bytes(garbage)
    (tmp_path / "journal.sqlite-wal").write_bytes(b"log")
    with pytest.raises(JournalError, match="is damaged"):
        Journal(tmp_path / "journal.sqlite")
    answer = restore(tmp_path, None, "alice", NOON + 100)
    assert answer == {
        "event": "restored",
        "backup": str(made.path),
        "until": NOON,
        "runs_active": 2,
        "moved": ["journal.sqlite.damaged-20270115T080140Z", "journal.sqlite.damaged-20270115T080140Z-wal"],
        "skipped": [],
    }
    assert (tmp_path / "journal.sqlite.damaged-20270115T080140Z").read_bytes() == garbage
    assert (tmp_path / "journal.sqlite").stat().st_mode & 0o777 == 0o600
    assert made.path.exists()
    again = Journal(tmp_path / "journal.sqlite")
    newest = again.entries(1)[0]
    assert (newest.user, newest.action, newest.target) == ("alice", "restore", made.path.name)
    assert again.verify() == ""
    assert len(again.active()) == 2
    again.close()


def spoil_nothing(path: Path) -> None:
    path.write_bytes(b"")


def spoil_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(os.urandom(4096 * 8))


def spoil_audit(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("DROP TRIGGER audit_is_final")
    database.execute("UPDATE audit SET user = 'somebody else' WHERE seq = 1")
    database.commit()
    database.close()


def spoil_version(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version=99")
    database.close()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_nothing, "is no journal"),
        (spoil_page, "damaged|malformed"),
        (spoil_audit, "audit whose chain does not hold: entry 1"),
        (spoil_version, "newer raydeck"),
    ],
)
def test_a_backup_that_is_not_whole_is_passed_over_and_said(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    journal = written(tmp_path, 100)
    older = make(tmp_path / "journal.sqlite", NOON)
    newer = make(tmp_path / "journal.sqlite", NOON + 1)
    journal.close()
    spoil(newer.path)
    with pytest.raises(Refused, match=words):
        restore(tmp_path, newer.path, "alice", NOON)
    assert len(ids(tmp_path / "journal.sqlite")) == 100
    answer = restore(tmp_path, None, "alice", NOON + 2)
    assert answer["backup"] == str(older.path)
    assert len(answer["skipped"]) == 1
    assert newer.path.name in answer["skipped"][0]


def test_without_a_backup_nothing_is_touched(tmp_path: Path) -> None:
    written(tmp_path, 1).close()
    with pytest.raises(Refused, match="there is no backup"):
        restore(tmp_path, None, "alice", NOON)
    with pytest.raises(Refused, match="there is no file"):
        restore(tmp_path, tmp_path / "none", "alice", NOON)
    assert ids(tmp_path / "journal.sqlite") == ["lm-0"]


def test_a_backup_of_an_older_version_is_taken_up(tmp_path: Path) -> None:
    schema_1(tmp_path / "old.sqlite")
    answer = restore(tmp_path, tmp_path / "old.sqlite", "alice", NOON)
    assert (answer["runs_active"], answer["moved"]) == (1, [])
    assert ids(tmp_path / "journal.sqlite") == ["search-bbbbbb"]


_CUT_OFF = """
import os, signal, sys
from pathlib import Path
from jobs.controller.backup import restore
left = int(sys.argv[2])
for name in ("rename", "replace", "unlink"):
    def once(self, *rest, _whole=getattr(Path, name)):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return _whole(self, *rest)
    setattr(Path, name, once)
restore(Path(sys.argv[1]), None, "alice", 1_800_000_100.0)
"""


@pytest.mark.parametrize("steps", range(5))
def test_a_restore_that_was_killed_lets_no_controller_begin_anew(tmp_path: Path, steps: int) -> None:
    journal = written(tmp_path, 2)
    make(tmp_path / "journal.sqlite", NOON)
    shutil.copy(tmp_path / "journal.sqlite-wal", tmp_path / "wal")
    journal.close()
    shutil.copy(tmp_path / "wal", tmp_path / "journal.sqlite-wal")
    command = [sys.executable, "-c", _CUT_OFF, str(tmp_path), str(steps)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False)
    if done.returncode == -signal.SIGKILL:
        assert (tmp_path / RESTORING_NAME).exists()
        with pytest.raises(JournalError, match="was cut off"):
            Journal(tmp_path / "journal.sqlite")
        restore(tmp_path, None, "alice", NOON + 200)
    else:
        assert steps == 4, done.stderr
    assert ids(tmp_path / "journal.sqlite") == ["lm-0", "lm-1"]
    assert not (tmp_path / RESTORING_NAME).exists()


def called(*words: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "jobs.controller", *words], cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_on_the_command_line(tmp_path: Path) -> None:
    journal = written(tmp_path, 1)
    made = make(tmp_path / "journal.sqlite", NOON)
    journal.close()
    code, listed = called("backups", "--store", str(tmp_path))
    assert (code, listed["backups"]) == (0, [{"path": str(made.path), "at": NOON, "size_bytes": made.size_bytes}])
    lock = StoreLock(tmp_path)
    lock.acquire()
    code, refused = called("restore", "--store", str(tmp_path))
    assert (code, refused["event"]) == (1, "failed")
    assert "a controller already serves" in refused["reason"]
    lock.release()
    code, answer = called("restore", "--store", str(tmp_path), "--from", str(made.path))
    assert (code, answer["event"], answer["runs_active"]) == (0, "restored", 1)
    code, refused = called("restore", "--store", str(tmp_path / "none"))
    assert (code, refused["event"]) == (1, "failed")
    assert "cannot be used: No such file" in refused["reason"]


def test_the_act_of_a_restore_carries_on_the_chain(tmp_path: Path) -> None:
    journal = written(tmp_path, 1)
    make(tmp_path / "journal.sqlite", NOON)
    journal.audit(Act("bob", "stop", "lm-0", True), NOON)
    journal.close()
    restore(tmp_path, None, "alice", NOON + 5)
    journal = Journal(tmp_path / "journal.sqlite")
    assert [(entry.seq, entry.action) for entry in journal.entries(10)] == [(2, "restore"), (1, "launch")]
    journal.close()
