"""The pages that are made from the tables are what the tables say, and their examples are taken."""

import re
import tomllib

import pytest
from tools import command_reference, diagrams, site

from trainshed.api.trainshed_v1.transport import METHODS
from trainshed.core.failure.table import RULES, table_with
from trainshed.core.lifecycle import transition


@pytest.mark.parametrize("name", sorted(diagrams.pages()))
def test_a_page_is_what_would_be_made_now(name: str) -> None:
    """After a change of a table: `./dev docs`."""
    assert (diagrams.DOCS / name).read_text() == diagrams.pages()[name]


def test_every_row_and_every_reason_is_on_its_page() -> None:
    """spec/failures#budgets: each row with cause, what happens, budget, code and message."""
    pages = diagrams.pages()
    for rule in RULES:
        assert f"| `{rule.name}` |" in pages["failure-table.md"]
    for table in (transition.JOB, transition.ATTEMPT, transition.REPLICA):
        for cell in table.cells.values():
            assert getattr(cell, "why", "") in diagrams.lifecycle()


def test_the_examples_for_operators_are_taken_as_they_stand() -> None:
    examples = re.findall(r"```toml\n(.*?)```", diagrams.pages()["failure-table.md"], re.DOTALL)
    assert len(examples) >= 2
    for example in examples:
        assert table_with(tomllib.loads(example)["failure_rules"]) != RULES


def test_the_reference_names_every_method_and_its_records() -> None:
    """What a method takes and answers is a record that has a section of its own."""
    text = site.with_tables("api.md", (diagrams.DOCS / "api.md").read_text())
    methods = re.findall(r"^### (?:GET|POST|PUT|DELETE) ", text, re.MULTILINE)
    assert len(methods) == len(METHODS)
    sections = {name.lower() for name in re.findall(r"^### (\w+)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", text)) <= sections


def test_the_reference_has_every_command() -> None:
    text = site.with_tables("commands.md", (diagrams.DOCS / "commands.md").read_text())
    sections = set(re.findall(r"^#+ trainshed (.+)$", text, re.MULTILINE))
    assert sections == {" ".join(words) for words, _ in command_reference.commands() if words}
    assert "| `--url" in text.partition("## trainshed")[0]
