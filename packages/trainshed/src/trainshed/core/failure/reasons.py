"""Describes the end of a program in one sentence, from its status and the last lines of its log. Pure.

Programs report errors in many forms: the last line of a Python traceback, an error of a shell, of a C++
runtime or of another language. A launcher's report about the failure of its child follows the child's own
error.
"""

import re
import signal
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

MAX_CHARS: Final = 300
"""Maximum number of characters of a reason."""
_ABOVE: Final = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_PREFIX: Final = re.compile(
    r"(?:\x1b\[[0-9;]*m"
    r"|\[rank ?\d+\]:? ?"
    r"|\d{4}-\d\d-\d\d[T ][\d:.,]+Z? ?(?:[-|] )?"
    r"|\((?:\w+ )?pid=\d+[^)]*\) "
    r"| *[|+] )+"
)
"""Prefixes of log lines: colors, a rank, a time, a Ray process, the frame of an exception group."""
_GOES_ON: Final = re.compile(r"(?::|validation errors? for \S+)$")
"""Matches the end of a line if its error text continues on the next lines."""
_TRACEBACK: Final = "Traceback (most recent call last):"
_EXCEPTION_NAME: Final = re.compile(
    r"(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Exited|Expired|Timeout|NotFound)\b(?:: .*)?"
)
"""Matches a Python exception without a traceback before it."""
_WRAPS: Final = re.compile(
    r"ChildFailedError|CalledProcessError|BrokenProcessPool|Process(?:Raised|Exited)Exception|RayTaskError"
    r"|DataLoader worker \(pid|Connection (?:reset|closed) by peer|SystemExit|MaybeEncodingError|NCCL"
)
"""Errors that report the failure of another process, which may have printed the actual reason."""
_OTHERS: Final = re.compile(
    r"what\(\):|Exception in thread|^panic: |panicked at|^Error in |^ERROR: LoadError"
    r"|(?i:\b(?:error|fatal|failed|failure|denied|refused|cannot|can't|unable|invalid|missing|unbound|no such"
    r"|not found|not permitted|could not|unhandled|out of memory|no space left|enospc|too many"
    r"|timed? ?out|unrecognized|corrupt\w*|exceeded|stack smashing|mismatch|unsupported|expired|unknown)\b)"
)
"""Errors of programs in other languages and of shells."""
_WEAK: Final = re.compile(
    r"(?i)(?:\d+ (?:error|warning)s?|0 failed|execution halted|.*core dumped\)?|make\S*: \*\*\* "
    r"|npm \S+ a complete log|.*failed \(exitcode: )"
)
"""Error lines that contain no useful information."""
_ROOT_CAUSE: Final = re.compile(
    r"\S*ChildFailedError:\n(?>(?s:.*)Root Cause)(?>[^=]*?\brank +: (\d+))(?>[^=]*?exitcode +: (\S+))"
)
"""torchrun's report about the first failed process, which follows torchrun's own error."""
_SIGNALS: Final = {
    signal.SIGABRT: "it aborted itself",
    signal.SIGSEGV: "a segmentation fault in native code",
    signal.SIGBUS: (
        "a bus error: memory is not available, for example because /dev/shm or a mapped file is full"
    ),
    signal.SIGFPE: "an arithmetic error in native code, such as a division by zero",
    signal.SIGILL: "an instruction that this processor does not have",
    signal.SIGKILL: "it was killed",
    signal.SIGPIPE: "it wrote to a pipe without a reader",
    signal.SIGINT: "it was interrupted",
    signal.SIGTERM: "it received a request to terminate",
    signal.SIGSYS: "a system call that is not allowed",
    signal.SIGXCPU: "it reached its limit of processor time",
    signal.SIGXFSZ: "it reached its limit of file size",
}
_STATUSES: Final = {
    2: "Programs often use this status for wrong arguments",
    126: (
        "The command exists but cannot be run: it may not be executable, or be built for another processor"
    ),
    127: "The command does not exist",
}


class _Said(Struct, frozen=True):
    """An error that was found in the lines of a log."""

    text: str
    #: Whether a preceding line states that the previous error caused this error.
    follows: bool = False


def reason(lines: Sequence[str], *, status: int, number: int | None, child_oom: int = 0) -> str:
    """Return the cause of a program's end.

    `lines`: the last lines of its log. `status`: the published exit status. `number`: the signal that ended
    the program, or None. `child_oom`: the number of its processes that were killed at the memory limit.
    """
    plain = [line[prefix.end() :] if (prefix := _PREFIX.match(line)) else line for line in lines]
    error_text = _find_error([line.rstrip() for line in plain])
    if child_oom:
        return _cut(f"One of its child processes was killed at the memory limit; then: {error_text}")
    ending = _signal(number if number is not None else status - 128)
    if error_text and (number is None or ending == ""):
        return _cut(error_text)
    if ending:
        return _cut(f"{ending}; its error: {error_text}" if error_text else f"{ending}.")
    meaning = f"{_STATUSES[status]}. " if status in _STATUSES else ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    output = f"its last output is: {last}" if last else "it printed nothing"
    return _cut(f"{meaning}It ended with status {status}, and {output}")


def _find_error(lines: Sequence[str]) -> str:
    """Return the error that ended the program, according to its last lines, or "" if no error is found."""
    errors = list(_exceptions(lines))
    if not errors:
        return _last_error_line(lines)
    last = errors[-1]
    first = last
    for index in range(len(errors) - 1, 0, -1):
        if not (errors[index].follows or _WRAPS.search(errors[index].text)):
            break
        first = errors[index - 1]
    if last is first and _WRAPS.search(last.text):
        # The error only reports the failure of another process. Add the last error line before the report,
        # because the other process may have printed its own error in any form.
        before = lines[: next(at for at, line in enumerate(lines) if line and last.text.startswith(line))]
        cause = _last_error_line(before)
        return f"{last.text}, after: {cause}" if cause else last.text
    return last.text if first.text == last.text else f"{first.text}, and then: {last.text}"


def _exceptions(lines: Sequence[str]) -> Iterator[_Said]:
    """Yield the Python exceptions in the lines."""
    inside = follows = False
    for index, line in enumerate(lines):
        if line.endswith(_TRACEBACK):
            inside = True
        elif line in _ABOVE:
            follows = True
        elif line and not line.startswith(" ") and (inside or _EXCEPTION_NAME.fullmatch(line)):
            yield _Said(_with_more(lines, index), follows)
            inside = follows = False


def _last_error_line(lines: Sequence[str]) -> str:
    """Return the last line that reports an error, or "" if no line does."""
    for index in range(len(lines) - 1, -1, -1):
        text = lines[index].strip()
        if _OTHERS.search(text) and not _WEAK.match(text):
            return _with_more(lines, index)
    return ""


def _with_more(lines: Sequence[str], index: int) -> str:
    """Return a line together with the following lines of the same error."""
    text, behind = lines[index].strip(), [line.strip() for line in lines[index + 1 : index + 3]]
    if root := _ROOT_CAUSE.match("\n".join(lines[index:])):
        return f"{text} rank {root[1]} ended with status {root[2]}"
    if behind and (_GOES_ON.search(text) or behind[0].startswith(": ")):
        return " ".join(filter(None, (text, *behind)))
    return text


def _signal(number: int) -> str:
    """Return a text about the signal with this number, or "" if no signal has this number."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return ""
    meaning = _SIGNALS.get(signal.Signals(number), "")
    return f"It was terminated by {name}" + (f", {meaning}" if meaning else "")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 3] + "..."
