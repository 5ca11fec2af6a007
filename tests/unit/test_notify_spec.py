"""What a cluster file may say under ``alerting``, and each mistake at its place, without its value."""

from __future__ import annotations

import pytest

from jobs.alertspec import Alerting
from jobs.load import FileMistakes, load_cluster
from jobs.spec import Cluster
from probes.health.rule import Thresholds
from tests.unit.notify_harness import cluster

FULL = """
    sinks:
      - {name: hook, kind: webhook, url: "http://10.0.0.5:9000/alerts", headers: {Authorization: "Bearer ${env:TOKEN}"}}
      - {name: chat, kind: feishu, url: "https://open.feishu.cn/open-apis/bot/v2/hook/${file:/etc/raydeck/feishu}",
         secret: "${env:FEISHU_SECRET}", levels: [critical]}
      - {name: post, kind: email, host: smtp.example.org, user: raydeck, password: "${file:~/.smtp}",
         from: raydeck@example.org, to: [oncall@example.org, second@example.org], levels: [critical, warning, info]}
      - {name: pager, kind: command, command: "/usr/local/bin/page --now", levels: []}
    escalate_after: 10m
    escalate_to: [pager]
    repeat_after: {critical: 30m, warning: never}
    rate: 12
    prometheus: {listen: "unix:/run/raydeck/metrics.sock"}
    rules:
      gpu.hot: {fires: 95, for: 60s, level: info}
      gpu.idle: {off: true}
      mount.slow: {for: 0s}
    silences_longest: 7d
"""


def found(alerting: str) -> list[tuple[str, str]]:
    """The mistakes' words and suggestions."""
    with pytest.raises(FileMistakes) as caught:
        cluster(alerting)
    return [(each.message, each.suggestion) for each in caught.value.mistakes]


def test_all_of_it_is_taken() -> None:
    alerting = cluster(FULL).alerting
    assert [sink.kind for sink in alerting.sinks] == ["webhook", "feishu", "email", "command"]
    assert alerting.sinks[0].levels == ["critical", "warning"]
    assert alerting.sinks[2].sender == "raydeck@example.org"
    assert alerting.sinks[3].command == ["/usr/local/bin/page", "--now"]
    assert (alerting.escalate_after, alerting.rate, alerting.silences_longest) == (600, 12, 7 * 86400)
    assert [alerting.repeat_after.of(level) for level in ("critical", "warning", "info")] == [1800, None, None]
    assert alerting.thresholds() == Thresholds(
        off=("gpu.idle",),
        fires={"gpu.hot": 95},
        for_seconds={"gpu.hot": 60, "mount.slow": 0},
        levels={"gpu.hot": "info"},
    )


def test_nothing_is_asked_for() -> None:
    assert cluster("").alerting == cluster("{}").alerting == Alerting()
    alerting = Cluster.model_fields["alerting"].default
    assert (alerting.escalate_after, alerting.repeat_after.critical, alerting.repeat_after.warning) == (
        900,
        3600,
        14400,
    )
    assert (alerting.rate, alerting.prometheus, alerting.sinks) == (30, None, [])
    assert alerting.thresholds() == Thresholds()


@pytest.mark.parametrize(
    ("alerting", "words", "suggestion"),
    [
        ("{sink: []}", "unknown key 'sink'", "sinks"),
        ("{sinks: [{name: a, kind: webhook, url: 'http://x/', header: {}}]}", "unknown key 'header'", "headers"),
        ("{sinks: [{name: a, kind: email, host: s, form: a@b.c, to: [a@b.c]}]}", "unknown key 'form'", "from"),
        ("{rules: {gpu.hot: {fire: 3}}}", "unknown key 'fire'", "fires"),
        ("{rules: {gpu.hot: {fro: 3}}}", "unknown key 'fro'", "for"),
        ("{repeat_after: {critcal: 1h}}", "unknown key 'critcal'", "critical"),
        ("{sinks: [{name: a, kind: slac, url: x}]}", "must be one of", "slack"),
        ("{sinks: [{name: a, kind: webhook, url: 'http://x/', levels: [warn]}]}", "must be one of", "warning"),
        ("{sinks: [{kind: webhook, url: 'http://x/'}]}", "needs name", ""),
        ("{sinks: [{name: a, kind: webhook}]}", "a sink of kind webhook needs url", ""),
        ("{sinks: [{name: a, kind: email, host: s, to: [a@b.c]}]}", "a sink of kind email needs from", ""),
        ("{sinks: [{name: a, kind: command}]}", "a sink of kind command needs command", ""),
        ("{sinks: [{name: a, kind: command, command: x, url: 'http://x'}]}", "url is for webhook and slack and", ""),
        ("{sinks: [{name: a, kind: webhook, url: 'http://x', secret: '${env:S}'}]}", "secret is for feishu and", ""),
        ("{sinks: [{name: a, kind: webhook, url: 'ftp://x'}]}", "begins with http:// or https://", ""),
        ("{sinks: [{name: a, kind: webhook, url: 'http://x'}, {name: a, kind: command, command: x}]}", "a already", ""),
        ("{sinks: [{name: a, kind: webhook, url: 'http://x', levels: []}]}", "nothing is ever told through a", ""),
        ("{sinks: [{name: pager, kind: command, command: x}], escalate_to: [pagr]}", "no sink pagr", "pager"),
        ("{sinks: [{name: a, kind: email, host: s, from: nobody, to: [a@b.c]}]}", "must be an e-mail address", ""),
        ("{sinks: [{name: a, kind: email, host: s, from: a@b.c, to: ['a@b.c\\nBcc: x@y.z']}]}", "e-mail address", ""),
        ("{sinks: [{name: a, kind: webhook, url: 'http://x', headers: {Content-Type: a}}]}", "writes itself", ""),
        ("{sinks: [{name: a, kind: command, command: 'page ${env:TOKEN}'}]}", "references are resolved in env", ""),
        ("{escalate_after: soon}", "must be a duration such as 45s, 10m or 1h30m, or never", ""),
        ("{rate: 0}", "must be at least 1", ""),
        ("{rules: {gpu.hot: {for: -1s}}}", "must be a duration", ""),
        ("{prometheus: {}}", "alerting.prometheus needs listen", ""),
        ("{prometheus: {listen: '0.0.0.0:9464'}}", "the figures have no password", ""),
        ("{prometheus: {listen: '192.168.1.4:9464'}}", "the figures have no password", ""),
        ("{prometheus: {listen: '127.0.0.1:99999'}}", "outside the ports there are", ""),
        ("{prometheus: {listen: 'unix:metrics.sock'}}", "an absolute path", ""),
        (f"{{prometheus: {{listen: 'unix:/{'x' * 120}'}}}}", "too long for a socket", ""),
    ],
)  # fmt: skip
def test_a_mistake_is_said_with_what_may_have_been_meant(alerting: str, words: str, suggestion: str) -> None:
    mistakes = found(alerting)
    assert any(words in said and near == suggestion for said, near in mistakes), mistakes


@pytest.mark.parametrize(
    "sink",
    [
        "{name: a, kind: slack, url: 'https://hooks.slack.com/services/T0/B0/hushhush'}",
        "{name: a, kind: feishu, url: '${env:URL}', secret: hushhush}",
        "{name: a, kind: webhook, url: 'http://kim:hushhush@x/'}",
        "{name: a, kind: webhook, url: 'http://x/?token=hushhush'}",
        "{name: a, kind: webhook, url: 'http://x/', headers: {Authorization: Bearer hushhush}}",
        "{name: a, kind: webhook, url: 'http://x/', headers: {X-Api-Key: hushhush}}",
        "{name: a, kind: email, host: s, from: a@b.c, to: [a@b.c], user: kim, password: hushhush}",
    ],
)
def test_no_secret_may_stand_in_the_file_and_none_is_repeated(sink: str) -> None:
    mistakes = found(f"{{sinks: [{sink}]}}")
    assert len(mistakes) == 1
    assert "${env:NAME} or ${file:/PATH}" in mistakes[0][0]
    assert "hushhush" not in str(mistakes)


def test_a_password_does_not_travel_in_the_clear() -> None:
    sink = "name: a, kind: email, from: a@b.c, to: [a@b.c], user: kim, password: '${env:P}', tls: none"
    assert "for all to read" in found(f"{{sinks: [{{{sink}, host: smtp.example.org}}]}}")[0][0]
    assert cluster(f"{{sinks: [{{{sink}, host: 127.0.0.1}}]}}").alerting.sinks[0].tls == "none"
    assert (
        "needs a password"
        in found("{sinks: [{name: a, kind: email, host: s, from: a@b.c, to: [a@b.c], user: k}]}")[0][0]
    )


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:1", "127.8.0.1:9464", "localhost:9464", "[::1]:9464", "unix:/run/x.sock"]
)
def test_loopback_and_sockets_are_taken(listen: str) -> None:
    prometheus = cluster(f"{{prometheus: {{listen: '{listen}'}}}}").alerting.prometheus
    assert prometheus is not None
    assert prometheus.listen == listen


def test_rules_that_there_are_not() -> None:
    mistakes = found("{rules: {gpu.lots: {off: true}, gpu.hot: {fires: 90}}}")
    assert mistakes == [("there is no rule gpu.lots", "gpu.lost")]


def test_what_somebody_has_to_clear_has_no_time_to_end() -> None:
    assert cluster("{rules: {gpu.hot: {clear: 5m}}}").alerting.thresholds().clear_seconds == {"gpu.hot": 300}
    ((words, _),) = found("{rules: {gpu.xid.critical: {clear: 5m}}}")
    assert words == "gpu.xid.critical stays until somebody clears it after a repair: it has no time to end"


def test_a_reference_stays_one_in_what_is_kept_of_the_file() -> None:
    loaded = load_cluster(f"cluster:\n  name: lab\n  control_nodes: [{{host: h}}]\n  alerting:{FULL}", "c.yaml")
    assert loaded.alerting.sinks[1].secret == "${env:FEISHU_SECRET}"
