"""`probes.amd` on a tree of sysfs as amdgpu shows it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from probes.amd import Amd
from probes.reading import ERROR, UNSUPPORTED, Missing
from probes.source import DriverError, choose

_MI300 = {
    "mem_info_vram_total": "206141652992",
    "mem_info_vram_used": "1073741824",
    "gpu_busy_percent": "87",
    "mem_busy_percent": "31",
    "unique_id": "a1b2c3d4e5f60718",
    "product_name": "AMD Instinct MI300X",
    "pp_dpm_sclk": "0: 132Mhz\n1: 1700Mhz *\n2: 2100Mhz",
    "pp_dpm_mclk": "0: 900Mhz *\n1: 1300Mhz",
    "current_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
    "hwmon/hwmon3/power1_average": "512000000",
    "hwmon/hwmon3/power1_cap": "750000000",
    "hwmon/hwmon3/temp1_input": "61500",
    "ras/umc_err_count": "ue: 1\nce: 5",
    "ras/gfx_err_count": "ue: 0\nce: 2",
}


def card(sysfs: Path, name: str, files: dict[str, str]) -> Path:
    for path, text in files.items():
        file = sysfs / "class" / "drm" / name / "device" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    (sysfs / "class" / "drm" / f"{name}-DP-1").mkdir(parents=True)
    return sysfs / "class" / "drm" / name / "device"


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    card(tmp_path, "card0", {"vendor": "0x1a03"})  # the server's own display
    card(tmp_path, "card1", _MI300)
    (tmp_path / "bus" / "pci" / "drivers" / "amdgpu" / "0000:03:00.0").mkdir(parents=True)
    return tmp_path


def amd(sysfs: Path) -> Amd:
    return Amd(lambda text: None, str(sysfs))


def test_every_figure(sysfs: Path) -> None:
    source = amd(sysfs)
    (facts,) = source.facts().devices
    assert (facts.index, facts.uuid, facts.name) == (0, "a1b2c3d4e5f60718", "AMD Instinct MI300X")
    assert (facts.memory_total_bytes, facts.power_limit_watts) == (206141652992, 750.0)
    assert (facts.ecc_corrected_count, facts.ecc_uncorrected_count) == (7, 1)
    assert (facts.pcie_generation, facts.pcie_width) == (5, 16)
    assert set(facts.missing) == {"mig_mode"}
    sample = source.sample()
    assert {name: column[0] for name, column in sample.columns.items()} == {
        "utilization_percent": 87,
        "memory_utilization_percent": 31,
        "memory_used_bytes": 1073741824,
        "power_watts": 512.0,
        "temperature_celsius": 62,
        "sm_clock_mhz": 1700,
        "memory_clock_mhz": 900,
        "throttle_reasons": None,
    }
    reason = sample.reading(0, "throttle_reasons")
    assert isinstance(reason, Missing)
    assert reason.kind == UNSUPPORTED


def test_older_and_newer_names_of_files(sysfs: Path) -> None:
    sensors = sysfs / "class" / "drm" / "card1" / "device" / "hwmon" / "hwmon3"
    (sensors / "power1_average").rename(sensors / "power1_input")
    (sensors / "temp1_input").rename(sensors / "temp2_input")
    sample = amd(sysfs).sample()
    assert sample.reading(0, "power_watts") == 512.0
    assert sample.reading(0, "temperature_celsius") == 62


def test_what_is_not_there_has_its_reason_and_hides_nothing(sysfs: Path) -> None:
    folder = sysfs / "class" / "drm" / "card1" / "device"
    (folder / "gpu_busy_percent").unlink()
    (folder / "mem_busy_percent").write_text("-EOPNOTSUPP\n")
    (folder / "pp_dpm_sclk").write_text("0: 132Mhz\n")
    shutil.rmtree(folder / "ras")
    source = amd(sysfs)
    sample = source.sample()
    assert sample.reading(0, "utilization_percent") == Missing(UNSUPPORTED, "amdgpu does not offer gpu_busy_percent")
    assert sample.reading(0, "memory_utilization_percent") == Missing(
        ERROR, "amdgpu gave '-EOPNOTSUPP' for mem_busy_percent"
    )
    assert sample.reading(0, "sm_clock_mhz") == Missing(UNSUPPORTED, "amdgpu marks no step in pp_dpm_sclk")
    assert sample.reading(0, "power_watts") == 512.0
    (facts,) = source.facts().devices
    assert facts.ecc_corrected_count is None
    assert facts.missing["ecc_corrected_count"].kind == UNSUPPORTED


def test_cards_stand_in_the_order_of_their_numbers(sysfs: Path) -> None:
    source = amd(sysfs)
    source.facts()
    for number in (10, 2):
        card(sysfs, f"card{number}", {**_MI300, "unique_id": f"id{number}"})
    sample = source.sample()
    assert source.changed
    assert sample.index == [0, 1, 2]
    assert [device.uuid for device in source.facts().devices] == ["a1b2c3d4e5f60718", "id2", "id10"]


def test_a_driver_without_a_gpu_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="cannot be listed"):
        amd(tmp_path).sample()
    card(tmp_path, "card0", {"vendor": "0x1a03"})
    with pytest.raises(DriverError, match="shows no GPU"):
        amd(tmp_path).sample()


def test_real_cards_are_chosen_before_a_stray_library(sysfs: Path, tmp_path: Path) -> None:
    name, source = choose({}, lambda text: None, proc=str(tmp_path), sysfs=str(sysfs))
    assert name == "amd"
    assert isinstance(source, Amd)
