"""The walk of docs/team.md: an admin and people with tokens, keys and roles, by unmodified clients."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.commands import running
from tests.e2e.browsing import WITH_CHROMIUM, sign_in
from tests.e2e.gcloud import Gcloud, needs_gcloud
from tests.e2e.running import (
    REGION,
    SKLEARN,
    Service,
    command,
    container_job,
    environment,
    given_by_env,
    seen_by,
    trainshed,
)
from tests.e2e.test_apiclient import built

PROJECT = "walk-vision"
JOBS = f"/v1/projects/{PROJECT}/locations/{REGION}/customJobs"
ROBOT = f"nightly@{PROJECT}.iam.gserviceaccount.com"
TALKS = "import time\nprint('talks', flush=True)\ntime.sleep(600)"

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


class ByKey(Gcloud):
    """As the account that was activated, in place of the service's owner."""

    def environment(self) -> dict[str, str]:
        variables = super().environment()
        del variables["CLOUDSDK_AUTH_ACCESS_TOKEN"]
        return variables


@pytest.mark.gcloud
@needs_gcloud
@WITH_CHROMIUM
def test_an_admin_and_six_people(service: Service, chromium: Browser, tmp_path: Path) -> None:
    """Ana works, Bo reads, Cy has another project, a machine submits by its key, Dee is held by limits, Eve
    is revoked in the middle of her work, and the audit tells of it all."""
    admin = Gcloud(service, tmp_path / "admin")
    admin.run("projects", "create", PROJECT, "--name=Vision")
    admin.run("projects", "update", PROJECT, "--name=Vision lab")
    assert "name: Vision lab" in admin.run("projects", "describe", PROJECT).stdout
    within = f"--project={PROJECT}"

    def give(member: str, role: str, project: str = PROJECT) -> None:
        bind = ("projects", "add-iam-policy-binding", project)
        admin.run(*bind, f"--member={member}", f"--role=roles/{role}")

    def person(name: str, role: str, project: str = PROJECT) -> Service:
        made = trainshed("tokens", "create", f"{name}@corp.example", data=service.data)
        give(f"user:{name}@corp.example", role, project)
        return replace(service, token=made.stdout.strip())

    ana, bo = person("ana", "aiplatform.user"), person("bo", "aiplatform.viewer")
    cy, dee = person("cy", "owner", "walk-speech"), person("dee", "aiplatform.user")
    eve = person("eve", "aiplatform.user")

    # Bo sees what Ana has submitted, and may not touch it; Cy does not see it.
    name = ana.call("POST", JOBS, container_job(TALKS))["name"]
    job = name.rpartition("/")[2]
    reading = Gcloud(bo, tmp_path / "bo")
    reading.run("ai", "custom-jobs", "describe", name)
    assert (
        "PERMISSION_DENIED" in reading.run("ai", "custom-jobs", "cancel", name, fails=True).stderr
    )
    jobs_by_api_client = built(cy, "ml", "v1").projects().jobs()
    with pytest.raises(Exception, match=f"HttpError 403 .* add-iam-policy-binding {PROJECT}"):
        jobs_by_api_client.list(parent=f"projects/{PROJECT}").execute()
    for who, buttons in ((ana, 1), (bo, 0)):
        page = chromium.new_context().new_page()
        sign_in(page, who)
        page.goto(f"{service.rest}/jobs/{job}?project={PROJECT}")
        expect(page.get_by_role("button", name="Cancel")).to_have_count(buttons)

    # A machine's key file opens the project to gcloud and the SDK, and nothing else, until it is deleted.
    key, accounts = tmp_path / "key.json", ("iam", "service-accounts")
    admin.run(*accounts, "create", "nightly", within)
    give(f"serviceAccount:{ROBOT}", "aiplatform.user")
    admin.run(*accounts, "keys", "create", str(key), f"--iam-account={ROBOT}", within)
    robot, listing = ByKey(service, tmp_path / "robot"), ("ai", "custom-jobs", "list", within)
    robot.run("auth", "activate-service-account", f"--key-file={key}")
    robot.run(*listing)
    program = tmp_path / "program.py"
    program.write_text(_SDK)
    variables = {
        name: value
        for name, value in given_by_env(service).items()
        if "STORAGE_EMULATOR" not in name and name != "TRAINSHED_TOKEN"
    }
    variables["GOOGLE_APPLICATION_CREDENTIALS"] = str(key)
    seen = seen_by(program, SKLEARN, variables=variables)
    assert seen == {"jobs": ["job", "nightly"], "elsewhere": "PermissionDenied", "objects": ["x"]}
    admin.run(*listing, f"--impersonate-service-account={ROBOT}")
    id_ = json.loads(key.read_text())["private_key_id"]
    admin.run(*accounts, "keys", "delete", id_, f"--iam-account={ROBOT}", within)
    robot.run(*listing, fails=True)

    # Dee's second job waits for her limit, then for the budget.
    def limit(metric: str, value: str, *more: str) -> None:
        words = ("quotas", "set", metric, value, "--project", PROJECT, *more)
        trainshed(*words, data=service.data)

    def waiting() -> str:
        return dee.call("GET", f"/trainshed/v1/jobs/{second}")["waiting"]["message"]

    limit("jobs", "1", "--user", "dee@corp.example")
    first, second = (
        dee.call("POST", JOBS, container_job(script))["name"].rpartition("/")[2]
        for script in (TALKS, "pass")
    )
    assert next(dee.follow(first)) == "talks"
    assert waiting() == f"dee@corp.example may have at most 1 job at once, and has job {first}"
    limit("cpu_hours_per_month", "0")
    limit("jobs", "unlimited", "--user", "dee@corp.example")
    assert "of this month's budget" in waiting()
    limit("cpu_hours_per_month", "unlimited")
    assert dee.finish(second)["state"] == "SUCCEEDED"

    # Eve follows a log and has a shell open when her tokens are deleted.
    storage = f"/storage/v1/b?project={PROJECT}"
    assert eve.ask("GET", storage).status == 200
    log = eve.follow(job)
    assert next(log) == "talks"
    known = {"TRAINSHED_ENDPOINT": service.rest, "TRAINSHED_TOKEN": eve.token}
    with running(
        *command("jobs", "shell", job, "-c", "echo in; sleep 1000"),
        env=environment(service.data) | known,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.stdout is not None and shell.stdout.readline() == "in\n"
        trainshed("tokens", "delete", "eve@corp.example", data=service.data)
        assert "Your rights here have changed" in shell.communicate(timeout=60)[1]
    assert list(log) == []
    assert [eve.ask("GET", path).status for path in (JOBS, storage)] == [401, 401]

    # The audit and the usage tell of each.
    read = ("logging", "read", 'logName:"cloudaudit.googleapis.com"', within, "--format=json")
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
        ("ana@corp.example", "CreateCustomJob", 0),
        (ROBOT, "CreateCustomJob", 0),
        ("bo@corp.example", "CancelCustomJob", 7),
        ("eve@corp.example", "Shell", 0),
        ("owner@trainshed.local", "SetIamPolicy", 0),
    }
    usage = trainshed("usage", "--project", PROJECT, "--format", "csv", data=service.data).stdout
    assert {"ana@corp.example", "dee@corp.example"} < {
        row.partition(",")[0] for row in usage.split()
    }
    service.call("POST", f"/v1/{name}:cancel")
    service.call("POST", f"/trainshed/v1/jobs/{first}:cancel", {})
