"""How commands print: text or tables for people, JSON or YAML for programs; what they changed as one list.

Also ends a command whose output nobody reads any more.
"""

import contextlib
import functools
import json
import os
import re
import select
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from types import FrameType
from typing import Any, TypeVar, cast

import click

_YAML = "trainshed.yaml"


def output_format(first: str, help_text: str, *, default: str = "") -> Callable[[Any], Any]:
    """Return a decorator that adds --format to a command and passes it `form`: `first` or "json". For YAML
    `form` is "json" as well, and `print_data` prints YAML. `first`: "text" or "table"; the other of the two
    is accepted for it. `default`: the option's default; "" = `first`."""

    def chosen(context: click.Context, _: click.Parameter, value: str) -> str:
        context.meta[_YAML] = value == "yaml"
        return "json" if value in ("json", "yaml") else first

    other = "text" if first == "table" else "table"
    return click.option(
        "--format",
        "form",
        type=_Form([first, "json", "yaml", other]),
        metavar=f"[{first}|json|yaml]",
        default=default or first,
        show_default=True,
        callback=chosen,
        help=help_text,
    )


class _Form(click.Choice[str]):
    """A choice whose last value is another word for the first."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the message, which names each form once."""
        *names, _ = self.choices
        return f"{value!r} is not one of {', '.join(names)}."


takes_form = output_format("table", "Output as a table, or as JSON or YAML for programs.")
"""Decorator of a command that takes `form`: "table" or "json"."""


def print_data(value: Any, *, stream: bool = False) -> None:
    """Print a value as JSON or YAML, as the --format of this command says. `stream`: the value is one of
    many, each a line of JSON or a document of YAML."""
    if click.get_current_context().meta.get(_YAML):
        click.echo(f"---\n{yaml_text(value)}" if stream else yaml_text(value))
        return
    click.echo(json.dumps(value, indent=None if stream else 2))


def terminal_width() -> int | None:
    """Return the characters of a line of the terminal; None if standard output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*")
_RESERVED = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"})


def yaml_text(value: Any) -> str:
    """Return a value as a YAML document, without a line end at its end."""
    return "\n".join(_lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in cast(dict[str, Any], value).items():
            yield from _entry(f"{_scalar(key)}:", inner)
    elif isinstance(value, list) and value:
        for item in cast(list[Any], value):
            first, *more = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in more)
    else:
        yield _scalar(value)


def _entry(head: str, value: Any) -> Iterator[str]:
    if isinstance(value, (dict, list)) and value:
        yield head
        inset = "" if isinstance(value, list) else "  "
        yield from (inset + line for line in _lines(value))
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
        return value if plain else _quoted(value)
    return json.dumps(value)


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


R = TypeVar("R")


class Actions:
    """What a command has done so far. Sentences are printed at once, the list at the end of the command."""

    def __init__(self, *, as_data: bool) -> None:
        #: True if the list was asked for, by --format json or yaml.
        self.as_data = as_data
        self._done: list[dict[str, Any]] = []

    def did(
        self,
        kind: str,
        name: str,
        outcome: str,
        sentence: str = "",
        *,
        record: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
        why: str = "",
    ) -> None:
        """Report one thing that was done. `kind`: what it was done to, such as "job". `name`: its id.
        `outcome`: what became of it, such as "deleted". `sentence`: for people; "" = none. `record`: its
        state now, or a function that returns it, which is called only for the list. `why`: why the outcome is
        not the one that was asked for."""
        if not self.as_data:
            if sentence:
                click.echo(sentence)
            return
        done: dict[str, Any] = {"kind": kind, "id": name, "outcome": outcome}
        if why:
            done["why"] = why
        if record is not None:
            done["record"] = dict(record() if callable(record) else record)
        self._done.append(done)

    def say(self, sentence: str = "") -> None:
        """Print something else. If the list was asked for, it goes to standard error."""
        click.echo(sentence, err=self.as_data)

    def close(self, *, failed: bool) -> None:
        """Print the list if it was asked for. `failed`: do not print an empty one, which would mean that
        there was nothing to do."""
        if self.as_data and (self._done or not failed):
            print_data(self._done)


def takes_actions(command: Callable[..., R]) -> Callable[..., R]:
    """Add --format to a command that changes something, and pass it `actions` for its output. What was done
    before an error is printed too."""

    @output_format("text", "Output as text, or a list of what was done as JSON or YAML.")
    @functools.wraps(command)
    def telling(*args: Any, form: str, **options: Any) -> R:
        actions = Actions(as_data=form == "json")
        try:
            result = command(*args, actions=actions, **options)
        except BaseException:
            actions.close(failed=True)
            raise
        actions.close(failed=False)
        return result

    return telling


READER_LEFT = 128 + signal.SIGPIPE
"""The exit status, the same that a shell reports of a command that SIGPIPE ended."""
_STDOUT = 1


def reader_has_left() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    looked = select.poll()
    looked.register(_STDOUT, 0)
    return any(event & select.POLLERR for _, event in looked.poll(0))


@contextlib.contextmanager
def until_reader_leaves() -> Generator[None]:
    """Raise SystemExit in the main thread as soon as the reader of standard output is gone. Does nothing if
    standard output is no pipe or socket, or if entered in another thread."""
    in_main = threading.current_thread() is threading.main_thread()
    if not (in_main and _is_pipe()):
        yield
        return
    before = signal.signal(signal.SIGPIPE, _leave)
    done, end = os.pipe()
    watcher = threading.Thread(target=_watch, args=(done,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.close(end)
        watcher.join()
        os.close(done)
        signal.signal(signal.SIGPIPE, before)


def _watch(done: int) -> None:
    """Interrupt the main thread when the reader has left, unless the other end of `done` is closed first."""
    looked = select.poll()
    # No event is requested: errors and hang-ups are always reported.
    looked.register(_STDOUT, 0)
    looked.register(done, 0)
    if all(descriptor == _STDOUT for descriptor, _ in looked.poll()):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGPIPE)


def _leave(_: int, __: FrameType | None) -> None:
    # The signal also comes when a connection to the service was closed.
    if reader_has_left():
        # When Python ends, it flushes buffers to standard output, which would fail.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDOUT)
        os.close(nowhere)
        raise SystemExit(READER_LEFT)


def _is_pipe() -> bool:
    try:
        mode = os.fstat(_STDOUT).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
