"""The walk of docs/team.md: an admin, six people and a machine, by unmodified clients: gcloud, the SDK with a
key file, the API client and a real browser. How limits count: `tests/unit/test_usage.py`."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.e2e.browsing import WITH_CHROMIUM, sign_in
from tests.e2e.gcloud import Gcloud, needs_gcloud
from tests.e2e.running import (
    REGION,
    SKLEARN,
    Service,
    container_job,
    given_by_env,
    seen_by,
    trainshed,
)
from tests.e2e.test_apiclient import built

PROJECT = "walk-vision"
JOBS = f"/v1/projects/{PROJECT}/locations/{REGION}/customJobs"
OF_PROJECT = f"--project={PROJECT}"
USER = "roles/aiplatform.user"
CAST = {
    "ana": (USER, PROJECT, "works"),
    "bo": (USER, PROJECT, "may read, and no more, from the first step on"),
    "cy": ("roles/owner", "walk-speech", "has another project"),
    "dee": (USER, PROJECT, "may have one job at a time"),
    "eva": (USER, PROJECT, "has used up her budget"),
    "fay": (USER, PROJECT, "is revoked in the middle of her work"),
}
ROBOT = f"nightly@{PROJECT}.iam.gserviceaccount.com"
TALKS = "import time\nwhile not time.sleep(0.2):\n    print('talks', flush=True)"

_SDK = """
import json, os, sys
from google.cloud import aiplatform, storage

aiplatform.init(
    project="walk-vision",
    location="us-central1",
    api_endpoint=os.environ["TRAINSHED_GRPC_ENDPOINT"],
    api_transport="grpc",
)
pool = {"replica_count": 1, "machine_spec": {"machine_type": "n1-standard-4"}}
client = storage.Client(
    project="walk-vision", client_options={"api_endpoint": os.environ["TRAINSHED_ENDPOINT"]}
)
client.create_bucket("walk-vision-data").blob("x").upload_from_string("hello")
pool["container_spec"] = {"image_uri": sys.argv[1], "command": ["true"]}
job = aiplatform.CustomJob("nightly", [pool], staging_bucket="gs://walk-vision-data")
job.submit()
seen = {"jobs": sorted(job.display_name for job in aiplatform.CustomJob.list())}
try:
    aiplatform.CustomJob.list(project="walk-speech")
except Exception as error:
    seen["elsewhere"] = type(error).__name__
seen["objects"] = [blob.name for blob in client.list_blobs("walk-vision-data")]
print("SEEN " + json.dumps(seen))
"""


def email(name: str) -> str:
    return f"{name}@corp.example"


@pytest.mark.gcloud
@needs_gcloud
@WITH_CHROMIUM
def test_an_admin_and_six_people(service: Service, chromium: Browser, tmp_path: Path) -> None:
    admin = Gcloud(service, tmp_path / "admin")
    admin.run("projects", "create", PROJECT, "--name=Vision")
    admin.run("projects", "update", PROJECT, "--name=Vision lab")
    assert "name: Vision lab" in admin.run("projects", "describe", PROJECT).stdout
    people = {name: added(service, name) for name in CAST}
    job = submitted(people["ana"])

    def page_of(who: str) -> Page:
        page = chromium.new_context().new_page()
        sign_in(page, people[who])
        page.goto(f"{service.rest}/jobs/{job}?project={PROJECT}")
        return page

    one_is_restricted_to_reading(admin, Gcloud(people["bo"], tmp_path / "bo"), page_of, job)
    another_has_another_project(people["cy"])
    a_machine_works_by_its_key(admin, service, tmp_path)
    limits_hold_back_whom_they_are_for(people["dee"], people["eva"])
    one_is_revoked_at_work(people["fay"], page_of, service, job)
    all_of_it_is_told(admin)
    for left in service.call("GET", f"{JOBS}?filter=state!=JOB_STATE_SUCCEEDED")["customJobs"]:
        service.call("POST", f"/v1/{left['name']}:cancel", {})


def added(service: Service, name: str) -> Service:
    """The service as somebody calls it whom the admin has added."""
    role, project, _ = CAST[name]
    words = ("tokens", "create", email(name), "--role", role, "--project", project)
    return replace(service, token=trainshed(*words, data=service.data).stdout.strip())


def bind(admin: Gcloud, does: str, member: str, role: str) -> None:
    words = (f"{does}-iam-policy-binding", PROJECT, f"--member={member}", f"--role={role}")
    admin.run("projects", *words)


def submitted(who: Service) -> str:
    """The id of a job of somebody's."""
    return who.call("POST", JOBS, container_job(TALKS, name="talks"))["name"].rpartition("/")[2]


def one_is_restricted_to_reading(
    admin: Gcloud, bo: Gcloud, page_of: Callable[[str], Page], job: str
) -> None:
    """Bo sees what Ana has submitted, and may not touch it."""
    for does, role in (("remove", USER), ("add", "roles/aiplatform.viewer")):
        bind(admin, does, f"user:{email('bo')}", role)
    bo.run("ai", "custom-jobs", "describe", job, OF_PROJECT)
    refused = bo.run("ai", "custom-jobs", "cancel", job, OF_PROJECT, fails=True)
    assert "PERMISSION_DENIED" in refused.stderr
    for who, buttons in (("ana", 1), ("bo", 0)):
        expect(page_of(who).get_by_role("button", name="Cancel")).to_have_count(buttons)


def another_has_another_project(cy: Service) -> None:
    jobs = built(cy, "ml", "v1").projects().jobs()
    assert jobs.list(parent="projects/walk-speech").execute() == {}
    with pytest.raises(Exception, match=f"HttpError 403 .* add-iam-policy-binding {PROJECT}"):
        jobs.list(parent=f"projects/{PROJECT}").execute()


def a_machine_works_by_its_key(admin: Gcloud, service: Service, place: Path) -> None:
    """It opens the project to gcloud and the SDK, and nothing else, until it is deleted."""
    key, accounts = place / "key.json", ("iam", "service-accounts")
    admin.run(*accounts, "create", "nightly", OF_PROJECT)
    bind(admin, "add", f"serviceAccount:{ROBOT}", USER)
    admin.run(*accounts, "keys", "create", str(key), f"--iam-account={ROBOT}", OF_PROJECT)
    robot = Gcloud(replace(service, token=""), place / "robot")
    robot.run("auth", "activate-service-account", f"--key-file={key}")
    program = place / "program.py"
    program.write_text(_SDK)
    variables = {
        name: value
        for name, value in given_by_env(service).items()
        if "STORAGE_EMULATOR" not in name and name != "TRAINSHED_TOKEN"
    }
    variables["GOOGLE_APPLICATION_CREDENTIALS"] = str(key)
    seen = seen_by(program, SKLEARN, variables=variables)
    assert seen == {"jobs": ["nightly", "talks"], "elsewhere": "PermissionDenied", "objects": ["x"]}
    listing = ("ai", "custom-jobs", "list", OF_PROJECT)
    robot.run(*listing)
    admin.run(*listing, f"--impersonate-service-account={ROBOT}")
    id_ = json.loads(key.read_text())["private_key_id"]
    admin.run(*accounts, "keys", "delete", id_, f"--iam-account={ROBOT}", OF_PROJECT)
    robot.run(*listing, fails=True)


def limits_hold_back_whom_they_are_for(dee: Service, eva: Service) -> None:
    """A quota and a budget; a job that waits says for which, and who can raise it. Nobody else waits."""
    for who, name, metric, limit, why in (
        (dee, "dee", "jobs", "1", "may have at most 1 job at once"),
        (eva, "eva", "cpu_hours_per_month", "0.0001", "of 0.0001 CPU-hours of this month's budget"),
    ):
        words = ("quotas", "set", metric, limit, OF_PROJECT, "--user", email(name))
        trainshed(*words, data=who.data)
        first = submitted(who)
        # For longer than the second for which a sum of what is used holds.
        assert list(islice(who.follow(first), 8)) == ["talks"] * 8
        second = submitted(who)
        waits = who.call("GET", f"/trainshed/v1/jobs/{second}")["waiting"]
        assert why in waits["message"] and waits["hint"].startswith("an owner ")
        listing = ("jobs", "list", "--mine", OF_PROJECT, "--format", "json")
        mine = trainshed(*listing, "--url", who.rest, "--token", who.token, data=who.data)
        assert [row["jobId"] for row in json.loads(mine.stdout)] == [second, first]


def one_is_revoked_at_work(
    fay: Service, page_of: Callable[[str], Page], service: Service, job: str
) -> None:
    """Fay follows a log, has a shell open, and a page in her browser."""
    lines, page = fay.follow(job), page_of("fay")
    assert next(lines) == "talks"
    expect(page.get_by_role("button", name="Cancel")).to_have_count(1)
    ticket = fay.call("POST", f"/trainshed/v1/jobs/{job}:shell", {})["token"]
    door = f"ws{service.rest.removeprefix('http')}/shell/connect"
    with connect(door, origin=Origin(service.rest)) as shell:
        shell.send(json.dumps({"token": ticket, "terminal": False}))
        assert "title" in json.loads(shell.recv(30))
        shell.send(b"echo $((6 * 7))\n")
        assert shell.recv(30) == b"42\n"
        trainshed("tokens", "delete", email("fay"), data=service.data)
        assert "signed out" in json.loads(shell.recv(30))["error"]
    assert set(lines) <= {"talks"}, "it ends"
    expect(page.get_by_text("You are signed out")).to_be_visible()
    assert fay.ask("GET", JOBS).status == 401


def all_of_it_is_told(admin: Gcloud) -> None:
    """By the audit, and by the usage."""
    read = ("logging", "read", 'logName:"cloudaudit.googleapis.com"', OF_PROJECT, "--format=json")
    entries = [entry["protoPayload"] for entry in json.loads(admin.run(*read).stdout)]
    done = {
        (
            entry["authenticationInfo"]["principalEmail"],
            entry["methodName"].rpartition(".")[2],
            entry["status"].get("code", 0),
        )
        for entry in entries
    }
    assert done >= {
        ("owner@trainshed.local", "SetIamPolicy", 0),
        (email("ana"), "CreateCustomJob", 0),
        (email("bo"), "CancelCustomJob", 7),
        (ROBOT, "CreateCustomJob", 0),
        (email("fay"), "Shell", 0),
    }
    words = ("usage", OF_PROJECT, "--format", "csv")
    usage = trainshed(*words, data=admin.service.data).stdout
    assert email("ana") in {row.partition(",")[0] for row in usage.split()}
