"""The real TensorBoard for a job's files, through a browser and `trainshed tensorboard`."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.e2e.processes import commands, wait_until_gone
from tests.e2e.running import CUSTOM_JOBS, Answer, Service, container_job, start, submit, trainshed
from tests.summary_writers import GOLDEN, WRITERS

BUCKET = "trainshed"
TORCH = WRITERS["torch-scalars"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINSHED_TENSORBOARDS", "2")
        patch.setenv("TRAINSHED_LOG_LEVEL", "info")
        started = start(tmp_path_factory.mktemp("tensorboard") / "data")
    yield started
    started.terminate()


def run_job_with_events(service: Service, name: str) -> str:
    """Run a job with a PyTorch event file in its log directory to its end, and return its ID."""
    body = container_job("import time; time.sleep(600)", name=name)
    body["jobSpec"]["baseOutputDirectory"] = {"outputUriPrefix": f"gs://{BUCKET}/{name}"}
    job = submit(service, body)
    events = (GOLDEN / "torch-scalars.tfevents").read_bytes()
    service.put(BUCKET, f"{name}/logs/train/events.out.tfevents.1", events)
    service.call("POST", f"{CUSTOM_JOBS}/{job}:cancel", {})
    service.finish(job, 120)
    return job


@pytest.fixture(scope="module")
def job(service: Service) -> str:
    return run_job_with_events(service, "first")


def send_request(service: Service, path: str, body: bytes | None = None, **headers: str) -> Answer:
    """Send a request like a browser without a token, and return the response. `body`: sent with POST."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    verb = "GET" if body is None else "POST"
    return service.ask(verb, path, body, token=None, headers=sent)


def link_of(service: Service, *jobs: str) -> dict[str, str]:
    """Return the fragment of the link that the command prints."""
    words = ("tensorboard", *jobs, "--data", str(service.data))
    done = trainshed(*words, data=service.data)
    address, _, fragment = done.stdout.strip().partition("#")
    assert address == f"{service.rest}/tensorboard/"
    return {name: values[0] for name, values in parse_qs(fragment).items()}


def open_view(service: Service, link: Mapping[str, str]) -> str:
    """Open the path of a view with the browser's cookie, like the page."""
    answer = send_request(service, "/tensorboard/open", json.dumps(link).encode())
    assert answer.status == 200, answer.body
    assert answer.headers["Set-Cookie"] is None
    assert b"Starting TensorBoard." in answer.body
    return "/tensorboard/" + json.loads(answer.body.splitlines()[-1])["path"]


def test_tensorboard_link_shows_a_jobs_data(service: Service, job: str) -> None:
    """The page, its scripts, the runs and the scalars, all below the path of the view."""
    path = open_view(service, link_of(service, job))
    page = send_request(service, path, Accept_Encoding="identity")
    assert page.status == 200
    (script,) = re.findall(r'<script src="(index\.js[^"]*)"', page.body.decode())
    assert len(send_request(service, path + script).body) > 100_000
    fonts = re.findall(r"url\(\s*([^)]*\.woff2)\)", page.body.decode())
    assert len(fonts) > 10
    assert {font.partition("/")[0] for font in fonts} == {"font-roboto"}, "below its own path"
    assert send_request(service, path + fonts[0]).body.startswith(b"wOF2")
    assert json.loads(send_request(service, path + "data/runs").body) == ["train"]
    tag, points = next(iter(TORCH.scalars.items()))
    form = f"tag={tag}&runs=train".encode()
    answer = send_request(
        service,
        path + "data/plugin/scalars/scalars_multirun",
        form,
        Content_Type="application/x-www-form-urlencoded",
        Origin=service.rest,
    )
    curves: dict[str, Any] = json.loads(answer.body)
    assert {step: value for _, step, value in curves["train"]} == pytest.approx(points)
    assert send_request(service, path, form, Origin="http://evil.example").status == 403
    # The owner's token does not replace the cookie.
    assert service.ask("GET", f"/tensorboard/{path.split('/')[2]}/").status == 401
    described = service.call("GET", f"/trainshed/v1/jobs/{job}")
    assert described["tensorboardUri"].startswith(f"{service.rest}/tensorboard/#view=")


def test_tensorboard_page_can_access_only_its_own_path(service: Service, job: str) -> None:
    """docs/security.md: with any contents from a job. Two policies confine both."""
    path = open_view(service, link_of(service, job))
    for below in ("", "data/runs", "nowhere"):
        answer = send_request(service, path + below)
        policies = answer.headers.get_all("Content-Security-Policy") or []
        (ours,) = (policy for policy in policies if policy.startswith("sandbox "))
        host = urlsplit(service.rest).netloc
        assert f"connect-src {host}{path};" in ours
        assert f"worker-src {host}{path};" in ours
        assert "allow-popups" not in ours and "allow-top-navigation" not in ours
        assert "frame-src 'none'" in ours
        assert answer.headers.get_all("Set-Cookie") is None
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_tensorboard_page_can_load_a_web_worker_but_no_service_worker(service: Service, job: str) -> None:
    """docs/security.md: a service worker would still respond to requests for the page after its job is
    deleted."""
    path = open_view(service, link_of(service, job))
    script = path + "chart_worker.js"
    assert send_request(service, script).status == 200
    assert send_request(service, script, Service_Worker="script").status == 403


def test_open_tensorboard_page_is_blocked_when_the_token_is_deleted(service: Service, job: str) -> None:
    words = ("bo@corp.example", "--role", "roles/editor")
    token = trainshed("tokens", "create", *words, data=service.data).stdout.strip()
    link = service.ask("POST", f"/trainshed/v1/jobs/{job}:tensorboard", {}, token=token).json
    runs = open_view(service, {name: link[name] for name in ("view", "key")}) + "data/runs"
    assert send_request(service, runs).status == 200
    trainshed("tokens", "delete", words[0], data=service.data)
    assert send_request(service, runs).status == 403


def test_tensorboard_of_several_jobs_ends_when_one_job_is_deleted(service: Service, job: str) -> None:
    other = run_job_with_events(service, "second")
    path = open_view(service, link_of(service, job, other))
    runs = json.loads(send_request(service, path + "data/runs").body)
    assert sorted(runs) == ["first/train", "second/train"]
    (process,) = viewers(service, path.split("/")[2])
    service.call("DELETE", f"{CUSTOM_JOBS}/{other}")
    assert send_request(service, path).status == 404
    wait_until_gone([process])
    log = (service.data / "service.log").read_text()
    assert f"viewer {path.split('/')[2]}: started" in log


def viewers(service: Service, view: str) -> list[int]:
    """The supervisors of a view's processes."""
    return commands(f"/viewers/{view}", "keeper", str(service.data))
