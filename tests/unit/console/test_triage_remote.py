"""What a triage sends to a node, run as it runs there: a program on standard input, one line back."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.triage import remote
from console.triage.asked import PYTHON, _answers, _source
from jobs.errors import Refused

OLDEST = next(iter(sorted(map(str, Path("~/.pyenv/versions").expanduser().glob("3.8.*/bin/python3.8")))), "") or (
    shutil.which("python3.8") or ""
)


def run(tasks: list[tuple[str, dict[str, Any]]], seconds: float = 10.0, python: str = sys.executable) -> dict[str, Any]:
    request = json.dumps({"tasks": tasks, "limit_seconds": seconds})
    program = f"{_source()}\nmain({request!r})\n"
    done = subprocess.run([python, *PYTHON[1:]], input=program, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(remote.MARK)
    return json.loads(done.stdout.removeprefix(remote.MARK))


def value(task: str, **arguments: Any) -> Any:
    answer = run([(task, arguments)])["answers"][0]
    assert "value" in answer, answer
    return answer["value"]


@pytest.mark.skipif(not OLDEST, reason="there is no Python 3.8 here")
def test_it_runs_on_the_oldest_python_of_a_node(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_text("a\nb\n")
    told = run([("log", {"path": str(tmp_path / "rank-0.log"), "most_bytes": 100, "most_lines": 9}),
                ("path", {"path": str(tmp_path), "uid": None})], python=OLDEST)  # fmt: skip
    assert told["answers"][0]["value"]["lines"] == ["a", "b"]
    assert told["answers"][1]["value"]["writable"] is True


def test_what_hangs_holds_up_nothing_else(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hangs")
    (tmp_path / "log").write_text("one\n")
    began = time.monotonic()
    told = run([("log", {"path": str(tmp_path / "hangs"), "most_bytes": 9, "most_lines": 9}),
                ("log", {"path": str(tmp_path / "log"), "most_bytes": 9, "most_lines": 9})], seconds=1.0)  # fmt: skip
    assert time.monotonic() - began < 8.0
    assert told["answers"][0] == {"reason": "it did not answer within 1 s"}
    assert told["answers"][1]["value"]["lines"] == ["one"]


def test_more_tasks_than_run_at_once_are_all_answered(tmp_path: Path) -> None:
    count = 3 * remote.AT_ONCE
    for at in range(count):
        (tmp_path / str(at)).write_text(f"{at}\n")
    told = run([("log", {"path": str(tmp_path / str(at)), "most_bytes": 9, "most_lines": 9}) for at in range(count)])
    assert [answer["value"]["lines"] for answer in told["answers"]] == [[str(at)] for at in range(count)]


def test_a_reason_in_place_of_what_is_not_there() -> None:
    told = run([("log", {"path": "/nowhere/rank-0.log", "most_bytes": 9, "most_lines": 9}), ("nothing", {})])
    assert told["answers"][0] == {"reason": "No such file or directory"}
    assert "reason" in told["answers"][1]


@given(lines=st.lists(st.text(st.characters(blacklist_characters="\n", blacklist_categories=["Cs"]), max_size=12),
                      max_size=40),
       ended=st.booleans(), most_bytes=st.integers(1, 200), most_lines=st.integers(1, 30))  # fmt: skip
def test_the_end_of_a_log_has_its_own_numbers(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ended: bool, most_bytes: int, most_lines: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "numbered.log"
    file.write_text("\n".join(lines) + ("\n" if ended else ""), encoding="utf-8")
    told = remote.log(str(file), most_bytes, most_lines)
    whole = file.read_bytes().split(b"\n")
    assert len(told["lines"]) <= most_lines
    for at, line in enumerate(told["lines"]):
        assert line == whole[told["first"] - 1 + at].decode()
    if told["lines"]:
        last = told["first"] - 1 + len(told["lines"])
        assert b"".join(whole[last:]) == b"", "nothing after the last line is left out"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become somebody else")
def test_permissions_are_those_of_the_user_that_has_to_use_it(tmp_path: Path) -> None:
    folder = tmp_path / "output"
    folder.mkdir(mode=0o700)
    for parent in (tmp_path, *tmp_path.parents):
        if not os.access(parent, os.X_OK) or parent == Path(tempfile.gettempdir()):
            break
        os.chmod(parent, 0o755)
    told = value("path", path=str(folder), uid=65534)
    assert (told["readable"], told["writable"], told["owner"], told["mode"]) == (False, False, "root", "drwx------")
    assert told["user"] == "nobody"
    os.chmod(folder, 0o777)
    told = value("path", path=str(folder), uid=65534)
    assert (told["readable"], told["writable"]) == (True, True)


def test_a_path_that_is_not_there_still_tells_the_room_around_it(tmp_path: Path) -> None:
    told = value("path", path=str(tmp_path / "a" / "b"), uid=None)
    assert told["exists"] is False
    assert told["total"] > 0


def test_processes_tell_their_state_and_one_that_is_gone_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        told = value("processes", pids=[child.pid, 2**22 + 1], seconds=0.05)
        child.kill()
    assert told[str(child.pid)]["state"] in ("S", "R", "D")
    assert told[str(2**22 + 1)] == {"state": "gone"}


def test_a_port_that_is_open_and_one_that_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert value("connect", host="127.0.0.1", port=port, seconds=2.0)["result"] == "open"
    assert value("connect", host="127.0.0.1", port=port, seconds=2.0)["result"] == "refused"
    assert value("connect", host="no-such-host.invalid", port=1, seconds=2.0)["result"] == "no such name"


def test_a_look_is_asked_for_by_a_file_and_read_as_files(tmp_path: Path) -> None:
    assert value("ask_look", folder=str(tmp_path), look="abc123") == "abc123"
    assert (tmp_path / "look").read_text() == "abc123"
    assert value("read_look", folder=str(tmp_path), look="abc123") == {}
    place = tmp_path / "looks" / "abc123"
    place.mkdir(parents=True)
    (place / "rank-0.json").write_text('{"rank": 0}')
    (place / "rank-0.json.partial").write_text("{")
    assert value("read_look", folder=str(tmp_path), look="abc123") == {"rank-0.json": '{"rank": 0}'}
    assert "reason" in run([("ask_look", {"folder": str(tmp_path), "look": "../x"})])["answers"][0]


HEAD = '"utc_offset_seconds": 0, "login": ""'


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", '{"wall": 1}',
     f'{{"wall": 1, {HEAD}, "answers": []}}', f'{{"wall": "", {HEAD}, "answers": [{{}}]}}',
     f'{{"wall": 1, {HEAD}, "answers": [3]}}'],
)  # fmt: skip
def test_a_node_that_answers_nonsense_is_refused(line: str) -> None:
    with pytest.raises(Refused, match="gpu-1"):
        _answers("gpu-1", line, 1)
