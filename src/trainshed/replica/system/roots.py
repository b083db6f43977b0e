"""The places where systems keep root certificates. Runs on Python 3.6."""

import os
import stat

PLACE = "/etc/ssl/certs/ca-certificates.crt"
"""Debian's, which is compiled into much that was built to run on any system: the libcurl within TensorFlow,
say."""
PLACES = (
    PLACE,
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_MOST_BYTES = 16 << 20


def text(path: str) -> bytes:
    """What a file of roots says; b"" if there is none. It may be an image's: anything may lie there."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with open(handle, "rb") as file:
        return file.read(_MOST_BYTES) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
