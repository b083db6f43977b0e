"""Prints results to standard output and everything else to standard error, in whole lines."""

import sys
import threading


class Output:
    """The output of one command. `quiet`: prints only results and errors."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._lock = threading.Lock()

    def result(self, text: str, end: str = "\n") -> None:
        # The locale of an old Python may not be able to encode a name.
        data = (text + end).encode("utf-8", "surrogateescape")
        with self._lock:
            sys.stdout.buffer.write(data)

    def detail(self, text: str) -> None:
        """Print a result that -q leaves out, since scripts then only look at the exit status."""
        if not self._quiet:
            self.result(text)

    def content(self, data: bytes) -> None:
        """Write bytes of objects."""
        sys.stdout.buffer.write(data)

    def note(self, text: str) -> None:
        """Print progress, which -q leaves out."""
        if not self._quiet:
            self.error(text)

    def error(self, text: str) -> None:
        with self._lock:
            sys.stdout.flush()
            sys.stderr.buffer.write((text + "\n").encode("utf-8", "surrogateescape"))
            sys.stderr.flush()
