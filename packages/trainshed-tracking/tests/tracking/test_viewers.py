"""TensorBoard links for the log directories of jobs (docs/tensorboard.md)."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.api.api_service import LOCATION, Answer, ApiService
from tests.people import add_user
from tests.sim.tuning_jobs import tuning
from tests.unit import jobs
from tests.unit.specs_requests import custom_job
from trainshed.access.job_tokens import JobClaims
from trainshed.access.permissions import PERMISSIONS, ROLES
from trainshed.access.policy import Grant
from trainshed.access.tokens import digest_of
from trainshed.api.calls.links import MAX_JOBS, OPEN_VIEW
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.records import Job, Parent
from trainshed.core.names import JobUid
from trainshed.core.works import Work
from trainshed_tracking.viewers.views import MAX_DIRECTORIES, directories_of

JOBS = f"{LOCATION}/customJobs"


async def create_job(service: ApiService, name: str = "job", location: str = LOCATION) -> str:
    """Create a job with the log directory `gs://bucket/NAME/logs`, and return its uid."""
    body = custom_job()
    body["jobSpec"]["baseOutputDirectory"] = {"outputUriPrefix": f"gs://bucket/{name}"}
    return (await service.result("POST", f"{location}/customJobs", body))["name"].rpartition("/")[2]


async def open_link(service: ApiService, job: str, *others: Any, status: int = 200, token: str = "") -> Any:
    answer = await service.call(
        "POST", f"/trainshed/v1/jobs/{job}:tensorboard", {"others": list(others)}, token=token
    )
    assert answer.status == status, answer.body
    return answer.json


async def test_job_shows_a_tensorboard_link_after_its_first_event_file(service: ApiService) -> None:
    job = await create_job(service)
    answer = await open_link(service, job)
    assert answer["directories"] == ["gs://bucket/job/logs"]
    assert not answer["hasFiles"]
    described = f"/trainshed/v1/jobs/{job}"
    assert "tensorboardUri" not in await service.result("GET", described)
    service.viewers.written.add("gs://bucket/job/logs")
    assert (await service.result("GET", described))["tensorboardUri"] == answer["uri"]
    # Programs of jobs never get a link.
    token, _ = service.jobs.mint(JobClaims(1, 1, "workerpool0-0", "p1", "a@b"))
    assert "tensorboardUri" not in await service.result("GET", described, token=token)
    refused = await open_link(service, job, status=403, token=token)
    assert "trainshed.jobs.tensorboard" in refused["error"]["message"]


async def test_tensorboard_link_error_lists_all_faults(service: ApiService) -> None:
    job = await create_job(service)
    message = await open_link(service, job, "nobody", "nor-this", status=400)
    for part in ("others[0]", "nobody", "others[1]", "nor-this"):
        assert part in str(message)
    assert "others" in str(await open_link(service, job, 7, status=400))
    many = await open_link(service, job, *[job] * MAX_JOBS, status=400)
    assert f"At most {MAX_JOBS}" in str(many)


async def test_tensorboard_link_without_a_log_directory_explains_the_fix(service: ApiService) -> None:
    body = custom_job()
    body["jobSpec"].pop("baseOutputDirectory", None)
    answer = await service.call("POST", JOBS, body)
    message = await open_link(service, answer.json["name"].rpartition("/")[2], status=400)
    assert message["error"]["status"] == "FAILED_PRECONDITION"
    assert "base output directory" in message["error"]["message"]


async def test_tensorboard_view_is_protected_from_path_traversal(service: ApiService) -> None:
    first, second = await create_job(service, "a"), await create_job(service, "b")
    handed = await open_link(service, first, second)
    answer = await service.call(
        "POST", "/tensorboard/open", {"view": handed["view"], "key": handed["key"]}, token=None
    )
    assert "set-cookie" not in answer.headers
    path: str = json.loads(answer.body.splitlines()[-1])["path"]
    view, mark, _ = path.split("/")
    assert view == f"{first}-{second}"

    async def request(where: str, method: str = "GET") -> Answer:
        return await service.call(method, f"/tensorboard/{where}", token=None)

    shown = await request(f"{path}data/runs")
    assert shown.body == f"{view} /data/runs".encode(), "the signature is not forwarded"
    assert (shown.headers["cache-control"], shown.headers["referrer-policy"]) == ("no-store", "no-referrer")
    for other in (f"{first}/{mark}/data/runs", f"{second}-{first}/{mark}/", f"{view}/"):
        assert (await request(other)).status == 401
    for where in (f"{path}../../{first}/", "%2e%2e/", "x/y", f"{path}%2f"):
        assert (await request(where)).status in (200, 401, 404)
    assert (await request(path, "DELETE")).status == 404


async def test_tensorboard_link_and_pages_are_blocked_when_the_user_loses_permission(
    service: ApiService,
) -> None:
    job = await create_job(service)
    token = add_user(service.tokens, "ana@corp.example", "roles/aiplatform.user", "p1")
    got = await open_link(service, job, token=token)
    opening = {"view": got["view"], "key": got["key"]}
    answer = await service.call("POST", "/tensorboard/open", opening, token=None)
    path = f"/tensorboard/{json.loads(answer.body.splitlines()[-1])['path']}"
    assert (await service.call("GET", path, token=None)).status == 200
    under_way = asyncio.ensure_future(service.viewers.lapses[-1]())
    for role in ROLES:
        grant = Grant("p1", role, "user:ana@corp.example")
        service.tokens.replace(service.tokens.book.with_grants("p1", {grant}))
        status = 200 if PERMISSIONS[OPEN_VIEW] in ROLES[role] else 403
        assert (await service.call("GET", path, token=None)).status == status, role
        opened = await service.call("POST", "/tensorboard/open", opening, token=None)
        assert opened.status == status, role
    await asyncio.wait_for(under_way, 60)
    service.tokens.replace(service.tokens.book.without_tokens([digest_of(token)]))
    refused = await service.call("POST", "/tensorboard/open", opening, token=None)
    assert refused.status == 403
    assert job not in refused.error["message"]


class FakeJobStore:
    """A minimal store of jobs for the lookup of directories."""

    def __init__(self, *works: Work, below: Sequence[Job] = ()) -> None:
        self._works = {work.uid: work for work in works}
        self._below = tuple(below)

    async def job_by_uid(self, uid: JobUid) -> tuple[Work, str]:
        if uid not in self._works:
            raise NotFound(f"{uid} was not found")
        return self._works[uid], ""

    async def children(self, parent: JobUid, after: JobUid = JobUid(0)) -> tuple[Job, ...]:
        return self._below


def job(uid: int, title: str, where: str = "gs://b/x") -> Job:
    views = jobs.job()
    spec = replace(views.spec, base_output_directory=where)
    return replace(views, uid=JobUid(uid), display_name=title, spec=spec)


async def labels(*works: Job) -> list[str | None]:
    store: Any = FakeJobStore(*works)
    return [directory.label for directory in await directories_of(store, [work.uid for work in works])]


async def test_directory_labels_are_unique_and_safe_from_path_traversal() -> None:
    assert await labels(job(1, "only")) == [None]
    assert await labels(job(1, "a"), job(2, "b")) == ["a", "b"]
    assert await labels(job(1, "same"), job(2, "same")) == ["same-1", "same-2"]
    odd = await labels(job(1, "../../etc"), job(2, ".."), job(3, "a/b c"), job(4, "x" * 200))
    assert odd == ["etc", "job", "a-b-c", "x" * 60]
    assert await labels(job(1, "a"), job(2, "b", where="")) == [None]


async def test_tensorboard_view_of_many_trials_shows_the_newest() -> None:
    above = tuning(1)
    tried = [
        replace(job(number, f"t{number}"), parent=Parent(above.uid, above.name, number))
        for number in range(1, MAX_DIRECTORIES + 2)
    ]
    store: Any = FakeJobStore(above, below=tried)
    directories = await directories_of(store, [above.uid])
    assert len(directories) == MAX_DIRECTORIES
    assert (directories[0].label, directories[-1].label) == ("trial-2", f"trial-{MAX_DIRECTORIES + 1}")


async def test_tensorboard_view_of_a_deleted_job_is_not_found() -> None:
    store: Any = FakeJobStore(job(1, "a"))
    with pytest.raises(NotFound, match="deleted"):
        await directories_of(store, [JobUid(1), JobUid(2)])
