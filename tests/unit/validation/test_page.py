"""The report as one page of HTML: whole, well formed, nothing from outside, nothing unescaped."""

from __future__ import annotations

from html.parser import HTMLParser

from jobs.validationpage import NODES_AT_MOST, page
from jobs.validationview import CheckResult, Report, StageResult
from tests.screens.validated import FOUND, report

VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Every tag is closed in order; what is asked for from elsewhere is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.outside: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_has_every_stage_the_curve_and_the_links() -> None:
    made = read(page(report(FOUND)))
    for words in ("worker-2/1, the link", "3 of 4096 rows", "digest 41ac…", "One GPU", "Several nodes", "580.65.06"):
        assert words in made.text, words
    assert made.tags.count("svg") == 1
    assert made.tags.count("circle") == 3
    assert made.outside == []
    assert "script" not in made.tags


def test_what_a_node_says_is_text() -> None:
    evil = "<script>alert(1)</script>'\""
    check = CheckResult(check="gpu.gemm", title=evil, stage="gpu", node=evil, verdict="fail", sentence=evil,
                        evidence=[evil], criterion=evil)  # fmt: skip
    stage = StageResult(stage="gpu", state="done", verdict="fail", nodes=[evil], checks=[check], left_out={evil: evil})
    made = read(page(Report(id=evil, profile="quick", started_at=0.0, stages=[stage], nodes=[evil])))
    assert "script" not in made.tags
    assert evil in made.text


def test_of_many_links_the_worst_are_listed() -> None:
    names = [f"n{at:03}" for at in range(NODES_AT_MOST + 1)]
    links = [[names[0], name, 40.0] for name in names[1:-1]] + [[names[0], names[-1], 4.0]]
    check = CheckResult(check="cluster.pairs", title="links", stage="cluster", verdict="pass", sentence="",
                        facts={"links": links})  # fmt: skip
    stage = StageResult(stage="cluster", state="done", verdict="pass", nodes=names, checks=[check])
    text = page(Report(id="v", profile="full", started_at=0.0, stages=[stage], nodes=names))
    assert text.index(f"{names[0]} ↔ {names[-1]}") < text.index(f"{names[0]} ↔ {names[1]}")
    assert read(text).tags.count("svg") == 0


def test_facts_of_another_shape_are_left_out() -> None:
    check = CheckResult(check="cluster.all_reduce", title="all_reduce", stage="cluster", verdict="pass", sentence="",
                        facts={"curve": [1], "links": "none"})  # fmt: skip
    stage = StageResult(stage="cluster", state="done", verdict="pass", checks=[check])
    assert read(page(Report(id="v", profile="full", started_at=0.0, stages=[stage]))).tags.count("svg") == 0
