"""Checkpoints of other makes: what is whole counts, what is cut or half written does not, and says why."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import checkpoint, recognise, zips

Damage = Callable[[Path], object]


def torch_file(path: Path, size: int = 1000) -> Path:
    """As torch.save lays it out: a zip file without compression."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02.")
        archive.writestr("archive/data/0", bytes(size))
    return path


def safetensors(path: Path, size: int = 64) -> Path:
    header = {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    return path


def trainer(run: Path, step: int, weights: str = "model.safetensors") -> Path:
    """As Hugging Face's Trainer leaves it."""
    folder = run / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (safetensors if weights.endswith(".safetensors") else torch_file)(folder / weights)
    torch_file(folder / "optimizer.pt")
    (folder / "scheduler.pt").write_bytes(pickle.dumps({"old": "format"}))
    for rank in range(2):
        torch_file(folder / f"rng_state_{rank}.pth")
    (folder / "config.json").write_text("{}")
    history = [{"loss": 3.5, "step": step - 1}, {"loss": 3.25, "step": step}, {"eval_loss": 3.0, "step": step}]
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": history}))
    return folder


def sharded(run: Path, step: int) -> Path:
    folder = trainer(run, step)
    (folder / "model.safetensors").unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name in names:
        safetensors(folder / name)
    index = {"metadata": {}, "weight_map": {"a": names[0], "b": names[1], "c": names[0]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def distributed(folder: Path, ranks: int = 2) -> Path:
    """As torch.distributed.checkpoint leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"__{rank}_0.distcp" for rank in range(ranks)]
    for name in names:
        (folder / name).write_bytes(b"shard")
    (folder / ".metadata").write_bytes(pickle.dumps({"storage": names, "harm": os.getcwd}))
    return folder


def examined(path: Path) -> recognise.Found:
    candidate = recognise.recognise(path)
    assert candidate is not None
    return recognise.examine(candidate)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-500", 500),
        ("global_step1000", 1000),
        ("iter_0000500", 500),
        ("iteration=7", 7),
        ("epoch=3-step=500.ckpt", 500),
        ("epoch=3-step=500-v1.ckpt", 500),
        ("checkpoint-500", 500),
        ("run2-checkpoint-70", 70),
        ("epoch=3.ckpt", None),
        ("last.ckpt", None),
        ("model", None),
        ("step-" + "9" * 40, None),
        ("step-٣٤", None),
    ],
)
def test_the_step_stands_in_the_name(name: str, step: int | None) -> None:
    assert recognise.step_in(name) == step


def test_a_trainers_checkpoint(tmp_path: Path) -> None:
    found = examined(trainer(tmp_path, 500))
    assert (found.reason, found.loss, found.world_size) == ("", 3.25, 2)
    assert found.size_bytes is not None
    assert found.size_bytes > 3000
    assert found.written_at is not None
    for make in (lambda run: trainer(run, 500, "pytorch_model.bin"), lambda run: sharded(run, 500)):
        shutil.rmtree(tmp_path / "checkpoint-500")
        assert examined(make(tmp_path)).reason == ""
    folder = trainer(tmp_path, 600, "adapter_model.safetensors")
    assert checkpoint.verify(folder) == []
    (folder / "adapter_model.safetensors").unlink()
    assert examined(folder).reason == "it has no model weights"
    distributed(folder / "pytorch_model_fsdp_0")
    assert examined(folder).reason == ""


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: (path / "trainer_state.json").unlink(), "it has no trainer_state.json, which is written last"),
        (lambda path: (path / "trainer_state.json").write_text("{"), "trainer_state.json is not whole"),
        (lambda path: (path / "trainer_state.json").write_text("[" * 99999), "trainer_state.json is not whole"),
        (lambda path: (path / "trainer_state.json").write_text("[]"), "trainer_state.json is not what it should be"),
        (
            lambda path: (path / "trainer_state.json").write_text('{"global_step": 7}'),
            "its trainer_state.json is of step 7",
        ),
        (lambda path: os.truncate(path / "trainer_state.json", 1 << 30), "trainer_state.json cannot be read: it has"),
        (lambda path: os.truncate(path / "model-00002-of-00002.safetensors", 150), "has 150 bytes instead of"),
        (lambda path: os.truncate(path / "model-00002-of-00002.safetensors", 50), "its header is not whole"),
        (lambda path: os.truncate(path / "model-00002-of-00002.safetensors", 0), "its header is not whole"),
        (lambda path: (path / "model-00001-of-00002.safetensors").unlink(), "00002.safetensors is missing"),
        (lambda path: (path / "model-00001-of-00002.safetensors").write_bytes(b"\xff" * 99), "its header is not whole"),
        (lambda path: (path / "model.safetensors.index.json").unlink(), "it has no model weights"),
        (lambda path: (path / "model.safetensors.index.json").write_text("{}"), "names no weights"),
        (lambda path: os.truncate(path / "optimizer.pt", 900), "optimizer.pt is cut short"),
        (lambda path: os.truncate(path / "scheduler.pt", 0), "scheduler.pt is empty"),
    ],
)
def test_a_trainers_checkpoint_that_is_not_whole_says_why(tmp_path: Path, damage: Damage, reason: str) -> None:
    folder = sharded(tmp_path, 500)
    damage(folder)
    assert reason in examined(folder).reason
    assert checkpoint.verify(folder) == [examined(folder).reason]


def test_an_index_that_leads_outside_finds_nothing_there(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "run", 5)
    safetensors(tmp_path / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../outside.safetensors"}}')
    assert examined(folder).reason == "../../outside.safetensors is missing"


def test_distributed_shards(tmp_path: Path) -> None:
    found = examined(distributed(tmp_path / "step-500", ranks=3))
    assert (found.reason, found.world_size) == ("", 3)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: (path / ".metadata").unlink(), "it has no .metadata, which is written last"),
        (lambda path: os.truncate(path / ".metadata", 0), "its .metadata is empty"),
        (lambda path: os.truncate(path / "__1_0.distcp", 0), "__1_0.distcp is empty"),
        (lambda path: (path / "__1_0.distcp").unlink(), "__1_0.distcp is missing"),
        (lambda path: [each.unlink() for each in path.glob("__*")], "it has no shard"),
    ],
)
def test_distributed_shards_that_are_not_whole_say_why(tmp_path: Path, damage: Damage, reason: str) -> None:
    folder = distributed(tmp_path / "step-500")
    damage(folder)
    assert examined(folder).reason.startswith(reason)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "harmed",))

    folder = distributed(tmp_path / "step-1")
    (folder / ".metadata").write_bytes(pickle.dumps([Harm(), "__0_0.distcp"]))
    assert examined(folder).reason == ""
    (tmp_path / "step=2.ckpt").write_bytes(pickle.dumps(Harm()))
    assert examined(tmp_path / "step=2.ckpt").reason == "step=2.ckpt is not a zip file, as torch.save writes it"
    assert not (tmp_path / "harmed").exists()


def test_lightning(tmp_path: Path) -> None:
    path = torch_file(tmp_path / "epoch=1-step=80.ckpt")
    candidate = recognise.recognise(path)
    assert candidate is not None
    assert (candidate.format, candidate.step) == ("lightning", 80)
    assert examined(path).reason == ""
    os.truncate(path, path.stat().st_size - 1)
    assert "is cut short" in examined(path).reason
    path.unlink()
    assert recognise.examine(candidate).reason == f"{path.name} went away while it was looked at"


def test_what_is_none_of_them_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "attempt-1").mkdir()
    (tmp_path / "notes-7.txt").write_text("")
    (tmp_path / "step=7.ckpt").symlink_to(torch_file(tmp_path / "other.pt"))
    assert [recognise.recognise(path) for path in tmp_path.iterdir()] == [None] * 4


@settings(max_examples=150, deadline=None)
@given(
    st.data(),
    st.integers(0, 3000),
    st.one_of(st.binary(max_size=70), st.binary(max_size=40).map(lambda more: b"PK\x05\x06" + more + b"PK\x05\x06")),
)
def test_no_cut_of_a_zip_file_passes_for_whole(data: st.DataObject, size: int, comment: bytes) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        path = torch_file(folder / "model.pt", size)
        if data.draw(st.booleans()):
            with zipfile.ZipFile(path, "a") as archive:
                archive.comment = comment
        whole = path.read_bytes()
        assert zips.damage(path) == ""
        begin, end = data.draw(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole))).map(sorted))
        cut = whole[:begin] + whole[end:]
        path.write_bytes(cut)
        assert (zips.damage(path) == "") == (cut == whole)
    finally:
        shutil.rmtree(folder)


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_judged_without_an_error(content: bytes) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        for name in ("model.safetensors", "trainer_state.json", "optimizer.pt", "model.safetensors.index.json"):
            path = sharded(folder, 5)
            safetensors(path / "model.safetensors")
            (path / name).write_bytes(content)
            assert examined(path).reason or name == "optimizer.pt"
            shutil.rmtree(path)
    finally:
        shutil.rmtree(folder)
