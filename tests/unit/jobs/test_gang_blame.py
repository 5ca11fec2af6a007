"""Who is to blame when a gang fails, of which kind it is, and which nodes are suspected; what nodes run on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.errors import Refused, Unreachable
from jobs.gang import environment, facts, torchrun
from jobs.gang.figures import Figures
from jobs.gang.verdict import Blame, Broken, Ended, Lost, blame, broken, of_error, of_process
from jobs.model import Failure, Launch
from tests.unit.jobs.test_gang_parts import launch

WHERE = {0: "a", 1: "a", 2: "b", 3: "b"}
RESET = "RuntimeError: [pair.cc:537] Read error [10.0.0.1]:4711: Connection reset by peer"
LATE = "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."


def ended(rank: int, log: str = "", code: int = 1, at: float = 0.0) -> Ended:
    return Ended(rank, WHERE[rank], f"10.0.0.{rank}", code, at, log)


def judged(*ends: Ended, lost: tuple[Lost, ...] = (), **notes: list[str]) -> Blame:
    found = blame(lost, ends, WHERE, notes)
    assert found is not None
    return found


def test_an_error_of_the_script_suspects_nobody() -> None:
    found = judged(ended(0, RESET), ended(2, "ValueError: bad batch 7", at=0.1))
    assert (found.rank, found.failure, found.suspects) == (2, Failure.APPLICATION, [])
    assert found.reason == "rank 2 on b (10.0.0.2) exited 1: ValueError: bad batch 7"
    assert (found.evidence, found.signature) == ("ValueError: bad batch 7", "ValueError: bad batch <number>")


def test_a_lost_node_is_the_cause_whatever_its_peers_say() -> None:
    agent = Lost("a", "the agent on a is lost", Failure.UNKNOWN)
    dead = Lost("b", "b is lost: Ray has declared the node dead", Failure.NODE_LOST)
    found = judged(ended(0, "ValueError: x"), lost=(agent, dead))
    assert (found.failure, found.suspects, found.reason) == (Failure.NODE_LOST, ["b"], dead.sentence)
    assert blame([], [], WHERE, {}) is None


def test_a_kill_is_for_memory_only_with_a_word_of_the_kernel() -> None:
    assert judged(ended(2, "step 4", -9)).failure is Failure.UNKNOWN
    assert "possibly for want of memory" in judged(ended(2, "step 4", -9)).reason
    killer = "Memory cgroup out of memory: Killed process 4711 (python)"
    found = judged(ended(2, "step 4", -9), a=[killer])
    assert (found.failure, found.suspects) == (Failure.UNKNOWN, [])
    found = judged(ended(2, "step 4", -9), b=[killer])
    assert (found.failure, found.suspects, found.evidence) == (Failure.OUT_OF_MEMORY, ["b"], killer)
    assert "was killed by SIGKILL, for want of memory" in found.reason


def test_who_said_nothing_while_all_others_waited_is_suspected() -> None:
    found = judged(ended(0, LATE), ended(1, LATE, at=0.1))
    assert (found.failure, found.suspects) == (Failure.COMMUNICATION, ["b"])
    # All waited for each other: nobody stands out.
    assert judged(ended(0, LATE), ended(1, LATE), ended(2, LATE), ended(3, LATE)).suspects == []
    # One that torchrun ended said nothing on its own account.
    assert judged(ended(0, LATE), ended(2, "", -15)).suspects == ["b"]


def test_who_is_named_by_the_barrier_is_suspected() -> None:
    named = "RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 3000 ms"
    assert judged(ended(0, named)).suspects == ["a", "b"]
    assert judged(ended(0, named.replace("Ranks 1, 3", "Rank 99"))).suspects == []


def test_a_fault_of_the_hardware_behind_a_silence_is_found_on_its_node() -> None:
    found = judged(ended(0, LATE), b=["usb 1-1: new device", XID])
    assert (found.failure, found.suspects, found.evidence, found.rank) == (Failure.DRIVER, ["b"], XID, 0)
    assert judged(ended(0, "ValueError: x"), b=[XID]).failure is Failure.APPLICATION


def test_a_process_that_is_no_rank_is_judged_too() -> None:
    found = of_process("torchrun", "a", "10.0.0.1", 1, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    assert (found.failure, found.suspects) == (Failure.DRIVER, ["a"])
    assert found.reason.startswith("torchrun on a (10.0.0.1) exited 1: RuntimeError: CUDA error")
    silent = of_process("its command", "a", "10.0.0.1", 3, "", rank=0)
    assert (silent.failure, silent.evidence, silent.rank) == (Failure.APPLICATION, "", 0)
    assert silent.signature == "exited <number>, without a word in its log"


def test_errors_of_the_machinery_have_a_kind() -> None:
    late = broken(Failure.START_TIMEOUT, "no place for it within 2 s", ["b", "a"])
    assert isinstance(late, Broken)
    assert of_error(late, "x") == Blame(
        "no place for it within 2 s", Failure.START_TIMEOUT, "", late.blame.signature, ["a", "b"]
    )
    assert of_error(Unreachable("Ray did not answer"), "Ray did not answer").failure is Failure.UNKNOWN
    full = OSError(28, "No space left on device")
    assert of_error(full, "its driver broke: …").failure is Failure.DATA


def test_what_nodes_run_on_is_one_value_or_each_with_its_nodes() -> None:
    nodes = {
        "b": {"torch": "2.5.1", "python": "3.11.7", "ray": "2.60.0"},
        "a": {"torch": "2.5.1", "python": "3.11.7"},
        "c": {"torch": "2.4.0", "python": "3.11.7", "driver": "550.54.15"},
    }
    assert facts.common(nodes) == {
        "python": "3.11.7", "torch": "2.5.1 (a, b), 2.4.0 (c)", "driver": "550.54.15", "ray": "2.60.0",
    }  # fmt: skip
    assert facts.differences(nodes) == ["its nodes differ in torch: 2.5.1 (a, b), 2.4.0 (c)"]
    assert facts.common({}) == {}
    crowd = {f"n{index}": {"torch": str(index % 2)} for index in range(20)}
    assert facts.common(crowd)["torch"] == "0 (n0, n10, n12, n14 and 6 more), 1 (n1, n11, n13, n15 and 6 more)"
    assert facts.of_python().keys() >= {"python"}
    assert facts.of_node("2.60.0")["ray"] == "2.60.0"


def test_a_command_knows_the_run_and_its_workers_no_secret(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cr3t\n")
    asked = launch(kind="ray", environment={"TOKEN": f"${{file:{secret}}}"}, resume_path="/out/x", resume_from_step=7)
    config = {"runtime_env": {"env_vars": {"A": "1", "RAYDECK_LAUNCH": "{}"}}, "metadata": {"name": "job"}}
    inherited = {
        "RAYDECK_LAUNCH": "{}", "RAYDECK_PYTHON": "/venv/bin/python", "PATH": "/bin",
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(config),
    }  # fmt: skip
    made = environment.of_command(asked, "head", inherited)
    assert (made["TOKEN"], made["PATH"], made["RAYDECK_NODE"]) == ("s3cr3t", f"/venv/bin{os.pathsep}/bin", "head")
    assert (made["RAYDECK_RESUME_PATH"], made["RAYDECK_RESUME_STEP"]) == ("/out/x", "7")
    assert "RAYDECK_LAUNCH" not in made
    handed = json.loads(made["RAY_JOB_CONFIG_JSON_ENV_VAR"])
    assert handed["metadata"] == {"name": "job"}
    variables = handed["runtime_env"]["env_vars"]
    assert (variables["A"], variables["RAYDECK_RUN"], variables["RAYDECK_ATTEMPT"]) == ("1", "r1", "1")
    assert not {"TOKEN", "RAYDECK_NODE", "RAYDECK_LAUNCH"} & variables.keys()
    assert "s3cr3t" not in made["RAY_JOB_CONFIG_JSON_ENV_VAR"]
    with pytest.raises(Refused, match="is not what a Ray job has there"):
        environment.of_command(asked, "head", {**inherited, "RAY_JOB_CONFIG_JSON_ENV_VAR": "[1]"})


def log(launch: Launch, rank: int, text: str) -> None:
    with (Path(launch.attempt_directory) / f"rank-{rank}.log").open("a") as file:
        file.write(text)


def test_figures_are_read_from_the_log_until_the_script_reports_some(tmp_path: Path) -> None:
    asked = launch(run_directory=str(tmp_path), nodes=1, processes_per_node=2)
    Path(asked.attempt_directory).mkdir()
    figures = Figures(asked)
    assert figures.read() == []
    # A bar has no end of line; each state of it is one.
    log(asked, 0, "\rEpoch 0:  12%|█| 120/1000 [00:37<04:35,  3.20it/s, train_loss=1.2]\rEpoch 0:  13%|")
    points = figures.read()
    assert [(point.progress.step, point.progress.loss) for point in points] == [(120, 1.2)]
    assert figures.from_log
    assert points[0].progress.wall > 0
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "loss": 9.0, "attempt": 1}\n')
    log(asked, 0, "Epoch 0:  14%|█| 140/1000 [00:37<04:35,  3.20it/s, train_loss=1.1]\r")
    assert [point.progress.step for point in figures.read()] == [3]
    assert not figures.from_log
    assert figures.read() == []


def test_the_last_rank_is_read_for_megatron_alone(tmp_path: Path) -> None:
    asked = launch(run_directory=str(tmp_path), nodes=1, processes_per_node=2)
    Path(asked.attempt_directory).mkdir()
    figures = Figures(asked)
    log(asked, 1, "steps: 3 loss: 5.5 iter time (s): 0.9 samples/sec: 136.7\n")
    assert figures.read() == []
    figures = Figures(asked)
    log(asked, 1, " iteration 7/ 9 | elapsed time per iteration (ms): 5.0 | lm loss: 7.0E+00 |\n")
    assert [(point.progress.step, point.progress.loss) for point in figures.read()] == [(7, 7.0)]


BLIND = "import sys; from pathlib import Path; from jobs.gang import torchrun; torchrun._watch = lambda *given: None; "
RUN = "sys.exit(torchrun.main(Path(sys.argv[1]), int(sys.argv[2]), 0, 1, sys.argv[3:]))"


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 3])
def test_a_status_that_torchrun_took_before_it_was_seen_is_noted(tmp_path: Path, code: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import json, os\nnote = {{'rank': 0, 'pid': os.getpid(), 'gpu': ''}}\n"
        f"open({str(tmp_path / 'rank-0.json')!r}, 'w').write(json.dumps(note))\nraise SystemExit({code})\n"
    )
    # Nobody watches the rank: what is known of its end torchrun knows.
    command = [
        sys.executable, "-c", BLIND + RUN, str(tmp_path), str(os.getpid()),
        "--nnodes", "1", "--node-rank", "0", "--nproc-per-node", "1", "--master-addr", "127.0.0.1",
        "--master-port", "0", "--local-addr", "127.0.0.1", "--max-restarts", "0", str(script),
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == int(code != 0), ended.stderr
    note = json.loads((tmp_path / "exit-0.json").read_text())
    assert (note["rank"], note["exit_code"]) == (0, code)
    assert note["pid"] == json.loads((tmp_path / "rank-0.json").read_text())["pid"]
    assert {"python", "torch"} <= json.loads((tmp_path / "environment.json").read_text()).keys()


def test_the_first_note_on_a_rank_stays(tmp_path: Path) -> None:
    torchrun._note(tmp_path, 0, 7, 3)
    torchrun._note(tmp_path, 0, 7, 0)
    assert json.loads((tmp_path / "exit-0.json").read_text())["exit_code"] == 3
