"""What a line of the kernel's log says about a node's health, if anything. Pure: text in, one `Event` out, or nothing.

Forms of the lines: NVIDIA's driver documentation (Xid), the kernel's own sources (out of memory, hung tasks, file
systems, machine checks) and what mlx5 and other network drivers print.
"""

from __future__ import annotations

import re
from typing import Callable

from probes.reading import Event
from probes.source import bus_address

LONGEST_TEXT = 400
FELL_OFF_CODE = 79
"""The XID that means the same as the driver's words without a number."""

_ADDRESS = r"(?:PCI:)?(?P<pci>[0-9a-fA-F]{1,8}(?::[0-9a-fA-F]{1,2}){1,2}(?:\.[0-7])?)"
_XID = re.compile(
    r"NVRM: Xid \(" + _ADDRESS + r"\): (?P<code>\d{1,5})"
    r"(?:, pid='?(?P<pid>[^,']*)'?(?=,|$))?(?:, name=(?P<name>[^,]*))?"
)
_FELL_OFF = re.compile(r"NVRM: .*?\bGPU(?: at)? " + _ADDRESS + r"\b.*fallen off the bus")
_SXID = re.compile(r"SXid \(" + _ADDRESS + r"\): (?P<code>\d{1,6})")
_OOM = re.compile(r"Killed process (?P<pid>\d{1,10}) \((?P<name>.*?)\)(?:,| |$)")
_HUNG = re.compile(r"INFO: task (?P<name>.+?):(?P<pid>\d{1,10})(?: <\w+>)? blocked (?:on .{1,80} )?for more than \d+ s")
_LOCKUP = re.compile(r"BUG: soft lockup - CPU#\d+ stuck for \d+s! \[(?P<name>[^\]]*):(?P<pid>\d{1,10})\]")
_LINK = re.compile(
    r"\blink(?: status)?(?: is)?(?: definitely)? (?:down|up|active)\b|\bPort module event\b|\blost carrier\b", re.I
)
_NOT_A_LINK = re.compile(r"^(?:ata\d|NVRM|usb )|\bSATA\b", re.I)
_STORAGE = re.compile(
    r"nfs: server \S+ (?:not responding|timed out)"
    r"|\bI/O error\b"
    r"|[Rr]emounting (?:filesystem )?read-only"
    r"|EXT4-fs (?:error|\(\S+\): .*error)|BTRFS (?:error|critical)|XFS \(\S+\): .*(?:[Ss]hut.{0,5}down|[Cc]orrupt)"
    r"|nvme nvme\d+: (?:I/O .*timeout|I/O tag .*timeout|Device not ready|controller is down|Disabling device)"
    r"|LustreError: .*(?:evicted|timed out)|Lustre: .*Connection to \S+ .*was lost"
    r"|libceph: .*\b(?:down|socket closed)|ceph: mds\d+ (?:hung|caps stale)"
    r"|CIFS: .*has not responded"
)
_MACHINE_CHECK = re.compile(
    r"mce: \[Hardware Error\]|\[Hardware Error\]: .*(?:Machine Check|Uncorrected|fatal)"
    r"|EDAC .*\b(?:UE|UNCORRECTABLE)\b"
    r"|PCIe Bus Error: severity=Uncorrect|AER: (?:Multiple )?Uncorrect|AER: .*\(Fatal\)|aer_status: .*Uncorrect"
    r"|CPU\d+: (?:Core|Package) temperature above threshold"
)
_ANY_ADDRESS = re.compile(r"\b(?P<pci>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\b")

# A log may run at thousands of lines a second: most are told apart from what matters by these alone.
_WORTH_A_LOOK = re.compile(
    r"NVRM|SXid|Killed process|blocked|lockup|link|Port module|carrier|nfs:|I/O|emount|EXT4|BTRFS|XFS|nvme|ustre|ceph"
    r"|CIFS|\[Hardware Error\]|EDAC|PCIe Bus|AER|aer_|temperature above",
    re.I,
)


def parse(text: str) -> tuple[Event, str] | None:
    """The event of one line, and the address on the bus that it names (as `bus_address` gives it; empty if none).

    ``wall``, ``device`` and ``run`` are for the caller to fill in. None for a line that matters to nobody.
    """
    if _WORTH_A_LOOK.search(text) is None:
        return None
    for kind, pattern, make in _KINDS:
        found = pattern.search(text)
        if found is not None:
            event = Event(kind, text[:LONGEST_TEXT])
            address = make(event, found)
            return None if address is None else (event, address)
    return None


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 10 else None


def _name(text: str | None) -> str:
    name = (text or "").strip("' ")
    return "" if name.startswith("<") else name[:64]


def _xid(event: Event, found: re.Match[str]) -> str:
    event.code = int(found["code"])
    event.pid, event.process = _whole(found["pid"]), _name(found["name"])
    return bus_address(found["pci"])


def _fell_off(event: Event, found: re.Match[str]) -> str:
    event.code = FELL_OFF_CODE
    return bus_address(found["pci"])


def _sxid(event: Event, found: re.Match[str]) -> str:
    event.code = int(found["code"])
    return bus_address(found["pci"])


def _victim(event: Event, found: re.Match[str]) -> str:
    event.pid, event.process = _whole(found["pid"]), _name(found["name"])
    return ""


def _link(event: Event, found: re.Match[str]) -> str | None:
    return None if _NOT_A_LINK.search(event.text) else _somewhere(event, found)


def _somewhere(event: Event, found: re.Match[str]) -> str:
    # AER names the port first and the device that it heard of last: that is the one in trouble.
    addresses = _ANY_ADDRESS.findall(event.text)
    return bus_address(addresses[-1]) if addresses else ""


_KINDS: tuple[tuple[str, re.Pattern[str], Callable[[Event, re.Match[str]], str | None]], ...] = (
    ("xid", _XID, _xid),
    ("gpu_lost", _FELL_OFF, _fell_off),
    ("sxid", _SXID, _sxid),
    ("oom", _OOM, _victim),
    ("hung_task", _HUNG, _victim),
    ("hung_task", _LOCKUP, _victim),
    ("machine_check", _MACHINE_CHECK, _somewhere),
    ("storage", _STORAGE, _somewhere),
    ("link", _LINK, _link),
)
