"""Figures in the logs of scripts that nobody changed: sample lines of each maker, old and new, and any text at all."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.gang.foreign import Reader
from jobs.gang.progress import Point

BAR_50 = " 10%|█         | 50/500 [00:12<01:48,  4.15it/s]"
BAR_51 = " 10%|█         | 51/500 [00:12<01:48,  4.15it/s]"
FIGURES = "{'loss': 2.31, 'grad_norm': 1.25, 'learning_rate': 4.5e-05, 'epoch': 0.1}"
MEGATRON = (
    " iteration      200/    1000 | consumed samples:          800 | elapsed time per iteration (ms): 430.0 | "
    "learning rate: 1.342E-04 | global batch size:     4 | lm loss: 7.399415E+00 | loss scale: 16384.0 | "
    "grad norm: 2.918 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
MEGATRON_NEW = (
    " [2025-04-13 23:41:12] iteration       10/    1000 | consumed samples:          160 | "
    "elapsed time per iteration (ms): 1147.6 | throughput per GPU (TFLOP/s/GPU): 423.5 | "
    "learning rate: 1.000000E-05 | global batch size:    16 | lm loss: 1.089512E+01 | loss scale: 1.0 | "
    "grad norm: 8.123 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
MEGATRON_OLD = (
    " iteration      300/  320000 | elapsed time per iteration (ms): 618.1 | learning rate 1.000E-04 | "
    "lm loss 6.912345E+00 | loss scale 65536.0 |"
)
STEPS = "steps: 200 loss: 5.5508 lm loss: 5.5103 moe loss: 0.0405 iter time (s): 0.936 samples/sec: 136.706"
LOG_DIST = (
    "[2023-11-07 01:55:23,711] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=4, "
    "lr=[4.998e-05, 4.998e-05], mom=[(0.9, 0.95), (0.9, 0.95)]"
)
TIMER = (
    "[2023-11-07 01:55:23,714] [INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10, "
    "RunningAvgSamplesPerSec=25.025771473496132, CurrSamplesPerSec=25.704280480541442, MemAllocated=4.32GB, "
    "MaxMemAllocated=38.49GB"
)
LIGHTNING = "Epoch 2:  12%|█▏        | 120/1000 [00:37<04:35,  3.20it/s, v_num=0, train_loss=1.200]"
LIGHTNING_STEP = (
    "Epoch 9: 100%|███| 860/860 [00:05<00:00, 162.25it/s, v_num=1, val/loss=9.0, train_loss_step=1.460, "
    "train_loss_epoch=1.510]"
)
LIGHTNING_RICH = "Epoch 1/9 ━━━━━━╸━━━━━━━━━ 120/1000 0:00:37 • 0:04:35 3.20it/s v_num: 0.000 train_loss: 1.200"
LIGHTNING_ENDLESS = "Epoch 0: |          | 120/? [00:37<?,  3.20it/s, v_num=0, train_loss=1.200]"


def read(*lines: str) -> list[Point]:
    reader = Reader()
    return [point for line in lines if (point := reader.read(line)) is not None]


def figures(point: Point) -> tuple[int, float | None, float | None, str]:
    progress = point.progress
    rate = progress.throughput if progress.throughput is None else round(progress.throughput, 3)
    return progress.step, progress.loss, rate, progress.throughput_unit


@pytest.mark.parametrize(
    ("line", "maker", "found"),
    [
        (MEGATRON, "megatron", (200, 7.399415, 9.302, "samples")),
        (MEGATRON_NEW, "megatron", (10, 10.89512, 13.942, "samples")),
        (MEGATRON_OLD, "megatron", (300, 6.912345, None, "")),
        (MEGATRON.replace("/    1000", "/infinity"), "megatron", (200, 7.399415, 9.302, "samples")),
        (STEPS, "deepspeed", (200, 5.5508, 136.706, "samples")),
        (LOG_DIST, "deepspeed", (10, None, None, "")),
        (TIMER, "deepspeed", (10, None, 25.026, "samples")),
        (LIGHTNING, "lightning", (2120, 1.2, 3.2, "steps")),
        (LIGHTNING_STEP, "lightning", (8600, 1.46, 162.25, "steps")),
        (LIGHTNING_RICH, "lightning", (1120, 1.2, 3.2, "steps")),
        (LIGHTNING_ENDLESS, "lightning", (120, 1.2, 3.2, "steps")),
        (LIGHTNING.replace(", train_loss=1.200", ""), "lightning", (2120, None, 3.2, "steps")),
        ("{'loss': 0.5, 'learning_rate': 1e-5, 'step': 7}", "huggingface", (7, 0.5, None, "")),
        ("{'loss': 0.5, 'grad_norm': 1.0, 'global_step/max_steps': '30/100'}", "huggingface", (30, 0.5, None, "")),
    ],
)
def test_one_line_is_one_point(line: str, maker: str, found: tuple[int, float | None, float | None, str]) -> None:
    reader = Reader()
    point = reader.read(line)
    assert point is not None
    assert figures(point) == found
    assert (point.problem, reader.maker) == ("", maker)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "step 10 loss 2.0",
        FIGURES,
        BAR_50,
        "Map: 100%|██████████| 1000/1000 [00:01<00:00, 900.21 examples/s]",
        "Loading checkpoint shards: 100%|██████████| 2/2 [00:03<00:00,  1.71s/it]",
        "Validation DataLoader 0:  50%|█████     | 10/20 [00:01<00:01,  9.80it/s]",
        "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 25.21it/s]",
        "Epoch 0:   0%|          | 0/1000 [00:00<?, ?it/s]",
        LIGHTNING_ENDLESS.replace("Epoch 0", "Epoch 1"),
        "{'train_runtime': 120.5, 'train_samples_per_second': 8.3, 'train_loss': 1.5, 'epoch': 3.0}",
        "{'eval_loss': 1.9, 'eval_runtime': 3.2, 'epoch': 1.0}",
        "{'loss': open('/etc/passwd')}",
        "validation loss at iteration 1000 | lm loss value: 5.1E+00 | lm loss PPL: 1.6E+02 |",
    ],
)
def test_what_has_no_step_or_is_no_training_gives_no_point(line: str) -> None:
    assert read(line) == []


def test_figures_of_the_trainer_get_their_step_from_the_bar_that_is_drawn_after_them() -> None:
    lines = [
        " 10%|█         | 49/500 [00:12<01:48,  4.15it/s]",
        BAR_50,
        " " * 40,
        FIGURES,
        BAR_50,
        BAR_51,
        "  0%|          | 0/13 [00:00<?, ?it/s]",
        " 15%|█▌        | 2/13 [00:00<00:03,  3.10it/s]",
        "{'eval_loss': 1.9, 'eval_runtime': 3.2, 'epoch': 0.1}",
        " 20%|██        | 100/500 [00:25<03:28,  1.92s/it]",
        # Newer ones write the figures as text.
        "{'loss': '1.87', 'grad_norm': '0.9921', 'learning_rate': '4e-05', 'epoch': '0.2'}",
        " 20%|██        | 100/500 [00:25<03:28,  1.92s/it]",
    ]
    assert [figures(point) for point in read(*lines)] == [
        (50, 2.31, 4.15, "steps"),
        (51, None, 4.15, "steps"),
        (100, None, 0.521, "steps"),
        (100, 1.87, 0.521, "steps"),
    ]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["{'loss': nan, 'grad_norm': inf, 'learning_rate': 1e-05, 'epoch': 0.1}", BAR_50],
         "loss is not a number at step 50; grad_norm is infinite at step 50"),
        (["{'loss': 'nan', 'learning_rate': '0', 'epoch': '0.1'}", BAR_50], "loss is not a number at step 50"),
        ([LIGHTNING.replace("1.200", "nan")], "loss is not a number at step 2120"),
        ([MEGATRON.replace("7.399415E+00", "NAN")], "loss is not a number at step 200"),
        ([MEGATRON.replace("nan iterations:   0", "nan iterations:   2")], "2 iterations without a number at step 200"),
        ([STEPS.replace("5.5508", "inf")], "loss is infinite at step 200"),
    ],
)  # fmt: skip
def test_a_loss_that_is_no_number_is_missing_and_said(lines: list[str], problem: str) -> None:
    points = read(*lines)
    assert [point.problem for point in points] == [problem]
    loss = points[0].progress.loss
    assert loss is None or math.isfinite(loss)


def test_two_lines_of_one_step_are_one_point_in_the_end() -> None:
    assert [figures(point) for point in read(LOG_DIST, TIMER)] == [(10, None, None, ""), (10, None, 25.026, "samples")]
    steps = read(TIMER, "steps: 10 loss: 2.5 iter time (s): 0.5")
    assert figures(steps[-1]) == (10, 2.5, 25.026, "samples")


def test_who_tells_a_loss_is_who_trains() -> None:
    reader = Reader()
    assert reader.read(LOG_DIST) is not None
    assert reader.read(LIGHTNING) is not None
    assert reader.maker == "lightning"
    assert reader.read(TIMER) is None


SAMPLES = [MEGATRON, MEGATRON_NEW, MEGATRON_OLD, STEPS, LOG_DIST, TIMER, LIGHTNING, LIGHTNING_RICH, FIGURES, BAR_50]


@st.composite
def mangled(draw: st.DrawFn) -> str:
    """A sample line with some of it replaced."""
    line = draw(st.sampled_from(SAMPLES))
    start = draw(st.integers(0, len(line)))
    end = draw(st.integers(start, len(line)))
    return line[:start] + draw(st.text(max_size=5) | st.sampled_from(["9" * 400, "nan", "-1", "1e999"])) + line[end:]


@given(st.lists(st.text() | mangled() | st.sampled_from(SAMPLES), max_size=8))
def test_no_line_breaks_it_and_no_figure_is_made_up(lines: list[str]) -> None:
    for point in read(*lines):
        progress = point.progress
        assert 0 <= progress.step < 2**63
        for figure in (progress.loss, progress.throughput):
            assert figure is None or math.isfinite(figure)
        assert (progress.throughput is None) == (progress.throughput_unit == "")
        assert any(character.isdigit() for line in lines for character in line)
