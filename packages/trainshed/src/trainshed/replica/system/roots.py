"""Lists the files in which Linux distributions store root certificates, and reads such files."""

import os
import stat

PLACE = "/etc/ssl/certs/ca-certificates.crt"
"""Debian's path. Many programs that are built for any system search this path, such as TensorFlow's libcurl.
"""
PLACES = (PLACE, "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem")
_MAX_BYTES = 16 << 20


def text(path: str) -> bytes:
    """Return at most `_MAX_BYTES` of a file of root certificates, or b"" if it is not a regular file. The
    path may be in a container image, which is not trusted."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with open(handle, "rb") as file:
        return file.read(_MAX_BYTES) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
