"""Keeps secrets out of a program's log: replaces each occurrence before the text is written anywhere.

A secret is found literally, line by line, and in the common forms in which programs print it: as a string of
JSON or Python, percent-encoded, and in base64, even inside a longer base64 text. Secrets in other forms are
not found.
"""

import json

REPLACEMENT = b"***"
"""Text that replaces a secret."""

_MIN_LENGTH = 4
"""Minimum length in characters of the lines of a secret that are searched. Shorter lines occur in too many
other texts."""
_MIN_BASE64 = 6
_UNRESERVED = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_MIN_BEGINNING = 8
"""Minimum length in bytes of a secret's beginning that is masked at the end of the output."""


class Mask:
    """Hides the secrets `texts` in the output of programs. Immutable."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        forms: set[bytes] = set()
        for text in texts:
            forms.update(_forms(text))
        self._forms = sorted(forms, key=len, reverse=True)
        #: Length in bytes of the longest searched form.
        self.longest = len(self._forms[0]) if self._forms else 0

    def apply(self, data: bytes) -> bytes:
        """Return the data without secrets. Line ends are never replaced."""
        there = [form for form in self._forms if form in data]
        if not there:
            return data
        # All forms are searched in the original text, so that no part of overlapping forms remains.
        hits = sorted((at, at + len(form)) for form in there for at in _places(form, data))
        parts: list[bytes] = []
        end = 0
        for begin, until in hits:
            if begin >= end:
                parts += (data[end:begin], REPLACEMENT)
            end = max(end, until)
        return b"".join([*parts, data[end:]])

    def text(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        return self.apply(data).decode("utf-8", "surrogatepass")

    def last(self, data: bytes) -> bytes:
        """Return the last data of an output without secrets. A killed program may have printed only the
        beginning of a secret. So such a beginning at the end of the data is masked as well."""
        data = self.apply(data)
        for form in self._forms:
            for size in range(min(len(form) - 1, len(data)), _MIN_BEGINNING - 1, -1):
                if data.endswith(form[:size]):
                    return data[:-size] + REPLACEMENT
        return data


def _places(form: bytes, data: bytes) -> list[int]:
    """Return all positions of a form, including overlapping ones."""
    places: list[int] = []
    at = data.find(form)
    while at >= 0:
        places.append(at)
        at = data.find(form, at + 1)
    return places


def _forms(text: str) -> set[bytes]:
    whole = {text, text.strip()}
    lines = {line.strip() for line in text.replace("\r", "\n").split("\n")}
    forms = whole | lines
    for text_form in forms.copy():
        # Also search for each text as it appears inside the quotes of JSON and Python strings.
        shown = json.dumps(text_form), json.dumps(text_form, ensure_ascii=False), repr(text_form)
        forms.update(quoted[1:-1] for quoted in shown)
    for text_form in whole:
        data = text_form.encode("utf-8")
        forms |= {_percent_encode(data, b""), _percent_encode(data, b"/")}
        forms.add(_percent_encode(data, b" ").replace(" ", "+"))
        forms |= _in_base64(data)
    return {
        form.encode("utf-8")
        for form in forms
        if len(form) >= _MIN_LENGTH and "\n" not in form and "\r" not in form
    }


def _percent_encode(data: bytes, kept: bytes) -> str:
    """Percent-encode bytes as in a URL, except for unreserved characters and the bytes in `kept`. Used
    because importing `urllib.parse` would slow down every fork of a shim."""
    return "".join([chr(byte) if byte in _UNRESERVED or byte in kept else "%%%02X" % byte for byte in data])


def _in_base64(data: bytes) -> set[str]:
    """Return the texts that occur in every base64 encoding of data that contains these bytes. The texts
    differ by the offset of the bytes (three cases), by the end of the data, and by the alphabet."""
    import binascii  # Imported late: an early import would delay every start.

    forms: set[str] = set()
    for before in range(3):
        # A base64 character has six bits. Omit the characters that also encode neighboring bytes, because
        # these bytes are unknown.
        text = binascii.b2a_base64(bytes(before) + data).decode("ascii").strip()[-(-before * 8 // 6) :]
        unpadded = text.rstrip("=")
        rest = (before + len(data)) % 3
        for form in (text, unpadded, unpadded[:-1] if rest else unpadded):
            if len(form) >= _MIN_BASE64:
                forms |= {form, form.replace("+", "-").replace("/", "_")}
    return forms
