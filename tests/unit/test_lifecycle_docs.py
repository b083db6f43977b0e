"""Generated pages match the tables, and their examples are valid."""

import re
import tomllib

import pytest
from tools import command_reference, diagrams, site

from trainshed.api.trainshed_v1.transport import METHODS
from trainshed.core.failure.table import RULES, table_with
from trainshed.core.lifecycle import transition


@pytest.mark.parametrize("name", sorted(diagrams.pages()))
def test_generated_documentation_page_is_up_to_date(name: str) -> None:
    """If this test fails after a change of a table, run `./dev docs`."""
    assert (diagrams.DOCS / name).read_text() == diagrams.pages()[name]


def test_generated_pages_contain_every_failure_rule_and_every_transition_reason() -> None:
    """spec/failures#budgets: each row has its cause, effect, budget, code and message."""
    pages = diagrams.pages()
    for rule in RULES:
        assert f"| `{rule.name}` |" in pages["failure-table.md"]
    for table in (transition.JOB, transition.ATTEMPT, transition.REPLICA):
        for cell in table.cells.values():
            assert getattr(cell, "why", "") in diagrams.lifecycle()


def test_failure_rule_examples_in_the_docs_are_valid() -> None:
    examples = re.findall(r"```toml\n(.*?)```", diagrams.pages()["failure-table.md"], re.DOTALL)
    assert len(examples) >= 2
    for example in examples:
        assert table_with(tomllib.loads(example)["failure_rules"]) != RULES


def test_api_reference_lists_every_method_and_record() -> None:
    """The request and the response of each method are records with their own sections."""
    text = site.with_tables("api.md", (diagrams.DOCS / "api.md").read_text())
    methods = re.findall(r"^### (?:GET|POST|PUT|DELETE) ", text, re.MULTILINE)
    assert len(methods) == len(METHODS)
    sections = {name.lower() for name in re.findall(r"^### (\w+)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", text)) <= sections


def test_command_reference_lists_every_command() -> None:
    text = site.with_tables("commands.md", (diagrams.DOCS / "commands.md").read_text())
    sections = set(re.findall(r"^#+ trainshed (.+)$", text, re.MULTILINE))
    assert sections == {" ".join(words) for words, _ in command_reference.commands() if words}
    assert "| `--url" in text.partition("## trainshed")[0]
