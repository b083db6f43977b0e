"""Writes docs/failure-table.md and the generated tables of other pages: the permissions of programs in
docs/clients-in-jobs.md, and the versions in docs/coming-from-vertex.md. It also generates the diagrams of
docs/lifecycle.md for the site.

Run in the root: `python -m tools.diagrams`. tests/unit/test_lifecycle_docs.py compares the pages with the
tables in the source.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trainshed.access.permissions import PERMISSIONS, PROGRAM
from trainshed.core.catalog.images import list_images, parse_prebuilt
from trainshed.core.failure.messages import Message
from trainshed.core.failure.rules import Action, Match, Rule
from trainshed.core.failure.table import MAX_ATTEMPTS, RULES
from trainshed.core.lifecycle import transition
from trainshed.core.lifecycle.transition import Ignore, Illegal, Next, Table
from trainshed.runtimes.catalog import nearest
from trainshed.runtimes.families import FAMILIES, Minor, format_minor, parse_minor
from trainshed.runtimes.interpreters import Interpreters

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
PREBUILT_IMAGES: Final = "us-docker.pkg.dev/vertex-ai/training/"
TEXTS: Final = Path(__file__).resolve().parent / "pages"
"""The handwritten parts of the pages."""

AnyTable = Table[Any, Any]
_ABOUT: Final[tuple[tuple[AnyTable, str], ...]] = (
    (transition.JOB, "The state of a job in the public APIs."),
    (
        transition.ATTEMPT,
        "The state of the job's current attempt. A job has one attempt at a time. A retry is a new attempt.",
    ),
    (
        transition.REPLICA,
        "One replica within an attempt. It has no final state: a new incarnation may follow a finished "
        "one, and all end with the attempt.",
    ),
)
_SECOND: Final = 10**9


def main() -> None:
    for name, text in pages().items():
        (DOCS / name).write_text(text)


def pages() -> Mapping[str, str]:
    """Return all generated pages by their names in docs/."""
    return {
        "failure-table.md": failure_table(),
        "clients-in-jobs.md": clients_in_jobs(),
        "coming-from-vertex.md": coming_from_vertex(),
    }


def lifecycle() -> str:
    """Return the page about the states of a job, for the site."""
    parts = [(DOCS / "lifecycle.md").read_text()]
    for table, about in _ABOUT:
        parts.append(f"\n## {table.name.capitalize()}\n{about}\n\n{diagram(table)}")
        parts.append(_reasons(table, Ignore, "Ignored triggers"))
        parts.append(_reasons(table, Illegal, "Impossible triggers; one that occurs is a bug in Trainshed"))
    return "".join(parts)


def diagram(table: AnyTable) -> str:
    """Return a mermaid state diagram. Triggers between the same two states share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, trigger), cell in table.cells.items():
        if isinstance(cell, Next):
            arrows.setdefault((state, cell.state), []).append(trigger)
    ways_out = {before for before, _ in arrows}
    lines = ["stateDiagram-v2", f"    [*] --> {table.states[0]}"]
    lines += [
        f"    {before} --> {after}: {', '.join(triggers)}" for (before, after), triggers in arrows.items()
    ]
    lines += [f"    {state} --> [*]" for state in table.states if state not in ways_out]
    return _code_block("mermaid", lines)


def _reasons(table: AnyTable, kind: type[Ignore] | type[Illegal], title: str) -> str:
    """Return the cells of the table with ignored or illegal triggers, by reason, as Markdown. Return ""
    without such cells."""
    result: dict[str, dict[str, list[str]]] = {}
    for (state, trigger), cell in table.cells.items():
        if isinstance(cell, kind):
            result.setdefault(cell.why, {}).setdefault(trigger, []).append(state)
    if not result:
        return ""
    rows = [(_cells(table, by_trigger), why) for why, by_trigger in result.items()]
    return f"\n{title}:\n\n{_table(('trigger and state', 'reason'), rows)}"


def _cells(table: AnyTable, by_trigger: Mapping[str, list[str]]) -> str:
    """Return triggers and their states as text. Triggers with the same states are listed together."""
    by_states: dict[tuple[str, ...], list[str]] = {}
    for trigger, states in by_trigger.items():
        by_states.setdefault(tuple(states), []).append(trigger)
    return "; ".join(
        f"{'any trigger' if len(triggers) == len(table.triggers) else ', '.join(triggers)} in "
        f"{', '.join(states)}"
        for states, triggers in by_states.items()
    )


def failure_table() -> str:
    rows = [
        (
            str(number),
            f"`{rule.name}`",
            _condition_text(rule.match),
            _effect_text(rule),
            str(rule.code or "–"),
            "–" if rule.message is Message.NONE else f"`{rule.message}`",
        )
        for number, rule in enumerate(RULES, 1)
    ]
    table = _table(("", "row", "when", "what happens", "code", "message"), rows)
    text = (TEXTS / "failure-table.md").read_text()
    return text.replace("<!-- the rows -->\n", table).replace("<!-- attempts -->", str(MAX_ATTEMPTS))


def clients_in_jobs() -> str:
    """Return the page with an updated table of the permissions of a program's token."""
    held, verbs = PROGRAM, defaultdict[str, set[str]](set)
    for permission in PERMISSIONS.values():
        resource, _, verb = permission.rpartition(".")
        verbs[resource].add(verb)
    rows = [
        (
            f"`{resource}`",
            ", ".join(sorted(verb for verb in all_verbs if f"{resource}.{verb}" in held)),
            ", ".join(sorted(verb for verb in all_verbs if f"{resource}.{verb}" not in held)),
        )
        for resource, all_verbs in sorted(verbs.items())
    ]
    table = _table(("resource", "allowed for programs", "not allowed for programs"), rows)
    return _with_table("clients-in-jobs.md", "rights", table)


class _EveryPython(Interpreters):
    """A machine that has every Python version that a runtime supports."""

    def usual(self) -> Minor:
        return (3, 11)

    def found(self) -> Sequence[Minor]:
        lows, highs = zip(*(release.pythons for sheet in FAMILIES for release in sheet.releases), strict=True)
        return [(3, minor) for minor in range(min(lows)[1], max(highs)[1] + 1)]


def coming_from_vertex() -> str:
    """Return the page with an updated table of the runtimes that replace prebuilt images."""
    listed = (parse_prebuilt(f"{PREBUILT_IMAGES}{name}") for name in list_images())
    images = [image for image in listed if image is not None]
    rows: list[tuple[str, str, str]] = []
    for sheet in (family for family in FAMILIES if family.framework):
        same: dict[str, None] = {}
        others = defaultdict[str, dict[str, None]](dict)
        for image in (image for image in images if image.framework == sheet.framework):
            python = parse_minor(image.python) or (3, 0)
            taken = nearest(sheet, _EveryPython(), image.version, python, for_gpu=False)
            assert taken is not None
            if taken.is_exactly(image.version, python):
                same[image.version] = None
            else:
                stand_in = f"{taken.release.base} on Python {format_minor(taken.python)}"
                others[stand_in][image.version] = None
        stand_ins = (f"{stand_in} for {', '.join(versions)}" for stand_in, versions in others.items())
        rows.append((sheet.title, ", ".join(same), "; ".join(stand_ins)))
    table = _table(("framework", "the same version and Python", "another version, with a notice"), rows)
    return _with_table("coming-from-vertex.md", "versions", table)


def _with_table(page: str, name: str, table: str) -> str:
    """Replace the table between its marks in a page."""
    marks = re.compile(rf"(?<=<!-- table {name} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    return marks.sub(lambda _: table, (DOCS / page).read_text(), count=1)


def _condition_text(match: Match) -> str:
    causes = ", ".join(f"`{cause}`" for cause in sorted(match.causes))
    parts = [causes]
    if match.exit_codes:
        parts.append(f"exit codes {_numbers(match.exit_codes)}")
    if match.signals:
        parts.append(f"signals {_numbers(match.signals)}")
    if match.primary is not None:
        parts.append("the primary" if match.primary else "not the primary")
    if match.reducer is not None:
        parts.append("a reducer" if match.reducer else "not a reducer")
    return "; ".join(parts)


def _effect_text(rule: Rule) -> str:
    steps: list[str] = []
    if rule.restarts:
        within = f" within {rule.window // _SECOND} s" if rule.window else " in each attempt"
        steps.append(f"the replica is restarted, {rule.restarts} times{within}{_add_spaces(rule)}")
    if rule.retries:
        pauses = ", ".join(str(pause // _SECOND) for pause in rule.back_off)
        after = f" after {pauses} s" if pauses else ""
        room = ", with new capacity" if rule.gives_room else ""
        steps.append(f"the job is retried, {rule.retries} times{after}{room}")
    last = {
        Action.SUCCEED: "the job succeeds",
        Action.DONE: "the job continues without it" if rule.restarts else "the replica is done",
        Action.FAIL: "the job fails",
        Action.WAIT: "the job waits, and no counter changes; with `disableRetries` it fails",
        Action.CANCEL: "the job is cancelled",
    }
    return "; then ".join([*steps, last[rule.action]])


def _add_spaces(rule: Rule) -> str:
    if not any(rule.spacing):
        return ""
    seconds = ", ".join(f"{pause / _SECOND:g}" for pause in rule.spacing)
    return f", no sooner than {seconds} s after its last start"


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(_lines(head, rows))


def _lines(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for cells in (head, ("---",) * len(head), *rows):
        yield f"| {' | '.join(cells)} |\n"


def _code_block(language: str, lines: Iterable[str]) -> str:
    return f"```{language}\n{chr(10).join(lines)}\n```\n"


if __name__ == "__main__":
    main()
