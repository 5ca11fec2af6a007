"""The frozen cluster with a controller that tells of alerts in every state, and does what is said to them."""

from __future__ import annotations

from typing import Any

from jobs.alertview import (
    Acknowledged,
    AcknowledgeRequest,
    Alert,
    AlertsReply,
    AlertsView,
    ClearRequest,
    Delivery,
    EndSilenceRequest,
    Matcher,
    Silence,
    SilenceRequest,
)
from jobs.model import Run
from tests.screens.answers import WALL, FrozenClient
from tests.screens.frozen import NOW, FrozenSession, session_of

SILENCE = Silence(id="silence-5d2", matcher=Matcher(rule="node.clock", node="head"), user="bob",
                  reason="NTP is fixed at 6", at=WALL - 1800, until=WALL + 5400)  # fmt: skip
OTHER = Silence(id="silence-9aa", matcher=Matcher(run="old-a1b2c3"), user="alice", reason="on purpose",
                at=WALL - 600, until=WALL + 600)  # fmt: skip


def alert(identity: str, rule: str, level: Any, title: str, ago: float, **more: Any) -> Alert:
    """One alert."""
    return Alert(id=identity, rule=rule, level=level, title=title, since=WALL - ago, **more)


def alerts() -> list[Alert]:
    """One in each state, worst first."""
    return [
        alert("alert-xid", "gpu.xid.critical", "critical", "worker-1/1: XID 79, the GPU has fallen off the bus", 340,
              entities=["worker-1/1"], nodes=["worker-1"], run="lm-k3f9qz", latched=True, key="C",
              cause="The GPU no longer answers on PCIe: power, heat, or the board itself.",
              action="Cordon the node, drain it, and power-cycle it; if it comes back, the board goes.",
              evidence=["kernel, 04:21:08: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
                        "its 3 peers in lm-k3f9qz are at 640 W, this one tells nothing since 04:21:09",
                        "token=hf_abcdefghijklmnopqrstuvwxyz012345 \x1b[31mred"],
              deliveries=[Delivery(sink="slack", at=WALL - 338, ok=True),
                          Delivery(sink="mail", at=WALL - 336, ok=False, detail="550 no such mailbox")], escalated=1),
        alert("alert-lost", "node.ray_dead", "critical", "worker-2 is dead for Ray", 95, entities=["worker-2"],
              nodes=["worker-2"], key="J", cause="Ray has not heard of it for 15 s.",
              action="Look whether SSH answers; rejoin it."),
        alert("alert-nvlink", "gpu.nvlink.down", "critical", "3 nodes behind switch leaf-7: NVLink down", 50,
              entities=["worker-1/0", "worker-1/1", "worker-2/0"], nodes=["worker-1", "worker-2"], flapping=True,
              fired=4, cause="One switch carries all of them.", action="Look at the switch.", key="C"),
        alert("alert-hot", "gpu.hot", "warning", "worker-1/0: 87 °C, 3 below its slowdown", 1210,
              entities=["worker-1/0"], nodes=["worker-1"], run="lm-k3f9qz",
              acknowledged=Acknowledged(user="bob", at=WALL - 900, reason="the fan is ordered"), fired=2,
              cause="It is hotter than its peers.", action="Look at the fan."),
        alert("alert-disk", "mount.space", "warning", "worker-2:/mnt/output is 96 % full", 600,
              entities=["worker-2:/mnt/output"], nodes=["worker-2"], cause="Checkpoints fill it.",
              no_data="the probe on worker-2 has told nothing for 90 s", action="Delete old checkpoints.", key="s"),
        alert("alert-clock", "node.clock", "info", "head: its clock is off by 4.2 s", 3000, entities=["head"],
              nodes=["head"], silenced_by=SILENCE.id, cause="NTP does not hold it.", action="Start chronyd."),
        alert("alert-over", "run.slow", "warning", "lm-k3f9qz: 22 % below its throughput of before", 4000,
              entities=["lm-k3f9qz"], run="lm-k3f9qz", state="cleared", ended_at=WALL - 120, cause="A slow rank.",
              action="Nothing."),
    ]  # fmt: skip


def view(told: list[Alert] | None = None, silences: list[Silence] | None = None) -> AlertsView:
    """What the controller tells."""
    return AlertsView(
        alerts=alerts() if told is None else told,
        silences=[SILENCE, OTHER] if silences is None else silences,
        watched_nodes=2,
        unwatched={"worker-2": "its probe has told nothing for 90 s"},
        blind=["xid: neither the kernel's log nor NVML events may be read (on worker-2)"],
        rules_version="2026.1",
        sinks=["slack", "mail"],
    )


class AlertClient(FrozenClient):
    """A controller that does what is said to alerts; what was asked for is in `asked`, dry runs in `planned`."""

    def __init__(self, known: dict[str, Run], told: AlertsView) -> None:
        super().__init__(known)
        self.told = told
        self.planned: list[SilenceRequest] = []

    def _change(self, names: list[str], **update: Any) -> AlertsReply:
        changed = [each.model_copy(update=update) for each in self.told.alerts if each.id in names]
        by_id = {each.id: each for each in changed}
        self.told = self.told.model_copy(update={"alerts": [by_id.get(each.id, each) for each in self.told.alerts]})
        return AlertsReply(view=self.told, changed=changed)

    async def alerts(self) -> AlertsView:
        self._answer_or_refuse()
        return self.told

    async def alert_history(self, limit: int = 200) -> list[Alert]:
        self._answer_or_refuse()
        older = alert("alert-old", "gpu.ecc", "critical", "worker-1/2: an uncorrectable ECC error", 90_000,
                      entities=["worker-1/2"], nodes=["worker-1"], state="cleared", ended_at=WALL - 86_000,
                      cleared_by="carol", cleared_reason="board swapped, ticket 4711", latched=True)  # fmt: skip
        return [*self.told.alerts, older][:limit]

    async def acknowledge(self, request: AcknowledgeRequest) -> AlertsReply:
        self._answer_or_refuse()
        self.asked.append(("acknowledge", ",".join(request.alerts), request))
        return self._change(request.alerts, acknowledged=Acknowledged(user="alice", at=WALL, reason=request.reason))

    async def silence(self, request: SilenceRequest) -> AlertsReply:
        self._answer_or_refuse()
        hidden = [each for each in self.told.alerts if each.state == "firing" and request.matcher.matches(each)]
        if request.dry_run:
            self.planned.append(request)
            return AlertsReply(view=self.told, changed=hidden)
        self.asked.append(("silence", request.matcher.words, request))
        made = Silence(id="silence-new", matcher=request.matcher, user="alice", reason=request.reason, at=WALL,
                       until=WALL + request.seconds)  # fmt: skip
        self.told = self.told.model_copy(update={"silences": [*self.told.silences, made]})
        return self._change([each.id for each in hidden], silenced_by=made.id).model_copy(update={"silence": made})

    async def end_silence(self, silence: str, request: EndSilenceRequest) -> AlertsReply:
        self._answer_or_refuse()
        self.asked.append(("end silence", silence, request))
        self.told = self.told.model_copy(
            update={"silences": [each for each in self.told.silences if each.id != silence]}
        )
        return self._change([each.id for each in self.told.alerts if each.silenced_by == silence], silenced_by="")

    async def clear(self, request: ClearRequest) -> AlertsReply:
        self._answer_or_refuse()
        self.asked.append(("clear", ",".join(request.alerts), request))
        return self._change(request.alerts, state="cleared", ended_at=WALL, cleared_by="alice",
                            cleared_reason=request.reason)  # fmt: skip


def alerted(told: AlertsView | None = None, trouble: bool = True) -> FrozenSession:
    """A head and two workers in trouble; see `view`."""
    made = session_of(FrozenSession, trouble)
    told = view() if told is None else told
    made.work.take_alerts(told, NOW - 0.4)
    made.client = AlertClient(made.client.known, told)
    return made


def client_of(made: FrozenSession) -> AlertClient:
    """Its controller, as what it is."""
    assert isinstance(made.client, AlertClient)
    return made.client
