"""``python -m tests.planted``: plants faults on real hosts, has the ladder look for them, prints what was named.

``--only TEXT`` takes those whose name holds the text (several: with commas); ``--healthy N`` instead has the standard
profile run so often on hosts that nothing is wrong with, and counts what failed all the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.validations import workflow_text
from jobs.validationview import Ask, PathAsked, Profile, StageName
from tests.hosts.bed import Bed, bed, why_not

WORKERS = ("worker-1", "worker-2", "worker-3")
BAD = "worker-2"
LIMIT_SECONDS = 240.0
Make = Callable[[Bed], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Planted:
    """One fault, where it is looked for, and who has to be named."""

    name: str
    make: Make
    culprits: frozenset[str]
    """In words; empty for a fault that is a warning."""
    stages: tuple[StageName, ...]
    check: str
    """Which check has to say so."""
    ask: dict[str, Any] = field(default_factory=dict[str, Any])
    profile: Profile = "standard"


def simulated(**changes: object) -> Make:
    """The bad node's simulated GPUs act otherwise."""

    @contextmanager
    def make(made: Bed) -> Generator[None]:
        script = made.cluster.script(BAD)
        before = script.read_text()
        script.write_text(json.dumps({**json.loads(before), **changes}))
        try:
            yield
        finally:
            script.write_text(before)

    return make


@contextmanager
def between(made: Bed, *rule: str) -> Generator[None]:
    """A rule of the bad node's firewall for what comes from the first worker."""
    host, other = made.hosts[BAD], made.hosts["worker-1"]
    whole = ("INPUT", "-s", other.address, *rule)
    host.link.inside("iptables", "-I", *whole)
    try:
        yield
    finally:
        host.link.inside("iptables", "-D", *whole)


@contextmanager
def read_only(made: Bed) -> Generator[None]:
    """The output path is there for reading only, on the bad node alone."""
    host, path = made.hosts[BAD], str(shared(made))
    host.inside("mount", "--bind", path, path)
    host.inside("mount", "-o", "remount,ro,bind", path)
    try:
        yield
    finally:
        host.inside("umount", "-l", path)


@contextmanager
def another_disk(made: Bed) -> Generator[None]:
    """Something else is mounted where the others have the shared path."""
    with made.hosts[BAD].small_disk(shared(made), 64):
        yield


@contextmanager
def full_disk(made: Bed) -> Generator[None]:
    """The output path has no room left on the bad node."""
    host = made.hosts[BAD]
    with host.small_disk(shared(made), 8) as path:
        host.inside("sh", "-c", f"head -c 8200000 /dev/zero > {path}/big || true")
        yield


@contextmanager
def left_over(made: Bed) -> Generator[None]:
    """A process of a run that has ended long ago holds a GPU of the bad node."""
    marks = {"RAYDECK_RUN": "gone-abc123", "RAYDECK_NODE": BAD, "RAYDECK_GPU": "2", "RANK": "0", **made.cluster.marks}
    words = [f"{name}={value}" for name, value in marks.items()]
    host = made.hosts[BAD]
    host.inside("env", *words, "sh", "-c", "setsid sleep 3600 >/dev/null 2>&1 &")
    try:
        yield
    finally:
        host.kill("sleep 3600")


def shared(made: Bed) -> Path:
    """A folder that all hosts share."""
    path = made.folder / "shared"
    path.mkdir(exist_ok=True)
    return path


def dataset(made: Bed) -> Path:
    """A small dataset with its list of checksums, which all hosts share."""
    root = made.folder / "dataset"
    if not root.is_dir():
        root.mkdir()
        lines: list[str] = []
        for name in ("a.bin", "b.bin", "wrong.bin"):
            content = name.encode() * 100_000
            (root / name).write_bytes(content)
            lines.append(f"{hashlib.sha256(content).hexdigest()}  {name}")
        (root / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    return root


@contextmanager
def rotten_file(made: Bed) -> Generator[None]:
    """A file of the dataset is another one than it was, wherever it is read."""
    file = dataset(made) / "wrong.bin"
    before = file.read_bytes()
    file.write_bytes(before[:5] + b"!" + before[6:])
    try:
        yield
    finally:
        file.write_bytes(before)


@contextmanager
def rotten_cache(made: Bed) -> Generator[None]:
    """The bad node alone has an older copy in the place of a file."""
    host, file = made.hosts[BAD], dataset(made) / "a.bin"
    old = made.folder / "old.bin"
    old.write_bytes(b"older")
    host.inside("mount", "--bind", str(old), str(file))
    try:
        yield
    finally:
        host.inside("umount", "-l", str(file))


def hook(fault: str, where: str = "all") -> dict[str, Any]:
    return {"fault": fault, "fault_node": where}


def healthy(made: Bed) -> AbstractContextManager[object]:
    """Nothing on the machine: what is planted is in the request."""
    del made
    return nullcontext()


def slow(made: Bed) -> AbstractContextManager[object]:
    """Eighty megabits a second for the bad node, each way."""
    return made.hosts[BAD].link.slow(80_000)


def lossy(made: Bed) -> AbstractContextManager[object]:
    """One packet of fifty that come to the bad node is lost."""
    return made.hosts[BAD].link.drop(share=0.02)


PLANTED: tuple[Planted, ...] = (
    Planted("slow rank", healthy, frozenset({BAD}), ("cluster",), "cluster.straggler", hook("slow:1:60")),
    Planted("slow link of a node", slow, frozenset({BAD}), ("cluster",), "cluster.pairs"),
    Planted("lost packets", lossy, frozenset({BAD}), ("cluster",), "cluster.latency"),
    Planted("filtered between two nodes", lambda made: between(made, "-p", "tcp", "--syn", "-j", "DROP"),
            frozenset({f"the link worker-1 ↔ {BAD}"}), ("preflight",), "preflight.ports"),
    Planted("driver of another version", simulated(driver_version="535.54.03"), frozenset({BAD}), ("preflight",),
            "preflight.versions"),
    Planted("clock 5 s ahead", simulated(clock_skew_seconds=5.0), frozenset({BAD}), ("preflight",),
            "preflight.clock"),
    Planted("read-only path", read_only, frozenset({BAD}), ("preflight",), "preflight.mounts"),
    Planted("another disk under a shared path", another_disk, frozenset({BAD}), ("preflight",), "preflight.shared"),
    Planted("full path", full_disk, frozenset({BAD}), ("preflight",), "preflight.mounts"),
    Planted("silent wrong product", healthy, frozenset({f"{BAD}/1"}), ("gpu",), "gpu.gemm_exact", hook("gemm:1", BAD)),
    Planted("memory that does not hold", healthy, frozenset({f"{BAD}/2"}), ("gpu",), "gpu.memory_pattern",
            hook("memory:2", BAD)),
    Planted("rank that hangs", healthy, frozenset({BAD}), ("cluster",), "cluster.collectives",
            hook("hang:1:collectives")),
    Planted("rank that dies", healthy, frozenset({BAD}), ("cluster",), "cluster.all_reduce", hook("die:1:all_reduce")),
    Planted("data file that has changed", rotten_file, frozenset({"wrong.bin"}), ("cluster",), "cluster.data"),
    Planted("data file that has changed on one node", rotten_cache, frozenset({BAD}), ("cluster",), "cluster.data"),
    Planted("checkpoint that has changed", healthy, frozenset({"step-00000010"}), ("cluster",), "cluster.resume",
            hook("rot:0:byte")),
    Planted("a GPU less than Ray says", simulated(gpus=3), frozenset({BAD}), ("preflight",), "preflight.inventory"),
    Planted("process left over", left_over, frozenset({BAD}), ("preflight",), "preflight.foreign", {"runs": []}),
    Planted("row remapping that failed", simulated(faults={"2": {"kind": "remap_failed"}}), frozenset({BAD}),
            ("preflight",), "preflight.health"),
)  # fmt: skip


def validated(made: Bed, ask: Ask) -> Any:
    """The report of a validation of these hosts."""
    folder = made.folder / "w" / f"v-{time.monotonic_ns()}"
    folder.mkdir(parents=True)
    file = folder / "validation.yaml"
    file.write_text(workflow_text(ask))
    run = made.launch(file)
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        shown = made.cli("validate", "--show", run, "--json", check=False)
        if shown.stdout and (report := json.loads(shown.stdout)).get("done"):
            return report
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{run} was not done within {LIMIT_SECONDS:.0f} s: {shown.stdout[-300:]}{shown.stderr}"
            )
        time.sleep(0.5)


def names(report: Any) -> set[str]:
    """Who is to blame, without what of it."""
    found: set[str] = set()
    for each in report["culprits"]:
        where = " ↔ ".join(each["nodes"])
        found.add(f"{each['nodes'][0]}/{each['gpu']}" if each["kind"] == "gpu" else
                  f"the link {where}" if each["kind"] == "link" else where or Path(each["detail"]).name)  # fmt: skip
    return found


def look(made: Bed, planted: Planted) -> tuple[bool, str, float]:
    """Whether it was named, and nobody else; what was said; how long it took."""
    began = time.monotonic()
    paths = [
        PathAsked(path=str(shared(made)), purpose="output"), PathAsked(path=str(dataset(made)), purpose="dataset"),
    ]  # fmt: skip
    with planted.make(made):
        ask = Ask(profile=planted.profile, stages=list(planted.stages), nodes=list(WORKERS), paths=paths, **planted.ask)
        report = validated(made, ask)
    checks = [check for stage in report["stages"] for check in stage["checks"]]
    said = [check["sentence"] for check in checks if check["check"] == planted.check and check["verdict"] == "fail"]
    named = names(report) == set(planted.culprits) and bool(said)
    others = [
        f"{check['check']} {check['node']}: {check['sentence']}" for check in checks if check["verdict"] == "fail"
    ]
    words = said[0] if named else f"named {sorted(names(report))}; {'; '.join(others)[:300] or report['sentence']}"
    return named, words, time.monotonic() - began


def steady(made: Bed, times: int) -> int:
    """The standard profile on healthy hosts, so often; how many were not green."""
    bad = 0
    took: list[float] = []
    for at in range(times):
        report = validated(made, Ask(nodes=list(WORKERS)))
        took.append(report["seconds"])
        fails = [
            f"{check['check']} {check['node']}: {check['sentence']}"
            for stage in report["stages"]
            for check in stage["checks"]
            if check["verdict"] in ("fail", "unknown")
        ]
        bad += bool(fails) or report["verdict"] not in ("pass", "warn")
        print(f"{at + 1:3} {report['verdict']:8} {report['seconds']:6.1f} s  {'; '.join(fails)[:200]}", flush=True)
    print(f"healthy {times}, failed {bad}, longest {max(took):.0f} s")
    return bad


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code is 0 if everything was named, and nobody else."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("--only", default="", help="those whose name holds this text, or one of several with commas")
    parser.add_argument("--healthy", type=int, default=0, metavar="N", help="no fault, so often")
    options = parser.parse_args(arguments)
    if reason := why_not():
        print(f"faults cannot be planted here: {reason}", file=sys.stderr)
        return 2
    texts = options.only.lower().split(",")
    chosen = [each for each in PLANTED if any(text in each.name for text in texts)]
    with bed(WORKERS) as made:
        if options.healthy:
            return int(steady(made, options.healthy) > 0)
        right = 0
        for planted in chosen:
            named, words, seconds = look(made, planted)
            right += named
            print(f"{planted.name:34} {seconds:5.0f} s  {'named' if named else 'WRONG':6} {words}", flush=True)
    print(f"planted {len(chosen)}, named {right}, wrong {len(chosen) - right}")
    return int(right < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
