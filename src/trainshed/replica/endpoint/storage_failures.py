"""Notices storage calls of one program that fail repeatedly, and tells people once for each cause.

Single failures are normal, such as a 404 for an object that may not exist; many in a row are not.
"""

import time
from collections.abc import Callable

Note = Callable[[str, str, str], None]


UNTRUSTED = "storage_untrusted"
DENIED = "storage_denied"
NO_BUCKET = "storage_no_bucket"
NOT_FOUND = "storage_not_found"
BROKEN = "storage_broken"
UNREACHABLE = "storage_unreachable"
"""The names of the notes."""

_IN_A_ROW = {NOT_FOUND: 10}
_FEW = 3
_SECONDS = 2.0
"""From the first failure in a row on: what is over sooner, the program says itself."""
_PAUSE = 120.0
"""Seconds after which a failure is the first of a new row."""
_MOST_TEXT = 500
_MESSAGE = rb'"message":\s*"((?:[^"\\]|\\.)*)"|<Message>([^<]*)<'
"""What an answer of the JSON API says, or one of the XML API."""


def ignored(name: str, severity: str, text: str) -> None:
    """Ignore a note."""


class StorageFailures:
    """Counts calls that fail, and tells people of each kind once."""

    __slots__ = ("_clock", "_note", "_rows", "_told")

    def __init__(self, note: Note = ignored, clock: Callable[[], float] = time.monotonic) -> None:
        #: Called with (name, severity, text).
        self._note = note
        #: The clock, in seconds.
        self._clock = clock
        # (count, time of the first, time of the last) by name.
        self._rows: dict[str, tuple[int, float, float]] = {}
        self._told: set[str] = set()

    def answered(self, data: bytes) -> None:
        """Count an answer to the program by its first bytes; data that does not begin one is ignored."""
        if not data.startswith(b"HTTP/1.") or not data[9:12].isdigit():
            return
        status = int(data[9:12])
        if 200 <= status < 400:
            untrusted = self._rows.pop(UNTRUSTED, None)
            self._rows.clear()
            if untrusted is not None:
                # An answer over TLS does not reset this: another client of the same program may trust the
                # certificate.
                self._rows[UNTRUSTED] = untrusted
            return
        import html  # Imported late: every start would wait for them.
        import re

        found = re.search(_MESSAGE, data)
        said = (found.group(1) or found.group(2) or b"").decode("utf-8", "replace") if found else ""
        if found and found.group(2):
            said = html.unescape(said)
        text = "%d%s" % (status, ", " + said[:_MOST_TEXT] if said else "")
        if status in (401, 403):
            self._count(DENIED, "its storage calls are refused again and again: %s" % text)
        elif status == 404 and "bucket does not exist" in said:
            advice = "Correct the name, or make the bucket: gcloud storage buckets create gs://NAME"
            self._count(
                NO_BUCKET, "it asks for a bucket that is not there: %s. %s" % (said, advice)
            )
        elif status == 404:
            self._count(
                NOT_FOUND,
                "it asks again and again for objects that are not there: %s. Whoever waits for a file does "
                "so." % said,
                severity="INFO",
            )
        elif status == 429 or status >= 500:
            self._count(BROKEN, "its storage calls fail again and again: %s" % text)

    def handshake_failed(self, cause: str) -> None:
        """Count a client that broke the handshake off, because it does not trust our certificate."""
        self._count(
            UNTRUSTED,
            "it does not believe the certificate by which this service answers for Google's hosts (%s): "
            "its calls of "
            "gs:// over TLS fail. What brings roots of its own must be told where the service's are: "
            "SSL_CERT_FILE and "
            "CURL_CA_BUNDLE name the file." % cause,
        )

    def unreachable(self, seconds: float) -> None:
        """Note that the bucket process has taken no connection for that many seconds."""
        self._tell(
            UNREACHABLE,
            "WARNING",
            "its storage calls fail: the service's storage has taken no connection for %d seconds. It is "
            "back with the "
            "service: trainshed up" % seconds,
        )

    def _count(self, name: str, text: str, severity: str = "WARNING") -> None:
        now = self._clock()
        number, since, last = self._rows.get(name, (0, now, now))
        if now - last > _PAUSE:
            number, since = 0, now
        self._rows[name] = (number + 1, since, now)
        if number + 1 >= _IN_A_ROW.get(name, _FEW) and now - since >= _SECONDS:
            self._tell(name, severity, text)

    def _tell(self, name: str, severity: str, text: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._note(name, severity, text)
