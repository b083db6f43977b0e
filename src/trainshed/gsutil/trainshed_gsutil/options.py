"""Parses the command line: options before the command, the command, its own options and arguments. Pure."""

import getopt
from typing import NamedTuple

from trainshed_gsutil.errors import CommandFailure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

_BEFORE = "dDvo:h:i:u:mqs:"
_LONG_BEFORE = [
    "debug",
    "detailedDebug",
    "version",
    "help",
    "option=",
    "header=",
    "quiet",
    "multithreaded",
    "impersonate-service-account=",
    "trace-token=",
    "perf-trace-token=",
    "stet",
]


class Asked(NamedTuple):
    """A parsed command line."""

    command: str
    arguments: "tuple[str, ...]"
    #: The headers of -h; names in lower case.
    headers: "dict[str, str]"
    #: The settings of -o, by `Section:name`.
    settings: "dict[str, str]"
    #: The project of -u.
    project: str = ""
    parallel: bool = False
    quiet: bool = False


class Options:
    """The options of one command: flags, and those with values."""

    def __init__(self, pairs: "Sequence[tuple[str, str]]") -> None:
        self._pairs = tuple((name.lstrip("-"), value) for name, value in pairs)

    def has(self, *names: str) -> bool:
        return any(name in names for name, _ in self._pairs)

    def value(self, name: str) -> str:
        """The last value of an option; "" if it was not given."""
        found = self.values(name)
        return found[-1] if found else ""

    def values(self, name: str) -> "list[str]":
        return [value for each, value in self._pairs if each == name]


def split(argv: "Sequence[str]") -> Asked:
    """Parse a command line. Raises CommandFailure."""
    pairs, rest = _parsed(list(argv), _BEFORE, _LONG_BEFORE)
    options = Options(pairs)
    headers: "dict[str, str]" = {}
    for text in options.values("h") + options.values("header"):
        name, colon, value = text.partition(":")
        if not colon:
            raise CommandFailure(
                'Incorrect header config: "%s". Write it as -h "Name:value".' % text
            )
        headers[name.strip().lower()] = value.strip()
    settings: "dict[str, str]" = {}
    for text in options.values("o") + options.values("option"):
        name, _, value = text.partition("=")
        settings[name.strip()] = value.strip()
    command, arguments = (rest[0], rest[1:]) if rest else ("help", [])
    if options.has("help"):
        command, arguments = "help", rest
    elif options.has("v", "version"):
        command, arguments = "version", []
    return Asked(
        command,
        tuple(arguments),
        headers,
        settings,
        options.value("u") or settings.get("GSUtil:default_project_id", ""),
        options.has("m", "multithreaded"),
        options.has("q", "quiet"),
    )


def of_command(
    command: str, arguments: "Sequence[str]", known: str, known_long: "Sequence[str]" = ()
) -> "tuple[Options, list[str]]":
    """Returns the options of a command and the arguments behind them. `known`: the letters in getopt's form.
    Raises CommandFailure."""
    try:
        pairs, rest = getopt.getopt(list(arguments), known, list(known_long))
    except getopt.GetoptError as error:
        raise CommandFailure(
            'Incorrect option(s) specified (%s). Known options of "%s": %s'
            % (error, command, " ".join("-" + letter for letter in known if letter != ":"))
        ) from None
    return Options(pairs), rest


def _parsed(
    argv: "list[str]", known: str, known_long: "list[str]"
) -> "tuple[list[tuple[str, str]], list[str]]":
    try:
        return getopt.getopt(argv, known, known_long)
    except getopt.GetoptError as error:
        raise CommandFailure(f"Incorrect option(s) specified: {error}.") from None
