"""The documentation site builds strictly and needs no other machine (docs/adr/0054)."""

import re
from pathlib import Path

from tools import site


def test_site_builds_without_dead_links(tmp_path: Path) -> None:
    """Build all pages (3 CPU seconds), so that dead links and headings fail a test."""
    built = site.build(tmp_path / "site")
    for page in site.pages_in_order():
        html = built / page.replace("README.md", "index.md").replace(".md", ".html")
        text = html.read_text()
        assert "<h1" in text, page
        assert "unpkg.com/iframe" not in text
    assert (built / "docs/images/console.png").is_file()
    assert (built / "examples/notebook/notebook.py").is_file()
    decisions = (built / "docs/adr/index.html").read_text()
    assert len(re.findall(r'href="\d{4}-', decisions)) > 30
    listed = (built / "llms.txt").read_text()
    texts = re.findall(r"^- \[[^]]+\]\(([^)]+)\): \w", listed, re.MULTILINE)
    assert texts == site.pages_in_order()
    assert all((built / text).read_text().startswith("# ") for text in texts)
