"""Ends connections to a replica's endpoint so that the last answer arrives, and answers strangers.

It is imported when the first connection is to be ended, because importing threads makes forks of the shim
slower.
"""

import json
import socket
import threading
import time
from collections.abc import Callable

_TEXT = (
    "This endpoint belongs to another replica, in whose name it would speak. "
    "Use your own, which STORAGE_EMULATOR_HOST and GCE_METADATA_HOST name."
)

_BODY = json.dumps({"error": {"code": 403, "message": _TEXT, "status": "PERMISSION_DENIED"}})
_REFUSAL = (
    "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: "
    "close\r\n\r\n%s" % (len(_BODY), _BODY)
).encode("ascii")

_LINGER = 2.0
_MOST = 16
"""Strangers at a time that get an answer; they must not take up the room of who belongs here."""

_answered = threading.BoundedSemaphore(_MOST)


def hang_up(connection: socket.socket) -> None:
    """Close a connection after its last answer. Input is still read for a moment, because a client that
    writes into a closed connection may not read the answer. Blocks for seconds at most."""
    deadline = time.monotonic() + _LINGER
    try:
        connection.settimeout(_LINGER)
        unwrap = getattr(connection, "unwrap", None)
        if unwrap is not None:
            try:
                unwrap()
            except (OSError, ValueError):
                pass  # It went on sending, or was gone before.
        socket.socket.shutdown(connection, socket.SHUT_WR)
        while time.monotonic() < deadline and socket.socket.recv(connection, 1 << 16):
            pass
    except OSError:
        pass  # It is gone.
    finally:
        connection.close()


def send_away(
    connection: socket.socket, secured: Callable[[socket.socket], socket.socket] | None = None
) -> None:
    """Refuse the client of an accepted connection, without blocking. If too many are being refused, it gets
    no answer. `secured`: does the TLS handshake first."""
    if not _answered.acquire(False):
        connection.close()
        return

    def refuse() -> None:
        try:
            connection.settimeout(_LINGER)
            client = connection if secured is None else secured(connection)
            client.sendall(_REFUSAL)
            hang_up(client)
        except OSError:
            connection.close()
        finally:
            _answered.release()

    try:
        threading.Thread(target=refuse, daemon=True).start()
    except RuntimeError:
        _answered.release()
        connection.close()
