"""Owns whether a file that torch saved is whole, without reading what is in it (a pickle is never opened).

``torch.save`` writes a zip file without compression: its directory stands at the end and says where it itself begins,
so a file that was cut, at its end or anywhere before, does not fit. Standard library only.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

_ENTRY = b"PK\x03\x04"
_DIRECTORY = b"PK\x01\x02"
_END = struct.Struct("<4s4H2LH")
_END_SIGN = b"PK\x05\x06"
_END64 = struct.Struct("<4sQ2H2L4Q")
_END64_SIGN = b"PK\x06\x06"
_LOCATOR = struct.Struct("<4sLQL")
_LOCATOR_SIGN = b"PK\x06\x07"
_COMMENT_BYTES = 0xFFFF


def damage(path: Path, must_be_zip: bool = True) -> str:
    """What is wrong with it; empty if nothing is. Raises OSError where it cannot be read.

    Without ``must_be_zip`` a file that is not empty and does not begin as a zip file passes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return "is not a file"
        size = status.st_size
        if size == 0:
            return "is empty"
        if os.pread(descriptor, 4, 0) != _ENTRY:
            return "is not a zip file, as torch.save writes it" if must_be_zip else ""
        return "" if _whole(descriptor, size) else "is cut short: the zip file's directory is not where it should be"
    finally:
        os.close(descriptor)


def _whole(descriptor: int, size: int) -> bool:
    """Whether the end record is there, and the directory lies where it says, right before it."""
    start = max(0, size - _END.size - _COMMENT_BYTES)
    tail = os.pread(descriptor, size - start, start)
    at = tail.rfind(_END_SIGN)
    while at >= 0:  # the comment may hold the sign too
        if _is_end(descriptor, size, start, tail, at):
            return True
        at = tail.rfind(_END_SIGN, 0, at + len(_END_SIGN) - 1)
    return False


def _is_end(descriptor: int, size: int, start: int, tail: bytes, at: int) -> bool:
    """Whether what lies at ``at`` of the file's tail (which begins at ``start``) is its end record, and fits."""
    if len(tail) - at < _END.size:
        return False
    end = start + at
    *_, length, offset, comment = _END.unpack_from(tail, at)
    if at + _END.size + comment != len(tail):
        return False
    locator = os.pread(descriptor, _LOCATOR.size, end - _LOCATOR.size) if end >= _LOCATOR.size else b""
    if locator.startswith(_LOCATOR_SIGN):
        _, _, end, _ = _LOCATOR.unpack(locator)
        record = os.pread(descriptor, _END64.size, end) if end < size else b""
        if len(record) < _END64.size or not record.startswith(_END64_SIGN):
            return False
        *_, length, offset = _END64.unpack(record)
    if offset + length != end:
        return False
    return os.pread(descriptor, 4, offset) == _DIRECTORY
