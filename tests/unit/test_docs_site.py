"""The order of the site's pages holds all of them (docs/adr/0054)."""

from pathlib import Path

from tools import site

ROOT = Path(__file__).parents[2]


def test_every_page_has_its_place() -> None:
    """Decisions are listed on a page of their own."""
    pages = site.pages_in_order()
    there = {
        str(page.relative_to(ROOT))
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        if page.parent.name != "adr" or page.name == "README.md"
    }
    assert len(pages) == len(set(pages))
    assert set(pages) == there


def test_state_diagrams_are_tables_which_need_no_library() -> None:
    page = site.diagrams_as_tables(site.with_tables("lifecycle.md", ""))
    assert "mermaid" not in page and "-->" not in page
    assert "| *beginning* | QUEUED |  |" in page
    assert "| PREPARING | RUNNING | all up |" in page
    assert "| FAILED | *end* |  |" in page
