"""A cable that is cut: from now on the kernel throws away all that comes for a connection."""

import ctypes
import os
import socket
import struct
from typing import Any

_SO_ATTACH_FILTER = 26


def cut(channel: Any) -> None:
    """Have nothing reach this end of a conversation any more, not even that something has arrived."""
    nothing = ctypes.create_string_buffer(
        struct.pack("HBBI", 0x06, 0, 0, 0)
    )  # BPF_RET | BPF_K: 0 bytes
    program = struct.pack("HP", 1, ctypes.addressof(nothing))
    handle = channel.info("socket").fileno()
    with socket.socket(fileno=os.dup(handle)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
