"""The site of the documentation builds strictly, and needs no other machine (docs/adr/0054)."""

import re
from pathlib import Path

import pytest
from tools import site

_NAVIGATION = '[project]\nsite_name = "Test"\ndocs_dir = "pages"\nsite_dir = "html"\n'


def test_the_site_of_this_checkout_builds(tmp_path: Path) -> None:
    """Costs 3 CPU seconds: all pages, so that a dead link or heading is found before it is read."""
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


@pytest.mark.parametrize("link", ["gone.md", "docs/run.md#nowhere"])
def test_a_link_that_leads_nowhere_ends_the_build(
    link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "docs").mkdir(parents=True)
    (checkout / "docs/run.md").write_text("# Run\n")
    (checkout / "docs/zensical.toml").write_text(_NAVIGATION)
    (checkout / "README.md").write_text(f"# Test\n\n[a link]({link})\n")
    monkeypatch.setattr(site, "ROOT", checkout)
    monkeypatch.setattr(site, "CONFIG", checkout / "docs/zensical.toml")
    with pytest.raises(site.SiteError) as caught:
        site.build(tmp_path / "built")
    assert f"[a link]({link})" in str(caught.value)


@pytest.mark.parametrize(
    "tag",
    [
        '<img alt="" src="https://example.com/x.png">',
        "<script async src=//example.com/x.js></script>",
        '<link rel="stylesheet" href="https://example.com/x.css">',
    ],
)
def test_what_a_page_would_load_from_elsewhere_is_found(tag: str, tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text(f'<a href="https://example.com/">fine</a>{tag}')
    (found,) = site.loads_from_elsewhere(tmp_path)
    assert found.startswith("x.html: <")
