"""Provides the part of `json` that is used here, without the modules that `json` loads (`re`, `enum` and
their own), because starts on other machines wait for those (docs/adr/0109). Values and texts are the same.
Runs on Python 3.6."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from json import dumps, loads
    from json.encoder import encode_basestring
else:
    try:
        from _json import encode_basestring, encode_basestring_ascii, make_encoder, make_scanner
    except ImportError:  # Not CPython.
        from json import dumps, loads
        from json.encoder import encode_basestring
    else:
        _SPACE = " \t\n\r"

        class _Reading:
            """The settings that the scanner reads: those of `json.loads` without arguments."""

            strict = True
            object_hook = object_pairs_hook = None
            parse_float, parse_int = float, int
            parse_constant = {name: float(name) for name in ("-Infinity", "Infinity", "NaN")}.get

        _scan = make_scanner(_Reading)

        def loads(text):
            """Parse a text as `json.loads` does. Raises ValueError."""
            begin = len(text) - len(text.lstrip(_SPACE))
            try:
                value, end = _scan(text, begin)
            # To report where, the scanner loads the module of its exception, which a guardian cannot do from
            # within its view; before Python 3.12 it does not even try, and reports that it has none.
            except (StopIteration, ImportError, SystemError):
                raise ValueError("no JSON: %r" % text[:80]) from None
            if text[end:].strip(_SPACE):
                raise ValueError("more than one JSON value: %r" % text[end : end + 80])
            return value

        def _refuse(value):
            raise TypeError("Object of type %s is not JSON serializable" % type(value).__name__)

        def dumps(value, *, ensure_ascii=True):
            """Return a value as JSON text, as `json.dumps` does."""
            text = encode_basestring_ascii if ensure_ascii else encode_basestring
            write = make_encoder({}, _refuse, text, None, ": ", ", ", False, False, True)
            return "".join(write(value, 0))


__all__ = ["dumps", "encode_basestring", "loads"]
