"""Generates the list of permissions of each role, for the site's page on teams. The source is the service's
own table."""

from itertools import groupby

from trainshed.access.permissions import ROLES


def page(text: str) -> str:
    """Return the page with one section per role."""
    sections = [text, "## The roles\n"]
    for role, held in ROLES.items():
        rows = [
            f"| `{things}` | {', '.join(permission.rpartition('.')[2] for permission in permissions)} |"
            for things, permissions in groupby(sorted(held), lambda name: name.rpartition(".")[0])
        ]
        sections.append("\n".join([f"### `{role}`\n", "| of | may |", "|---|---|", *rows, ""]))
    return "\n".join(sections)
