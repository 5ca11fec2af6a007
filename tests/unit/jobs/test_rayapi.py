"""Ray's dashboard, from answers that a real one gave, and from such as no Ray should give."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.sources.http import HttpTransport
from jobs import raymodel
from jobs.errors import RaydeckError, Refused, Unreachable, Usage
from jobs.rayapi import RayApi, Unauthorised, find_token

DATA = Path(__file__).parents[2] / "data/ray"
HEAD = "8b3f9b7283d2efcc62a8e08947ecbaeb30f16e426541a262bb30f9d9"
WORKER = "9d2e74bfabe2c791b7f67b996ffdad097a89e68ba2d75ad2461bf853"


def recorded(name: str) -> httpx.Response:
    """What a real Ray 2.60 answered."""
    raw = json.loads((DATA / f"{name}.json").read_text())
    return httpx.Response(raw["status"], text=raw["body"])


def job_body(name: str) -> str:
    return recorded(name).text


class Dashboard:
    """Answers by method and path, and keeps what was asked."""

    def __init__(self, **answers: str | httpx.Response | Sequence[str]) -> None:
        self.answers = {
            key: [value] if isinstance(value, str | httpx.Response) else list(value) for key, value in answers.items()
        }
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        queue = self.answers[f"{request.method} {request.url.path}"]
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        return recorded(answer) if isinstance(answer, str) else answer

    def api(self, token: str = "") -> RayApi:
        client = httpx.AsyncClient(transport=httpx.MockTransport(self), base_url="http://head:8265")
        return RayApi(HttpTransport("http://head:8265", client), lambda: token)


def answering(answer: str | httpx.Response, path: str = "/api/version", method: str = "GET") -> RayApi:
    return Dashboard(**{f"{method} {path}": answer}).api()


async def test_the_version_and_what_it_can_do() -> None:
    version = await answering("version").version()
    assert version.ray_version == "2.60.0"
    assert version.session.startswith("session_")
    assert (version.supported, version.label_selectors, version.token_authentication) == (True, True, True)


@pytest.mark.parametrize(
    ("text", "supported", "labels"),
    [("2.9.3", False, False), ("2.40.0", True, False), ("2.49.0", True, True), ("3.0.0", False, True),
     ("", False, False), ("2.61.0rc1", True, True), ("3.0.0.dev0", False, True), ("nightly", False, False)],
)  # fmt: skip
async def test_versions_that_are_supported(text: str, supported: bool, labels: bool) -> None:
    version = raymodel.RayVersion(text)
    assert (version.supported, version.label_selectors) == (supported, labels)
    api = answering(httpx.Response(200, json={"ray_version": text}))
    if supported:
        assert (await api.supported_version()).ray_version == text
    else:
        with pytest.raises(Refused, match=r"raydeck supports 2\.40 and later"):
            await api.supported_version()


async def test_the_authentication_mode() -> None:
    path = "/api/authentication_mode"
    assert await answering("authentication_mode", path).authentication_mode() == "disabled"
    assert (
        await answering(httpx.Response(200, json={"authentication_mode": "token"}), path).authentication_mode()
        == "token"
    )
    assert await answering(httpx.Response(404, text="Not Found"), path).authentication_mode() == "disabled"


async def test_nodes_keep_their_own_names() -> None:
    dashboard = Dashboard(**{"GET /api/v0/nodes": "nodes"})
    head, worker = await dashboard.api().nodes()
    assert (head.node_id, head.node_ip, head.is_head, head.alive) == (HEAD, "192.0.2.2", True, True)
    assert head.started_at == pytest.approx(1796195244.323)
    assert head.ended_at is None
    assert head.resources_total["node:__internal_head__"] == 1
    assert (worker.gpus, worker.labels["rack"], worker.is_head) == (4.0, "r1", False)
    assert dict(dashboard.asked[0].url.params) == {"limit": "10000", "detail": "true"}


async def test_a_dead_node_says_why() -> None:
    nodes = await answering("nodes_dead", "/api/v0/nodes").nodes()
    assert [(node.alive, node.state_message) for node in nodes] == [
        (True, ""),
        (False, "Expected termination: received SIGTERM"),
    ]


async def test_a_limit_that_is_too_high_is_never_asked_for() -> None:
    dashboard = Dashboard(**{"GET /api/v0/nodes": "nodes"})
    await dashboard.api().nodes(limit=20000)
    assert dashboard.asked[0].url.params["limit"] == "10000"
    with pytest.raises(Refused, match="exceeds the supported limit"):
        await answering("nodes_over_limit", "/api/v0/nodes").nodes()


async def test_what_a_placement_group_reserves_is_held() -> None:
    usage = await answering("cluster_status", "/api/cluster_status").node_usage()
    assert usage == {HEAD: {"CPU": (1.0, 2.0), "GPU": (2.0, 4.0)}, WORKER: {"CPU": (1.0, 2.0), "GPU": (2.0, 4.0)}}


async def test_without_an_autoscalers_report_the_node_page_tells_the_same() -> None:
    dashboard = Dashboard(**{"GET /api/cluster_status": "cluster_status_no_monitor", "GET /nodes": "nodes_summary"})
    expected = await answering("cluster_status", "/api/cluster_status").node_usage()
    assert await dashboard.api().node_usage() == expected
    assert [request.url.path for request in dashboard.asked] == ["/api/cluster_status", "/nodes"]


async def test_jobs_newest_first_and_bounded() -> None:
    api = answering("jobs", "/api/jobs/")
    jobs = await api.jobs()
    assert [job.started_at for job in jobs] == sorted(
        (job.started_at for job in jobs), reverse=True, key=lambda at: at or 0
    )
    driver = next(job for job in jobs if not job.submission_id)
    assert (driver.key, driver.status, driver.ended_at, driver.ended) == ("02000000", "RUNNING", None, False)
    assert [job.key for job in await api.jobs(2)] == [job.key for job in jobs[:2]]


@pytest.mark.parametrize(
    ("name", "status", "code", "reason"),
    [
        ("job_succeeded", "SUCCEEDED", 0, "Job finished successfully."),
        ("job_failed", "FAILED", 3, "Job entrypoint command failed with exit code 3, last available logs"),
        ("job_stopped", "STOPPED", None, "Job was intentionally stopped."),
        ("job_running", "RUNNING", None, "Job is currently running."),
        ("job_no_package", "FAILED", None, "Failed to download runtime_env file package gcs://nothere.zip"),
    ],
)
async def test_one_job(name: str, status: str, code: int | None, reason: str) -> None:
    job = await answering(name, "/api/jobs/x").job("x")
    assert job is not None
    assert (job.status, job.driver_exit_code) == (status, code)
    assert job.reason.startswith(reason)
    assert "\n" not in job.reason
    assert job.ended == (status != "RUNNING")


async def test_a_job_that_is_not_there() -> None:
    assert await answering("job_missing", "/api/jobs/x").job("x") is None


@pytest.mark.parametrize("wrong", ["", "a/b", "a b", "..", "a?x=1", "a" * 201, "ä", "a\n"])
async def test_ids_that_break_the_jobs_api_are_never_sent(wrong: str) -> None:
    dashboard = Dashboard()
    for call in (dashboard.api().job(wrong), dashboard.api().stop(wrong), dashboard.api().submit(wrong, ["true"])):
        with pytest.raises(Usage, match="is no id"):
            await call
    assert dashboard.asked == []


JOB = "raydeck-lm-1-a1"
MARKS = {"raydeck_run": "lm-1", "raydeck_attempt": "1"}
LOOK, POST = f"GET /api/jobs/{JOB}", "POST /api/jobs/"


async def test_a_submission_looks_first_and_quotes_arguments() -> None:
    dashboard = Dashboard(**{LOOK: "job_missing", POST: "submit_new"})
    assert await dashboard.api().submit(
        JOB, ["python3", "it's.py"], runtime_env={"working_dir": "gcs://p.zip"}, metadata=MARKS
    )
    assert [request.method for request in dashboard.asked] == ["GET", "POST"]
    body = json.loads(dashboard.asked[1].content)
    assert body == {
        "entrypoint": """python3 'it'"'"'s.py'""",
        "submission_id": JOB,
        "metadata": MARKS,
        "runtime_env": {"working_dir": "gcs://p.zip"},
    }


async def test_a_submission_that_was_made_before_is_not_made_again() -> None:
    dashboard = Dashboard(**{LOOK: "job_succeeded"})
    assert await dashboard.api().submit(JOB, "true", metadata=MARKS) is False
    assert [request.method for request in dashboard.asked] == ["GET"]


async def test_two_submissions_at_once_are_one() -> None:
    dashboard = Dashboard(**{LOOK: ["job_missing", "job_running"], POST: "submit_again"})
    assert await dashboard.api().submit(JOB, "true", metadata=MARKS) is False


async def test_an_id_that_is_somebody_elses_is_refused() -> None:
    dashboard = Dashboard(**{LOOK: "job_succeeded"})
    with pytest.raises(Refused, match="it is not this one"):
        await dashboard.api().submit(JOB, "true", metadata={**MARKS, "raydeck_attempt": "2"})
    dashboard = Dashboard(**{LOOK: ["job_missing", "job_no_package"], POST: "submit_again"})
    with pytest.raises(Refused, match="it is not this one"):
        await dashboard.api().submit(JOB, "true", metadata=MARKS)


async def test_a_refused_submission_is_one_line() -> None:
    dashboard = Dashboard(**{LOOK: "job_missing", POST: "submit_again"})
    with pytest.raises(Refused) as caught:
        await dashboard.api().submit(JOB, "true", metadata=MARKS)
    assert caught.value.sentence == (
        "Ray's dashboard at http://head:8265 refused: "
        "Job with submission_id raydeck-lm-1-a1 already exists. Please use a different submission_id."
    )


async def test_stopping_and_forgetting() -> None:
    path = "/api/jobs/x"
    assert await answering("stop", f"{path}/stop", "POST").stop("x") is True
    assert await answering("stop_again", f"{path}/stop", "POST").stop("x") is False
    assert await answering("stop_missing", f"{path}/stop", "POST").stop("x") is False
    assert await answering("delete", path, "DELETE").delete("x") is True
    assert await answering("delete_missing", path, "DELETE").delete("x") is False
    with pytest.raises(Refused, match="has not ended yet"):
        await answering("delete_running", path, "DELETE").delete("x")


async def test_the_tail_of_a_jobs_log() -> None:
    dashboard = Dashboard(**{LOOK: "job_succeeded", "GET /api/v0/logs/file": ["log", "log_missing", "log_no_node"]})
    api = dashboard.api()
    job = await api.job(JOB)
    assert job is not None
    tail = await api.job_log_tail(job, 20)
    assert tail is not None
    assert tail.splitlines()[-1].startswith("hello /tmp/ray/session_")
    assert dict(dashboard.asked[1].url.params) == {"node_id": HEAD, "filename": f"job-driver-{JOB}.log", "lines": "20"}
    assert await api.job_log_tail(job) is None
    assert await api.job_log_tail(job) is None
    assert await api.job_log_tail(raymodel.RayJob("x")) is None
    assert len(dashboard.asked) == 4


async def test_placement_groups() -> None:
    placed, never = await answering("placement_groups", "/api/v0/placement_groups").placement_groups()
    assert (placed.name, placed.state, placed.is_detached) == (JOB, "CREATED", False)
    assert [(bundle.node_id, bundle.resources) for bundle in placed.bundles] == [
        (WORKER, {"GPU": 2.0, "CPU": 1.0}),
        (HEAD, {"GPU": 2.0, "CPU": 1.0}),
    ]
    assert (never.state, never.scheduling_state, never.bundles[0].node_id) == ("PENDING", "INFEASIBLE", "")


async def test_packages() -> None:
    path = "/api/packages/gcs/raydeck-1.zip"
    assert await answering("package_missing", path).package_exists("raydeck-1.zip") is False
    assert await answering("package_there", path).package_exists("raydeck-1.zip") is True
    dashboard = Dashboard(**{f"PUT {path}": httpx.Response(200)})
    await dashboard.api().upload_package("raydeck-1.zip", b"zip")
    assert dashboard.asked[0].content == b"zip"


async def test_what_is_not_installed() -> None:
    with pytest.raises(Refused, match="has not installed what this needs: Serve dependencies are not installed"):
        await answering("serve_not_installed", "/api/jobs/").jobs()


TOKEN = "s3cr3t-t0ken"


async def test_the_token_is_sent_and_never_told() -> None:
    dashboard = Dashboard(**{"GET /api/version": httpx.Response(500, text=f"bad header Bearer {TOKEN}")})
    with pytest.raises(Unreachable) as caught:
        await dashboard.api(TOKEN).version()
    assert dashboard.asked[0].headers["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in str(caught.value)
    plain = Dashboard(**{"GET /api/version": "version"})
    await plain.api().version()
    assert "Authorization" not in plain.asked[0].headers


@pytest.mark.parametrize(
    ("status", "words"), [(401, r"wants a token\. Set RAY_AUTH_TOKEN"), (403, r"does not accept the token\. Ask for")]
)
async def test_no_token_and_a_wrong_one(status: int, words: str) -> None:
    with pytest.raises(Unauthorised, match=words):
        await answering(httpx.Response(status, text="Unauthorized: Missing authentication token")).version()


def test_where_the_token_is_looked_for(tmp_path: Path) -> None:
    assert find_token({}, tmp_path) == ""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("from-home\n")
    assert find_token({}, tmp_path) == "from-home"
    (tmp_path / "t").write_text("from-path\n")
    named = {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "t")}
    assert find_token(named, tmp_path) == "from-path"
    assert find_token({**named, "RAY_AUTH_TOKEN": "direct"}, tmp_path) == "direct"
    with pytest.raises(Refused, match="cannot be read"):
        find_token({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}, tmp_path)
    with pytest.raises(Refused, match="is no token") as caught:
        find_token({"RAY_AUTH_TOKEN": "two words"}, tmp_path)
    assert "two words" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(200, text="<html>nginx</html>"), "is not Ray's dashboard"),
        (httpx.Response(200, json=["x"]), "is not Ray's dashboard"),
        (httpx.Response(200, content=b"\xff\xfe"), "is not Ray's dashboard"),
        (httpx.Response(200, text="[" * 100_000), "is not Ray's dashboard"),
        (httpx.Response(302, headers={"Location": "http://elsewhere/"}), "is not Ray's dashboard"),
        (
            httpx.Response(500, text="Traceback (most recent call last):\n  File x\nKeyError: 'a'\n"),
            "failed: KeyError: 'a'",
        ),
        (httpx.Response(503, text=""), "failed: status 503, no words"),
        (httpx.Response(500, text="\x1b[31mred\x1b[0m\nsecond"), "failed: [31mred [0m"),
    ],
)
async def test_answers_that_are_none(answer: httpx.Response, words: str) -> None:
    with pytest.raises(Unreachable) as caught:
        await answering(answer).version()
    assert words in caught.value.sentence
    assert caught.value.sentence.isprintable()


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, itself included."""
    yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, below in inner:
        yield from _places(below, (*place, name))


def _spoiled(value: Any, place: tuple[Any, ...], by: Any) -> Any:
    if not place:
        return by
    if isinstance(value, dict):
        return {name: _spoiled(inner, place[1:], by) if name == place[0] else inner for name, inner in value.items()}
    return [_spoiled(inner, place[1:], by) if index == place[0] else inner for index, inner in enumerate(value)]


def _row(name: str) -> Any:
    return recorded(name).json()["data"]["result"]["result"][0]


_READS: list[tuple[Callable[[Any], object], Any]] = [
    (lambda raw: raymodel.node(raymodel.mapping(raw)), _row("nodes")),
    (lambda raw: raymodel.job(raymodel.mapping(raw)), recorded("job_failed").json()),
    (lambda raw: raymodel.placement_group(raymodel.mapping(raw)), _row("placement_groups")),
    (raymodel.usage_from_summary, recorded("nodes_summary").json()),
    (raymodel.usage_from_status, recorded("cluster_status").json()),
]


@settings(deadline=None)
@given(
    st.sampled_from(_READS).flatmap(lambda read: st.tuples(st.just(read), st.sampled_from([*_places(read[1])]), _JSON))
)
def test_a_field_of_any_kind_never_raises(
    spoiled: tuple[tuple[Callable[[Any], object], Any], tuple[Any, ...], Any],
) -> None:
    (read, whole), place, by = spoiled
    read(_spoiled(whole, place, by))


@settings(deadline=None)
@given(_JSON)
async def test_any_json_is_read_or_refused(answer: Any) -> None:
    body = json.dumps(answer)
    paths = ["/api/version", "/api/v0/nodes", "/api/cluster_status", "/nodes", "/api/jobs/", "/api/jobs/x"]
    api = Dashboard(**{f"GET {path}": httpx.Response(200, text=body) for path in paths}).api()
    for call in (api.version, api.nodes, api.node_usage, api.jobs, lambda: api.job("x")):
        try:
            await call()
        except RaydeckError as error:
            told = str(error)
            assert told


@settings(deadline=None)
@given(st.text())
def test_one_line_is_one_line_of_printable_text(text: str) -> None:
    line = raymodel.one_line(text)
    assert len(line) <= 300
    assert line.isprintable()
