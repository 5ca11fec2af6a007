"""What the driver's error numbers (XIDs) mean: how bad, what NVIDIA says first, and what an operator does. Data only.

From NVIDIA's XID catalogue (its immediate action is ``bucket``). An XID is advice: what the driver itself asks for (its
recovery action) goes first, and nothing is drained by a number alone.
"""

from __future__ import annotations

from typing import Dict, NamedTuple

from probes.health.rule import CRITICAL, INFO, WARNING


class Xid(NamedTuple):
    """One number."""

    words: str
    level: str
    bucket: str
    """NVIDIA's immediate action, in its own words; empty where the catalogue has none."""
    action: str


_PROGRAM = "Look at the program first (compute-sanitizer); at the GPU if it happens there with different runs."
_RESET = "Drain the node and reset the GPU. If it comes again, run the GPU's diagnosis and have it replaced."
_REBOOT = "Drain the node and power-cycle it. If it comes again, check slot, power and cooling, and have it replaced."
_LINK = "Drain the node and reset the GPU. If it comes again, look at both ends of the link: seat, bridge, cable."
_WATCH = "Nothing at once. Reset the GPU when its node is next empty; open a ticket if it comes again."

_FATAL_LINK = Xid("NVLink error", CRITICAL, "workflow NVLink5", _LINK)
_LIGHT_LINK = Xid("NVLink error, not fatal", WARNING, "workflow NVLink5", _WATCH)

XIDS: Dict[int, Xid] = {
    13: Xid("illegal instruction or address in a kernel of the program", WARNING, "RESTART_APP", _PROGRAM),
    31: Xid("memory page fault of the program", WARNING, "RESTART_APP", _PROGRAM),
    32: Xid("corrupt command buffer", WARNING, "RESTART_APP", _PROGRAM),
    43: Xid("the program's work was stopped after its own fault", INFO, "IGNORE", _PROGRAM),
    44: Xid("fault at a context switch", WARNING, "IGNORE", _WATCH),
    45: Xid("cleaned up after a program that ended", INFO, "IGNORE", "Look at what ended the program before it."),
    46: Xid("the GPU stopped processing", CRITICAL, "RESET_GPU", _RESET),
    48: Xid("uncorrectable (double-bit) memory error", CRITICAL, "workflow 48", _RESET),
    61: Xid("power unit firmware stopped at a breakpoint", WARNING, "", _WATCH),
    62: Xid("power unit firmware halted", CRITICAL, "RESET_GPU", _RESET),
    63: Xid("a faulty memory row was noted for replacement", WARNING, "IGNORE", _WATCH),
    64: Xid("a faulty memory row could not be replaced", CRITICAL, "RESET_GPU", _RESET),
    68: Xid("video decoder error", WARNING, "RESTART_APP", _PROGRAM),
    69: Xid("graphics class error", WARNING, "RESTART_APP", _PROGRAM),
    74: Xid("NVLink error", CRITICAL, "workflow NVLink", _LINK),
    79: Xid("fallen off the bus", CRITICAL, "RESTART_BM", _REBOOT),
    92: Xid("many corrected memory errors", WARNING, "IGNORE", _WATCH),
    93: Xid("the GPU's own store wears out", INFO, "IGNORE", _WATCH),
    94: Xid(
        "contained memory error: one program was ended for it",
        WARNING,
        "RESTART_APP",
        "Restart the run; reset the GPU when its node is next empty. A second one within a day: drain the node now.",
    ),
    95: Xid("uncontained memory error: results since are suspect", CRITICAL, "RESET_GPU", _RESET),
    109: Xid("context switch timed out", CRITICAL, "RESET_GPU", _RESET),
    110: Xid("security fault", CRITICAL, "RESET_GPU", _RESET),
    119: Xid("the GPU's system processor (GSP) does not answer", CRITICAL, "RESET_GPU", _RESET),
    120: Xid("the GPU's system processor (GSP) failed", CRITICAL, "RESET_GPU", _RESET),
    121: Xid("error on the link between CPU and GPU", WARNING, "IGNORE", _WATCH),
    123: Xid("the power unit's store could not be written", WARNING, "", _WATCH),
    136: Xid("a link could not be trained", CRITICAL, "RESET_GPU", _LINK),
    137: Xid("access over NVLink was refused", WARNING, "IGNORE", _PROGRAM),
    140: Xid("memory error that was not recovered", CRITICAL, "RESET_GPU", _RESET),
    143: Xid("the GPU could not be initialised", CRITICAL, "RESET_GPU", _REBOOT),
    144: _FATAL_LINK,
    145: _FATAL_LINK,
    146: _FATAL_LINK,
    147: _FATAL_LINK,
    148: _FATAL_LINK,
    149: _FATAL_LINK,
    150: _FATAL_LINK,
    151: Xid("a key could not be changed", WARNING, "RESTART_VM", "Restart the virtual machine."),
    154: Xid("the driver's recovery action changed", INFO, "XID_154", "Do what the driver's line says."),
    155: Xid("NVLink error reported by software", WARNING, "RESET_GPU", _WATCH),
    156: Xid("a resource was retired", INFO, "RESET_GPU", _WATCH),
    157: Xid("a resource could not be retired", WARNING, "IGNORE", _WATCH),
    158: Xid("fatal time-out on the GPU", CRITICAL, "RESET_GPU", _RESET),
    160: Xid("a memory channel was retired", WARNING, "IGNORE", _WATCH),
    161: Xid("a memory channel could not be retired", WARNING, "IGNORE", _WATCH),
    167: Xid("fatal time-out on PCIe", CRITICAL, "", _REBOOT),
    168: Xid("a protected region of memory is wrong", WARNING, "", _WATCH),
    169: Xid("the security processor halted", CRITICAL, "", _REBOOT),
    171: Xid("memory error in DRAM, details of 48", CRITICAL, "", _RESET),
    172: Xid("memory error in SRAM, details of 48", CRITICAL, "", _RESET),
}

OF_PROGRAM = frozenset({13, 31, 32, 43, 45, 68, 69, 137})
"""As a rule these come from what a program did: where its run failed, they are a finding about the run."""

REPEATED_WITHIN_A_DAY = frozenset({94})
"""A warning the first time, critical the second."""

RECOVERY_ACTIONS: Dict[int, str] = {
    0: "none",
    1: "GPU reset",
    2: "node reboot",
    3: "drain peer-to-peer work",
    4: "drain and reset",
    5: "restart IMEX",
    6: "bus reset",
    7: "system reboot",
}
"""NVML's numbers for what the driver itself asks for."""

_RECOVERY_ADVICE: Dict[int, str] = {
    1: "Drain the node and reset the GPU, as its driver asks.",
    2: "Drain the node and reboot it, as its driver asks.",
    3: "Drain the node: its driver asks for no new work between this GPU and others, until it says what comes next.",
    4: "Drain the node, then reset the GPU, as its driver asks.",
    5: "Restart the IMEX service of this node, as its driver asks.",
    6: "Drain the node and reset the GPU over its bus, as its driver asks.",
    7: "Drain the node and reboot the whole system, as its driver asks.",
}
_UNKNOWN = Xid("not in this table", INFO, "", "Look the number up in NVIDIA's XID catalogue.")
_HEAVY_WORDS = ("reboot", "reset", "drain")


def meaning(code: int, text: str = "") -> Xid:
    """What a number means; the driver's line says more about some (fatal or not, which action)."""
    found = XIDS.get(code, _UNKNOWN)
    said = text.lower()
    if found is _FATAL_LINK and ("nonfatal" in said or "non-fatal" in said):
        return _LIGHT_LINK
    # "… changed from 0x0 (None) to 0x2 (Node Reboot Required)": what it was before asks for nothing.
    if code == 154 and any(word in said.rpartition(" to ")[2] for word in _HEAVY_WORDS):
        return found._replace(level=CRITICAL)
    return found


def recovery_words(action: int) -> str:
    """What the driver asks for, in words."""
    return RECOVERY_ACTIONS.get(action, "action {}, which is not in this table".format(action))


def recovery_advice(action: int) -> str:
    """What to do about it."""
    return _RECOVERY_ADVICE.get(action, "Drain the node, and look the number up in NVML's recovery actions.")
