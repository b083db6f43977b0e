"""Which page, action or stream answers what."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from trainshed.console.pages import job, jobs, logs
from trainshed.console.visits import Action, Page, Visit
from trainshed.httpd.messages import Response

PAGES: Final[Mapping[tuple[str, str], Page]] = {
    ("GET", "/"): jobs.page,
    ("GET", "/jobs"): jobs.page,
    ("GET", "/jobs/{job}"): job.overview,
    ("GET", "/jobs/{job}/logs"): logs.page,
    ("GET", "/jobs/{job}/usage"): job.usage,
    ("GET", "/jobs/{job}/spec"): job.spec,
}
"""Each can also be followed, at `/events` and its address."""
ACTIONS: Final[Mapping[tuple[str, str], Action]] = {
    ("POST", "/jobs/{job}/cancel"): job.cancel,
    ("POST", "/jobs/{job}/drill"): job.drill,
}
STREAMS: Final[Mapping[tuple[str, str], Callable[[Visit], Awaitable[Response]]]] = {
    ("GET", "/jobs/{job}/lines"): logs.lines,
    ("GET", "/jobs/{job}/follow"): logs.follow,
    ("GET", "/jobs/{job}/log.txt"): logs.download,
}
"""What is no page: answers that scripts and downloads take as they are."""
PLACES: Final = frozenset(template.strip("/").split("/")[-1] for _, template in PAGES)
"""Names of pages that there are, as links to them ask."""
