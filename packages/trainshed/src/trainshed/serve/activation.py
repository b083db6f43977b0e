"""Adopts listening sockets from systemd (`LISTEN_FDS`, sd_listen_fds(3)). While the service is down, systemd
keeps the sockets open, so that callers wait for the next service."""

import os
import socket
from collections.abc import MutableMapping, Sequence
from typing import Final

from trainshed.httpd.hosts import is_loopback

_FIRST: Final = 3
"""The first file descriptor that systemd passes."""


class ActivationUnusable(Exception):
    """A socket from systemd is unusable. The message contains the cause and the fix."""


class PassedSockets:
    """The listening TCP sockets that systemd has passed to this process, by port, until the service uses
    them."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Remove systemd's variables from `environ`, so that no child process uses them. Raises
        ActivationUnusable."""
        process, count = (environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS"))
        environ.pop("LISTEN_FDNAMES", None)
        self._sockets: dict[int, socket.socket] = {}
        is_ours = process == str(os.getpid()) and count.isdigit()
        for handle in range(_FIRST, _FIRST + int(count)) if is_ours else ():
            try:
                listener = socket.socket(fileno=handle)
                listener.set_inheritable(False)
                listener.setblocking(False)
                if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    raise OSError("the socket does not listen")
                port = int(listener.getsockname()[1])
                if port in self._sockets:
                    raise OSError(f"another descriptor already listens on port {port}")
                self._sockets[port] = listener
            except (OSError, ValueError) as failure:
                raise ActivationUnusable(
                    f"Descriptor {handle} of LISTEN_FDS={count} is not a usable listening TCP socket "
                    f"({failure}). Use ListenStream= with ports, and Accept=no, in trainshed.socket."
                ) from None

    def pop(self, port: int, host: str) -> socket.socket | None:
        """Remove and return the socket that systemd passed for this port; None = systemd passed no socket for
        it. `host`: the address on which the service listens according to its settings.
        Raises ActivationUnusable if other machines could reach a port that only this machine may use."""
        listener = self._sockets.pop(port, None)
        here = str(listener.getsockname()[0]).removeprefix("::ffff:") if listener else host
        if is_loopback(host) and not is_loopback(here):
            raise ActivationUnusable(
                f"systemd listens on port {port} of {here}, which other machines can reach, but the "
                f"service serves this port on {host} only. In trainshed.socket write "
                f"ListenStream=127.0.0.1:{port}, or change the setting host."
            )
        return listener

    def require_none(self, ports: Sequence[int]) -> None:
        """Raise ActivationUnusable if a passed socket is unused, because its callers would wait forever.
        `ports`: all ports of the service."""
        if left := sorted(self._sockets):
            raise ActivationUnusable(
                f"systemd listens on {', '.join(map(str, left))}, which no setting uses. The service has "
                f"the ports {', '.join(map(str, ports))}. Change ListenStream= in trainshed.socket, or the "
                "settings port, grpc_port and grpc_tls_port."
            )
