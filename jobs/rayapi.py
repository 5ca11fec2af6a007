"""Ray's dashboard API, typed: nodes, jobs, packages, logs, placement groups. No ray import, and any HTTP library.

Every call has a limit in time and in bytes. What goes wrong is told in the family of `jobs.errors`: `Unreachable` when
Ray does not answer or fails (it may pass), `Refused` when it understood and said no. A token never shows in either.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jobs import raymodel
from jobs.errors import Refused, Unreachable, Usage
from jobs.raymodel import PlacementGroup, RayJob, Raylet, RayNode, RayVersion, one_line
from jobs.transport import MAX_ANSWER_BYTES, Response, TooLarge, Transport

PAGE_LIMIT = 10_000
"""The state API gives 100 rows unless asked, and refuses to be asked for more than this."""
READ_SECONDS = 10.0
SUBMIT_SECONDS = 30.0
UPLOAD_SECONDS = 120.0
LOG_BYTES = 8 * 1024 * 1024

_JOB_ID = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_TOKEN = re.compile(r"[\x21-\x7e]{1,8192}")


class Unauthorised(Refused):
    """Ray wants a token, or another one."""


def find_token(environment: Mapping[str, str] | None = None, home: Path | None = None) -> str:
    """The token for Ray, from where Ray itself looks for it; empty if there is none.

    ``RAY_AUTH_TOKEN``, then the file that ``RAY_AUTH_TOKEN_PATH`` names, then ``~/.ray/auth_token``.
    """
    environment = os.environ if environment is None else environment
    direct = environment.get("RAY_AUTH_TOKEN", "").strip()
    if direct:
        return _token(direct, "RAY_AUTH_TOKEN")
    named = environment.get("RAY_AUTH_TOKEN_PATH", "").strip()
    path = Path(named).expanduser() if named else (home or Path.home()) / ".ray" / "auth_token"
    try:
        with path.open("rb") as file:
            content = file.read(16384).decode("ascii", "replace").strip()
    except OSError as error:
        if not named and isinstance(error, FileNotFoundError | NotADirectoryError):
            return ""
        raise Refused(f"the token for Ray cannot be read from {path}: {error.strerror}") from error
    return _token(content, str(path)) if content else ""


def _token(text: str, where: str) -> str:
    if _TOKEN.fullmatch(text) is None:
        raise Refused(f"what stands in {where} is no token for Ray: it has spaces, or signs that no header takes")
    return text


class RayApi:
    """One cluster's dashboard. ``token`` is asked before each request, so that a new one is taken up."""

    def __init__(
        self,
        transport: Transport,
        token: Callable[[], str] = find_token,
        *,
        read_seconds: float = READ_SECONDS,
        answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._transport = transport
        self._find_token = token
        self._read_seconds = read_seconds
        self._answer_bytes = answer_bytes

    async def version(self) -> RayVersion:
        """Which Ray this is."""
        raw = await self._json("GET", "/api/version")
        if not isinstance(raw, dict) or "ray_version" not in raw:
            raise self._foreign()
        return RayVersion(raymodel.text(raw, "ray_version"), raymodel.text(raw, "session_name"))

    async def supported_version(self) -> RayVersion:
        """The same; `Refused` if raydeck does not know this Ray."""
        version = await self.version()
        if not version.supported:
            oldest = ".".join(map(str, raymodel.OLDEST))
            raise Refused(
                f"Ray {version.ray_version or 'of an unknown version'} runs at {self._transport.where}",
                f"raydeck supports {oldest} and later, before {raymodel.NEXT_MAJOR}.0",
            )
        return version

    async def authentication_mode(self) -> str:
        """``disabled`` or ``token``; ``disabled`` too for a Ray that does not know tokens yet."""
        answer = await self._answer("GET", "/api/authentication_mode")
        if answer.status == 404:
            return "disabled"
        raw = self._parsed(self._fine(answer))
        return raymodel.text(raw, "authentication_mode") or "disabled"

    async def nodes(self, limit: int = PAGE_LIMIT) -> list[RayNode]:
        """Every node that Ray remembers, dead ones too, by id."""
        return [raymodel.node(row) for row in await self._state("nodes", limit)]

    async def raylet(self, node_id: str) -> Raylet | None:
        """Where a node's raylet listens, and its files are; None if Ray does not say (yet)."""
        raw = raymodel.mapping(await self._json("GET", f"/nodes/{quote(node_id, safe='')}"))
        return raymodel.raylet(raymodel.mapping(raymodel.mapping(raw.get("data")).get("detail")))

    async def node_usage(self) -> raymodel.Usage:
        """What is held on each living node, by its id.

        From the autoscaler's report (some hundred bytes a node, renewed every 5 s); where the head has no autoscaler's
        monitor, from the dashboard's node page (12 KB a node).
        """
        found = raymodel.usage_from_status(await self._json("GET", "/api/cluster_status"))
        if found is None:
            found = raymodel.usage_from_summary(await self._json("GET", "/nodes", params={"view": "summary"}))
        return found

    async def jobs(self, limit: int = 500) -> list[RayJob]:
        """The newest jobs, newest first. Ray itself always sends all that it remembers."""
        found = [raymodel.job(row) for row in raymodel.rows(await self._json("GET", "/api/jobs/"))]
        found.sort(key=lambda job: job.started_at or 0.0, reverse=True)
        return found[:limit]

    async def job(self, submission_id: str) -> RayJob | None:
        """One job, or None if Ray has none of this id."""
        answer = await self._answer("GET", _job_path(submission_id))
        if answer.status == 404:
            return None
        return raymodel.job(raymodel.mapping(self._parsed(self._fine(answer))))

    async def submit(
        self,
        submission_id: str,
        entrypoint: str | Sequence[str],
        *,
        runtime_env: Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
        cpus: float = 0,
        resources: Mapping[str, float] | None = None,
    ) -> bool:
        """Starts a job, once: True if it is new, False if it was submitted before with the same metadata.

        Ray gives an ``entrypoint`` to a shell; a list of arguments is quoted for it. Ray shows the ``env_vars`` of a
        ``runtime_env`` to everybody. Raises `Refused` where the id is somebody else's.
        """
        if await self._is_ours(submission_id, metadata):
            return False
        body: dict[str, Any] = {
            "entrypoint": entrypoint if isinstance(entrypoint, str) else shlex.join(entrypoint),
            "submission_id": submission_id,
            "metadata": dict(metadata or {}),
            "runtime_env": dict(runtime_env or {}),
        }
        if cpus:
            body["entrypoint_num_cpus"] = cpus
        if resources:
            body["entrypoint_resources"] = dict(resources)
        answer = await self._answer("POST", "/api/jobs/", json=body, timeout=SUBMIT_SECONDS)
        # Two that submit at once both find nothing: Ray takes one, and tells the other so with status 500.
        taken = answer.status >= 400 and b"already exists" in answer.body
        if taken and await self._is_ours(submission_id, metadata):
            return False
        self._fine(answer)
        return True

    async def _is_ours(self, submission_id: str, metadata: Mapping[str, str] | None) -> bool:
        job = await self.job(submission_id)
        if job is None:
            return False
        if any(job.metadata.get(name) != value for name, value in (metadata or {}).items()):
            raise Refused(
                f"Ray already has a job {submission_id}, and it is not this one",
                "Delete that job in Ray, or launch again under another id",
            )
        return True

    async def stop(self, submission_id: str) -> bool:
        """Asks Ray to end a job: False if it has ended already or never was. The end comes later."""
        answer = await self._answer("POST", f"{_job_path(submission_id)}/stop")
        if answer.status == 404:
            return False
        return raymodel.mapping(self._parsed(self._fine(answer))).get("stopped") is True

    async def delete(self, submission_id: str) -> bool:
        """Makes Ray forget an ended job: False if it has none of this id. Raises `Refused` while it runs."""
        answer = await self._answer("DELETE", _job_path(submission_id))
        if answer.status == 404:
            return False
        if b"non-terminal state" in answer.body:
            raise Refused(f"job {submission_id} has not ended yet, so Ray keeps it", "Stop it first")
        return raymodel.mapping(self._parsed(self._fine(answer))).get("deleted") is True

    async def job_log_tail(self, job: RayJob, lines: int = 200) -> str | None:
        """The last lines of what a job's driver printed; None if it has printed nothing yet, or its node is gone."""
        if not job.driver_node_id or not job.submission_id:
            return None
        params = {
            "node_id": job.driver_node_id,
            "filename": f"job-driver-{job.submission_id}.log",
            "lines": str(max(1, min(lines, PAGE_LIMIT))),
        }
        answer = await self._answer("GET", "/api/v0/logs/file", params=params, limit=LOG_BYTES)
        if answer.status >= 500 and (b"not found" in answer.body or b"doesn't exist" in answer.body):
            return None
        return self._fine(answer).body.decode("utf-8", "replace")

    async def placement_groups(self, limit: int = PAGE_LIMIT) -> list[PlacementGroup]:
        """The placement groups that Ray remembers, removed ones too."""
        return [raymodel.placement_group(row) for row in await self._state("placement_groups", limit)]

    async def serve_applications(self) -> dict[str, Any]:
        """What Ray Serve tells of its applications and entries; empty where Serve is not installed."""
        answer = await self._answer("GET", "/api/serve/applications/")
        return {} if answer.status in (404, 501) else raymodel.mapping(self._parsed(self._fine(answer)))

    async def package_exists(self, name: str) -> bool:
        """Whether a package of this name was uploaded, and Ray still has it."""
        answer = await self._answer("GET", f"/api/packages/gcs/{quote(name, safe='')}")
        if answer.status == 404:
            return False
        self._fine(answer)
        return True

    async def upload_package(self, name: str, content: bytes) -> None:
        """Puts a package into Ray's store, where it stays until the head is started anew."""
        path = f"/api/packages/gcs/{quote(name, safe='')}"
        self._fine(await self._answer("PUT", path, content=content, timeout=UPLOAD_SECONDS))

    async def state(
        self, what: str, where: Mapping[str, str] | None = None, limit: int = PAGE_LIMIT
    ) -> list[dict[str, Any]]:
        """Rows of the state API as Ray gives them, of which each field in ``where`` is so. Any field may be missing."""
        return await self._state(what, limit, where)

    async def _state(self, what: str, limit: int, where: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        params = {"limit": str(max(1, min(limit, PAGE_LIMIT))), "detail": "true"}
        path = f"/api/v0/{what}"
        if where:
            # Each filter repeats the same three names, which a mapping cannot.
            query = list(params.items())
            for name, value in where.items():
                query += [("filter_keys", name), ("filter_predicates", "="), ("filter_values", value)]
            path = f"{path}?{urlencode(query)}"
        raw = raymodel.mapping(await self._json("GET", path, params=None if where else params))
        if raw.get("result") is False:
            raise Unreachable(
                f"{self._ray} cannot list its {what.replace('_', ' ')}: {one_line(raymodel.text(raw, 'msg'))}"
            )
        return raymodel.rows(raymodel.mapping(raymodel.mapping(raw.get("data")).get("result")).get("result"))

    async def _json(self, method: str, path: str, params: Mapping[str, str] | None = None) -> Any:
        return self._parsed(self._fine(await self._answer(method, path, params=params)))

    async def _answer(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | None = None,
        timeout: float | None = None,
        limit: int | None = None,
    ) -> Response:
        """The answer, whatever its status, but that no token or a wrong one was given."""
        timeout = self._read_seconds if timeout is None else timeout
        limit = self._answer_bytes if limit is None else limit
        token = self._find_token()
        headers = {"Authorization": f"Bearer {token}"} if token else None
        try:
            answer = await self._transport.request(
                method, path, params=params, json=json, content=content, headers=headers, timeout=timeout, limit=limit
            )
        except TimeoutError:
            raise Unreachable(
                f"{self._ray} did not answer within {timeout:g} s", "The head may be overloaded"
            ) from None
        except TooLarge:
            raise Unreachable(f"{self._ray} sent more than {limit // 2**20} MiB for {path}; it was not read") from None
        except ConnectionError as error:
            reason = one_line(str(error))
            raise Unreachable(
                f"{self._ray} does not answer: {_scrubbed(reason, token)}", "Is the head up, and is this its address?"
            ) from None
        if answer.status == 401:
            raise Unauthorised(
                f"{self._ray} wants a token",
                "Set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or put the token into ~/.ray/auth_token",
            )
        if answer.status == 403:
            raise Unauthorised(f"{self._ray} does not accept the token", "Ask for the token of this cluster")
        return answer

    def _fine(self, answer: Response) -> Response:
        """The answer, if its status is one of success."""
        if 200 <= answer.status < 300:
            return answer
        line = _scrubbed(one_line(_error_text(answer.body)), self._find_token()) or f"status {answer.status}, no words"
        if answer.status == 501:
            raise Refused(f"{self._ray} has not installed what this needs: {line}")
        # A refusal by the agent on the head arrives as 500 with the agent's own status in its words.
        inner = re.search(rb"Request failed with status code (\d{3})", answer.body)
        status = int(inner[1]) if inner else answer.status
        if status >= 500:
            raise Unreachable(f"{self._ray} failed: {line}")
        if 300 <= status < 400:
            raise self._foreign()
        raise Refused(f"{self._ray} refused: {line}")

    def _parsed(self, answer: Response) -> Any:
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            raise self._foreign() from None

    def _foreign(self) -> Unreachable:
        return Unreachable(
            f"what answers at {self._transport.where} is not Ray's dashboard, or one that is not understood",
            "Check the cluster's dashboard address",
        )

    @property
    def _ray(self) -> str:
        return f"Ray's dashboard at {self._transport.where}"


def _job_path(submission_id: str) -> str:
    if _JOB_ID.fullmatch(submission_id) is None or submission_id.strip(".") == "":
        raise Usage(f"{submission_id!r} is no id for a Ray job", "Use letters, digits, dashes, dots and underscores")
    return f"/api/jobs/{submission_id}"


def _error_text(body: bytes) -> str:
    """An error's words: Ray sends text, or JSON with a ``msg``."""
    words = body[:65536].decode("utf-8", "replace")
    try:
        return raymodel.text(json.loads(body), "msg") or words
    except (ValueError, RecursionError):
        return words


def _scrubbed(line: str, token: str) -> str:
    return line.replace(token, "…") if token else line
