"""The checks of `trainshed doctor` of where agents reach the service."""

import errno
import ipaddress
import socket

from trainshed.engines.registry import Finding, bad, good, less
from trainshed_cluster.remote.options import Listening


def examine_address(engine: str, callers: str, address: str) -> Finding:
    """Check an engine's setting `address`. `callers`: the word for who calls there, nodes or Pods."""
    about, name = f"address for {callers}", Listening(address).dialled
    remedy = f"Set [engines.{engine}] address to a name or an address at which {callers} reach this machine."
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError as failure:
        text = f"{name} is not known here: {failure.strerror}."
        return less(about, text, cause=f"It may be known to {callers} all the same.", remedy=remedy)
    numbers = ", ".join(sorted(addresses))
    if all(ipaddress.ip_address(number.partition("%")[0]).is_loopback for number in addresses):
        text = (
            f"{name} is this machine's own loopback ({numbers}): {callers} would call themselves."
        )
        cause = "It is what the setting says, or how this machine's own name is resolved here."
        return bad(about, text, cause=cause, remedy=remedy)
    return good(about, f"{name} ({numbers}), as it is resolved here.")


def examine_port(engine: str, callers: str, address: str, port: int) -> Finding:
    """Check an engine's setting `port`."""
    about, host = f"port for {callers}", Listening(address).host
    if not port:
        text = "any free one, the same again after a restart."
        return good(about, text, remedy="Behind a firewall, set one and open it.")
    remedy = f"A service of this configuration that runs has it; else set [engines.{engine}] port to another."
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as failure:
        fault = less if failure.errno == errno.EADDRINUSE else bad
        text = f"{port} on {host} cannot be had."
        return fault(about, text, cause=f"{failure.strerror}.", remedy=remedy)
    return good(about, f"{port} on {host} is free.")
