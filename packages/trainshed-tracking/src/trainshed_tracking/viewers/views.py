"""Views of what jobs wrote: which jobs one TensorBoard shows, from which directories, and the link to it."""

import re
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from urllib.parse import urlsplit

from trainshed.access.principals import Shown
from trainshed.api.calls.links import MOST_JOBS, Links
from trainshed.api.resources.jobs import jobs_below
from trainshed.core.environment import service_account
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.pipelines import Pipeline
from trainshed.httpd.messages import Lapse, Request, Response
from trainshed.store.sqlite.reader import Reader
from trainshed.summaries.directories import LogDirectory

PATH: Final = "/tensorboard/"
_VIEW: Final = re.compile(rf"[1-9][0-9]{{0,18}}(?:-[1-9][0-9]{{0,18}}){{0,{MOST_JOBS - 1}}}")
_HOST: Final = re.compile(r"[A-Za-z0-9.*_-]+(:[0-9]{1,5})?")
"""A host that a browser's content security policy can name: no addresses in brackets."""


class Viewers(Protocol):
    """TensorBoards that show what jobs wrote, each in a process of its own. `name`: of a view. Methods that
    raise, raise FailedPrecondition (the message says why not, and what to do) or Unavailable."""

    async def has_files(self, directories: Sequence[LogDirectory]) -> bool:
        """Whether there is anything to show in one of the directories."""
        ...

    async def open(
        self, name: str, directories: Sequence[LogDirectory], say: Callable[[str], None]
    ) -> None:
        """Make a view's TensorBoard serve; installs and starts it if need be. `say`: called with each line
        that tells what is being done."""
        ...

    async def forward(
        self, name: str, directories: Sequence[LogDirectory], request: Request, lapse: Lapse
    ) -> Response:
        """Return TensorBoard's answer to a request, whose path is TensorBoard's own; it ends with `lapse`.
        Starts it again if it was ended. Also raises BodyTooLarge."""
        ...

    def end(self, wanted: Callable[[str], bool]) -> None:
        """End the views whose names are `wanted`, without waiting for that."""
        ...

    async def close(self) -> None:
        """End all of them, and wait until they are gone."""
        ...


def view_link(view: str) -> str:
    """Return what the key of a view's link is for; a mark is for its path."""
    return f"tensorboard link {view}"


def view_of(jobs: Sequence[JobUid]) -> str:
    """Return the name of the view of these jobs, each named once: `7`, `7-12`."""
    return "-".join(str(uid) for uid in dict.fromkeys(jobs))


def jobs_of(view: str) -> tuple[JobUid, ...]:
    """Return the jobs of a view; () if no view can have this name."""
    if _VIEW.fullmatch(view) is None:
        return ()
    return tuple(JobUid(int(part)) for part in view.split("-"))


def link_to(links: Links, view: str, shown: Shown) -> str:
    """Return the link to a view for whoever has shown this."""
    return f"{links.address}{PATH}#view={view}&key={links.issue(view_link(view), shown)}"


def sources_of(address: str, path: str, host: str) -> str:
    """Return the addresses below which everything of a view lies, for a content security policy. `address`:
    where browsers reach the service; `path`: of the view, with its mark; `host`: where this one has."""
    own = urlsplit(address)
    sources = [f"{own.netloc}{own.path}{path}" if _HOST.fullmatch(own.netloc) else "'self'"]
    sources.append(f"{host}{path}" if _HOST.fullmatch(host) else "'self'")
    return " ".join(dict.fromkeys(sources))


MOST_DIRECTORIES: Final = 100
"""Most directories that a view shows; of a tuning job those of the newest trials."""
_ODD: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST: Final = 60


async def directories_of(reader: Reader, uids: Sequence[JobUid]) -> tuple[LogDirectory, ...]:
    """Return the log directories of these jobs, and of the jobs that they have made. Raises NotFound if one
    of them was deleted."""
    jobs: list[tuple[str, Job]] = []
    for uid in uids:
        try:
            work, _ = await reader.job_by_uid(uid)
        except NotFound:
            raise NotFound(f"The job {uid} of this link has been deleted.") from None
        if isinstance(work, Job):
            jobs.append((_name(work, None), work))
            continue
        if isinstance(work, Pipeline):
            jobs += [(_name(job, None), job) for job in await jobs_below(reader, work.uid)]
            continue
        title = _title(work.display_name or work.name.job_id) if len(uids) > 1 else None
        jobs += [(_name(job, title), job) for job in await jobs_below(reader, work.uid)]
    written = [(name, job, uri) for name, job in jobs if (uri := job.spec.log_directory)]
    shown = written[-MOST_DIRECTORIES:]
    names = [name for name, _, _ in shown]
    directories: list[LogDirectory] = []
    for name, job, uri in shown:
        label = name if names.count(name) == 1 else f"{name}-{job.uid}"
        project = job.name.project_id
        account = service_account(project, job.spec)
        directories.append(LogDirectory(label if len(shown) > 1 else None, uri, project, account))
    return tuple(directories)


def _name(job: Job, parent: str | None) -> str:
    if job.parent is not None and job.parent.trial:
        trial = f"trial-{job.parent.trial}"
        return f"{parent}-{trial}" if parent else trial
    return _title(job.display_name or job.name.job_id)


def _title(text: str) -> str:
    """Return `text` as a directory's name; never one that is hidden or leads up."""
    return _ODD.sub("-", text)[:_LONGEST].strip("-.") or "job"
