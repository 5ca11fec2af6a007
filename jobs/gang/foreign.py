"""Owns the figures in the logs of scripts that nobody changed: Hugging Face Trainer, Lightning, Megatron-LM, DeepSpeed.

Pure: lines in, points out. No figure is made up: a step that cannot be told from the log gives no point.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jobs.gang.progress import Point
from jobs.model import Progress

MAX_LINE = 4000
_MAX_STEP = 2**63 - 1
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"

# tqdm: `` 12%|█▏        | 60/500 [00:12<01:48,  4.15it/s]``; a rate below one is turned over, an unknown one is ``?``.
_BAR = re.compile(r"^(?P<name>[^|%]{0,80}?)\s*(?:\d+%)?\|[^|]*\|\s*(?P<at>\d+)/(?P<total>\d+|\?) \[(?P<rest>[^\]]*)\]?")
_RATE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(it/s|s/it)")
# Lightning: ``Epoch 0:  12%|█▏        | 120/1000 [00:37<04:35,  3.20it/s, v_num=0, train_loss=1.2]``, and with rich
# ``Epoch 0/9 ━━━━━━━ 120/1000 0:00:37 • 0:04:35 3.20it/s v_num: 0.000 train_loss: 1.200``.
_EPOCH = re.compile(r"^Epoch (\d+):?$")
_RICH = re.compile(r"^Epoch (?P<epoch>\d+)/\d+\s+[━╸╺ ]*\s*(?P<at>\d+)/(?P<total>\d+)\s+(?P<rest>\d+:\d\d.*)$")
_LIGHTNING_LOSS = re.compile(rf"(?<![\w/])(?:train[_/])?loss(?:_step)?\s*[=:]\s*({_NUMBER})(?![\w.])", re.I)
# Megatron-LM: `` iteration      100/  500000 | consumed samples: 25600 | elapsed time per iteration (ms): 604.3 | …``,
# in newer ones with a time stamp before it, in the oldest without colons.
_MEGATRON = re.compile(r"^(?:\[[^\]]{0,40}\])?\s*iteration\s+(\d+)/\s*(?:\d+|infinity) \|")
_MEGATRON_FIGURE = re.compile(rf"([A-Za-z][^:|]{{0,60}}?):?\s+({_NUMBER})\s*\|", re.I)
# DeepSpeed: ``steps: 10 loss: 2.3456 iter time (s): 0.512 samples/sec: 62.5`` (more losses may follow), and by log_dist
# ``step=10, skipped=0, lr=[9.5e-06], mom=[(0.9, 0.95)]`` and ``epoch=0/micro_step=100/global_step=10,
# RunningAvgSamplesPerSec=41.3, CurrSamplesPerSec=42.0, MemAllocated=1.2GB, …``.
_DEEPSPEED = re.compile(rf"\bsteps: (\d+) loss: ({_NUMBER})(?:\s|$)", re.I)
_DEEPSPEED_RATE = re.compile(rf"\bsamples/sec: ({_NUMBER})(?![\w.])", re.I)
_DEEPSPEED_STEP = re.compile(r"\[Rank \d+\] step=(\d+), skipped=\d+, lr=\[")
_DEEPSPEED_TIMER = re.compile(rf"\bglobal_step=(\d+), RunningAvgSamplesPerSec=({_NUMBER})", re.I)


@dataclass(frozen=True, slots=True)
class _Found:
    """What one line says."""

    step: int
    loss: float | None = None
    throughput: float | None = None
    unit: str = ""
    problems: tuple[str, ...] = ()


class Reader:
    """Reads one log, line by line, and remembers what the next line needs. With ``only`` it knows that maker alone."""

    def __init__(self, only: str = "") -> None:
        makers: dict[str, Callable[[str], _Found | None]] = {
            "megatron": _megatron,
            "deepspeed": _deepspeed,
            "lightning": _Lightning().read,
            "huggingface": _HuggingFace().read,
        }
        self._makers = {only: makers[only]} if only else makers
        self._last: _Found | None = None
        self.maker = ""
        """Whose log it is; empty as long as no line told."""

    def read(self, line: str) -> Point | None:
        """The point that a line completes; None for a line that completes none."""
        text = line[:MAX_LINE].strip()
        if not text:
            return None
        for maker, parse in self._makers.items():
            found = parse(text)
            if found is not None and 0 <= found.step <= _MAX_STEP:
                return self._point(maker, found)
        return None

    def _point(self, maker: str, found: _Found) -> Point:
        if found.loss is not None or found.problems:
            # The first that tells a loss is the one that trains; an engine below it counts in its own way.
            self._makers = {maker: self._makers[maker]}
        if maker != self.maker:
            self.maker, self._last = maker, None
        last = self._last
        if last is not None and last.step == found.step:
            found = _Found(
                found.step,
                last.loss if found.loss is None and not found.problems else found.loss,
                last.throughput if found.throughput is None else found.throughput,
                found.unit or last.unit,
                found.problems,
            )
        self._last = found
        progress = Progress(step=found.step, loss=found.loss, throughput=found.throughput, throughput_unit=found.unit)
        return Point(progress, None, None, "; ".join(found.problems))


def _megatron(text: str) -> _Found | None:
    named = _MEGATRON.match(text)
    if not named:
        return None
    step = int(named.group(1))
    figures = {name.strip(): value for name, value in _MEGATRON_FIGURE.findall(text)}
    problems: list[str] = []
    loss = _finite("loss", figures.get("lm loss", figures.get("loss")), step, problems)
    for name in ("grad norm", "number of nan iterations"):
        value = _finite(name, figures.get(name), step, problems)
        if name.startswith("number") and value:
            problems.append(f"{value:g} iteration{'' if value == 1 else 's'} without a number at step {step}")
    millis = _finite("", figures.get("elapsed time per iteration (ms)"), step, [])
    batch = _finite("", figures.get("global batch size"), step, [])
    rate = batch / millis * 1000 if batch and millis else None
    return _Found(step, loss, *_rate(rate, "samples"), tuple(problems))


def _deepspeed(text: str) -> _Found | None:
    problems: list[str] = []
    if found := _DEEPSPEED.search(text):
        step = int(found.group(1))
        loss = _finite("loss", found.group(2), step, problems)
        rate = _DEEPSPEED_RATE.search(text)
        figure = _finite("", rate.group(1) if rate else None, step, [])
        return _Found(step, loss, *_rate(figure, "samples"), tuple(problems))
    if found := _DEEPSPEED_TIMER.search(text):
        step = int(found.group(1))
        return _Found(step, None, *_rate(_finite("", found.group(2), step, []), "samples"))
    if found := _DEEPSPEED_STEP.search(text):
        return _Found(int(found.group(1)))
    return None


class _Lightning:
    """Its bar counts batches in an epoch; epochs of one length make that a step."""

    def read(self, text: str) -> _Found | None:
        if rich := _RICH.match(text):
            return self._found(int(rich["epoch"]), int(rich["at"]), int(rich["total"]), rich["rest"])
        bar = _BAR.match(text)
        named = _EPOCH.match(bar["name"].strip()) if bar else None
        if not bar or not named:
            return None
        total = None if bar["total"] == "?" else int(bar["total"])
        return self._found(int(named.group(1)), int(bar["at"]), total, bar["rest"])

    @staticmethod
    def _found(epoch: int, at: int, total: int | None, rest: str) -> _Found | None:
        if (total is None and epoch > 0) or at == 0:
            return None
        step = epoch * (total or 0) + at
        problems: list[str] = []
        loss = _LIGHTNING_LOSS.search(rest)
        value = _finite("loss", loss.group(1) if loss else None, step, problems)
        return _Found(step, value, *_rate(_bar_rate(rest), "steps"), tuple(problems))


class _HuggingFace:
    """Its line of figures has no step: the bar is drawn again right after it, and that has.

    Bars of an evaluation have another length than the one that was seen beside figures of the training.
    """

    def __init__(self) -> None:
        self._figures: dict[str, Any] | None = None
        self._total: int | None = None

    def read(self, text: str) -> _Found | None:
        if text.startswith("{"):
            return self._of_figures(_mapping(text))
        bar = _BAR.match(text)
        if not bar or bar["name"].strip() or bar["total"] == "?":
            return None
        at, total = int(bar["at"]), int(bar["total"])
        figures, self._figures = self._figures, None
        if figures is None:
            # Between two lines of figures the bar alone tells that it goes on.
            return _Found(at, None, *_rate(_bar_rate(bar["rest"]), "steps")) if total == self._total and at else None
        if self._total not in (None, total) or not at:
            return None
        self._total = total
        return _of_trainer(figures, at, _bar_rate(bar["rest"]))

    def _of_figures(self, figures: dict[str, Any] | None) -> _Found | None:
        if figures is None or "loss" not in figures:
            return None
        step = figures.get("step", str(figures.get("global_step/max_steps")).partition("/")[0])
        if (isinstance(step, int) and not isinstance(step, bool)) or (isinstance(step, str) and step.isdecimal()):
            return _of_trainer(figures, int(step), None)
        self._figures = figures if "epoch" in figures or "learning_rate" in figures else None
        return None


def _of_trainer(figures: dict[str, Any], step: int, rate: float | None) -> _Found:
    problems: list[str] = []
    loss = _finite("loss", figures.get("loss"), step, problems)
    _finite("grad_norm", figures.get("grad_norm"), step, problems)
    return _Found(step, loss, *_rate(rate, "steps"), tuple(problems))


def _mapping(text: str) -> dict[str, Any] | None:
    """A printed dict of Python; ``nan`` and ``inf`` in it are written as names."""
    if not text.endswith("}") or "'loss'" not in text or text.count("{") + text.count("[") + text.count("(") > 20:
        return None
    try:
        value: Any = ast.literal_eval(re.sub(r"(?<=: )-?(?:nan|inf)\b", lambda found: f"'{found.group()}'", text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _bar_rate(rest: str) -> float | None:
    found = _RATE.search(rest)
    if not found:
        return None
    figure = float(found.group(1))
    if found.group(2) == "it/s":
        return figure
    return 1 / figure if figure else None


def _rate(value: float | None, unit: str) -> tuple[float | None, str]:
    return (value, unit) if value is not None else (None, "")


def _finite(name: str, value: Any, step: int, problems: list[str]) -> float | None:
    """A figure, if it is a finite number; one that is a number and not finite is a problem."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if math.isfinite(number):
        return number
    problems.append(f"{name} is {'not a number' if math.isnan(number) else 'infinite'} at step {step}")
    return None
