"""What is shipped: the same bytes for the same files, nothing from outside the folder, and what starts from it."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import package
from jobs.errors import Refused
from jobs.package import build, controller_archive, sample_folder


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("import lib.model\n")
    (folder / "lib/model.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return folder


def names(content: bytes, prefix: str = "workload/") -> list[str]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return [name.removeprefix(prefix) for name in archive.namelist() if name.startswith(prefix)]


def test_the_operators_files_beside_ours(code: Path) -> None:
    made = build(code)
    assert names(made.content) == ["lib/model.py", "run.sh", "train.py"]
    assert made.files == 3
    assert made.digest == hashlib.sha256(made.content).hexdigest()
    assert made.name == f"raydeck-{made.digest}.zip"
    ours = names(made.content, "")
    assert {"jobs/model.py", "jobs/__init__.py", "probes/reading.py"} <= set(ours)
    assert not [name for name in ours if name.startswith(("jobs/controller", "jobs/local", "jobs/samples", "console"))]


def test_a_script_in_the_package_finds_ours(code: Path, tmp_path: Path) -> None:
    (code / "train.py").write_text(
        "import jobs.model, probes.reading; print(jobs.model.job_id('r', 1), jobs.__file__)\n"
    )
    unpacked = tmp_path / "unpacked"
    zipfile.ZipFile(io.BytesIO(build(code).content)).extractall(unpacked)
    ran = subprocess.run(
        [sys.executable, "workload/train.py"],
        cwd=unpacked,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.split() == ["raydeck-r-a1", str(unpacked / "jobs/__init__.py")]


def test_modes_are_kept_as_far_as_they_matter(code: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(build(code).content)) as archive:
        modes = {
            name: archive.getinfo(f"workload/{name}").external_attr >> 16 & 0o777 for name in ("run.sh", "train.py")
        }
    assert modes == {"run.sh": 0o755, "train.py": 0o644}


def test_the_same_files_give_the_same_bytes(code: Path, tmp_path: Path) -> None:
    first = build(code)
    copy = tmp_path / "copy"
    (copy / "lib").mkdir(parents=True)
    for name in ("train.py", "run.sh", "lib/model.py"):
        (copy / name).write_bytes((code / name).read_bytes())
        os.utime(copy / name, (1, 1))
    (copy / "run.sh").chmod(0o700)
    (copy / "train.py").chmod(0o660)
    second = build(copy)
    assert (second.digest, second.code_digest, second.content) == (first.digest, first.code_digest, first.content)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "c/d", "c/e"]), st.tuples(st.binary(max_size=4), st.booleans())))
def test_the_code_digest_tells_files_apart(tree: dict[str, tuple[bytes, bool]]) -> None:
    entries = [package._Entry(name, content, mode) for name, (content, mode) in sorted(tree.items())]
    digest = package._code_digest(entries)
    for index, entry in enumerate(entries):
        others = entries[:index] + entries[index + 1 :]
        assert package._code_digest(others) != digest
        flipped = package._Entry(entry.name, entry.content, not entry.executable)
        assert package._code_digest([*entries[:index], flipped, *entries[index + 1 :]]) != digest
        longer = package._Entry(entry.name, entry.content + b"\0", entry.executable)
        assert package._code_digest([*entries[:index], longer, *entries[index + 1 :]]) != digest


def test_what_stays_behind(code: Path) -> None:
    for name in (
        ".git/config",
        "__pycache__/a.pyc",
        "lib/__pycache__/b.pyc",
        ".venv/x",
        "node_modules/y",
        "big/data.bin",
    ):
        (code / name).parent.mkdir(exist_ok=True)
        (code / name).write_text("x")
    for name in ("notes.log", "lib/deep.log", "data", "lib/data", "lib/only.txt", "only.txt"):
        (code / name).write_text("x")
    (code / ".raydeckignore").write_text("# comment\n\n*.log\nbig/\n/data\nlib/only.txt\n")
    assert names(build(code).content) == ["lib/data", "lib/model.py", "only.txt", "run.sh", "train.py"]


def test_a_pattern_with_a_negation_is_refused(code: Path) -> None:
    (code / ".raydeckignore").write_text("*.log\n!keep.log\n")
    with pytest.raises(Refused, match="begins with ! is not supported"):
        build(code)


def test_links_inside_are_followed(code: Path) -> None:
    (code / "again.py").symlink_to("train.py")
    (code / "more").symlink_to("lib")
    made = build(code)
    assert names(made.content) == ["again.py", "lib/model.py", "more/model.py", "run.sh", "train.py"]
    assert zipfile.ZipFile(io.BytesIO(made.content)).read("workload/again.py") == b"import lib.model\n"


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside.txt", "/etc"])
def test_links_that_lead_out_are_refused(code: Path, target: str) -> None:
    (code.parent / "outside.txt").write_text("not yours")
    (code / "link").symlink_to(target)
    with pytest.raises(Refused, match=r"link.* leads out of the folder"):
        build(code)


def test_links_that_lead_nowhere_or_in_circles_are_refused(code: Path) -> None:
    (code / "loop").symlink_to(".")
    with pytest.raises(Refused, match="leads back"):
        build(code)
    (code / "loop").unlink()
    (code / "gone").symlink_to("nothing")
    with pytest.raises(Refused, match="leads nowhere"):
        build(code)
    (code / "gone").unlink()
    (code / "self").symlink_to("self")
    with pytest.raises(Refused, match="leads nowhere"):
        build(code)


def test_what_is_left_out_may_be_broken(code: Path) -> None:
    (code / ".venv").symlink_to("/nowhere/at/all")
    assert build(code).files == 3


def test_other_things_than_files_are_refused(code: Path) -> None:
    os.mkfifo(code / "pipe")
    with pytest.raises(Refused, match="no plain file"):
        build(code)


def test_names_that_are_not_utf8_are_refused(code: Path) -> None:
    (code / os.fsdecode(b"b\xff.py")).write_text("x")
    with pytest.raises(Refused, match="not UTF-8"):
        build(code)


def test_too_much_is_refused_with_the_largest_named(code: Path) -> None:
    for name, size in (("weights.bin", 90), ("more.bin", 20)):
        with (code / name).open("wb") as file:
            file.truncate(size * 2**20)
    with pytest.raises(Refused, match=r"110 MiB.*at most 100 MiB.*weights\.bin \(90\.0 MiB\), more\.bin \(20\.0 MiB\)"):
        build(code)


def test_too_many_files_are_refused(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "MAX_FILES", 2)
    with pytest.raises(Refused, match="more than 2 files"):
        build(code)


def test_a_folder_that_is_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is not a folder"):
        build(tmp_path / "missing")
    with pytest.raises(Refused, match="no file to ship"):
        build(tmp_path)


def test_the_controller_starts_from_its_archive_and_packs_from_within_it(tmp_path: Path) -> None:
    digest, content = controller_archive()
    assert (digest, content) == controller_archive()
    archive = tmp_path / f"raydeck-{digest[:12]}.zip"
    archive.write_bytes(content)
    script = (
        "import jobs.spec, jobs.load, jobs.package as p, probes.reading; assert '.zip/' in p.__file__, p.__file__;"
        "folder = p.sample_folder(); print(sorted(child.name for child in folder.iterdir()));"
        "made = p.build(folder); print(made.digest, made.code_digest); print(p.controller_archive()[0])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    listed, digests, again = ran.stdout.splitlines()
    here = build(sample_folder())
    assert "lm.yaml" in listed
    assert digests.split() == [here.digest, here.code_digest]
    assert again == digest


def kept(content: bytes, folder: Path) -> Path:
    """A package as the controller keeps it."""
    file = folder / f"{hashlib.sha256(content).hexdigest()}.zip"
    file.write_bytes(content)
    return file


def test_the_code_is_known_again_whichever_version_packed_it(code: Path, tmp_path: Path) -> None:
    made = build(code)
    older = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(made.content)) as archive, zipfile.ZipFile(older, "w") as other:
        for info in reversed(archive.infolist()):
            other.writestr(info, b"older" if info.filename.startswith("jobs/") else archive.read(info))
    old = kept(older.getvalue(), tmp_path)
    assert old.stem != made.digest
    assert package.code_digest(kept(made.content, tmp_path)) == made.code_digest
    assert package.code_digest(old) == made.code_digest
    assert package.renewed(old) == made
    (code / "run.sh").chmod(0o644)
    assert build(code).code_digest != made.code_digest


def zipped(*files: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        for name, content in files:
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: b"", "is no zip"),
        (lambda: b"PK" * 1000, "is no zip"),
        (lambda: zipped(("jobs/model.py", b"")), "holds no code"),
        (lambda: zipped(("workload/../../x", b"")), "may not be in it"),
        (lambda: zipped(("workload//etc/x", b"")), "may not be in it"),
        (lambda: zipped(("workload/x", b"1"), ("workload/x", b"2")), "may not be in it"),
        (lambda: zipped(*((f"workload/{n}", bytes(30 * 2**20)) for n in range(4))), "unpacks to more than is taken"),
        (lambda: zipped(("workload/x", b"x" * 10_000)).replace(b"x" * 4, b"yyyy", 1)[:60], "is no zip"),
    ],
)
def test_a_package_from_outside_is_not_believed(tmp_path: Path, make: Callable[[], bytes], words: str) -> None:
    with pytest.raises(Refused, match=words):
        package.code_digest(kept(make(), tmp_path))


def test_a_package_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read"):
        package.code_digest(tmp_path / "none.zip")
