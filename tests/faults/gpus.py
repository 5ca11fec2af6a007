"""Faults of accelerators and their driver: simulated ones, and through NVIDIA's library with a stand-in behind it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from tests.faults.fault import Aim, Fault
from tests.faults.lab import NVML_HOST, Lab
from tests.nvml import LOST, VERSION_MISMATCH

Make = Callable[[Lab], AbstractContextManager[Aim]]
NODE = "worker-1"
GPU = f"{NODE}/2"


def simulated(kind: str, *, on: str = GPU, load: bool = False, **more: object) -> Make:
    """One simulated GPU with a fault of this kind; under load where it shows only then."""

    @contextmanager
    def make(lab: Lab) -> Generator[Aim]:
        with ExitStack() as stack:
            if load:
                stack.enter_context(lab.load(NODE))
            stack.enter_context(lab.gpu_fault(NODE, 2, kind, **more))
            yield Aim(on, NODE)

    return make


def script(on: str, **changes: object) -> Make:
    """A node's simulated accelerators act otherwise."""

    @contextmanager
    def make(lab: Lab) -> Generator[Aim]:
        with lab.simulated(NODE, **changes):
            yield Aim(on, NODE, NODE)

    return make


def events(kind: str, text: str, **more: object) -> Make:
    """Something that a simulated node's driver tells once."""

    @contextmanager
    def make(lab: Lab) -> Generator[Aim]:
        with lab.simulated(NODE, events=[{"kind": kind, "text": text, "device": 2, **more}]):
            yield Aim(GPU, NODE)

    return make


@contextmanager
def left_out(lab: Lab) -> Generator[Aim]:
    """One of three nodes with the same GPUs was left out when a new driver came; the third is the head, for this."""
    with lab.simulated("head", gpus=4), lab.simulated(NODE, driver_version="535.54.03"):
        yield Aim(NODE, NODE)


def nvml(on: str, *rules: str) -> Make:
    """What the stand-in for NVIDIA's library says."""

    @contextmanager
    def make(lab: Lab) -> Generator[Aim]:
        with lab.nvml(*rules):
            yield Aim(on, NVML_HOST, NVML_HOST)

    return make


FAULTS: tuple[Fault, ...] = (
    Fault("GPU lost", simulated("lost"), ("gpu.lost",), r"lost|bus|not answer"),
    Fault("driver hangs", simulated("hung", on=NODE), ("node.driver.blocked", "node.driver.slow"), r"driver.*not (?:answer|come)|block|hang"),
    Fault("fewer GPUs than the inventory says", script(NODE, gpus=3), ("node.gpus_missing",), r"3 of 4|fewer|missing"),
    Fault("uncorrectable memory errors", simulated("ecc"), ("gpu.ecc", "gpu.ecc.before"), r"uncorrectable|ECC"),
    Fault("row remap pending", simulated("remap_pending"), ("gpu.remap.pending",), r"remap|row"),
    Fault("row remap failed", simulated("remap_failed"), ("gpu.remap.failed",), r"remap|row"),
    Fault("XID 79 by the driver", events("xid", "XID 79", code=79), ("gpu.xid.critical",), r"XID 79|bus"),
    Fault("XID 95 by the driver", events("xid", "XID 95", code=95), ("gpu.xid.critical",), r"XID 95|uncontained"),
    Fault("XID 119 by the driver", events("xid", "XID 119", code=119), ("gpu.xid.critical",), r"XID 119|GSP"),
    Fault("hot, slowed by its hardware", simulated("hot", load=True), ("gpu.thermal", "gpu.hot.critical", "gpu.hot"), r"heat|hot|thermal|temperature",
          also=("gpu.thermal.soft", "gpu.unlike"), seconds=120),
    Fault("power brake", simulated("throttle_power_brake", load=True), ("gpu.brake",), r"brake|power", also=("gpu.unlike",), seconds=90),
    Fault("memory hot", simulated("memory_hot", load=True), ("gpu.memory_hot", "gpu.memory_hot.critical"), r"memory.*(?:°C|hot|temperature)", seconds=120),
    Fault("PCIe narrower than it could be", simulated("pcie_width", load=True), ("gpu.pcie.width",), r"PCIe|lanes", seconds=120),
    Fault("PCIe generation too low", simulated("pcie_generation", load=True), ("gpu.pcie.generation",), r"PCIe", seconds=120),
    Fault("NVLink down", simulated("nvlink_down"), ("gpu.nvlink.down",), r"NVLink", seconds=90),
    Fault("memory held by nobody", simulated("leak"), ("gpu.orphaned",), r"memory.*(?:no process|nobody|no run)|held", seconds=120),
    Fault("driver of another version than the others", left_out, ("node.driver.version",), r"version|driver", seconds=240),
    Fault("NVML and kernel driver do not match", nvml(NVML_HOST, f"error nvmlInit_v2 * {VERSION_MISMATCH}", f"error nvmlDeviceGetCount_v2 * {VERSION_MISMATCH}",
          f"error nvmlDeviceGetUtilizationRates * {VERSION_MISMATCH}", f"error nvmlDeviceGetMemoryInfo * {VERSION_MISMATCH}"),
          ("node.driver.mismatch", "node.driver.error"), r"version|match|driver", seconds=90),
    Fault("NVML does not answer", nvml(NVML_HOST, "block nvmlDeviceGetPowerUsage 1"), ("node.driver.blocked", "node.driver.slow"), r"driver.*not (?:answer|come)|block|hang"),
    Fault("NVML says that a GPU is lost", nvml(f"{NVML_HOST}/1", *(f"error {name} 1 {LOST}" for name in (
          "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature", "nvmlDeviceGetUUID"))),
          ("gpu.lost",), r"lost|bus|not answer"),
)  # fmt: skip
