"""Pages about jobs, and escaping of untrusted text in HTML (cross-site scripting, XSS)."""

import asyncio
import gzip
import json
import re
from html import unescape
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.console.browser import Browser, ConsoleService, curves_of, text_of
from tests.console.test_sessions import JOB
from tests.console.test_submit import fault
from tests.contract.api.api_service import SECOND, START
from tests.contract.api.test_curves import log_points
from tests.people import add_user
from tests.unit.specs_requests import ml_job
from trainshed.core.capacity import Waiting, WaitReason
from trainshed.core.lifecycle.events import JobAdmitted, ReplicaLost, ReplicaStarted
from trainshed.core.names import JobUid, ReplicaId
from trainshed_console.in_process import InProcessCaller
from trainshed_console.rendering import environment

PROJECT_PAGES = ("/", "/queue", "/team", "/submit", "/submit/json", "/models")
CUSTOM_JOBS = "/v1/projects/p1/locations/us-central1/customJobs"
RIGHT_TO_LEFT = "\u202e"
EVIL = '<script>alert(1)</script><img src=x onerror="alert(2)">'


async def submit(service: ConsoleService, **changes: object) -> str:
    """Submit a job, and return its uid."""
    return (await service.result("POST", CUSTOM_JOBS, {**JOB, **changes}))["name"].rpartition("/")[2]


async def test_empty_job_list_shows_how_to_submit_a_job(browser: Browser) -> None:
    page = await browser.get("/")
    assert "No jobs yet" in text_of(page)
    for name in ("gcloud ai custom-jobs create --region=us-central1", "aiplatform"):
        assert name in text_of(page)


async def test_job_link_with_a_full_name_redirects_to_the_job(
    service: ConsoleService, browser: Browser
) -> None:
    """IDs of AI Platform jobs are only unique within a project."""
    for project in ("p1", "p2"):
        await service.result("POST", f"/v1/projects/{project}/jobs", ml_job(job_id="train"))
    name = "projects/p1/jobs/train"
    uid = (await service.result("GET", f"/trainshed/v1/jobs/{quote(name, safe='')}"))["uid"]
    link = environment().from_string("{{ name | job }}").render(name=name)
    answer = await browser.get(link)
    assert (answer.status, answer.headers["location"]) == (303, f"/jobs/{uid}")


async def test_unknown_console_address_returns_a_404_page_with_the_navigation(browser: Browser) -> None:
    for path in ("/job/17", "/overviews", "/v1/nothing"):
        page = await browser.get(path)
        assert (page.status, b'href="/queue"' in page.body) == (404, True), path
    assert (await browser.get("/healthz")).json["status"] == "ok"
    assert (await browser.get(CUSTOM_JOBS)).error["status"] == "UNAUTHENTICATED"


async def test_job_list_is_sorted_newest_first_and_can_be_searched_by_name_label_and_state(
    service: ConsoleService, browser: Browser
) -> None:
    for number in range(3):
        await submit(service, displayName=f"train-{number}", labels={"team": f"team{number}"})
    page = text_of(await browser.get("/"))
    assert page.index("train-2") < page.index("train-1") < page.index("train-0")
    assert "Queued" in page
    assert "train-1" not in text_of(await browser.get("/?search=train-2"))
    assert "train-1" in text_of(await browser.get("/?search=TEAM=team1"))
    assert "No job matches" in text_of(await browser.get("/?state=FAILED"))
    assert "train-0" in text_of(await browser.get("/?state=QUEUED,PREPARING"))
    assert (await browser.get("/?state=NONSENSE")).status == 400


async def test_job_list_is_filtered_and_sorted_by_the_parameters_of_its_url(
    service: ConsoleService, guest: Browser, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filtered list has no totals. Jobs of other projects are neither counted nor shown."""
    big = json.loads(json.dumps(JOB["jobSpec"]))
    machine = {"machineType": "n1-highmem-8", "acceleratorType": "NVIDIA_TESLA_T4"}
    big["workerPoolSpecs"][0]["machineSpec"] = {**machine, "acceleratorCount": 2}
    await submit(service, displayName="big", jobSpec=big, labels={"team": "vision"})
    service.clock += 7200 * SECOND
    await submit(service, displayName="zoo", labels={"team": "visionary"})
    await submit(service, displayName="aardvark")
    elsewhere = CUSTOM_JOBS.replace("p1", "p2")
    await service.call("POST", elsewhere, {**JOB, "displayName": "of p2"})

    async def names(query: str) -> list[str]:
        body = (await browser.get(f"/?project=p1&{query}")).body.decode()
        return re.findall(r'<a href="/jobs/\d+" title="(.*?) ', body)

    assert "Waiting 3 " in text_of(await browser.get("/?project=p1"))
    assert "Waiting 4 " in text_of(await browser.get("/"))
    seen = text_of(await guest.get("/"))
    assert "Waiting 1 " in seen and "zoo" not in seen
    assert "zoo" not in text_of(await guest.get("/?label=team&sort=name"))
    assert await names("label=team%3Dvision") == await names("machine=T4") == ["big"]
    assert await names("label=team") == ["zoo", "big"]
    assert await names("since=1h") == ["aardvark", "zoo"]
    assert await names("sort=name") == ["aardvark", "big", "zoo"]
    assert await names("sort=-machine") == ["big", "aardvark", "zoo"]
    mistyped = await browser.get("/?project=p1&metric=loss%3Cone")
    assert mistyped.status == 400 and "No job matches" in text_of(mistyped)
    assert "&#39;loss&lt;one&#39; is not a condition on a metric" in fault(mistyped.body.decode(), "metric")
    assert await names("sort=nonsense&since=nonsense") == ["aardvark", "zoo", "big"]
    monkeypatch.setattr("trainshed_console.pages.jobs._MAX_SORTED", 2)
    assert await names("sort=name") == ["aardvark", "zoo"]
    assert "Sorted: only the newest 2 jobs." in text_of(await browser.get("/?project=p1&sort=name"))
    monkeypatch.setattr("trainshed.api.trainshed_v1.jobs._MAX_COUNT", 2)
    monkeypatch.setattr("trainshed_console.pages.jobs._MAX_COUNT", 2)
    assert "Waiting 2+ " in text_of(await browser.get("/?project=p1"))
    assert "label: team" in text_of(await browser.get("/?label=team"))
    assert "Waiting 3" not in text_of(await browser.get("/?label=team"))


async def test_job_list_is_grouped_by_a_field_or_label(service: ConsoleService, browser: Browser) -> None:
    for name, labels in (("a", {"team": "vision"}), ("b", {}), ("c", {"team": "audio"})):
        await submit(service, displayName=name, labels=labels)
    await service.result("POST", CUSTOM_JOBS.replace("p1", "p2"), {**JOB, "displayName": "d"})

    async def rows(query: str) -> list[tuple[str, str]]:
        """Return (heading, "") and ("", name of a job), in order."""
        body = (await browser.get(f"/?{query}")).body.decode()
        return re.findall(r'rowgroup" colspan="10">(.*?) <|<a href="/jobs/\d+" title="(.*?) ', body)

    by_team = [("audio", ""), ("", "c"), ("vision", ""), ("", "a"), ("none", "")]
    assert await rows("group=labels.team&sort=name") == [*by_team, ("", "b"), ("", "d")]
    by_project = await rows("group=project&sort=-name")
    assert by_project == [("p1", ""), *(("", name) for name in "cba"), ("p2", ""), ("", "d")]
    assert ("", "a") in await rows("group=labels.team&state=QUEUED,PREPARING&label=team")
    assert await rows("group=__class__") == await rows("")
    page = (await browser.get(f"/?{urlencode({'group': f'labels.{EVIL}'})}")).body.decode()
    assert "onerror=&#34;alert" in page and "<img src=x" not in page


@pytest.mark.parametrize("page", PROJECT_PAGES)
async def test_project_selection_lists_only_readable_projects(
    service: ConsoleService, browser: Browser, guest: Browser, page: str
) -> None:
    """For the service's owner, the list includes projects without any members."""
    await service.result("POST", CUSTOM_JOBS.replace("p1", "only-jobs"), JOB)
    add_user(service.tokens, "o@example.com", project="theirs")
    for name in ("theirs", "only-jobs"):
        assert name in (await browser.get(page)).body.decode()
        assert name not in (await guest.get(page)).body.decode()
    for number in range(20):
        add_user(service.tokens, "o@example.com", project=f"many-{number}")
    assert '<datalist id="projects">' in (await browser.get(page)).body.decode()
    assert "many-1" not in (await guest.get(page)).body.decode()
    for visitor in (browser, guest):
        hostile = await visitor.get(f"{page}?{urlencode({'project': f'{EVIL}{RIGHT_TO_LEFT}'})}")
        html = hostile.body.decode()
        assert "<img src=x" not in html and "<script>alert" not in html
        assert RIGHT_TO_LEFT not in text_of(hostile)
    field = '{% from "_macros.html" import project_field %}{{ project_field(["p1"], name) }}'
    choice = environment().from_string(field).render(name=f"{EVIL}{RIGHT_TO_LEFT}")
    assert "<img" not in choice and f"{RIGHT_TO_LEFT}<" not in choice


@pytest.mark.parametrize(
    ("printed", "shown"),
    [(("0.5", "0.25"), "0.25 loss"), (("0.5", "nan"), "NaN loss"), (("-1e308", "1e308"), "1e+308")],
)
async def test_job_list_shows_the_metric_of_a_job_as_a_value_and_as_a_line(
    service: ConsoleService, browser: Browser, printed: tuple[str, str], shown: str
) -> None:
    uid = await submit(service)
    await service.run(f"projects/p1/locations/us-central1/customJobs/{uid}")
    lines = [(START + n, f"epoch {n} loss: {value}") for n, value in enumerate(printed)]
    service.write_log(int(uid), "workerpool0-0", *lines)
    page = await browser.get("/?sort=value")
    assert shown in text_of(page)
    line = re.findall(r'<polyline points="(.*?)"', page.body.decode())
    assert line in ([""], ["0.0,1.0 100.0,19.0"], ["0.0,19.0 100.0,1.0"])


async def test_job_list_loads_the_next_page(service: ConsoleService, browser: Browser) -> None:
    for number in range(60):
        await submit(service, displayName=f"n{number:02}")
    first = (await browser.get("/?since=1d")).body.decode()
    assert first.count("data-row") - 1 == 30
    following = re.search(r'hx-get="([^"]+)"', first)
    assert following is not None
    service.clock += SECOND
    rest = (await browser.get(following[1].replace("&amp;", "&"))).body.decode()
    assert rest.count("data-row") == 30
    assert "<html" not in rest and "hx-get" not in rest


async def test_xss_text_of_programs_and_clients_is_escaped(service: ConsoleService, browser: Browser) -> None:
    uid = await submit(service, displayName=EVIL[:120], labels={})
    name = f"projects/p1/locations/us-central1/customJobs/{uid}"
    await service.apply_events(name, JobAdmitted(()))
    printed = "\x1b[31mred\x1b[0m \u202eabc"
    service.write_log(int(uid), "workerpool0-0", (START, EVIL), (START + SECOND, printed))
    service.clock += 10 * SECOND
    for path in ("/", *(f"/jobs/{uid}{of_job}" for of_job in ("", "/spec", "/logs", "/usage"))):
        page = await browser.get(path)
        assert page.status == 200, page.body
        assert b"<script>alert" not in page.body
        assert b"<img src=x" not in page.body
    text = text_of(await browser.get(f"/jobs/{uid}"))
    assert "red \ufffdabc" in text
    lines = (await browser.get(f"/jobs/{uid}/lines?limit=10")).json["lines"]
    assert [line[3] for line in lines] == [EVIL, "red \ufffdabc"]


async def test_job_page_starts_with_its_metrics(service: ConsoleService, browser: Browser) -> None:
    uid = await submit(service)
    primary = ReplicaId(0, 0)
    lost, again = ReplicaLost(1, primary, 1, ""), ReplicaStarted(1, primary, 2, START + SECOND)
    name = f"projects/p1/locations/us-central1/customJobs/{uid}"
    await service.run(name)
    service.clock += SECOND
    await service.apply_events(name, lost, again)
    lines = [f"epoch {n}/9 lr 0.1 loss: {1 / n} - val_loss: {2 / n}" for n in (1, 2)]
    at = enumerate(lines)
    service.write_log(int(uid), "workerpool0-0", *((START + n * SECOND, line) for n, line in at))
    page = await browser.get(f"/jobs/{uid}")
    both = [["train", [1, 0.5]], ["validation", [2, 1]]]
    assert curves_of(page) == [
        {"at": [1, 2], "lines": both, "label": "Epoch", "marks": [2]},
        {"at": [1, 2], "lines": [["train", [0.1, 0.1]]], "label": "Epoch", "marks": [2]},
    ]
    assert "loss train 0.5 , 0.5 to 1 validation 1 , 1 to 2" in text_of(page)
    by_time = await browser.get(f"/jobs/{uid}?axis=time")
    assert '"label": "Time", "marks": [1.0]' in unescape(by_time.body.decode())


async def test_chart_shows_replicas_as_a_band_or_as_separate_lines(
    service: ConsoleService, browser: Browser
) -> None:
    spec: Any = JOB["jobSpec"]
    (pool,) = spec["workerPoolSpecs"]
    uid = await submit(service, jobSpec={"workerPoolSpecs": [pool, {**pool, "replicaCount": 2}]})
    name, worker = f"projects/p1/locations/us-central1/customJobs/{uid}", ReplicaId(1, 0)
    await service.run(name)
    service.clock += 3 * SECOND
    started = ReplicaStarted(1, worker, 2, service.clock)
    await service.apply_events(name, ReplicaLost(1, worker, 1, ""), started)
    for place, task in enumerate(("0-0", "1-0", "1-1")):
        lines = [(START + n * SECOND, f"step {n}/4 loss: {n + place}") for n in (1, 2, 3, 4)]
        service.write_log(int(uid), f"workerpool{task}", *lines)

    async def get_curves(query: str) -> Any:
        (curves,) = curves_of(await browser.get(f"/jobs/{uid}{query}"))
        return curves

    folded = await get_curves("")
    assert folded["lines"] == [
        ["train", [2, 3, 4, 5]],
        ["train, lowest", [1, 2, 3, 4], "edge"],
        ["train, highest", [3, 4, 5, 6], "edge"],
    ]
    assert folded["marks"] == [3], "the worker restarted when the primary was at this step"
    names = ["train", "train workerpool1-0", "train workerpool1-1"]
    assert [name for name, _ in (await get_curves("?replicas=apart"))["lines"]] == names


async def test_chart_of_several_replicas_contains_all_points_of_the_job(
    service: ConsoleService, browser: Browser
) -> None:
    """This also applies if one replica prints few values."""
    spec: Any = JOB["jobSpec"]
    (pool,) = spec["workerPoolSpecs"]
    uid = await submit(service, jobSpec={"workerPoolSpecs": [pool, {**pool, "replicaCount": 2}]})
    await service.run(f"projects/p1/locations/us-central1/customJobs/{uid}")
    for task, every in (("0-0", 1), ("1-0", 1), ("1-1", 40)):
        steps = range(every, 401, every)
        lines = [(START + n * SECOND, f"step {n}/400 loss: {n}") for n in steps]
        service.write_log(int(uid), f"workerpool{task}", *lines)
    (curves,) = curves_of(await browser.get(f"/jobs/{uid}"))
    assert [len(line[1]) for line in curves["lines"]] == [400, 400, 400]


async def test_chart_legend_lists_only_visible_lines(service: ConsoleService, browser: Browser) -> None:
    """Event files may have hundreds of runs. The legend distinguishes runs with the same metric."""
    uid = await submit(service)
    runs = [f"r{number:02}" for number in range(12)]
    for run in runs:
        await log_points(service, run, "loss", 0.5, 0.4)
        await log_points(service, run, "train/acc", 0.5, 0.4)
    page = await browser.get(f"/jobs/{uid}")
    names = re.findall(r'<span class="soft small">(.*?) <b', page.body.decode())
    assert names == [*runs[:8], "train", *(f"{run} train/acc" for run in runs[1:8])]


async def test_log_page_loads_earlier_and_later_lines(service: ConsoleService, browser: Browser) -> None:
    uid = await submit(service)
    await service.apply_events(f"projects/p1/locations/us-central1/customJobs/{uid}", JobAdmitted(()))
    printed = ((START + n * SECOND, f"line {n}") for n in range(100))
    service.write_log(int(uid), "workerpool0-0", *printed)
    service.clock = START + 1_000 * SECOND

    async def texts(query: str) -> tuple[list[str], dict[str, str]]:
        answer = (await browser.get(f"/jobs/{uid}/lines?{query}")).json
        return [line[3] for line in answer["lines"]], answer

    last, page = await texts("limit=10")
    assert last == [f"line {n}" for n in range(90, 100)]
    before, earlier = await texts(f"limit=80&before={page['earlier']}")
    assert before == [f"line {n}" for n in range(10, 90)]
    begin, whole = await texts(f"limit=80&before={earlier['earlier']}")
    assert begin == [f"line {n}" for n in range(10)]
    assert whole["earlier"] == ""
    on, _ = await texts(f"limit=5&after={whole['later']}")
    assert on == [f"line {n}" for n in range(10, 15)]
    result, _ = await texts("search=LINE+7")
    assert result == ["line 7", *(f"line {n}" for n in range(70, 80))]
    assert (await browser.get(f"/jobs/{uid}/lines?before=nonsense")).status == 400
    assert (await browser.get(f"/jobs/{uid}/lines?severity=LOUD")).status == 400
    assert await texts("severity=ERROR") == ([], {**page, "lines": [], "earlier": "", "later": ""})
    service.write_log(int(uid), "workerpool0-0", (START + 100 * SECOND, "bad"), stream="e")
    assert (await texts("severity=ERROR"))[0] == ["bad"]
    text = (await browser.get(f"/jobs/{uid}/log.txt")).body.decode()
    assert len(text.splitlines()) == 101


async def test_missing_page_shows_navigation_only_to_signed_in_users(
    service: ConsoleService, browser: Browser
) -> None:
    page = await browser.get("/jobs/77")
    assert page.status == 404 and b'<nav aria-label="Main">' in page.body
    stranger = await Browser(service).get("/assets/none.js")
    assert stranger.status == 404 and b"<nav" not in stranger.body


async def test_console_assets_are_cached_and_safe_from_path_traversal(browser: Browser) -> None:
    page = (await browser.get("/")).body.decode()
    addresses = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page)
    assert len(addresses) > 4
    for address in addresses:
        plain = await browser.get(address)
        packed = await browser.get(address, ("accept-encoding", "gzip, br"))
        assert "immutable" in plain.headers["cache-control"]
        assert gzip.decompress(packed.body) == plain.body
    assert (await browser.get("/assets/../../access/tokens.py")).status == 404


async def test_open_job_page_receives_updates(service: ConsoleService, browser: Browser) -> None:
    uid = await submit(service, displayName="watched")
    headers = browser.credentials
    async with service.events(f"/events/jobs/{uid}", headers) as events:
        first = await events.next("parts")
        assert "Queued" in first["parts"]["head"]
        # The wait reason depends on other jobs, so their changes also update this page.
        service.capacity.reasons[JobUid(int(uid))] = Waiting(WaitReason.CAPACITY, "no node", "")
        service.notices.publish(JobUid(99))
        assert "No node" in (await events.next("parts"))["parts"]["notice"]
        await service.apply_events(f"projects/p1/locations/us-central1/customJobs/{uid}", JobAdmitted(()))
        second = await events.next("parts")
        assert "Preparing" in second["parts"]["head"]
        assert "tail" not in second["parts"], "only changes are sent"
    async with service.events("/events/jobs", headers) as events:
        listed = await events.next("parts")
        assert listed["lists"]["jobs"] == [f"job-{uid}"]
        other = await submit(service, displayName="newer")
        service.notices.publish(JobUid(int(other)))
        more = await events.next("parts")
        assert more["lists"]["jobs"] == [f"job-{other}", f"job-{uid}"]
        assert list(more["parts"]) == [f"job-{other}"]


async def test_log_page_follows_new_lines(service: ConsoleService, browser: Browser) -> None:
    uid = await submit(service)
    name = f"projects/p1/locations/us-central1/customJobs/{uid}"
    await service.apply_events(name, JobAdmitted(()))
    service.write_log(int(uid), "workerpool0-0", (START, "one"), (START + 1, "two"))
    path, replica = f"/jobs/{uid}/lines/new", "workerpool0-0/1"

    async def texts(after: int) -> list[str]:
        answer = await browser.get(f"{path}?after={replica}/{after}")
        return [line[3] for line in answer.json["lines"]]

    assert await texts(0) == ["two"]
    coming = asyncio.ensure_future(texts(1))
    await asyncio.sleep(0)
    service.write_log(int(uid), "workerpool0-0", (START + 2, "three"))
    assert await coming == ["three"]
    flood = ((START + 3 + n, f"flood {n}") for n in range(5_000))
    service.write_log(int(uid), "workerpool0-0", *flood)
    assert await texts(2) == [f"flood {n}" for n in range(4_600, 5_000)]
    odd = f"x/{'9' * 5000}/1,x"
    assert (await browser.get(f"{path}?after={odd}")).status == 400


async def test_event_stream_ends_after_sign_out(
    service: ConsoleService, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid, ask = await submit(service), InProcessCaller.ask

    async def ask_as_it_ends(*request: Any) -> Any:
        await browser.post("/logout")
        return await ask(*request)

    async with service.events("/events/jobs", browser.credentials) as events:
        await events.next("parts")
        monkeypatch.setattr(InProcessCaller, "ask", ask_as_it_ends)
        service.notices.publish(JobUid(int(uid)))
        assert "signed out" in (await events.next("gone"))["message"]


async def test_specification_page_shows_the_submitted_and_the_started_job(
    service: ConsoleService, browser: Browser
) -> None:
    uid = await submit(service)
    before = text_of(await browser.get(f"/jobs/{uid}/spec"))
    assert "As submitted" in before
    assert "workerpool0-0 has not started" in before
    await service.apply_events(f"projects/p1/locations/us-central1/customJobs/{uid}", JobAdmitted(()))
    directory = service.log_root / uid / "1" / "workerpool0-0"
    directory.mkdir(parents=True)
    entry = {"incarnation": 1, "at": START, "argv": ["true", EVIL], "names": [EVIL, "RANK"]}
    entry |= {"values": {"RANK": "0", "CLUSTER_SPEC": json.dumps({"cluster": {EVIL: [EVIL]}})}}
    (directory / "launches.jsonl").write_text(json.dumps(entry) + "\n")
    page = await browser.get(f"/jobs/{uid}/spec")
    assert "Environment: 2 variables" in text_of(page)
    assert "Started attempt 1, start 1" in text_of(page)
    assert EVIL.encode() not in page.body
    assert b"<script>alert" not in page.body


async def test_xss_error_pages_escape_query_parameters(service: ConsoleService, browser: Browser) -> None:
    for path in ("/queue", "/models", "/studies/7", "/nothing", "/buckets/b"):
        page = await browser.get(f"{path}?{urlencode({'project': EVIL, 'search': EVIL})}")
        assert b"<script>alert" not in page.body, path
        assert b"<img src=x" not in page.body, path
    page = await browser.get(f"/jobs/{quote(EVIL, safe='')}")
    assert page.status == 400
    assert b"<script>alert" not in page.body
