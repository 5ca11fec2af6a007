"""What a triage says: steps, findings ranked by confidence, what was ruled out, what is not known. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Confidence = Literal["certain", "likely", "possible"]
CONFIDENCES: tuple[Confidence, ...] = ("certain", "likely", "possible")

StepName = Literal[
    "infrastructure", "resources", "network and storage", "scheduling and configuration", "code and model"
]
STEP_NAMES: tuple[StepName, ...] = (
    "infrastructure", "resources", "network and storage", "scheduling and configuration", "code and model",
)  # fmt: skip

StepState = Literal["ok", "suspect", "bad", "unknown"]

ROOT, OTHER = 0, 1
"""Whether a finding answers what was asked, or is only true beside it."""


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of evidence: where it is from, when it was so, what it says."""

    place: str
    wall: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Culprit:
    """Who or what is to blame, as far as it is known; what is empty is not."""

    node: str = ""
    gpu: int | None = None
    rank: int | None = None
    run: str = ""
    path: str = ""
    person: str = ""
    nodes: tuple[str, ...] = ()
    """Where it is more than one machine: all of them."""

    @property
    def known(self) -> bool:
        """Whether anything is named."""
        return self != Culprit()

    @property
    def words(self) -> str:
        """``rank 3 (gpu-2, GPU 1)``, ``gpu-1/3``, ``gpu-1:/data``; empty if nobody is named."""
        if self.rank is not None:
            where = ", ".join(part for part in (self.node, "" if self.gpu is None else f"GPU {self.gpu}") if part)
            return f"rank {self.rank}" + (f" ({where})" if where else "")
        if len(self.nodes) > 1:
            names = listed(list(self.nodes))
            return f"{self.path} on {names}" if self.path else names
        node = self.node or (self.nodes[0] if self.nodes else "")
        if self.path:
            return f"{node}:{self.path}" if node else self.path
        if node:
            return f"{node}/{self.gpu}" if self.gpu is not None else node
        return self.person or (f"run {self.run}" if self.run else "")


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause, who it is about, what shows it, what to do."""

    id: str
    """Of the rule that found it: ``K03``, ``S01``, or a dotted name."""
    step: StepName
    title: str
    """One clause, without a full stop."""
    confidence: Confidence
    cause: str
    action: str
    culprit: Culprit = Culprit()
    key: str = ""
    """The console's key that acts on it; empty if there is none."""
    evidence: tuple[Item, ...] = ()
    consequences: tuple[Item, ...] = ()
    """What only followed from it."""
    at: float | None = None
    """When it began, as far as that is known."""
    weight: int = 50
    """Among findings of one confidence the lighter comes first: what is nearer to the machine."""
    relevance: int = ROOT
    hardware: bool = False
    """A fault of a machine that beats what programs say about it."""
    secondary: bool = False
    """What it says follows from something else as a rule; it is never the cause while there is another."""
    explains: frozenset[str] = frozenset()
    """The symptoms that it is reason enough for."""
    symptom: str = ""
    """What it is where something else may be behind it: ``device``, ``silent``, ``memory``, ``data``, ``peer``,
    ``program``, ``hang``, ``slow``, ``wait``, ``start``; empty for a cause of its own."""
    touches: tuple[str, ...] = ()
    """For a symptom: the nodes where its reason may lie."""
    moment: bool = False
    """It happened once, at ``at``; otherwise it lasts since then."""

    @property
    def sentence(self) -> str:
        """Who and what, as one clause: ``gpu-1/3: the GPU is lost``, ``rank 3 (gpu-2) is behind: …``."""
        words = self.culprit.words
        if not words or self.title.startswith(words):
            return self.title
        return f"{words} {self.title}" if self.title.startswith(_VERBS) else f"{words}: {self.title}"


_VERBS = ("is behind", "exited ", "was ended ", "failed", "left ", "has not ", "never ", "are behind")


@dataclass(slots=True)
class StepResult:
    """One of the five steps, done."""

    name: StepName
    state: StepState
    sentence: str
    checked: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Triage:
    """What broke, whose fault it is, what to do."""

    target: str
    at: float
    headline: str
    steps: list[StepResult]
    findings: list[Finding]
    """The answer first."""
    ruled_out: list[str] = field(default_factory=list[str])
    unknown: list[str] = field(default_factory=list[str])
    """What is not known, and what would tell."""

    @property
    def cause(self) -> Finding | None:
        """The finding that answers what was asked; None where nothing is wrong or it is not known."""
        return self.findings[0] if self.findings and self.findings[0].relevance == ROOT else None


@dataclass(slots=True)
class Sheet:
    """What the rules of one step write down."""

    step: StepName
    findings: list[Finding] = field(default_factory=list[Finding])
    looked: list[str] = field(default_factory=list[str])
    ruled_out: list[str] = field(default_factory=list[str])
    unknown: list[str] = field(default_factory=list[str])

    def found(self, finding: Finding) -> None:
        """A finding of this step."""
        self.findings.append(finding)

    def checked(self, sentence: str) -> None:
        """Something was looked at; the sentence says what was seen."""
        self.looked.append(sentence)

    def clear(self, sentence: str) -> None:
        """Something was looked at and is not the cause."""
        self.looked.append(sentence)
        self.ruled_out.append(sentence)

    def blind(self, sentence: str) -> None:
        """Something could not be looked at; the sentence says why, or what would tell."""
        self.unknown.append(sentence)


def listed(names: list[str], most: int = 6) -> str:
    """``a, b and c``; beyond ``most`` the rest is counted."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def plural(count: int, noun: str) -> str:
    """``1 rank``, ``7 ranks``, ``2 processes``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith(('s', 'x')) else 's'}"
