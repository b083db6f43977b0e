"""The walk of docs/team.md: an admin, six users and a machine, with unmodified clients: gcloud, the SDK with
a key file, the API client and a real browser. `tests/unit/test_usage.py` tests the counting of limits.
"""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.e2e.browsing import WITH_CHROMIUM, sign_in
from tests.e2e.gcloud import Gcloud, needs_gcloud
from tests.e2e.running import REGION, SKLEARN, Service, container_job, env_variables, seen_by, trainshed
from tests.e2e.test_apiclient import build_client

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


@pytest.mark.gcloud
@needs_gcloud
@WITH_CHROMIUM
def test_commands_of_the_team_guide_succeed_for_an_admin_and_six_users(
    service: Service, chromium: Browser, tmp_path: Path
) -> None:
    def by_admin(*words: str) -> str:
        return trainshed(*words, data=service.data).stdout

    def add_user(name: str) -> Service:
        role, project, _ = CAST[name]
        words = (f"{name}@corp.example", "--role", role, "--project", project)
        return replace(service, token=by_admin("tokens", "create", *words).strip())

    admin, job = Gcloud(service, tmp_path / "admin"), container_job(TALKS, name="talks")
    admin.run("projects", "create", PROJECT, "--name=Vision")
    admin.run("projects", "update", PROJECT, "--name=Vision lab")
    assert "name: Vision lab" in admin.run("projects", "describe", PROJECT).stdout
    ana, bo, cy, dee, eva, fay = map(add_user, CAST)

    def bind(does: str, member: str, role: str) -> None:
        what = (PROJECT, f"--member={member}", f"--role={role}")
        admin.run("projects", f"{does}-iam-policy-binding", *what)

    def submit_job(person: Service) -> str:
        return person.call("POST", JOBS, job)["name"].rpartition("/")[2]

    def page_of(person: Service) -> Page:
        page = chromium.new_context().new_page()
        sign_in(page, person)
        page.goto(f"{service.rest}/jobs/{of_ana}?project={PROJECT}")
        return page

    # Bo is restricted to reading: he sees Ana's jobs but cannot change them.
    of_ana, reading = submit_job(ana), Gcloud(bo, tmp_path / "bo")
    for does, role in (("remove", USER), ("add", "roles/aiplatform.viewer")):
        bind(does, "user:bo@corp.example", role)
    reading.run("ai", "custom-jobs", "describe", of_ana, OF_PROJECT)
    refused = reading.run("ai", "custom-jobs", "cancel", of_ana, OF_PROJECT, fails=True)
    assert "PERMISSION_DENIED" in refused.stderr
    for person, buttons in ((ana, 1), (bo, 0)):
        expect(page_of(person).get_by_role("button", name="Cancel")).to_have_count(buttons)

    # Cy has his own project, and cannot see this one.
    jobs_by_api_client = build_client(cy, "ml", "v1").projects().jobs()
    assert jobs_by_api_client.list(parent="projects/walk-speech").execute() == {}
    with pytest.raises(Exception, match=f"HttpError 403 .* add-iam-policy-binding {PROJECT}"):
        jobs_by_api_client.list(parent=f"projects/{PROJECT}").execute()

    # A machine's key file gives gcloud and the SDK access to the project only, until it is deleted.
    key, accounts = tmp_path / "key.json", ("iam", "service-accounts")
    admin.run(*accounts, "create", "nightly", OF_PROJECT)
    bind("add", f"serviceAccount:{ROBOT}", USER)
    admin.run(*accounts, "keys", "create", str(key), f"--iam-account={ROBOT}", OF_PROJECT)
    robot = Gcloud(replace(service, token=""), tmp_path / "robot")
    listing = ("ai", "custom-jobs", "list", OF_PROJECT)
    robot.run("auth", "activate-service-account", f"--key-file={key}")
    robot.run(*listing)
    program = tmp_path / "program.py"
    program.write_text(_SDK)
    variables = {
        name: value
        for name, value in env_variables(service).items()
        if "STORAGE_EMULATOR" not in name and name != "TRAINSHED_TOKEN"
    }
    variables["GOOGLE_APPLICATION_CREDENTIALS"] = str(key)
    seen = seen_by(program, SKLEARN, variables=variables)
    assert seen == {"jobs": ["nightly", "talks"], "elsewhere": "PermissionDenied", "objects": ["x"]}
    admin.run(*listing, f"--impersonate-service-account={ROBOT}")
    id_ = json.loads(key.read_text())["private_key_id"]
    admin.run(*accounts, "keys", "delete", id_, f"--iam-account={ROBOT}", OF_PROJECT)
    robot.run(*listing, fails=True)

    # A quota blocks Dee, a budget Eva: each second job shows its reason, and who can raise the limit.
    for person, name, metric, limit, why in (
        (dee, "dee", "jobs", "1", "may have at most 1 job at once"),
        (eva, "eva", "cpu_hours_per_month", "0.0001", "of 0.0001 CPU-hours of this month's budget"),
    ):
        by_admin("quotas", "set", metric, limit, OF_PROJECT, "--user", f"{name}@corp.example")
        first = submit_job(person)
        # Longer than the second for which a usage sum is cached.
        assert list(islice(person.follow(first), 8)) == ["talks"] * 8
        second = submit_job(person)
        waits = person.call("GET", f"/trainshed/v1/jobs/{second}")["waiting"]
        assert why in waits["message"] and waits["hint"].startswith("an owner ")
        mine = ("jobs", "list", "--mine", OF_PROJECT, "--format", "json")
        listed = json.loads(by_admin(*mine, "--url", person.rest, "--token", person.token))
        assert [row["jobId"] for row in listed] == [second, first]

    # Fay's access is revoked while she follows a log, types in a shell and has a page open: all of it ends.
    lines, page = fay.follow(of_ana), page_of(fay)
    assert next(lines) == "talks"
    expect(page.get_by_role("button", name="Cancel")).to_have_count(1)
    ticket = fay.call("POST", f"/trainshed/v1/jobs/{of_ana}:shell", {})["token"]
    door = f"ws{service.rest.removeprefix('http')}/shell/connect"
    with connect(door, origin=Origin(service.rest), open_timeout=60) as shell:
        shell.send(json.dumps({"token": ticket, "terminal": False}))
        assert "title" in json.loads(shell.recv(30))
        shell.send(b"echo $((6 * 7))\n")
        assert shell.recv(30) == b"42\n"
        by_admin("tokens", "delete", "fay@corp.example")
        assert "signed out" in json.loads(shell.recv(30))["error"]
    assert set(lines) <= {"talks"}
    expect(page.get_by_text("You are signed out")).to_be_visible()
    assert fay.ask("GET", JOBS).status == 401

    # The audit log and the usage contain each action.
    read = ("logging", "read", 'logName:"cloudaudit.googleapis.com"', OF_PROJECT, "--format=json")
    entries = [entry["protoPayload"] for entry in json.loads(admin.run(*read).stdout)]
    done = {
        (
            entry["authenticationInfo"]["principalEmail"].partition("@")[0],
            entry["methodName"].rpartition(".")[2],
            entry["status"].get("code", 0),
        )
        for entry in entries
    }
    submits = {(name, "CreateCustomJob", 0) for name in ("ana", "dee", "eva", "nightly")}
    others = {("owner", "SetIamPolicy", 0), ("bo", "CancelCustomJob", 7), ("fay", "Shell", 0)}
    assert done >= submits | others
    usage = by_admin("usage", OF_PROJECT, "--format", "csv").split()
    assert "ana@corp.example" in {row.partition(",")[0] for row in usage}
    for left in service.call("GET", f"{JOBS}?filter=state!=JOB_STATE_SUCCEEDED")["customJobs"]:
        service.call("POST", f"/v1/{left['name']}:cancel", {})
