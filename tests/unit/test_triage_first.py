"""The rank that failed first is found by time, whatever the others say, and however loudly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.model import Outcome
from jobs.triage.evidence import LogLine, RankEvidence, lines
from jobs.triage.first import find
from jobs.triage.report import triage
from tests.unit.triage_made import FAILED_AT, NOW, RESET, WATCHDOG, failed, gang, rank, recorded, said, traceback, xid

OOM = traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")


@pytest.mark.parametrize(
    ("case", "cause", "culprit"),
    [
        ("killed", "K27", 1), ("raised", "exception", 1), ("left", "K08", 1), ("stopped", "K07", 1), ("disk", "K23", 1),
        ("mismatch", "K16", 1),
    ],
)  # fmt: skip
def test_a_recorded_gang(case: str, cause: str, culprit: int) -> None:
    found = triage(failed(recorded(case))).findings[0]
    assert (found.id, found.culprit.rank, found.culprit.node) == (cause, culprit, "gpu-1")
    assert any(item.text == "followed" and item.place == "3 ranks" for item in found.consequences)


def test_a_recorded_barrier_names_all_that_were_late() -> None:
    found = triage(failed(recorded("barrier"))).findings[0]
    assert found.id == "K07"
    assert "ranks 1 and 3 never came to the barrier" in found.title
    assert found.culprit.nodes == ("gpu-1", "gpu-2")
    assert found.confidence == "certain"


def test_without_times_the_one_with_a_cause_of_its_own_is_the_first() -> None:
    ranks = [replace(each, ended_at=None) for each in gang(2, OOM)]
    first = find(ranks)
    assert first is not None
    assert first.ended.rank.rank == 2


def test_a_rank_that_was_ended_while_it_complained_followed() -> None:
    """Its driver ended the gang before it had left: there is no exit code of it, and its last words are of its peer."""
    ranks = [each if each.rank in (0, 2) else replace(each, exit_code=None, ended_at=None) for each in gang(2, OOM)]
    first = find(ranks, failed=True)
    assert first is not None
    assert first.ended.rank.rank == 2
    assert sorted(each.rank.rank for each in first.others) == [0, 1, 3]
    assert all(each.line is not None for each in first.others if each.rank.exit_code is None)
    running = find(ranks)
    assert running is not None
    assert [each.rank.rank for each in running.others] == [0], "while it goes on, words alone are no end"


def test_times_beat_the_drivers_word_and_the_drivers_word_beats_numbers() -> None:
    ranks = gang(2, OOM, others=OOM)
    outcome = Outcome(verdict="failed", first_failing_rank=1)
    first = find(ranks, outcome)
    assert first is not None
    assert first.ended.rank.rank == 2
    undated = find([replace(each, ended_at=None) for each in ranks], outcome)
    assert undated is not None
    assert undated.ended.rank.rank == 1


def test_ends_within_a_second_are_told_apart_by_their_lines() -> None:
    late = [LogLine("ValueError: bad batch", FAILED_AT - 0.1)]
    early = [LogLine("ValueError: bad batch", FAILED_AT - 0.6)]
    ranks = [
        rank(0, exit_code=1, ended_at=FAILED_AT, log=late),
        rank(1, exit_code=1, ended_at=FAILED_AT + 0.3, log=early),
    ]
    first = find(ranks)
    assert first is not None
    assert first.ended.rank.rank == 1


def test_one_that_was_asked_to_end_comes_last() -> None:
    ranks = [rank(0, exit_code=-15, ended_at=FAILED_AT), rank(1, OOM, exit_code=1, ended_at=FAILED_AT + 0.2)]
    first = find(ranks)
    assert first is not None
    assert first.ended.rank.rank == 1


def test_what_kept_a_silent_rank_counts_although_it_said_so_late() -> None:
    """Three gave up waiting; the fourth came back from its storage later and says what it was."""
    ranks = [rank(n, WATCHDOG, exit_code=-6, ended_at=FAILED_AT) for n in range(3)]
    late = [LogLine("OSError: [Errno 5] Input/output error", FAILED_AT + 20)]
    ranks.append(rank(3, exit_code=1, ended_at=FAILED_AT + 20, log=late))
    found = triage(failed(ranks)).findings[0]
    assert (found.id, found.culprit.rank) == ("K24", 3)


def test_one_that_hung_and_was_killed_for_it_did_not_end_when_it_printed_last() -> None:
    """Of a killed process only the time of its last output may be known: here ten minutes before the time-out."""
    ranks = [rank(n, exit_code=-6, ended_at=FAILED_AT, log=[LogLine(WATCHDOG, FAILED_AT)]) for n in (0, 1, 2)]
    ranks.append(rank(3, "step 413 loss 2.1", exit_code=-9, ended_at=FAILED_AT - 600))
    found = triage(failed(ranks)).findings[0]
    assert (found.id, found.culprit.rank) == ("K06", 3)
    assert "said nothing and was killed in the end" in found.title


def test_what_one_says_long_after_it_lost_a_peer_does_not_make_it_the_first() -> None:
    ranks = [rank(n, traceback(RESET), exit_code=1, ended_at=FAILED_AT + n / 100, last_step=None) for n in range(3)]
    log = [LogLine(RESET, FAILED_AT + 0.1), LogLine("PermissionError: [Errno 13] Permission denied", FAILED_AT + 20)]
    ranks.append(rank(3, exit_code=1, ended_at=FAILED_AT + 20, last_step=None, log=log))
    found = triage(failed(ranks)).findings[0]
    assert (found.id, found.culprit.known) == ("K08", False)


def test_nobody_is_named_where_nothing_tells() -> None:
    ranks = [
        rank(n, traceback(RESET), exit_code=1, ended_at=FAILED_AT + n / 100, last_step=None) for n in range(4)
    ]  # fmt: skip
    told = triage(failed(ranks))
    assert not told.findings[0].culprit.known
    assert told.headline.startswith("The culprit is not known: 4 ranks lost a peer")
    assert any("would tell" in text for text in told.unknown)


def test_a_gang_that_left_nothing_but_its_steps_still_names_the_one_behind() -> None:
    ranks = [
        rank(n, WATCHDOG, exit_code=-6, ended_at=FAILED_AT, last_step=412 if n == 2 else 413) for n in range(4)
    ]  # fmt: skip
    found = triage(failed(ranks)).findings[0]
    assert found.culprit.rank == 2
    assert "last step 412, the others 413" in found.title


NOISE = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.floats(2.5, 500.0),
        st.one_of(
            st.text(max_size=80),
            st.sampled_from(
                [
                    RESET, WATCHDOG, "torch.OutOfMemoryError: CUDA out of memory",
                    "PermissionError: [Errno 13] Permission denied",
                    "OSError: [Errno 28] No space left on device",
                    "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus",
                    "ValueError: something else", "Traceback (most recent call last):", "step 9 loss: nan",
                    "ray.exceptions.NodeDiedError: the node it was running on is dead or unavailable",
                ]
            ),
        ),
    ),
    max_size=30,
)  # fmt: skip


@given(
    NOISE, st.sampled_from([OOM, traceback("ValueError: bad label"), "", traceback("PermissionError: [Errno 13] x")])
)
def test_later_noise_never_changes_the_culprit(noise: list[tuple[int, float, str]], text: str) -> None:
    ranks = gang(2, text, code=1 if text else -9)
    before = triage(failed([replace(each, log=list(each.log)) for each in ranks])).findings[0]
    for number, later, words in noise:
        ranks[number].log.append(said(words, FAILED_AT + later))
    after = triage(failed(ranks)).findings[0]
    assert (after.id, after.culprit, after.title, after.confidence) == (
        before.id, before.culprit, before.title, before.confidence
    )  # fmt: skip


@given(NOISE)
def test_undated_noise_of_those_that_ended_later_does_not_either(noise: list[tuple[int, float, str]]) -> None:
    ranks = gang(2, OOM)
    for number, _, words in noise:
        if number != 2:
            ranks[number].log.append(LogLine(words))
    found = triage(failed(ranks)).findings[0]
    assert (found.id, found.culprit.rank) == ("K03", 2)


@given(st.permutations(range(4)))
def test_the_order_in_which_ranks_are_given_means_nothing(order: list[int]) -> None:
    ranks = gang(3, OOM)
    found = triage(failed([ranks[at] for at in order])).findings[0]
    assert found.culprit.rank == 3


@given(
    st.lists(st.text(max_size=120), max_size=12),
    st.lists(st.one_of(st.none(), st.integers(-70, 300)), min_size=1, max_size=6),
    st.lists(st.one_of(st.none(), st.floats(NOW - 1e4, NOW + 1e4)), min_size=6, max_size=6),
)
def test_nothing_is_raised_on_any_text(texts: list[str], codes: list[int | None], ends: list[float | None]) -> None:
    ranks: list[RankEvidence] = []
    for number, code in enumerate(codes):
        text = "\n".join(texts)
        ranks.append(
            RankEvidence(number, "gpu-1", 0, exit_code=code, ended_at=ends[number], log=lines(text), stack=text)
        )
    made = failed(ranks)
    made.nodes["gpu-1"].kernel = lines("\n".join(texts))
    made.nodes["gpu-1"].raylet = lines("\n".join(texts))
    assert made.run is not None
    made.run.driver_log = lines("\n".join(texts))
    told = triage(made)
    assert told.headline
    assert len(told.steps) == 5


def test_a_machine_beats_a_program_within_a_minute_only() -> None:
    for seconds, cause in ((-50.0, "K20"), (50.0, "K20"), (-7200.0, "exception")):
        made = failed(gang(3, traceback("ValueError: bad label")))
        made.nodes["gpu-2"].events = [xid(79, at=FAILED_AT + seconds)]
        assert triage(made).findings[0].id == cause


@pytest.mark.parametrize("number", [13, 31, 43, 45])
def test_an_xid_of_the_programs_own_does_not(number: int) -> None:
    made = failed(gang(3, traceback("RuntimeError: CUDA error: an illegal memory access was encountered")))
    made.nodes["gpu-2"].events = [xid(number)]
    found = triage(made).findings[0]
    assert (found.id, found.culprit.rank) == ("K18", 3)
    assert any(f"XID {number}" in item.text for item in found.consequences)


def test_a_fault_on_another_node_does_not_beat_a_program() -> None:
    made = failed(gang(3, traceback("ValueError: bad label")))
    made.nodes["gpu-1"].events = [xid(79)]
    told = triage(made)
    assert (told.findings[0].id, told.findings[0].culprit.rank) == ("exception", 3)
    assert "K20" in [finding.id for finding in told.findings]
