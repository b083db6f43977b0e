"""A worker's own reducer, where the reducers' bandwidth is too small (hybrid): a child process, ended with
the worker.

The child watches a pipe whose other end only the worker holds; however the worker ends, even by SIGKILL, the
pipe closes.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Callable, Dict, Optional

from trainshed_reduction import proof, variables
from trainshed_reduction.client.lanes import Address
from trainshed_reduction.settings import Settings

_PAUSE = 0.5
"""Seconds between two starts."""


class OwnReducer:
    """Starts it at once. `host`: the worker's address on its way to the reducers. `address`: where it
    listens, always the same. Raises OSError."""

    def __init__(self, host: str, settings: Settings, log: "Callable[[str], None]") -> None:
        self.address: Address = (host, _free_port(host))
        self._settings = settings
        self._log = log
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._again = 0.0
        self.look_after()

    def look_after(self) -> None:
        """To be called every now and then: starts it again when it has died."""
        now = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            self._log(
                "this worker's own reducer ended with {}; it is started again".format(
                    self._process.returncode
                )
            )
            self._end()
        if self._process is None and now >= self._again:
            self._again = now + _PAUSE
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=self._environment(),
            )

    def close(self) -> None:
        self._again = float("inf")
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def _environment(self) -> Dict[str, str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if name == variables.NATIVE or not name.startswith(variables.START)
        }
        package = str(Path(__file__).resolve().parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (package, environment.get("PYTHONPATH", "")))
        )
        environment[variables.LISTEN] = "{}:{}".format(*self.address)
        environment[variables.PROCESSES] = "1"
        settings = self._settings
        environment[variables.TOKEN] = settings.token.decode()
        if settings.is_secured and settings.cert_file:
            environment[variables.CERT_FILE] = settings.cert_file
            environment[variables.KEY_FILE] = settings.key_file
        elif settings.is_secured:
            environment[variables.CERT] = settings.cert
            environment[variables.KEY] = settings.key
        return environment


def nothing_to_show(settings: Settings, tls: Optional[ssl.SSLContext]) -> str:
    """Why the other workers could not believe a reducer of this worker's own, if they believe whom it does
    itself; "" if they could, or all is plain TCP."""
    if tls is None:
        return ""
    if not settings.cert_file and not settings.cert:
        return "no certificate for a reducer of its own ({})".format(variables.CERT_FILE)
    try:
        shown = proof.reducer_tls(
            settings.cert_file, settings.key_file, cert=settings.cert, key=settings.key
        )
        fault = proof.distrust(tls, shown)
    except OSError as error:
        fault = str(error)
    where = settings.cert_file or variables.CERT
    return fault and "a certificate in {} that cannot be used: {}".format(where, fault)


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _end_with_worker() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def main() -> int:
    """The child."""
    from trainshed_reduction.reducer.__main__ import main as reduce

    threading.Thread(target=_end_with_worker, daemon=True).start()
    return reduce()


if __name__ == "__main__":
    sys.exit(main())
