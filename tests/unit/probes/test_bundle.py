"""What travels: it runs on the oldest Python, says so on an older one, and leaves nothing behind."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from jobs.bundle import BOOT, boot_argv, bundle, trim
from probes.reading import Facts, Fault, Pong, Sample, decode
from tests.nvml import StandIn
from tests.unit.probes.live import ROOT, LiveProbe, clean_environ


def _pythons(*versions: str) -> list[str]:
    """Interpreters of these versions on this machine, beside the one that runs the tests."""
    found: list[str] = []
    for version in versions:
        name = "python" + version
        installed = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/{name}"))
        python = str(installed[-1]) if installed else shutil.which(name)
        if python and subprocess.run([python, "-V"], capture_output=True, check=False, timeout=20).returncode == 0:
            found.append(python)
    return found


OLD = _pythons("2.7", "3.6", "3.7")
SUPPORTED = [sys.executable, *_pythons("3.8", "3.13")]


def _argv(python: str, *arguments: str) -> list[str]:
    return [python, *boot_argv(list(arguments))[1:]]


def _tree(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.mark.parametrize("python", SUPPORTED)
def test_it_runs_from_memory_and_leaves_nothing(python: str, standin: StandIn, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environ = {**standin.environ, "HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": "/nowhere"}
    before = _tree(tmp_path)
    argv = _argv(python, "stream", "--interval", "0.1")
    # The ping stands directly behind the blob: reading the one must not swallow the other.
    with LiveProbe(argv=argv, first=bundle() + b"ping early\n", environ=environ, cwd=home) as probe:
        probe.next(Pong, lambda pong: pong.id == "early")
        sample = probe.next(Sample, lambda sample: sample.driver.state == "ok")
        assert sample.index == list(range(8))
        for pid in [probe.process.pid, *probe.children()]:
            files = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()]
            assert not [file for file in files if file.startswith(str(home))]
        probe.stdin.close()
        assert probe.process.wait(5) == 0
        assert probe.process.stderr is not None
        assert probe.process.stderr.read() == b""
    assert _tree(tmp_path) == before


@pytest.mark.parametrize("python", SUPPORTED)
def test_facts_name_the_python_that_runs_it(python: str) -> None:
    with LiveProbe(argv=_argv(python, "stream"), first=bundle()) as probe:
        facts = probe.line()
    assert isinstance(facts, Facts)
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True, timeout=20).stdout
    assert facts.python == version.split()[1]


@pytest.mark.parametrize("python", SUPPORTED)
def test_simulated_devices_travel_too(python: str, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"node": "w1", "gpus": 3}))
    environ = {"RAYDECK_SIMULATED": str(script)}
    with LiveProbe(argv=_argv(python, "stream", "--disk", "/"), first=bundle(), environ=environ) as probe:
        assert [device.name for device in probe.next(Facts).devices] == ["SIMULATED H100 80GB"] * 3
        assert probe.next(Sample, lambda sample: sample.host.disks[0].used_bytes).index == [0, 1, 2]


def test_every_module_of_the_probe_is_python_3_8() -> None:
    for path in (ROOT / "probes").glob("*.py"):
        ast.parse(path.read_text(), str(path), feature_version=(3, 8))


@pytest.mark.parametrize("python", OLD)
def test_an_older_python_says_what_it_is(python: str) -> None:
    isolated = [] if "2.7" in python else ["-I"]
    done = subprocess.run(
        [python, *isolated, "-S", "-u", "-c", BOOT, "stream"],
        input=bundle(),
        capture_output=True,
        timeout=20,
        check=False,
    )
    fault = decode(done.stdout)
    assert isinstance(fault, Fault)
    assert re.fullmatch(r"python3 is \d\.\d+\.\d+, the probe needs 3\.8", fault.reason)
    assert done.returncode == 3
    assert done.stderr == b""


def test_every_shell_passes_the_boot_line_on_unchanged() -> None:
    assert "\n" not in BOOT
    assert "!" not in BOOT
    assert "\\\\" not in BOOT
    assert "\\'" not in BOOT


def test_a_channel_that_closes_before_the_probe_has_arrived_ends_it() -> None:
    done = subprocess.run(
        _argv(sys.executable, "stream"), input=bundle()[:2000], capture_output=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"the probe did not arrive" in done.stderr


def test_it_is_small_and_made_once() -> None:
    assert len(bundle()) < 64 * 1024
    assert bundle() is bundle()


def test_making_it_imports_nothing_that_only_a_node_needs() -> None:
    code = "import sys; from jobs.bundle import bundle; bundle(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30, env=clean_environ({})
    )
    assert not {"pynvml", "probes.nvml", "probes.sampler", "asyncssh", "pydantic"} & set(done.stdout.split())


def test_modules_are_compiled_only_when_they_are_needed() -> None:
    sources = json.loads(zlib.decompress(bundle()[8:]))
    sources["pynvml"] = sources["probes.nvml"] = sources["probes.amd"] = "this is no Python"
    blob = zlib.compress(json.dumps(sources).encode())
    environ = {"LD_LIBRARY_PATH": "/nowhere"}
    first = f"{len(blob):08x}".encode() + blob
    with LiveProbe(argv=_argv(sys.executable, "stream"), first=first, environ=environ) as probe:
        assert probe.next(Sample).driver.state == "none"


def test_the_trimmed_nvidia_ml_py_has_what_is_asked_of_it_and_its_licence() -> None:
    found = importlib.util.find_spec("pynvml")
    assert found is not None
    assert found.origin is not None
    whole = Path(found.origin).read_text()
    wanted = {"nvmlInit", "nvmlDeviceGetMemoryInfo", "nvmlMemory_v2", "NVMLError", "NVML_CLOCK_SM"}
    text = trim(whole, wanted)
    assert len(text) < len(whole) / 5
    assert "Redistribution and use in source and binary forms" in text
    for name in wanted:
        assert re.search(rf"^(def|class)?\s*{name}\b", text, re.MULTILINE)
    assert "nvmlDeviceGetComputeRunningProcesses_v3" not in text
    assert trim(whole, {"nvmlThatNobodyKnows"}) == whole


def test_trimming_follows_names_through_everything_that_mentions_them() -> None:
    source = '''# licence
import os
import json, re as regex
from ctypes import *

A = 1
B = A + 1
def used():
    """Text
at the margin
"""
    return regex.match(B)

@decorate
def also(): return os
def decorate(f): return f
def unused():
    return C
C: int = 5
if A:
    D = C
else:
    D = 6
'''
    text = trim(source, {"used"})
    assert "def unused" not in text
    assert "import os" not in text
    for part in (
        "# licence",
        "import json, re as regex",
        "from ctypes import *",
        "B = A",
        "at the margin",
        "C: int",
        "D = 6",
    ):
        assert part in text
    assert "@decorate\ndef also" in trim(source, {"also"})
    assert "def decorate" in trim(source, {"also"})


def test_everything_of_the_probe_is_in_it() -> None:
    sources = json.loads(zlib.decompress(bundle()[8:]))
    modules = {"probes." + path.stem for path in (ROOT / "probes").glob("*.py")}
    assert set(sources) == (modules - {"probes.__init__", "probes.plain"}) | {"probes", "pynvml", "dataclasses"}
