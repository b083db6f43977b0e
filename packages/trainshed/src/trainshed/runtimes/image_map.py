"""Reads an operator's image map: which images run in one of our environments, or as another image
(spec/runtimes#substitutes).

The map is the `[[images]]` of the configuration. The first entry whose pattern matches the image as the job
names it wins.
"""

import fnmatch
from collections.abc import Iterator, Sequence

from msgspec import Struct

from trainshed.core.catalog.images import is_reference
from trainshed.core.errors import closest
from trainshed.runtimes.families import FAMILIES, parse_minor, sheet_of


class MappedImage(Struct, frozen=True):
    """One table `[[images]]`: a pattern, and either another image or a runtime."""

    #: `*`, `?` and `[…]` match over the whole image URI, slashes included.
    pattern: str = ""
    #: A runtime family, or one with its version; "" if `image` is given.
    runtime: str = ""
    #: Python version; "" = the family's preferred one.
    python: str = ""
    #: Another image; "" if `runtime` is given.
    image: str = ""

    @property
    def family(self) -> str:
        return self.runtime.partition(" ")[0]

    @property
    def version(self) -> str:
        """Version of the family; "" = the newest."""
        return self.runtime.partition(" ")[2]

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the table, as `key: words`."""
        if not self.pattern:
            yield "pattern: is missing; give the images that are meant, such as python:3.*"
        if bool(self.runtime) == bool(self.image):
            cause = "both are given" if self.image else "neither is given"
            yield f"runtime: exactly one of runtime and image says what is run; {cause}"
        if self.runtime:
            yield from self._runtime_faults()
        elif self.python:
            yield "python: goes with runtime only; an image has a Python of its own"
        if self.image and not is_reference(self.image):
            yield f"image: {self.image!r} is not an image name such as HOST/NAME:TAG"

    def _runtime_faults(self) -> Iterator[str]:
        sheet = sheet_of(self.family)
        if sheet is None:
            names = [known.family for known in FAMILIES]
            near = closest(self.family, names)
            yield f"runtime: there is no runtime {self.family!r}; there are {', '.join(names)}.{near}"
            return
        releases = [release for release in sheet.releases if self.version in ("", release.version)]
        if not releases:
            versions = ", ".join(release.version for release in sheet.releases if release.version)
            known = f"there are {versions}" if versions else "it has none, leave it out"
            yield f"runtime: {sheet.title} has no version {self.version!r} here; {known}"
            return
        minor = parse_minor(self.python)
        if self.python and (minor is None or not any(r.runs_on(minor) for r in releases)):
            yield f"python: {self.python!r} is no Python, such as 3.11, that {self.runtime} runs on"


def mapped(entries: Sequence[MappedImage], image_uri: str) -> MappedImage | None:
    return next((entry for entry in entries if fnmatch.fnmatchcase(image_uri, entry.pattern)), None)
