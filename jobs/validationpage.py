"""A validation's report as one self-contained page: the ladder, nodes × checks, bandwidth curves, links. No script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from jobs.validationreport import WORDS, heading_of, where
from jobs.validationview import STAGE_TITLES, CheckResult, Report, StageResult, worst

SIGNS = {"pass": "✓", "warn": "▲", "fail": "✗", "skipped": "○", "unknown": "?"}
NODES_AT_MOST = 64
"""Beyond this many the matrix of links would be finer than anybody sees: the worst are listed instead."""
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; }
table { border-collapse: collapse; margin: .5rem 0; }
th, td { text-align: left; padding: .2rem .6rem; vertical-align: top; }
th { border-bottom: 1px solid #c4c9d0; font-weight: 600; } td { border-bottom: 1px solid #eceef1; }
.pass { color: #1a7f37; } .warn { color: #9a6700; } .fail { color: #cf222e; font-weight: 600; }
.skipped, .muted { color: #6e7781; } .unknown { color: #9a6700; } .matrix td { text-align: center; }
.matrix td:first-child { text-align: left; } pre { background: #f6f8fa; padding: .6rem; overflow-x: auto; }
.simulated { background: #fff8c5; padding: .4rem .7rem; display: inline-block; }
svg text { font: 11px system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3; } th { border-color: #30363d; }
td { border-color: #21262d; } pre { background: #161b22; } .simulated { background: #3a2d00; }
svg text { fill: #e6edf3; } }
"""


def page(report: Report) -> str:
    """The whole page. Everything that a node has told is escaped."""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>{escape(report.id)}: {WORDS[report.verdict]}</title><style>{_STYLE}</style></head><body>",
        f"<h1><span class='{report.verdict}'>{SIGNS[report.verdict]} {WORDS[report.verdict]}</span> "
        f"{escape(report.id)}</h1><p>{escape(report.sentence)}</p>",
        f"<p class='muted'>Profile {report.profile}, {len(report.nodes)} nodes, {report.seconds:.0f} s"
        f"{f', by {escape(report.user)}' if report.user else ''}</p>",
    ]
    if report.simulated:
        parts.append("<p class='simulated'>SIMULATED: no GPU took part; the CPU stood in.</p>")
    if report.culprits:
        parts.append(
            f"<h2>To blame</h2><ul>{''.join(f'<li>{escape(each.words)}</li>' for each in report.culprits)}</ul>"
        )
    parts.append("<h2>The ladder</h2>" + _table(["stage", "verdict", "time", "found"], map(_stage_row, report.stages)))
    for stage in report.stages:
        parts += _stage(stage)
    if report.fingerprint:
        rows = ([escape(name), escape(value)] for name, value in report.fingerprint.items())
        parts.append("<h2>Runs on</h2>" + _table(["what", "version"], rows))
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _stage_row(stage: StageResult) -> list[str]:
    out = "".join(f"<br>left out: {escape(node)}, {escape(why)}" for node, why in stage.left_out.items())
    verdict = f"<span class='{stage.verdict}'>{SIGNS[stage.verdict]} {WORDS[stage.verdict]}</span>"
    return [STAGE_TITLES[stage.stage], verdict, f"{stage.seconds:.0f} s", escape(stage.sentence) + out]


def _stage(stage: StageResult) -> list[str]:
    if not stage.checks:
        return []
    parts = [f"<h2>{heading_of(stage)}</h2>"]
    if any(check.node for check in stage.checks):
        parts.append(_matrix(stage))
    for check in stage.checks:
        if curve := _points(check.facts.get("curve")):
            parts.append(f"<h3>{escape(check.title)} {escape(where(check))}</h3>{_curve(curve)}")
        if links := _links(check.facts.get("links")):
            unit = check.figures[0].unit if check.figures else ""
            parts.append(f"<h3>{escape(check.title)} {escape(where(check))}</h3>{_pairs(links, unit, check)}")
    parts.append(_table(["verdict", "check", "where", "found", "judged by"], map(_check_row, stage.checks)))
    for check in stage.checks:
        if check.verdict in ("fail", "unknown", "warn") and check.evidence:
            title = f"{escape(check.title)} {escape(where(check))}"
            parts.append(f"<h3>{title}</h3><pre>{escape(chr(10).join(check.evidence))}</pre>")
    return parts


def _check_row(check: CheckResult) -> list[str]:
    marks = [word for word, on in (("CPU", check.stand_in), ("measured twice", check.again)) if on]
    found = check.sentence + (f" ({', '.join(marks)})" if marks else "")
    verdict = f"<span class='{check.verdict}'>{SIGNS[check.verdict]} {WORDS[check.verdict]}</span>"
    return [verdict, escape(check.title), escape(where(check)), escape(found), escape(check.criterion)]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table. Heads and cells are HTML already."""
    head = "".join(f"<th>{each}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table class='{kind}'><tr>{head}</tr>{body}</table>"


def _matrix(stage: StageResult) -> str:
    """Nodes × checks: of several GPUs the worst, with how many are so."""
    of_nodes = [check for check in stage.checks if check.node]
    checks = dict.fromkeys((check.check, check.title) for check in of_nodes)

    def cell(node: str, check: str) -> str:
        told = [each for each in of_nodes if (each.node, each.check) == (node, check)]
        if not told:
            return ""
        verdict = worst(each.verdict for each in told)
        count = sum(each.verdict == verdict for each in told if each.gpu is not None)
        sign = SIGNS[verdict] + (f" {count}" if count and verdict in ("fail", "warn", "unknown") else "")
        told_more = escape("; ".join(each.sentence for each in told if each.verdict == verdict)[:400], quote=True)
        return f"<span class='{verdict}' title='{told_more}'>{sign}</span>"

    rows = (
        [escape(node), *(cell(node, check) for check, _ in checks)]
        for node in dict.fromkeys(check.node for check in of_nodes)
    )
    return _table(["node", *(escape(title) for _, title in checks)], rows, "matrix")


# --- pictures ---------------------------------------------------------------------------------------------------------


def _points(told: Any) -> list[tuple[float, float]]:
    """Size in bytes and bus bandwidth in GB/s, where a check has measured such a curve."""
    found = [(float(size), float(rate)) for size, rate in told.items()] if isinstance(told, dict) else []
    return sorted(point for point in found if point[0] > 0 and point[1] > 0)


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """Bus bandwidth over size, both on logarithmic scales."""
    wide, high, left, below = 560, 220, 60, 34
    xs, ys = [math.log2(size) for size, _ in points], [math.log10(rate) for _, rate in points]
    low_x, low_y = min(xs), math.floor(min(ys))
    span_x, span_y = max(max(xs) - low_x, 1.0), max(math.ceil(max(ys)) - low_y, 1)

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (x - low_x) / span_x * (wide - left - 20), high - below - (y - low_y) / span_y * (
            high - below - 14
        )

    lines: list[str] = []
    for step in range(span_y + 1):
        _, y = at(low_x, low_y + step)
        lines.append(f"<line x1='{left}' x2='{wide - 20}' y1='{y:.1f}' y2='{y:.1f}' stroke='#8884'/>")
        lines.append(f"<text x='{left - 6}' y='{y + 4:.1f}' text-anchor='end'>{10.0 ** (low_y + step):g}</text>")
    every = max(1, len(points) // 8)
    for size, x in list(zip((size for size, _ in points), xs, strict=True))[::every]:
        across, _ = at(x, low_y)
        lines.append(f"<text x='{across:.1f}' y='{high - below + 15}' text-anchor='middle'>{_size(size)}</text>")
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(x, y) for x, y in zip(xs, ys, strict=True)))
    dots = "".join(
        f"<circle cx='{at(x, y)[0]:.1f}' cy='{at(x, y)[1]:.1f}' r='3' fill='#2f81f7'>"
        f"<title>{_size(size)}: {rate:.3g} GB/s</title></circle>"
        for (size, rate), x, y in zip(points, xs, ys, strict=True)
    )
    return (
        f"<svg width='{wide}' height='{high}' role='img' aria-label='bus bandwidth over size'>{''.join(lines)}"
        f"<polyline points='{drawn}' fill='none' stroke='#2f81f7' stroke-width='2'/>{dots}"
        f"<text x='4' y='11'>GB/s</text></svg>"
    )


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.0f} GiB"


def _links(told: Any) -> dict[tuple[str, str], float]:
    """Both ends and the figure of each link."""
    found: dict[tuple[str, str], float] = {}
    for each in told if isinstance(told, list) else []:
        first, second, value = each
        found[str(first), str(second)] = float(value)
    return found


def _pairs(links: dict[tuple[str, str], float], unit: str, check: CheckResult) -> str:
    """Every two nodes: what is worse beside the best is darker."""
    names = sorted({name for edge in links for name in edge})
    better = all(figure.higher_is_better for figure in check.figures)
    if len(names) > NODES_AT_MOST:
        worst_first = sorted(links.items(), key=lambda item: item[1], reverse=not better)[:40]
        rows = ([escape(" ↔ ".join(edge)), f"{value:.3g} {escape(unit)}"] for edge, value in worst_first)
        return _table(["the worst links", "figure"], rows)
    best = (max if better else min)(links.values())
    blamed = {tuple(sorted(each.nodes)) for each in check.culprits if each.kind == "link"}

    def cell(a: str, b: str) -> str:
        value = links.get((a, b), links.get((b, a)))
        if value is None:
            return "<td></td>"
        share = (value / best if better else best / value) if value and best else 0.0
        ring = "outline:2px solid #cf222e;" if tuple(sorted((a, b))) in blamed else ""
        shade = f"background:hsl({120 * min(1.0, share):.0f} 55% 45% / .55);{ring}"
        return f"<td style='{shade}' title='{escape(a, quote=True)} ↔ {escape(b, quote=True)}'>{value:.3g}</td>"

    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *names))
    rows = "".join(f"<tr><td>{escape(a)}</td>{''.join(cell(a, b) for b in names)}</tr>" for a in names)
    return f"<table class='matrix'><tr>{head}</tr>{rows}</table><p class='muted'>{escape(unit)}</p>"
