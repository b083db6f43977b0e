"""Parses the field `parent` of requests: `projects/P` and `projects/P/locations/L`. `core` parses all other
names."""

import re
from collections.abc import Iterable

from msgspec import Struct

from trainshed.core.errors import InvalidRequest, NotFound, Violation

# Matches project IDs, project numbers, and IDs with a domain (`example.com:lab`).
_PROJECT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]{0,61}[A-Za-z0-9])?")
_LOCATION = re.compile(r"[a-z][a-z0-9-]{0,62}")


class ProjectName(Struct, frozen=True):
    """The name `projects/P`."""

    project_id: str

    def __str__(self) -> str:
        return f"projects/{self.project_id}"

    @staticmethod
    def parse(name: str, *, field: str = "parent") -> "ProjectName":
        """Parse a name. Raises InvalidRequest for `field` if the name does not have this form."""
        match name.split("/"):
            case ["projects", project] if _PROJECT.fullmatch(project):
                return ProjectName(project)
            case _:
                raise _invalid_parent(field, name, "projects/PROJECT")


class LocationName(Struct, frozen=True):
    """The name `projects/P/locations/L`."""

    project_id: str
    location: str

    def __str__(self) -> str:
        return f"projects/{self.project_id}/locations/{self.location}"

    @staticmethod
    def parse(name: str, *, field: str = "parent") -> "LocationName":
        """Parse a name. Raises InvalidRequest for `field` if the name does not have this form."""
        match name.split("/"):
            case ["projects", project, "locations", location] if _PROJECT.fullmatch(
                project
            ) and _LOCATION.fullmatch(location):
                return LocationName(project, location)
            case _:
                raise _invalid_parent(field, name, "projects/PROJECT/locations/LOCATION")


def _invalid_parent(field: str, name: str, expected: str) -> InvalidRequest:
    spaces = " A project ID has no spaces. Use the ID, not the name." if " " in name else ""
    text = f"{name!r} is not a name of the form {expected}.{spaces}"
    return InvalidRequest((Violation(field, text),))


def reject_numbers(projects: Iterable[str]) -> None:
    """Raise NotFound if a project is a number. Callers must first replace the numbers of known projects by
    IDs. A remaining number is therefore unknown."""
    for project in projects:
        if project.isdecimal():
            raise NotFound(
                f"Project number {project[:40]} does not exist on this service. Use the project ID instead."
            )
