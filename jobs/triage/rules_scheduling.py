"""Scheduling and configuration: why it waits or does not start, who stopped it, what its settings contradict."""

from __future__ import annotations

from collections import defaultdict

from jobs.model import Failure, RunState
from jobs.triage.evidence import RankEvidence
from jobs.triage.findings import Culprit, Finding, Item, Sheet, listed, plural
from jobs.triage.look import Look
from jobs.triage.patterns import BY_ID, SCHEDULING
from jobs.triage.rules_resources import OF_ROOM
from jobs.triage.scan import as_sentence, shown

WAITING_SECONDS = 120.0
LATE_SECONDS = 60.0
_KEYS = {"hold": "P", "back_off": "R", "order": "P", "queue_quota": "P", "user_quota": "P", "sweep": "P"}
WAIT = frozenset({"wait"})


def waiting(look: Look, sheet: Sheet) -> None:
    """A run that waits, for another reason than room."""
    run = look.run
    if run is None or not look.waits:
        return
    explanation = look.evidence.run.explanation if look.evidence.run else None
    if explanation is None:
        sheet.blind(f"why {run.id} waits was not asked of the controller; raydeck explain {run.id} would tell")
        return
    others = [blocker for blocker in explanation.blocked_by if blocker.kind not in OF_ROOM]
    for at, blocker in enumerate(others):
        person = run.held.user if blocker.kind == "hold" and run.held else ""
        then = blocker.would_start_if.strip().rstrip(".")
        sheet.found(
            Finding(
                "K28", SCHEDULING, blocker.sentence or f"it waits: {blocker.kind}", "certain",
                _WHY.get(blocker.kind, "The queue's rules."), f"It starts if {then}." if then else "Wait, or reorder.",
                Culprit(run=run.id, person=person), _KEYS.get(blocker.kind, "P"),
                (Item("the controller's explanation", look.now, explanation.sentence),), weight=21 + at, explains=WAIT,
            )
        )  # fmt: skip
    queue = look.evidence.queue
    free = queue.free_accelerators if queue else None
    waited = look.now - (run.queued_at or run.submitted_at)
    if not explanation.blocked_by and free is not None and free >= run.gpus and waited > WAITING_SECONDS:
        sheet.found(
            Finding(
                "S12", SCHEDULING, f"it has waited for {waited:.0f} s although {free} GPUs are free", "likely",
                "Free GPUs that do not lie together, a label that no node carries, or a queue that stands still.",
                "Look at what each node says in the explanation; reorder it if nothing speaks against it.",
                Culprit(run=run.id), "P", (Item("the queue", queue.at if queue else None, f"{free} GPUs free"),),
                weight=41, explains=WAIT,
            )
        )  # fmt: skip
    if others:
        sheet.checked(f"the queue's rules stand in its way: {explanation.sentence}")


_WHY = {
    "hold": "Somebody wants it to stay where it is.",
    "after": "It takes the place of runs that have not ended yet.",
    "back_off": "It failed, and waits before it tries again.",
    "queue_quota": "Its queue holds as much as it may.",
    "user_quota": "Its user holds as much as one may.",
    "user_runs": "Its user has as many runs as one may.",
    "active_runs": "The cluster has as many runs as it may.",
    "sweep": "Its sweep has as many runs at once as it may.",
    "order": "Others go first.",
}


def starting(look: Look, sheet: Sheet) -> None:
    """Ranks that never came, and what Ray says of the job."""
    run = look.run
    if run is None:
        return
    job = look.evidence.job
    ranks = look.evidence.ranks
    said = {hit.pattern.id for hit in look.job_hits}
    for hit in look.job_hits:
        pattern = hit.pattern
        if pattern.secondary or pattern.id not in ("K29", "K28", "K26", "K10", "K23", "K25", "K04", "K31", "K35"):
            continue
        if pattern.id not in said or (ranks and any(rank.exit_code for rank in ranks)):
            continue
        said.discard(pattern.id)
        sheet.found(
            Finding(
                pattern.id, pattern.step, pattern.title + _module(hit.item.text),
                "certain" if look.failed else "likely",
                pattern.cause, pattern.action, Culprit(run=run.id), pattern.key, (hit.item,), at=hit.wall,
                weight=pattern.weight, explains=frozenset({"start"}),
            )
        )  # fmt: skip
    if job is not None and job.status == "FAILED" and not look.job_hits and not any(rank.exit_code for rank in ranks):
        sheet.found(
            Finding(
                "job_failed", SCHEDULING, f"Ray ended the job: {job.reason or 'no reason given'}", "likely",
                "The job's driver ended before its ranks ran.", "Look at the driver's log.", Culprit(run=run.id), "l",
                (Item("Ray's word on the job", job.ended_at, shown(job.reason or job.status)),), at=job.ended_at,
                weight=43, explains=frozenset({"start"}),
            )
        )  # fmt: skip
    _missing_ranks(look, ranks, sheet)


def _module(text: str) -> str:
    found = BY_ID["K29"].regex.search(text)
    name = found[1] if found and found[1] else ""
    return f": no module {name}" if name else ""


def _missing_ranks(look: Look, ranks: list[RankEvidence], sheet: Sheet) -> None:
    """Ranks that were not started, while others wait for them."""
    if not ranks or (look.first is not None and not look.first.only_followed):
        return
    waits = any(hit.pattern.id == "K09" for hit in look.rank_hits) or look.starts
    absent = [rank for rank in ranks if rank.pid is None and not rank.log and rank.log_bytes in (None, 0)]
    present = [rank for rank in ranks if rank not in absent]
    if not waits or not absent or not present:
        return
    nodes = sorted({rank.node for rank in absent if rank.node})
    row = BY_ID["K09"]
    culprit = look.rank_culprit(absent[0]) if len(absent) == 1 else Culprit(
        node=nodes[0] if len(nodes) == 1 else "", nodes=tuple(nodes) if len(nodes) > 1 else ()
    )  # fmt: skip
    names = listed([str(rank.rank) for rank in absent])
    where = f" on {listed(nodes)}" if nodes else ""
    sheet.found(
        Finding(
            "K09", SCHEDULING, f"rank{'s' * (len(absent) > 1)} {names}{where} never started, {len(present)} wait",
            "likely",
            row.cause, row.action, culprit, "s",
            tuple(Item(f"rank {rank.rank} on {rank.node}", None, "no process and no log") for rank in absent[:5]),
            weight=33, explains=frozenset({"peer", "start", "hang"}),
        )
    )  # fmt: skip


def ending(look: Look, sheet: Sheet) -> None:
    """Ends that are nobody's fault: stopped, out of time, given up by a rule."""
    run, attempt = look.run, look.attempt
    if run is None or attempt is None:
        return
    outcome = attempt.outcome
    kind = attempt.failure or (outcome.failure if outcome else None) or run.failure
    reason = (outcome.reason if outcome else "") or attempt.reason or run.reason
    moves = look.evidence.run.moves if look.evidence.run else []
    last = moves[-1] if moves else None
    if run.state is RunState.STOPPED or kind is Failure.CANCELLED:
        person = next((move.actor for move in reversed(moves) if move.actor not in ("", "raydeck")), "")
        sheet.found(
            Finding(
                "stopped", SCHEDULING, f"it was stopped{f' by {person}' if person else ''}", "certain",
                as_sentence(reason) or "Asked for.",
                "Restart it if that was not meant.", Culprit(run=run.id, person=person), "R",
                (Item("its course", last.at if last else attempt.ended_at, shown(last.cause if last else reason)),),
                weight=45, explains=frozenset({"end"}),
            )
        )  # fmt: skip
    elif kind is Failure.TIME_LIMIT:
        sheet.found(
            Finding(
                "time_limit", SCHEDULING, "its time was used up", "certain",
                f"max_duration of the workflow: {run.max_duration_seconds or 'not known'} s.",
                "Raise max_duration and restart it from its checkpoint.", Culprit(run=run.id), "R",
                (Item("its outcome", attempt.ended_at, shown(reason)),), weight=45, explains=frozenset({"end"}),
            )
        )  # fmt: skip
    elif kind is Failure.START_TIMEOUT:
        suspects = outcome.suspects if outcome else []
        sheet.found(
            Finding(
                "start_timeout", SCHEDULING, "it did not start in time", "likely",
                as_sentence(reason) or BY_ID["K28"].cause,
                "Look whether its nodes have room and answer; then restart.",
                Culprit(node=suspects[0] if len(suspects) == 1 else "", run=run.id), "R",
                (Item("its outcome", attempt.ended_at, shown(reason)),), weight=44, explains=frozenset({"start"}),
            )
        )  # fmt: skip
    if kind is Failure.CHECKPOINT:
        bad = [row for row in (look.evidence.run.checkpoints if look.evidence.run else []) if not row.complete]
        row = BY_ID["K33"]
        sheet.found(
            Finding(
                "K33", SCHEDULING, row.title, "certain", row.cause, row.action,
                Culprit(run=run.id, path=bad[-1].path if bad else ""), "R",
                (Item("its outcome", attempt.ended_at, shown(reason)),
                 *(Item(each.path, each.written_at, shown(each.reason)) for each in bad[-3:])), weight=row.weight,
                explains=frozenset({"program"}),
            )
        )  # fmt: skip


def settings(look: Look, sheet: Sheet) -> None:
    """What a workflow says that does not fit together, and ranks that share a GPU."""
    config = look.evidence.run.config if look.evidence.run else {}
    resources, training = config.get("resources"), config.get("training")
    if isinstance(resources, dict) and isinstance(training, dict):
        gpus, processes = resources.get("accelerators_per_node"), training.get("processes_per_node")
        if isinstance(gpus, int) and isinstance(processes, int) and gpus > 0 and processes != gpus:
            sheet.found(
                Finding(
                    "config", SCHEDULING, f"{plural(processes, 'process')} a node for {plural(gpus, 'GPU')}",
                    "possible",
                    "Processes that share a GPU, or GPUs that nobody uses.",
                    "Set training.processes_per_node to resources.accelerators_per_node.",
                    Culprit(run=look.run.id if look.run else ""), "S",
                    (Item("its workflow", None, f"processes_per_node {processes}, accelerators_per_node {gpus}"),),
                    weight=54,
                )
            )  # fmt: skip
        else:
            sheet.checked("processes and GPUs a node agree in its workflow")
    sharing: dict[tuple[str, str], list[RankEvidence]] = defaultdict(list)
    for rank in look.evidence.ranks:
        name = rank.gpu_uuid or ("" if rank.gpu is None else str(rank.gpu))
        if name:
            sharing[rank.node, name].append(rank)
    for (node, _), ranks in sharing.items():
        if len(ranks) > 1:
            numbers = listed([str(rank.rank) for rank in ranks])
            sheet.found(
                Finding(
                    "S03", SCHEDULING, f"ranks {numbers} share one GPU", "certain",
                    "The script chooses its GPU itself, past CUDA_VISIBLE_DEVICES or LOCAL_RANK.",
                    "Have the script take cuda:LOCAL_RANK; then restart.",
                    Culprit(node=node, gpu=ranks[0].gpu, run=look.run.id if look.run else ""), "R",
                    tuple(Item(f"rank {rank.rank} on {node}", None,
                    f"GPU {rank.gpu} {rank.gpu_uuid}") for rank in ranks[:4]),
                    weight=34, explains=frozenset({"memory", "slow", "hang"}),
                )
            )  # fmt: skip


def logs(look: Look, sheet: Sheet) -> None:
    """Logs that are missing: none at all, or none any more while steps go on."""
    run, evidence = look.evidence.run, look.evidence
    if run is None or look.run is None or not look.runs_now:
        return
    started = look.attempt.started_at if look.attempt else None
    age = None if started is None else look.now - started
    sizes = [rank.log_bytes for rank in evidence.ranks if rank.log_bytes is not None]
    total = run.output_bytes if run.output_bytes is not None else sum(sizes) if sizes else None
    newest = max((rank.last_output_at for rank in evidence.ranks if rank.last_output_at), default=None)
    quiet = newest is not None and look.now - newest > WAITING_SECONDS
    empty = total == 0 and age is not None and age > WAITING_SECONDS
    advances = look.progressed_at is not None and look.now - look.progressed_at < WAITING_SECONDS
    if not empty and not (quiet and advances):
        if total:
            sheet.clear("its logs are written")
        return
    folder = next((each for each in evidence.files if each.purpose == "log"), None)
    shut = folder is not None and (folder.exists is False or folder.writable is False)
    section = run.config.get("observability")
    level = str(section.get("log_level", "")) if isinstance(section, dict) else ""
    hushed = level in ("error", "warning")
    cause = (
        "Its log folder is not there or may not be written." if shut
        else f"Its log level is {level}: it says nothing as long as all goes well." if hushed
        else "Output is buffered, written elsewhere, or the disk is full."
    )  # fmt: skip
    sheet.found(
        Finding(
            "S11", SCHEDULING, "its ranks have written no log at all" if empty else "its steps go on, its logs do not",
            "certain" if shut else "likely" if hushed else "possible", cause,
            "Look at the folder's owner and room." if shut
            else "Set observability.log_level to info." if hushed
            else "Set PYTHONUNBUFFERED=1; look at the log folder.",
            Culprit(run="" if shut else look.run.id, path=folder.path if shut and folder else "",
                    node=folder.node if shut and folder else ""), "l",
            (Item("its logs", newest, f"{total} bytes" if total is not None else "size not known"),), weight=42,
        )
    )  # fmt: skip


def control(look: Look, sheet: Sheet) -> None:
    """The controller and Ray's head: without them nothing is started."""
    evidence = look.evidence
    if evidence.controller_reason:
        sheet.found(
            Finding(
                "controller", SCHEDULING, f"the controller does not answer: {shown(evidence.controller_reason)}",
                "certain",
                "It was not started, or ended.", "Start it (O); runs that go on are not touched.", Culprit(), "O",
                (Item("the controller", None, shown(evidence.controller_reason)),), weight=46, explains=WAIT,
            )
        )  # fmt: skip
    elif evidence.controller is not None:
        if evidence.controller.ray != "ok":
            sheet.found(
                Finding(
                    "ray_head", SCHEDULING, f"Ray does not answer: {shown(evidence.controller.ray)}", "certain",
                    "Ray's head is down or starved.", "Look at the head: memory, disk, ray status.",
                    Culprit(node=evidence.controller.host), "s",
                    (Item("the controller", None, shown(evidence.controller.ray)),), weight=12,
                    explains=WAIT | {"start"},
                )
            )  # fmt: skip
        else:
            sheet.clear("the controller and Ray answer")
        for warning in evidence.controller.warnings[:3]:
            sheet.checked(f"the controller warns: {shown(warning)}")


def changes(look: Look, sheet: Sheet) -> None:
    """What differs from the last good release: where a failure is new, the change is the first suspect."""
    run = look.evidence.run
    if run is None or look.run is None or not look.failed:
        return
    if not run.differences:
        if run.last_good_release:
            sheet.clear(f"nothing has changed since the last good release {run.last_good_release}")
        return
    names = listed([change.path for change in run.differences], 5)
    sheet.found(
        Finding(
            "release", SCHEDULING, f"it differs from the last good release in {names}", "possible",
            "What changed since it last went well.",
            f"Roll back to {run.last_good_release or 'the last good release'} (B) if nothing else explains it.",
            Culprit(run=look.run.id), "B",
            tuple(Item(change.path, None,
            f"{_short(change.old)} → {_short(change.new)}") for change in run.differences[:8]),
            weight=75,
        )
    )  # fmt: skip


def reproducible(look: Look, sheet: Sheet) -> None:
    """Two runs that should have come out alike, and did not."""
    run = look.evidence.run
    other = run.comparison if run else None
    if run is None or look.run is None or other is None:
        return
    here, there = other.loss_here, other.loss_there
    alike = here is not None and there is not None and here == there
    losses = Item(
        f"runs {look.run.id} and {other.run}", None,
        f"loss {'not known' if here is None else here} and {'not known' if there is None else there}"
        + ("" if other.step is None else f" at step {other.step}"),
    )  # fmt: skip
    if alike and not other.differences:
        sheet.clear(f"it came out like {other.run}")
        return
    seed = run.config.get("seed")
    paths = [change.path for change in other.differences]
    if paths:
        title, sure = f"it differs from {other.run} in {listed(paths, 5)}", "likely"
        cause = "The two runs were not made of the same things."
        action = "Make these alike and pin them in the workflow, then run it again."
    elif seed is None:
        title, sure = f"it came out otherwise than {other.run}, and no seed is set", "likely"
        cause, action = "Without a seed each run draws its own numbers.", "Set seed in the workflow."
    else:
        title, sure = f"it came out otherwise than {other.run} with the same seed, code and data", "possible"
        cause = (
            "Kernels that are not deterministic, random states that were not restored, or a GPU that computes wrongly."
        )
        action = "Ask torch for deterministic algorithms; run one batch on another GPU and compare the bits."
    sheet.found(
        Finding(
            "S08", SCHEDULING, title, "likely" if sure == "likely" else "possible", cause, action,
            Culprit(run=look.run.id),
            "v", (losses, *(Item(change.path, None, f"{_short(change.old)} → {_short(change.new)}")
                            for change in other.differences[:8])), weight=34,
        )
    )  # fmt: skip


def _short(value: object) -> str:
    return "nothing" if value is None else shown(str(value))[:60]
