"""A file system that hangs: a FUSE server that answers the kernel's greeting and then nothing any more.

``python stall.py FOLDER``, as root, in the mount namespace that is meant. It prints ``ready``; when it ends, whoever
waits on the folder gets an error, and the folder is let go of.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys

INIT = 26
INIT_OUT = struct.Struct("=IiQIIIIHHIIHHI7I")
"""fuse_out_header's length, error and unique, then fuse_init_out."""
MNT_DETACH = 2


def main(folder: str) -> None:
    """Mount, greet, and be silent until SIGTERM."""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"stall", folder.encode(), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), f"{folder} cannot be mounted")
    request = os.read(device, 1 << 17)
    _, opcode, unique = struct.unpack_from("=IIQ", request)
    assert opcode == INIT, opcode
    body = struct.pack("=IIIIHHIIHHI7I", 7, 31, 1 << 16, 0, 12, 10, 1 << 16, 1, 0, 0, 0, *([0] * 7))
    os.write(device, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)
    print("ready", flush=True)
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    os.close(device)
    libc.umount2(folder.encode(), MNT_DETACH)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    main(sys.argv[1])
