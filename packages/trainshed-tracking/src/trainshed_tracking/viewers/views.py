"""Views of jobs' output. A view is the set of jobs and directories that one TensorBoard shows."""

import re
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from urllib.parse import urlsplit

from trainshed.access.principals import Credential
from trainshed.api.calls.links import MAX_JOBS, Links
from trainshed.api.resources.jobs import descendant_jobs
from trainshed.core.environment import service_account
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.pipelines import Pipeline
from trainshed.httpd.messages import Lapse, Request, Response
from trainshed.store.sqlite.reader import Reader
from trainshed.summaries.directories import LogDirectory

PATH: Final = "/tensorboard/"
_VIEW: Final = re.compile(rf"[1-9][0-9]{{0,18}}(?:-[1-9][0-9]{{0,18}}){{0,{MAX_JOBS - 1}}}")
_HOST: Final = re.compile(r"[A-Za-z0-9.*_-]+(:[0-9]{1,5})?")
"""Matches a host that a content security policy can contain. IP addresses in brackets are not possible."""


class Viewers(Protocol):
    """Runs TensorBoards for jobs' output, each in its own process. `name`: the name of a view. Methods raise
    FailedPrecondition with a remedy in the message, or Unavailable."""

    async def has_files(self, directories: Sequence[LogDirectory]) -> bool:
        """Whether one of the directories contains event files."""
        ...

    async def open(
        self, name: str, directories: Sequence[LogDirectory], report: Callable[[str], None]
    ) -> None:
        """Start a view's TensorBoard. Install it first if necessary. `report`: receives lines about the
        progress."""
        ...

    async def forward(
        self, name: str, directories: Sequence[LogDirectory], request: Request, lapse: Lapse
    ) -> Response:
        """Return TensorBoard's response to a request. The request's path is relative to TensorBoard. If the
        view's TensorBoard was stopped, start it again. When `lapse` returns, the permission has ended, and
        the response ends too. Also raises BodyTooLarge."""
        ...

    def end(self, wanted: Callable[[str], bool]) -> None:
        """Stop the views for whose names `wanted` returns true. Do not wait."""
        ...

    async def close(self) -> None:
        """Stop all views, and wait until they have ended."""
        ...


def view_link(view: str) -> str:
    """Return the text for which the key in a view's link is signed. A mark is signed for the view's path
    instead, so a key is not valid as a mark."""
    return f"tensorboard link {view}"


def view_of(jobs: Sequence[JobUid]) -> str:
    """Return the name of the view of these jobs, which must be distinct, such as `7` or `7-12`."""
    return "-".join(str(uid) for uid in dict.fromkeys(jobs))


def jobs_of(view: str) -> tuple[JobUid, ...]:
    """Return the jobs of a view, or () if the view's name is invalid."""
    if _VIEW.fullmatch(view) is None:
        return ()
    return tuple(JobUid(int(part)) for part in view.split("-"))


def link_to(links: Links, view: str, shown: Credential) -> str:
    """Return the link to a view. A user of the link has the permissions of the credential `shown`."""
    return f"{links.address}{PATH}#view={view}&key={links.issue(view_link(view), shown)}"


def sources_of(address: str, path: str, host: str) -> str:
    """Return the base URLs of a view for a content security policy. `address`: the service's address for
    browsers. `path`: the path of the view, with its mark. `host`: the Host header."""
    own = urlsplit(address)
    sources = [f"{own.netloc}{own.path}{path}" if _HOST.fullmatch(own.netloc) else "'self'"]
    sources.append(f"{host}{path}" if _HOST.fullmatch(host) else "'self'")
    return " ".join(dict.fromkeys(sources))


MAX_DIRECTORIES: Final = 100
"""Maximum number of directories in a view. For a tuning job, the view shows the newest trials."""
_ODD: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_TITLE: Final = 60


async def directories_of(reader: Reader, uids: Sequence[JobUid]) -> tuple[LogDirectory, ...]:
    """Return the log directories of these jobs and their child jobs. Raises NotFound for a deleted job."""
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
            jobs += [(_name(job, None), job) for job in await descendant_jobs(reader, work.uid)]
            continue
        title = _title(work.display_name or work.name.job_id) if len(uids) > 1 else None
        jobs += [(_name(job, title), job) for job in await descendant_jobs(reader, work.uid)]
    written = [(name, job, uri) for name, job in jobs if (uri := job.spec.log_directory)]
    shown = written[-MAX_DIRECTORIES:]
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
    """Return a safe directory name for a display name: without path traversal, and not hidden."""
    return _ODD.sub("-", text)[:_MAX_TITLE].strip("-.") or "job"
