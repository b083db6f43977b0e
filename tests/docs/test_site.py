"""The site of the documentation builds strictly, and needs no other machine (docs/adr/0081)."""

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
    assert len(re.findall(r'href="\d{4}-', decisions)) > 60


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[away](gone.md)", "[away](gone.md)"),
        ("[no such heading](docs/run.md#nowhere)", "[no such heading](docs/run.md#nowhere)"),
        ('<img src="https://example.com/x.png">', 'index.html: <img src="https://'),
    ],
)
def test_a_page_that_leads_nowhere_ends_the_build(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "docs/adr").mkdir(parents=True)
    (checkout / "docs/run.md").write_text("# A\n")
    (checkout / "docs/zensical.toml").write_text(_NAVIGATION)
    (checkout / "README.md").write_text(f"# Test\n\n{text}\n")
    monkeypatch.setattr(site, "ROOT", checkout)
    monkeypatch.setattr(site, "CONFIG", checkout / "docs/zensical.toml")
    with pytest.raises(site.SiteError) as caught:
        site.build(tmp_path / "built")
    assert said in str(caught.value)
