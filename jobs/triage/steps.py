"""The five steps in the order that the source documents set, the rules of each, and how each came out.

First the machines, then whether there is enough of everything, then network and storage, then scheduling and settings,
and the script and its model last: a fault further down looks like one further up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jobs.triage import (
    hang,
    rules_gpus,
    rules_model,
    rules_network,
    rules_nodes,
    rules_resources,
    rules_scheduling,
    rules_services,
    rules_storage,
    slow,
)
from jobs.triage.findings import STEP_NAMES, Finding, Sheet, StepName, StepResult, StepState
from jobs.triage.look import Look
from jobs.triage.patterns import CODE, INFRASTRUCTURE, NETWORK, RESOURCES, SCHEDULING

Rule = Callable[[Look, Sheet], None]

RULES: Mapping[StepName, tuple[Rule, ...]] = {
    INFRASTRUCTURE: (
        rules_nodes.reachable, rules_nodes.drivers, rules_nodes.versions, rules_nodes.clocks, rules_nodes.joining,
        rules_nodes.holds, rules_gpus.events, rules_gpus.devices, rules_gpus.unlike_peers,
    ),
    RESOURCES: (
        rules_resources.gpu_memory, rules_resources.host_memory, rules_resources.shared_memory, rules_resources.room,
        rules_services.latency,
    ),
    NETWORK: (
        rules_network.links, rules_network.ports, rules_network.service, rules_storage.mounts, rules_storage.stuck,
        rules_storage.files,
    ),
    SCHEDULING: (
        rules_scheduling.control, rules_scheduling.waiting, rules_scheduling.starting, rules_scheduling.ending,
        rules_scheduling.settings, rules_scheduling.logs, rules_scheduling.changes, rules_scheduling.reproducible,
    ),
    CODE: (
        rules_model.failed, rules_model.others_failed, rules_model.not_a_number, hang.standing_still, slow.pace,
        rules_model.spoken,
    ),
}  # fmt: skip
"""The rules of each step, in the order in which they are asked."""


def sheets_of(look: Look) -> dict[StepName, Sheet]:
    """What the rules of each step write down."""
    return {step: _sheet(look, step) for step in STEP_NAMES}


def _sheet(look: Look, step: StepName) -> Sheet:
    sheet = Sheet(step)
    for rule in RULES[step]:
        rule(look, sheet)
    return sheet


def result_of(sheet: Sheet, findings: Sequence[Finding], found: Sequence[Finding]) -> StepResult:
    """How a step came out: bad where the cause lies in it, suspect where something speaks against it.

    ``findings`` are those that stand at the end, ``found`` what the rules had found at first.
    """
    mine = [each for each in findings if each.step == sheet.step]
    sure = [each for each in mine if each.confidence != "possible" and not each.secondary]
    state: StepState
    if sure:
        state, sentence = "bad", sure[0].sentence
    elif mine:
        state, sentence = "suspect", mine[0].sentence
    elif any(each.step == sheet.step for each in found):
        # What was found here turned out to follow from something else.
        state, sentence = "suspect", "what was seen here follows from another step"
    elif not sheet.looked:
        state, sentence = "unknown", sheet.unknown[0] if sheet.unknown else "nothing could be looked at"
    else:
        state, sentence = "ok", sheet.ruled_out[0] if sheet.ruled_out else sheet.looked[0]
    return StepResult(sheet.step, state, sentence, list(dict.fromkeys(sheet.looked)))
