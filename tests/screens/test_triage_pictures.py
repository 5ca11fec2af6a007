"""Triage as pictures: a run that failed, a node in trouble, a run that waits; sixteen colours, no UTF-8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from console.render.cells import use_ascii
from console.screens.triage import TriageScreen
from jobs.triage.evidence import Target
from tests.screens.frozen import FrozenApp, FrozenSession, session
from tests.screens.seen import SIZES
from tests.screens.test_work_pictures import shown
from tests.screens.triaged import FAILED, answering, failed


@pytest.fixture(autouse=True)
def _answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        answering(patched)
        yield


def on(made: FrozenSession, kind: Any, name: str) -> FrozenApp:
    """The app on the triage of something."""
    return FrozenApp(made, first=lambda: TriageScreen(Target(kind, name)))


@pytest.mark.parametrize("size", SIZES)
class TestScreens:
    """Each in two sizes."""

    def test_run(self, snap_compare: Any, size: tuple[int, int]) -> None:
        app = on(failed(session()), "run", FAILED)
        assert snap_compare(app, terminal_size=size, run_before=shown("bad     code and model"))

    def test_evidence(self, snap_compare: Any, size: tuple[int, int]) -> None:
        app = on(failed(session()), "run", FAILED)
        before = shown("bad     code and model", "Connection closed by peer", keys=["d"])
        assert snap_compare(app, terminal_size=size, run_before=before)

    def test_node(self, snap_compare: Any, size: tuple[int, int]) -> None:
        app = on(session(trouble=True), "node", "worker-1")
        assert snap_compare(app, terminal_size=size, run_before=shown("● certain", "ok      scheduling", keys=["k"]))

    def test_waiting(self, snap_compare: Any, size: tuple[int, int]) -> None:
        app = on(session(), "run", "lm-w3q4x2")
        assert snap_compare(app, terminal_size=size, run_before=shown("● certain", "bad     scheduling", keys=["k"]))


class TestHard:
    """What is hard: sixteen colours, no UTF-8."""

    @pytest.fixture
    def ascii_only(self) -> Iterator[None]:
        use_ascii(True)
        yield
        use_ascii(False)

    def test_sixteen_colours(self, snap_compare: Any) -> None:
        app = on(failed(session()), "run", FAILED)
        app.theme = "raydeck-16"
        assert snap_compare(app, terminal_size=(80, 24), run_before=shown("bad     code and model"))

    @pytest.mark.usefixtures("ascii_only")
    def test_ascii(self, snap_compare: Any) -> None:
        app = on(failed(session()), "run", FAILED)
        assert snap_compare(app, terminal_size=(80, 24), run_before=shown("x bad     code and model"))
