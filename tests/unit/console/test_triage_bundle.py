"""The archive to hand on: what is in it, in which order, and what must never be."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.triage.bundle import BLOCK, Made, base_name, free_path, write_bundle
from console.triage.paper import paint, paint_lines, plain
from console.triage.timeline import timeline, utc
from jobs.errors import Refused
from jobs.model import RunState
from jobs.recordview import Mark
from probes.reading import Missing, Sample
from tests.unit.console.desk import WALL, Desk
from tests.unit.console.desk import desk as desk
from tests.unit.console.triage_parts import AWS, HF, PASSWORD, PEM, SECRETS, WANDB, audit, context, evidence, judged


@pytest.fixture
def session(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def no_stream(method: str, path: str, **more: Any) -> Any:
        raise ConnectionError(f"nobody answers {method} {path}")

    monkeypatch.setattr(desk.answers, "stream", no_stream)
    desk.nodes("gpu-1", "gpu-2")
    desk.context = context(tmp_path)
    desk.fleet.nodes["gpu-1"].sample = Sample(missing={0: {"*": Missing("error", f"password={PASSWORD}")}})
    desk.give("GET", "/v1/audit", {"entries": audit()})
    desk.give("GET", "/v1/alerts/history", {"alerts": []})
    desk.give("GET", "/v1/recording/index", {"segments": [
        {"seq": 1, "since": WALL - 300, "until": WALL, "bytes": 10,
         "marks": [{"at": WALL - 60, "kind": "node", "text": "gpu-2: SSH lost", "target": "gpu-2"}]}]})  # fmt: skip
    return desk


def contents(made: Made) -> dict[str, str]:
    with tarfile.open(made.path) as archive:
        found: dict[str, str] = {}
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            assert member.name.startswith("raydeck-triage-lm-a1-20260528-202640/")
            assert (member.mode, member.uid, member.mtime) == (0o600, 0, int(WALL))
            found[member.name.partition("/")[2]] = file.read().decode()
        return found


async def test_all_is_in_it_and_no_secret(session: Any, tmp_path: Path) -> None:
    made = await write_bundle(session, judged(), tmp_path / "b.tar.gz")
    found = contents(made)
    assert {
        "manifest.json", "summary.md", "triage.json", "timeline.jsonl", "states.json", "config/workflow.json",
        "config/cluster.yaml", "config/differences.json", "alerts.json", "course.jsonl", "logs/gpu-1-rank-0.log",
        "logs/gpu-2-rank-1.log", "logs/gpu-1-kernel.log", "stacks/rank-1.txt", "samples/newest.json",
        "samples/history.jsonl", "versions.json",
    } == set(found)  # fmt: skip
    for name, text in found.items():
        for secret in SECRETS:
            assert secret not in text, f"{secret} stands in {name}"
        assert "AQAB" not in text, "the short last line of a key is part of it"
    assert json.loads(found["config/workflow.json"])["config"]["env"] == {
        "WANDB_API_KEY": "•••", "MODE": "fast", "TOKEN": "${env:HF_TOKEN}",
    }  # fmt: skip
    assert "47\t2026-05-28T20:24:59.000Z\taws" in found["logs/gpu-2-rank-1.log"]
    assert "ValueError: the loss is off" in found["logs/gpu-2-rank-1.log"]
    manifest = json.loads(found["manifest.json"])
    assert {file["name"] for file in manifest["files"]} == set(found) - {"manifest.json"}
    assert any("samples that the head recorded" in sentence for sentence in manifest["left_out"])
    assert made.path.stat().st_mode & 0o777 == 0o600


async def test_the_timeline_is_in_one_order(session: Any, tmp_path: Path) -> None:
    found = contents(await write_bundle(session, judged(), tmp_path / "b.tar.gz"))
    happened = [json.loads(line) for line in found["timeline.jsonl"].splitlines()]
    assert [each["at"] for each in happened] == sorted(each["at"] for each in happened)
    told = [(each["kind"], each["what"]) for each in happened]
    assert told.index(("event", "gpu-2")) < told.index(("rank", "lm-a1 rank 1")) < told.index(("rank", "lm-a1 rank 0"))
    assert ("alert", "lm-a1") in told
    assert [each["text"] for each in happened if each["what"] == "gpu-2" and each["kind"] == "node"] == [
        "gpu-2: SSH lost", "SSH: lost: token: •••",
    ]  # fmt: skip
    assert not any(kind == "node" and what == "gpu-1" for kind, what in told), "that all is well is no event"


async def test_the_same_twice_is_the_same_archive(session: Any, tmp_path: Path) -> None:
    first = await write_bundle(session, judged(), tmp_path / "1.tar.gz")
    second = await write_bundle(session, judged(), tmp_path / "2.tar.gz")
    assert first.path.read_bytes() == second.path.read_bytes()


async def test_nothing_is_written_over(session: Any, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_bytes(b"mine")
    with pytest.raises(Refused, match="exists already"):
        await write_bundle(session, judged(), path)
    assert path.read_bytes() == b"mine"
    with pytest.raises(Refused, match="cannot be written"):
        await write_bundle(session, judged(), tmp_path / "no" / "b.tar.gz")


def test_a_free_name_is_found(tmp_path: Path) -> None:
    found = judged()
    first = free_path(tmp_path, found)
    assert first.name == f"{base_name(found)}.tar.gz"
    first.touch()
    assert free_path(tmp_path, found).name == f"{base_name(found)}-2.tar.gz"


@pytest.mark.parametrize("limit", [20_000, 40_000, 100_000, 400_000])
async def test_it_never_grows_beyond_its_limit(session: Any, tmp_path: Path, limit: int) -> None:
    found = judged()
    rank = found.evidence.ranks[1]
    rank.log = [type(rank.log[0])(f"line {at} {'x' * (at % 90)}", WALL, at) for at in range(3000)]
    made = await write_bundle(session, found, tmp_path / "b.tar.gz", limit)
    assert made.size_bytes <= limit
    assert made.path.stat().st_size == made.size_bytes
    with tarfile.open(made.path) as archive:
        unpacked = sum(BLOCK + -(-member.size // BLOCK) * BLOCK for member in archive)
    assert unpacked <= limit
    texts = contents(made)
    log = texts.get("logs/gpu-2-rank-1.log")
    if limit == 400_000:
        assert log is not None
        assert log.startswith("-\t")
        assert not any("rank-1.log" in sentence for sentence in made.left_out)
    else:
        assert any("rank-1.log" in sentence for sentence in made.left_out)
        assert log is None or log.splitlines()[-1].startswith("2999\t"), "the end is what is kept"
    assert "summary.md" in texts


async def test_without_a_controller_there_is_a_bundle_all_the_same(session: Any, tmp_path: Path) -> None:
    session.answers.given.clear()
    made = await write_bundle(session, judged(), tmp_path / "b.tar.gz")
    assert any(sentence.startswith("the audit log: ") for sentence in made.left_out)
    assert "summary.md" in contents(made)


# --- paper ------------------------------------------------------------------------------------------------------------


def test_values_under_a_secrets_name_are_hidden_whole() -> None:
    told = paint({"password": "two words", "env": {"AWS_SECRET_ACCESS_KEY": "a b"}, "tokens": 5, "token": None,
                  "list": [f"token={HF}"], "path": "/data/tokens.bin", "max_tokens": "none"})  # fmt: skip
    assert told == {"password": "•••", "env": {"AWS_SECRET_ACCESS_KEY": "•••"}, "tokens": 5, "token": None,
                    "list": ["token=•••"], "path": "/data/tokens.bin", "max_tokens": "none"}  # fmt: skip


def test_a_key_in_a_text_of_many_lines_is_hidden_to_its_end() -> None:
    text = f"before\n-----BEGIN RSA PRIVATE KEY-----\n{PEM}\nAQ==\n-----END RSA PRIVATE KEY-----\nafter {AWS}"
    assert paint_lines(text).split("\n")[2:4] == ["•••", "•••"]
    assert paint_lines(text).split("\n")[0] == "before"
    assert paint_lines(text).split("\n")[5] == "after •••"
    assert paint(text) == paint_lines(text)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(_values)
def test_painting_keeps_the_shape(value: Any) -> None:
    painted = paint(plain(value))
    json.dumps(painted)
    if isinstance(value, list):
        assert len(painted) == len(value)
    if isinstance(value, (int, float, bool)) or value is None:
        assert painted == value


def test_plain_knows_every_kind_of_value() -> None:
    assert plain({"a": (RunState.FAILED, Missing("error", "x"), {3, 1})}) == {
        "a": ["failed", {"kind": "error", "reason": "x"}, [1, 3]]
    }
    body = plain(evidence())
    assert body["target"] == {"kind": "run", "name": "lm-a1"}
    assert body["run"]["run"]["state"] == "failed"
    json.dumps(body)


def test_a_timeline_of_nothing_but_requests() -> None:
    made = evidence()
    made.nodes, made.ranks, made.alerts = {}, [], []
    told = timeline(made, {}, [], audit(), [Mark(at=WALL, kind="run", text="told by the run itself")])
    assert [each.document() for each in told] == [
        {"at": WALL - 600, "utc": utc(WALL - 600), "kind": "audit", "what": "lm-a1",
         "text": f"alice: launch, allowed: --api-key {WANDB}"},
    ]  # fmt: skip
