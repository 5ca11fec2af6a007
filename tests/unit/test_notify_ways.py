"""Each way out to a real server: what arrives there, what counts as refused, and what is never said."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import urlencode

import pytest
from aiohttp import web

from jobs.controller.notify import mail
from jobs.controller.notify.aside import Aside
from jobs.controller.notify.bodies import dingtalk_query, feishu_sign
from jobs.controller.notify.command import CommandWay
from jobs.controller.notify.mail import Mail
from jobs.controller.notify.notice import Failed, Kind, Notice
from jobs.controller.notify.web import Web
from tests.unit.notify_harness import Clock, Got, alert, certificate, cluster, mail_server, receiver, until

HUSH = "hushhush"


def notice(kind: Kind = "firing", number: int = 1, reply: bool = False) -> Notice:
    return Notice(
        key=f"a1.1700000000.{number}", kind=kind, alert=alert(evidence=["XID 79 at 03:12"]), at=1.0, reply=reply
    )


def web_way(sink: str, clock: Clock | None = None, **environ: str) -> Web:
    return Web(cluster(f"{{sinks: [{{name: out, {sink}}}]}}").alerting.sinks[0], "lab", clock or Clock(), environ)


async def failure(way: Web | Mail | CommandWay) -> Failed:
    with pytest.raises(Failed) as caught:
        await way.send(notice())
    assert HUSH not in str(caught.value)
    assert "SECRETPATH" not in str(caught.value)
    return caught.value


async def test_a_webhook_gets_our_json_and_its_key() -> None:
    async with receiver() as there:
        way = web_way(
            "kind: webhook, url: '${env:URL}', headers: {Authorization: 'Bearer ${env:TOKEN}'}",
            URL=there.url,
            TOKEN=HUSH,
        )
        assert await way.send(notice()) == f"http://127.0.0.1:{there.port} took it (200)"
    (got,) = there.got
    assert got.headers["Idempotency-Key"] == got.body["key"] == "a1.1700000000.1"
    assert got.headers["Authorization"] == f"Bearer {HUSH}"
    assert (got.body["version"], got.body["kind"], got.body["cluster"]) == (1, "firing", "lab")
    assert got.body["alert"]["entities"] == ["gpu-1/3"]
    assert got.body["alert"]["evidence"] == ["XID 79 at 03:12"]
    assert got.body["text"].startswith("[CRITICAL] gpu-1/3 is lost (a1)\nwhere: gpu-1/3; cluster lab\n")


async def test_slack_takes_text_and_says_why_not() -> None:
    async with receiver() as there:
        there.answers = [web.Response(text="ok"), web.Response(status=404, text="no_service")]
        way = web_way("kind: slack, url: '${env:URL}'", URL=there.url)
        await way.send(notice())
        error = await failure(way)
    assert there.got[0].body["text"].startswith("[CRITICAL] gpu-1/3 is lost")
    assert str(error) == f"http://127.0.0.1:{there.port} answers 404: no_service"
    assert not error.again


async def test_feishu_is_signed_and_its_code_counts() -> None:
    clock = Clock()
    async with receiver() as there:
        there.answers = [
            web.json_response({"StatusCode": 0, "StatusMessage": "success"}),
            web.json_response({"code": 0, "msg": "success", "data": {}}),
            web.json_response({"code": 19021, "msg": f"sign match fail {HUSH} SECRETPATH\x1b[31m"}),
            web.json_response({"code": 11232, "msg": "frequency limited"}),
            web.Response(text="<html>SECRETPATH</html>"),
        ]
        way = web_way("kind: feishu, url: '${env:URL}', secret: '${env:S}'", clock, URL=there.url, S=HUSH)
        await way.send(notice())
        await way.send(notice())
        wrong, fast, foreign = [await failure(way) for _ in range(3)]
    body = there.got[0].body
    assert (body["timestamp"], body["sign"]) == (str(int(clock.at)), feishu_sign(str(int(clock.at)), HUSH))
    assert body["content"]["post"]["zh_cn"]["title"].startswith("[CRITICAL] gpu-1/3")
    assert ("the code 19021: sign match fail ••• ••• [31m" in str(wrong), wrong.again) == (True, False)
    assert ("the code 11232" in str(fast), fast.again) == (True, True)
    assert "not as a feishu bot does" in str(foreign)


async def test_dingtalk_is_signed_in_its_address_and_its_errcode_counts() -> None:
    clock = Clock()
    async with receiver() as there:
        there.answers = [
            web.json_response({"errcode": 0, "errmsg": "ok"}),
            web.json_response({"errcode": 310000, "errmsg": "sign not match"}),
            web.json_response({"errcode": 130101, "errmsg": "send too fast"}),
            web.json_response({"ok": True}),
        ]
        way = web_way(
            "kind: dingtalk, url: '${env:URL}', secret: '${env:S}'",
            clock,
            URL=f"{there.url}?access_token=T0KEN",
            S=HUSH,
        )
        await way.send(notice())
        wrong, fast, foreign = [await failure(way) for _ in range(3)]
    query = there.got[0].query
    assert query["access_token"] == "T0KEN"
    assert query["timestamp"] == str(int(clock.at * 1000))
    assert urlencode({"timestamp": query["timestamp"], "sign": query["sign"]}) == dingtalk_query(HUSH, clock.at)
    assert there.got[0].body["text"]["content"].startswith("[CRITICAL]")
    assert ("310000: sign not match" in str(wrong), wrong.again, fast.again) == (True, False, True)
    assert "the code none" in str(foreign)


@pytest.mark.parametrize(("status", "again"), [(400, False), (401, False), (302, False), (429, True), (503, True)])
async def test_what_another_try_may_mend(status: int, again: bool) -> None:
    async with receiver() as there:
        there.answers = [
            web.Response(status=status, text=f"{HUSH} /hook/SECRETPATH", headers={"Retry-After": "7", "Location": "/"})
        ]
        error = await failure(web_way("kind: webhook, url: '${env:URL}'", URL=there.url))
    assert (error.again, error.after, len(there.got)) == (again, 7, 1)


@pytest.mark.parametrize(
    ("said", "least", "most"),
    [("99999", 600, 600), ("Fri, 31 Dec 2100 23:59:59 GMT", 600, 600), ("Mon, 01 Jan 2001 00:00:00 GMT", 0, 0)],
)
async def test_how_long_to_wait_is_believed_within_reason(said: str, least: float, most: float) -> None:
    async with receiver() as there:
        there.answers = [web.Response(status=429, headers={"Retry-After": said})]
        error = await failure(web_way("kind: webhook, url: '${env:URL}'", URL=there.url))
    assert error.after is not None
    assert least <= error.after <= most


async def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    async def endless(got: Got) -> web.Response:
        return web.Response(body=b"x" * 3_000_000)

    async with receiver() as there:
        there.answers = [endless]
        await web_way("kind: webhook, url: '${env:URL}'", URL=there.url).send(notice())


async def test_nobody_there_and_no_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/{HUSH}"
        refused = await failure(web_way("kind: webhook, url: '${env:URL}'", URL=url))
    assert ("Connection refused" in str(refused), refused.again) == (True, True)
    for wrong in (HUSH, f"ftp://{HUSH}/", f"http://x y/{HUSH}", f"http://x:{HUSH}/"):
        error = await failure(web_way("kind: webhook, url: '${env:URL}'", URL=wrong))
        assert "no http:// or https:// address" in str(error)
    error = await failure(web_way("kind: webhook, url: 'http://h.invalid/', headers: {A: '${env:S}'}", S=f"a\nb{HUSH}"))
    assert "more than one line" in str(error)


async def test_secrets_are_looked_up_each_time_and_only_their_place_is_named(tmp_path: Path) -> None:
    file = tmp_path / "url"
    async with receiver() as there:
        way = web_way(f"kind: webhook, url: '${{file:{file}}}'")
        assert "cannot be read: No such file" in str(await failure(way))
        file.write_text(there.url + "\n")
        await way.send(notice())
        file.write_bytes(b"\xff\xfe")
        assert f"{file} is not text" in str(await failure(way))
        file.unlink()
        os.mkfifo(file)
        assert "it is not a file" in str(await failure(way))
    assert "no environment variable URL" in str(await failure(web_way("kind: webhook, url: '${env:URL}'")))


def mail_way(
    port: int, tls: str = "none", more: str = "", to: str = "kim@lab.example, lee@lab.example", **environ: str
) -> Mail:
    sink = (
        f"name: out, kind: email, host: 127.0.0.1, port: {port}, tls: {tls}, from: raydeck@lab.example,"
        f" to: [{to}]{more}"
    )
    return Mail(cluster(f"{{sinks: [{{{sink}}}]}}").alerting.sinks[0], "lab", environ)


async def test_mail_arrives_and_the_letters_of_an_alert_hang_together() -> None:
    async with mail_server() as there:
        way = mail_way(there.port, more=", user: '${env:U}', password: '${env:P}'", U="kim", P=HUSH)
        assert await way.send(notice()) == f"127.0.0.1:{there.port} took it"
        await way.send(notice("reminder", 2, reply=True))
    first, second = there.letters
    assert first.to == ["kim@lab.example", "lee@lab.example"]
    assert there.logins == [f"kim:{HUSH}"] * 2
    lines, more = first.text.split("\n"), second.text.split("\n")
    assert "Subject: [CRITICAL] gpu-1/3 is lost (a1)" in lines
    assert "Message-ID: <raydeck.a1.1700000000@lab.example>" in lines
    assert "do: Drain gpu-1" in lines
    assert "  XID 79 at 03:12" in lines
    assert "Subject: [CRITICAL, STILL] gpu-1/3 is lost (a1)" in more
    assert "In-Reply-To: <raydeck.a1.1700000000@lab.example>" in more
    assert "Message-ID: <raydeck.a1.1700000000.2.reminder@lab.example>" in more


async def test_a_letter_takes_any_title() -> None:
    async with mail_server() as there:
        one = alert(title="显卡掉了\r\nBcc: x@y.z\r\n\r\n.", entities=["g\r\n.\r\nQUIT"])
        await mail_way(there.port).send(Notice(key="k\r\nX: y", kind="firing", alert=one, at=1.0))
    (letter,) = there.letters
    assert letter.to == ["kim@lab.example", "lee@lab.example"]
    head = letter.text.partition("\n\n")[0]
    assert not [line for line in head.split("\n") if line.startswith(("Bcc", "X: "))]


@pytest.mark.parametrize(
    ("verb", "answer", "again", "words"),
    [
        ("AUTH", f"535 no {HUSH}", False, "refuses the user and the password (535)"),
        ("AUTH", "454 later", True, "refuses the user and the password (454)"),
        ("MAIL", f"550 go away {HUSH}", False, "answers 550: go away •••"),
        ("DATA", "452 full", True, "answers 452: full"),
    ],
)
async def test_what_a_mail_server_refuses(verb: str, answer: str, again: bool, words: str) -> None:
    async with mail_server(codes={verb: answer}) as there:
        error = await failure(mail_way(there.port, more=", user: kim, password: '${env:P}'", P=HUSH))
    assert (words in str(error), error.again) == (True, again), error


async def test_some_and_all_of_those_it_is_to_are_refused() -> None:
    async with mail_server(codes={"RCPT": "550 nobody of this name"}) as there:
        assert await mail_way(there.port).send(notice()) == f"127.0.0.1:{there.port} took it, but not for 1 of 2"
    async with mail_server(codes={"RCPT": "550 nobody of this name"}) as there:
        error = await failure(mail_way(there.port, to="kim@lab.example"))
    assert ("takes mail for none of those it is to (550)" in str(error), error.again) == (True, False)


async def test_a_server_without_tls_gets_no_password() -> None:
    async with mail_server() as there:
        error = await failure(mail_way(there.port, "starttls", ", user: kim, password: '${env:P}'", P=HUSH))
        assert "STARTTLS" in str(error)
        assert not error.again
    assert there.logins == []


async def test_certificates_are_looked_at(tmp_path: Path) -> None:
    served, trusting = certificate(tmp_path)
    async with mail_server(tls=served) as there:
        way = mail_way(there.port, "tls")
        assert "a certificate that this machine does not trust" in str(await failure(way))
        way._tls_context = lambda: trusting
        assert (await way.send(notice())).endswith("took it")
        assert len(there.letters) == 1
        way._sink = way._sink.model_copy(update={"host": "localhost"})
        assert "a certificate that this machine does not trust" in str(await failure(way))
    async with receiver(served) as there:
        error = await failure(web_way("kind: webhook, url: '${env:URL}'", URL=there.url))
    assert str(error) == f"https://127.0.0.1:{there.port} shows a certificate that this machine does not trust"


async def test_a_mail_server_that_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail, "WHOLE_SECONDS", 0.2)
    monkeypatch.setattr(mail, "STEP_SECONDS", 100.0)
    async with mail_server(silent=True) as there:
        way = mail_way(there.port)
        assert "no end within 0.2 s" in str(await failure(way))
        await until(lambda: there.left == 1, "the end of the connection")
        await until(way._aside._ended.is_set, "the end of the thread")


async def test_no_second_thread_is_begun_beside_one_that_hangs() -> None:
    free = threading.Event()
    aside = Aside("the mount")
    with pytest.raises(Failed, match=r"no end within 0\.05 s"):
        await aside.do(free.wait, 0.05)
    with pytest.raises(Failed, match="an earlier try still hangs"):
        await aside.do(free.wait, 0.05)
    free.set()
    assert aside._ended.wait(5)
    assert await aside.do(lambda: 7, 5) == 7


async def test_two_who_come_at_once_come_one_after_the_other() -> None:
    aside = Aside("the mount")
    inside = [0]

    def alone() -> int:
        inside[0] += 1
        free.wait(0.05)
        inside[0] -= 1
        return inside[0]

    free = threading.Event()
    assert await asyncio.gather(*(aside.do(alone, 5) for _ in range(3))) == [0, 0, 0]


def command_way(code: str, folder: Path, run_seconds: float = 20.0) -> CommandWay:
    script = folder / "tell.py"
    script.write_text(code)
    sink = cluster(f"{{sinks: [{{name: out, kind: command, command: ['{sys.executable}', '{script}', '{folder}']}}]}}")
    return CommandWay(sink.alerting.sinks[0], "lab", os.environ, run_seconds)


async def test_a_command_gets_json_and_its_environment(tmp_path: Path) -> None:
    way = command_way(
        "import json, os, sys\n"
        "told = {k: v for k, v in os.environ.items() if k.startswith('RAYDECK_ALERT_')}\n"
        "open(sys.argv[1] + '/told', 'w').write(json.dumps([json.load(sys.stdin), told]))\n",
        tmp_path,
    )
    assert (await way.send(notice())).endswith("took it")
    body, environ = json.loads((tmp_path / "told").read_text())
    assert body["alert"]["title"] == environ["RAYDECK_ALERT_TITLE"] == "gpu-1/3 is lost (a1)"
    assert environ["RAYDECK_ALERT_KEY"] == body["key"]
    assert (environ["RAYDECK_ALERT_LEVEL"], environ["RAYDECK_ALERT_NODES"]) == ("critical", "gpu-1")
    assert environ["RAYDECK_ALERT_TEXT"].startswith("[CRITICAL] gpu-1/3 is lost")


async def test_a_command_that_fails_says_its_last_words(tmp_path: Path) -> None:
    way = command_way("import sys\nprint('x' * 100000)\nsys.exit('no\\x1b[2J pager')\n", tmp_path)
    error = await failure(way)
    assert str(error).endswith("no [2J pager")
    assert len(str(error)) < 300
    assert "ended with code 1: " in str(error)
    assert "cannot be started: No such file" in str(
        await failure(
            CommandWay(cluster("{sinks: [{name: o, kind: command, command: /no/such}]}").alerting.sinks[0], "l")
        )
    )


async def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    way = command_way(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(sys.argv[1] + '/new', 'w').write(str(child.pid))\n"
        "os.rename(sys.argv[1] + '/new', sys.argv[1] + '/pid')\n"
        "print('waiting', flush=True)\n"
        "time.sleep(600)\n",
        tmp_path,
        1.0,
    )
    error = await failure(way)
    assert "did not end within 1 s: waiting" in str(error)
    child = int((tmp_path / "pid").read_text())
    await until(lambda: not _runs(child), "the child's end")


async def test_a_command_that_leaves_somebody_behind_has_told(tmp_path: Path) -> None:
    way = command_way(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(sys.argv[1] + '/pid', 'w').write(str(child.pid))\n",
        tmp_path,
        1.0,
    )
    assert (await way.send(notice())).endswith("took it")
    child = int((tmp_path / "pid").read_text())
    await until(lambda: not _runs(child), "the child's end")


async def test_a_command_may_read_nothing(tmp_path: Path) -> None:
    one = alert(entities=["gpu" * 100] * 200, evidence=["x" * 500] * 20)
    way = command_way("import os, sys\nos.close(0)\n", tmp_path)
    await asyncio.gather(*(way.send(Notice(key=f"k{n}", kind="firing", alert=one, at=1.0)) for n in range(3)))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
