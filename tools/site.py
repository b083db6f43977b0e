"""Builds the site of the documentation in build/site/html: `python -m tools.site` (./dev docs-site).

The pages are those of the checkout with what is made for the site alone: the references of commands and of
our own API, from their definitions, and the tables of the last `./dev bench`, where build/bench has some. The
files beside docs/ that pages link to are copied along. Beside each page lies its text, and `llms.txt` lists
them (llmstxt.org). The build is strict, so a dead link or heading ends it, and so does anything that a page
would load from another machine. Its name has the version; a release keeps it in a folder of that name, so
that the sites of several versions lie beside each other.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, cast

from tools import api_reference, command_reference, diagrams, roles_reference

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "build/site"
CONFIG: Final = ROOT / "docs/zensical.toml"
VERSION: Final = version("trainshed")

_CODE: Final = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\]\(([^)\s#]+)")
_LINKED: Final = re.compile(r"\[([^]]+)\]\([^)]+\)")
_DIRECTORY: Final = re.compile(r"(\]\((?!\w+:)[^)\s]*/)\)")
#: A shim with which pages that are opened as files search by a worker; a server needs none.
_SHIM: Final = re.compile(r'<script src="https://unpkg\.com/iframe-worker/shim"[^>]*></script>')
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_LOADED: Final = re.compile(
    r"""<(?:script|img|iframe|source|link(?=[^>]*stylesheet))[^>]*\s(?:src|href)=["']?(?:https?:)?//"""
)


_DIAGRAM: Final = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ARROW: Final = re.compile(r"^ *(\S+) --> (\S+)(?:: (.+))?$", re.MULTILINE)


class SiteError(Exception):
    """What is wrong with the pages, as the build says it."""


def main() -> None:
    """Build, and say where it is or what is wrong."""
    try:
        site = build(TARGET)
    except SiteError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{site}/index.html; to search in it: python3 -m http.server -d {site}\n")


def build(target: Path) -> Path:
    """The site's directory, below `target`, whose former contents go. Raises SiteError."""
    shutil.rmtree(target, ignore_errors=True)
    stage(target / "pages")
    about = CONFIG.read_text().replace('name = "Trainshed"', f'name = "Trainshed {VERSION}"', 1)
    (target / CONFIG.name).write_text(about)
    run = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=target,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        raise SiteError(_COLOUR.sub("", run.stdout).partition("Traceback (most recent")[0])
    site = target / "html"
    for page in site.rglob("*.html"):
        page.write_text(_SHIM.sub("", page.read_text()))
    add_texts(target / "pages", site)
    if loads := sorted(loads_from_elsewhere(site)):
        raise SiteError("These load something from another machine:\n" + "\n".join(loads))
    return site


def stage(pages: Path) -> None:
    """Put the pages and what they link to into `pages`, where they lie as in the checkout."""
    shutil.copytree(ROOT / "docs", pages / "docs", ignore=shutil.ignore_patterns(CONFIG.name))
    shutil.copy(ROOT / "README.md", pages)
    for page in sorted(pages.rglob("*.md")):
        name = page.relative_to(pages).as_posix().removeprefix("docs/")
        text = with_tables(name, page.read_text())
        for linked in _linked(page.relative_to(pages), text):
            (pages / linked).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / linked, pages / linked)
        # A browser that reads files shows a list of files for a directory.
        page.write_text(diagrams_as_tables(_DIRECTORY.sub(r"\1README.md)", text)))


def add_texts(pages: Path, site: Path) -> None:
    """Put the text of each page beside it, and a list of them for programs that read."""
    lines: list[str] = []
    for page in pages_in_order():
        text = (pages / page).read_text()
        shutil.copy(pages / page, site / page)
        title, _, rest = text.removeprefix("# ").partition("\n")
        first = next((line for line in rest.splitlines() if line[:1].isalpha()), title)
        plain = _LINKED.sub(r"\1", first)
        lines.append(f"- [{title}]({page}): {plain}")
    about = tomllib.loads(CONFIG.read_text())["project"]
    head = f"# {about['site_name']} {VERSION}\n\n> {about['site_description']}\n\n## Pages\n\n"
    (site / "llms.txt").write_text(head + "\n".join(lines) + "\n")


def with_tables(name: str, text: str) -> str:
    """A page with the tables that are made for the site."""
    match name:
        case "commands.md":
            return command_reference.page(text)
        case "lifecycle.md":
            return diagrams.lifecycle()
        case "api.md":
            return api_reference.page(text)
        case "team.md":
            return roles_reference.page(text)
        case "benchmarks.md":
            measured = sorted((ROOT / "build/bench").glob("*.md"))
            return "\n".join([text, *(table.read_text() for table in measured)])
        case _:
            return text


def diagrams_as_tables(text: str) -> str:
    """A page with a table in place of each state diagram. What draws them in a browser is a library of
    megabytes that would be loaded from elsewhere; on code hosts they are drawn."""

    def table(match: re.Match[str]) -> str:
        lines = ["| state | becomes | when |", "|---|---|---|"]
        for before, after, when in _ARROW.findall(match[1]):
            names = (
                "*beginning*" if before == "[*]" else before,
                "*end*" if after == "[*]" else after,
            )
            lines.append(f"| {names[0]} | {names[1]} | {when} |")
        return "\n".join(lines)

    return _DIAGRAM.sub(table, text)


def _linked(page: Path, text: str) -> Iterator[Path]:
    """The files of the checkout beside docs/ that a page links to."""
    for target in _LINK.findall(_CODE.sub("", text)):
        path = (ROOT / page.parent / target).resolve()
        if "://" not in target and path.is_file() and ROOT / "docs" not in path.parents:
            yield path.relative_to(ROOT)


def pages_in_order() -> list[str]:
    """The pages of the navigation, as paths in the checkout."""
    return list(_leaves(tomllib.loads(CONFIG.read_text())["project"]["nav"]))


def _leaves(nav: Any) -> Iterator[str]:
    match nav:
        case str():
            yield nav
        case dict():
            yield from _leaves([*cast(dict[str, Any], nav).values()])
        case _:
            for below in nav:
                yield from _leaves(below)


def loads_from_elsewhere(site: Path) -> Iterator[str]:
    """`PAGE: TAG` for each script, style or picture of a page that another machine would be asked for."""
    for page in site.rglob("*.html"):
        for tag in _LOADED.findall(page.read_text()):
            yield f"{page.relative_to(site)}: {tag}"


if __name__ == "__main__":
    main()
