"""Opens the service's listening sockets, or adopts them from systemd, and chooses ports for gRPC."""

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Mapping

from trainshed.httpd.hosts import is_loopback
from trainshed.replica.system.listening import hold_tcp, listen_tcp
from trainshed.serve.activation import ActivationUnusable, PassedSockets
from trainshed.serve.addresses import GrpcPorts
from trainshed.serve.settings import Settings
from trainshed.serve.start_errors import ServiceStartFailed


class SystemdSockets:
    """The listening sockets that systemd holds for the service."""

    def __init__(self, settings: Settings, cleanup: contextlib.ExitStack) -> None:
        """Adopt the listening sockets that systemd passes to the service. Raises ServiceStartFailed if the
        service does not serve one of the sockets."""
        first, host = settings.port, settings.host
        plain, secure = settings.grpc_port or first + 2, settings.grpc_tls_port or first + 3
        try:
            sockets = PassedSockets(os.environ)
            self.rest = sockets.pop(first, host)
            self.grpc = {"plain": sockets.pop(plain, _plain_host(host)), "secure": sockets.pop(secure, host)}
            buckets = {"plain": sockets.pop(first + 1, host), "secure": sockets.pop(first + 4, host)}
            sockets.require_none((first, first + 1, plain, secure, first + 4))
        except ActivationUnusable as failure:
            raise ServiceStartFailed(str(failure)) from failure
        self.buckets = {name: listener for name, listener in buckets.items() if listener}


def _plain_host(host: str) -> str:
    """Return the address of gRPC without TLS. It is always a loopback address, because tokens are sent
    unencrypted."""
    return host if is_loopback(host) else "127.0.0.1"


def open_grpc_ports(
    settings: Settings, cleanup: contextlib.ExitStack, passed: Mapping[str, socket.socket | None]
) -> GrpcPorts:
    """Choose the ports of gRPC, and hold each with a socket, so that no other program uses it before gRPC
    binds its own socket. `passed`: existing sockets from systemd."""
    ports = [
        ("--grpc-port", _plain_host(settings.host), settings.grpc_port, 2),
        ("--grpc-tls-port", settings.host, settings.grpc_tls_port, 3),
    ]
    held = {
        f"--grpc-{'tls-' if name == 'secure' else ''}port": cleanup.enter_context(listener)
        for name, listener in passed.items()
        if listener is not None
    }
    # Open the ports that the user has chosen before default ports, so that a default port cannot occupy a
    # chosen port.
    for option, host, port, distance in sorted(ports, key=lambda port: not port[2]):
        if option not in held:
            holder = open_socket(hold_tcp, host, port or port_near_rest(settings, distance, host), option)
            held[option] = cleanup.enter_context(holder)
    plain, secure = (held[option].getsockname()[:2] for option in ("--grpc-port", "--grpc-tls-port"))
    return GrpcPorts(plain, secure)


def port_near_rest(settings: Settings, distance: int, host: str) -> int:
    """Return the REST port plus `distance`, so that the port is the same at each start. Return 0 if this port
    is in use."""
    port = settings.port + distance
    if not settings.port or port > 65535:
        return 0
    try:
        listen_tcp(host, port).close()
    except OSError:
        return 0
    return port


def open_socket(
    opened: Callable[[str, int], socket.socket], host: str, port: int, option: str
) -> socket.socket:
    try:
        return opened(host, port)
    except OSError as failure:
        advice = (
            f"Stop the program that uses it, or choose another port with {option} (0 = any free port)."
            if failure.errno == errno.EADDRINUSE
            else f"Choose an address of this machine with --host, or another port with {option}."
        )
        cause = str(failure.strerror).partition(" (while")[0]
        raise ServiceStartFailed(
            f"The service cannot listen on {host}:{port}: {cause}. {advice}"
        ) from failure
