"""The controller's routes about alerts, as typed calls."""

from __future__ import annotations

from urllib.parse import quote

from jobs.alertview import (
    AcknowledgeRequest,
    Alert,
    AlertsReply,
    AlertsView,
    ClearRequest,
    EndSilenceRequest,
    SilenceRequest,
    TestReply,
    TestRequest,
)
from jobs.calls import Calls, Lenient

TEST_SECONDS = 60.0
"""A test waits for each way out."""


class _Alerts(Lenient):
    alerts: list[Alert]


class AlertCalls(Calls):
    """What fires, and what people say to it."""

    async def alerts(self) -> AlertsView:
        """What fires now, and the silences."""
        return self._as(AlertsView, await self._answer("GET", "/v1/alerts"))

    async def alert_history(self, limit: int = 200) -> list[Alert]:
        """The newest alerts, newest first, also those that ended."""
        answer = await self._answer("GET", "/v1/alerts/history", params={"limit": str(limit)})
        return self._as(_Alerts, answer).alerts

    async def acknowledge(self, request: AcknowledgeRequest) -> AlertsReply:
        """Says that somebody has these alerts."""
        return self._as(AlertsReply, await self._ask("/v1/alerts/acknowledge", request))

    async def silence(self, request: SilenceRequest) -> AlertsReply:
        """Has what matches not told of for a while; a dry run tells what that would hide."""
        return self._as(AlertsReply, await self._ask("/v1/alerts/silence", request))

    async def end_silence(self, silence: str, request: EndSilenceRequest) -> AlertsReply:
        """Ends a silence before its time."""
        return self._as(AlertsReply, await self._ask(f"/v1/silences/{quote(silence, safe='')}/end", request))

    async def clear(self, request: ClearRequest) -> AlertsReply:
        """Clears alerts after a repair."""
        return self._as(AlertsReply, await self._ask("/v1/alerts/clear", request))

    async def test_alert(self, request: TestRequest) -> TestReply:
        """Sends one alert, marked as a test, through the ways out."""
        return self._as(TestReply, await self._ask("/v1/alerts/test", request, TEST_SECONDS))
