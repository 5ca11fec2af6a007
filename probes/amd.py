"""AMD's GPUs, from what the amdgpu driver shows in sysfs: no library, no tool of AMD's."""

from __future__ import annotations

import os
import re
from typing import Callable

from probes.reading import (
    DEVICE_HEALTH_FIELDS,
    ERROR,
    UNSUPPORTED,
    DeviceFacts,
    DeviceHealth,
    Event,
    Facts,
    Health,
    Missing,
    Number,
    Sample,
)
from probes.source import DriverError, Mark, Table, bus_address, label

_NO_THROTTLE = Missing(UNSUPPORTED, "amdgpu tells no throttle reasons")
_NO_MIG = Missing(UNSUPPORTED, "AMD's GPUs have no MIG")
_NOT_TOLD = Missing(UNSUPPORTED, "amdgpu does not tell")
_NO_XID = Missing(UNSUPPORTED, "AMD's GPUs have no XIDs")
_NO_PROCESSES = Missing(UNSUPPORTED, "not read from amdgpu")

_GENERATIONS = {
    "2.5": 1,
    "5.0": 2,
    "5": 2,
    "8.0": 3,
    "8": 3,
    "16.0": 4,
    "16": 4,
    "32.0": 5,
    "32": 5,
    "64.0": 6,
    "64": 6,
}
"""PCIe transfers in GT/s to generation."""


class _Unreadable(Exception):
    """One figure is not there."""

    def __init__(self, missing: Missing) -> None:
        super().__init__(missing.reason)
        self.missing = missing


class _Card:
    """One GPU: its folder in sysfs and its sensors' folder."""

    def __init__(self, index: int, folder: str) -> None:
        self.index = index
        self.folder = folder
        hwmon = os.path.join(folder, "hwmon")
        names = sorted(os.listdir(hwmon)) if os.path.isdir(hwmon) else []
        self.sensors = os.path.join(hwmon, names[0]) if names else hwmon
        self.label = label("amdgpu's files of GPU {}".format(index))

    def text(self, *names: str) -> str:
        """The first of these files that is there; names with a slash in front are sensors. Raises `_Unreadable`."""
        for name in names:
            path = self.sensors + name if name.startswith("/") else os.path.join(self.folder, name)
            try:
                with open(path, encoding="ascii", errors="replace") as file:
                    return file.read(4096).strip()
            except FileNotFoundError:
                continue
            except PermissionError:
                raise _Unreadable(Missing(ERROR, "no permission")) from None
            except OSError as error:
                raise _Unreadable(Missing(ERROR, "amdgpu: {}".format((error.strerror or "").lower()))) from error
        raise _Unreadable(Missing(UNSUPPORTED, "amdgpu does not offer {}".format(" or ".join(names).replace("/", ""))))

    def whole(self, *names: str) -> int:
        """That file's number. Raises `_Unreadable`."""
        text = self.text(*names)
        if not re.fullmatch(r"-?\d{1,19}", text):
            raise _Unreadable(Missing(ERROR, "amdgpu gave {!r} for {}".format(text[:20], names[0])))
        return int(text)

    def clock_mhz(self, name: str) -> int:
        """The step that a ``pp_dpm_*`` file marks with a star. Raises `_Unreadable`."""
        found = re.search(r"(\d+)\s*mhz\s*\*", self.text(name), re.IGNORECASE)
        if found is None:
            raise _Unreadable(Missing(UNSUPPORTED, "amdgpu marks no step in {}".format(name)))
        return int(found[1])

    def errors(self, kind: str) -> int:
        """RAS counts over all blocks, ``ce`` or ``ue``. Raises `_Unreadable`."""
        try:
            names = [name for name in os.listdir(os.path.join(self.folder, "ras")) if name.endswith("_err_count")]
        except OSError:
            names = []
        if not names:
            raise _Unreadable(Missing(UNSUPPORTED, "amdgpu counts no memory errors on this GPU"))
        counts = [re.search(kind + r":\s*(\d+)", self.text("ras/" + name)) for name in names]
        return sum(int(count[1]) for count in counts if count is not None)


_Reader = Callable[[_Card], "Number | str"]

_FIGURES: tuple[tuple[str, _Reader], ...] = (
    ("utilization_percent", lambda card: card.whole("gpu_busy_percent")),
    ("memory_utilization_percent", lambda card: card.whole("mem_busy_percent")),
    ("memory_used_bytes", lambda card: card.whole("mem_info_vram_used")),
    ("power_watts", lambda card: card.whole("/power1_average", "/power1_input") / 1e6),
    # The edge sensor where there is one; accelerators of the data centre have the junction's alone.
    ("temperature_celsius", lambda card: round(card.whole("/temp1_input", "/temp2_input") / 1000)),
    ("sm_clock_mhz", lambda card: card.clock_mhz("pp_dpm_sclk")),
    ("memory_clock_mhz", lambda card: card.clock_mhz("pp_dpm_mclk")),
)


def _name(card: _Card) -> str:
    try:
        return card.text("product_name") or "AMD GPU"
    except _Unreadable:
        return "AMD GPU {}".format(card.text("device"))


def _generation(card: _Card, name: str = "current_link_speed") -> int:
    speed = card.text(name).split(" ")[0]
    if speed not in _GENERATIONS:
        raise _Unreadable(Missing(ERROR, "amdgpu gave {!r} for {}".format(speed[:20], name)))
    return _GENERATIONS[speed]


_SELDOM: tuple[tuple[str, _Reader], ...] = (
    ("uuid", lambda card: card.text("unique_id")),
    ("name", _name),
    ("memory_total_bytes", lambda card: card.whole("mem_info_vram_total")),
    ("power_limit_watts", lambda card: card.whole("/power1_cap") / 1e6),
    ("ecc_corrected_count", lambda card: card.errors("ce")),
    ("ecc_uncorrected_count", lambda card: card.errors("ue")),
    ("pcie_generation", _generation),
    ("pcie_width", lambda card: card.whole("current_link_width")),
)

_HEALTH: tuple[tuple[str, _Reader], ...] = (
    ("ecc_volatile_corrected_count", lambda card: card.errors("ce")),
    ("ecc_volatile_uncorrected_count", lambda card: card.errors("ue")),
    ("slowdown_celsius", lambda card: round(card.whole("/temp1_crit", "/temp2_crit") / 1000)),
    ("memory_temperature_celsius", lambda card: round(card.whole("/temp3_input") / 1000)),
    ("memory_slowdown_celsius", lambda card: round(card.whole("/temp3_crit") / 1000)),
    ("pcie_generation", _generation),
    ("pcie_generation_max", lambda card: _generation(card, "max_link_speed")),
    ("pcie_width", lambda card: card.whole("current_link_width")),
    ("pcie_width_max", lambda card: card.whole("max_link_width")),
    ("pcie_replay_count", lambda card: card.whole("pcie_replay_count")),
)


class Amd:
    """All GPUs of this machine that the amdgpu driver serves."""

    def __init__(self, mark: Mark, sysfs: str = "/sys") -> None:
        self.changed = True
        self._mark = mark
        self._sysfs = sysfs
        self._cards: list[_Card] = []
        self._found: list[str] = []

    def facts(self) -> Facts:
        """What seldom changes. Raises `DriverError`."""
        self._look()
        self.changed = False
        devices: list[DeviceFacts] = []
        for card in self._cards:
            self._mark(card.label)
            facts = DeviceFacts(card.index, missing={"mig_mode": _NO_MIG})
            for name, read in _SELDOM:
                try:
                    setattr(facts, name, read(card))
                except _Unreadable as unreadable:
                    facts.missing[name] = unreadable.missing
            devices.append(facts)
        return Facts(driver_version=self._version(), devices=devices)

    def sample(self) -> Sample:
        """The figures of this second. Raises `DriverError`."""
        self._look()
        table = Table([card.index for card in self._cards])
        for row, card in enumerate(self._cards):
            self._mark(card.label)
            table.missing[card.index] = {"throttle_reasons": _NO_THROTTLE, "processes": _NO_PROCESSES}
            for name, read in _FIGURES:
                try:
                    table.columns[name][row] = read(card)  # type: ignore[assignment]
                except _Unreadable as unreadable:
                    table.miss(card.index, name, unreadable.missing)
        return table.sample()

    def health(self) -> Health:
        """What health rules ask of the devices. Raises `DriverError`."""
        self._look()
        return Health(devices=[self._device_health(card) for card in self._cards], blind={"xid": _NO_XID})

    def events(self) -> list[Event]:
        """amdgpu tells of nothing but in the kernel's log."""
        return []

    def close(self) -> None:
        """Nothing is held."""

    def _device_health(self, card: _Card) -> DeviceHealth:
        self._mark(card.label)
        health = DeviceHealth(card.index, pci=bus_address(os.path.basename(os.path.realpath(card.folder))))
        health.missing = dict.fromkeys(DEVICE_HEALTH_FIELDS, _NOT_TOLD)
        for name, read in _HEALTH:
            try:
                health.figures[name] = read(card)  # type: ignore[assignment]
                del health.missing[name]
            except _Unreadable as unreadable:
                health.missing[name] = unreadable.missing
        try:
            health.uuid = card.text("unique_id")
        except _Unreadable:
            health.uuid = ""  # older cards have none
        return health

    def _look(self) -> None:
        """Find the cards anew when the list of them has changed."""
        root = os.path.join(self._sysfs, "class", "drm")
        try:
            names = [name for name in os.listdir(root) if re.fullmatch(r"card\d+", name)]
        except OSError as error:
            raise DriverError("amdgpu's devices cannot be listed: {}".format(error.strerror)) from error
        if names and sorted(names) == self._found:
            return
        folders = [os.path.join(root, name, "device") for name in sorted(names, key=lambda name: int(name[4:]))]
        # Other makers' cards, a server's own display above all, stand in the same list.
        cards = [folder for folder in folders if os.path.exists(os.path.join(folder, "mem_info_vram_total"))]
        if not cards:
            raise DriverError("the amdgpu driver is loaded, and shows no GPU")
        self._found = sorted(names)
        self._cards = [_Card(index, folder) for index, folder in enumerate(cards)]
        self.changed = True

    def _version(self) -> str:
        """The version of a driver that was installed by itself; the kernel's own has none, and is the kernel's."""
        try:
            with open(os.path.join(self._sysfs, "module", "amdgpu", "version"), encoding="ascii") as file:
                return file.readline().strip()
        except OSError:
            return ""
