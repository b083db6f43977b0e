"""Builds the documentation site in build/site/html: `python -m tools.site` (./dev docs-site).

The site contains the pages of the checkout, and the generated references of the commands and of the project's
own API. It also contains the tables of the last `./dev bench`, if build/bench has some. Linked files outside
docs/ are copied. Each page also exists as text, listed in `llms.txt` (llmstxt.org). The build fails if a link
or heading does not exist, or if a page would load something from another machine.

A release stores the site in a directory of its version, so that the sites of several versions can coexist.
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
#: Matches a script that enables the search in pages that are opened as files. Pages from a server do not need
#: the script, so the build removes it.
_SHIM: Final = re.compile(r'<script src="https://unpkg\.com/iframe-worker/shim"[^>]*></script>')
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_LOADED: Final = re.compile(
    r"""<(?:script|img|iframe|source|link(?=[^>]*stylesheet))[^>]*\s(?:src|href)=["']?(?:https?:)?//"""
)


_DIAGRAM: Final = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ARROW: Final = re.compile(r"^ *(\S+) --> (\S+)(?:: (.+))?$", re.MULTILINE)


class SiteError(Exception):
    """The pages contain errors. The message lists the errors."""


def main() -> None:
    """Build the site, and print its location or the errors."""
    try:
        site = build(TARGET)
    except SiteError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{site}/index.html; to use the search: python3 -m http.server -d {site}\n")


def build(target: Path) -> Path:
    """Build the site in a directory below `target`, replacing old contents. Return the directory. Raises
    SiteError."""
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
        raise SiteError("These pages load resources from another machine:\n" + "\n".join(loads))
    return site


def stage(pages: Path) -> None:
    """Copy the pages and their linked files to `pages`, with the same layout as in the checkout."""
    shutil.copytree(ROOT / "docs", pages / "docs", ignore=shutil.ignore_patterns(CONFIG.name))
    shutil.copy(ROOT / "README.md", pages)
    for page in sorted(pages.rglob("*.md")):
        name = page.relative_to(pages).as_posix().removeprefix("docs/")
        text = with_tables(name, page.read_text())
        for linked in _linked_files(page.relative_to(pages), text):
            (pages / linked).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / linked, pages / linked)
        # Replace a link to a directory by a link to its README.md. In a site that is opened as files, a
        # browser would show a list of the directory's files.
        page.write_text(diagrams_as_tables(_DIRECTORY.sub(r"\1README.md)", text)))


def add_texts(pages: Path, site: Path) -> None:
    """Write a text version of each page next to the page, and a list of the texts for programs."""
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
    """Return a page with the tables that are only on the site."""
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
    """Return a page with a table in place of each state diagram.

    To draw diagrams, a browser would load a library of several megabytes from another machine. Code hosts
    draw the diagrams themselves.
    """

    def table(match: re.Match[str]) -> str:
        lines = ["| state | becomes | when |", "|---|---|---|"]
        for before, after, when in _ARROW.findall(match[1]):
            names = ("*beginning*" if before == "[*]" else before, "*end*" if after == "[*]" else after)
            lines.append(f"| {names[0]} | {names[1]} | {when} |")
        return "\n".join(lines)

    return _DIAGRAM.sub(table, text)


def _linked_files(page: Path, text: str) -> Iterator[Path]:
    """Return the files outside docs/ that a page links to."""
    for target in _LINK.findall(_CODE.sub("", text)):
        path = (ROOT / page.parent / target).resolve()
        if "://" not in target and path.is_file() and ROOT / "docs" not in path.parents:
            yield path.relative_to(ROOT)


def pages_in_order() -> list[str]:
    """Return the pages in the order of the navigation, as paths in the checkout."""
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
    """Return `PAGE: TAG` for each script, style sheet or image that a page would load from another
    machine."""
    for page in site.rglob("*.html"):
        for tag in _LOADED.findall(page.read_text()):
            yield f"{page.relative_to(site)}: {tag}"


if __name__ == "__main__":
    main()
