"""Questions on a terminal: what is shown, what is asked for, and what is taken for a yes."""

from __future__ import annotations

import pytest

from console.cli import keys
from console.preview import Preview
from jobs.errors import Refused


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the person types, line by line."""
    lines: list[str] = []
    monkeypatch.setattr(keys, "_ask", lambda prompt: lines.pop(0))  # pyright: ignore[reportUnknownLambdaType]
    return lines


TOUCHING = Preview("Stop lm-a1", ("1 run on 4 GPUs",), "name", "lm-a1", True, ("1 run of bob, not yours",))


async def test_a_change_is_shown_and_takes_its_word_and_a_reason(
    typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    typed += ["too slow", "lm-a1"]
    assert await keys.confirm(TOUCHING, False) == "too slow"
    assert capsys.readouterr().err.splitlines() == ["Stop lm-a1", "  1 run on 4 GPUs", "  ! 1 run of bob, not yours"]


async def test_a_reason_that_was_named_is_not_asked_for(typed: list[str]) -> None:
    typed += ["lm-a1"]
    assert await keys.confirm(TOUCHING, False, "named") == "named"


@pytest.mark.parametrize("answer", ["", "y", "yes", "lm-a2"])
async def test_anything_else_changes_nothing(typed: list[str], answer: str) -> None:
    typed += ["", answer]
    with pytest.raises(Refused, match="nothing was changed"):
        await keys.confirm(TOUCHING, False)


async def test_one_who_is_sure_is_shown_and_not_asked(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert await keys.confirm(TOUCHING, True, "r") == "r"
    assert "Stop lm-a1" in capsys.readouterr().err
    assert not typed


async def test_names_from_the_cluster_are_data(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    await keys.confirm(Preview("Stop \x1b[31mx", ("\x1b]0;owned\x07",)), True)
    assert "\x1b" not in capsys.readouterr().err
