"""What is said: results on standard output, everything about what is going on on standard error, whole lines
at a time."""

import sys
import threading


class Output:
    """`quiet`: only results and what went wrong."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._lock = threading.Lock()

    def result(self, text: str, end: str = "\n") -> None:
        # Names may hold what the locale of an old Python cannot say.
        data = (text + end).encode("utf-8", "surrogateescape")
        with self._lock:
            sys.stdout.buffer.write(data)

    def detail(self, text: str) -> None:
        """A result that -q leaves out: scripts look at the exit status alone."""
        if not self._quiet:
            self.result(text)

    def content(self, data: bytes) -> None:
        """Bytes of objects."""
        sys.stdout.buffer.write(data)

    def note(self, text: str) -> None:
        """Progress, which -q leaves out."""
        if not self._quiet:
            self.error(text)

    def error(self, text: str) -> None:
        with self._lock:
            sys.stdout.flush()
            sys.stderr.buffer.write((text + "\n").encode("utf-8", "surrogateescape"))
            sys.stderr.flush()
