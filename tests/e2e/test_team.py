"""The walk of docs/team.md: an admin and people with tokens, keys and roles, by unmodified clients."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

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


@pytest.mark.gcloud
@needs_gcloud
@WITH_CHROMIUM
def test_an_admin_three_people_and_a_machine(
    service: Service, chromium: Browser, tmp_path: Path
) -> None:
    """Ana works, Bo reads, Cy has another project, a machine submits by its key, and the audit tells of it
    all. Limits of people: `tests/unit/test_usage.py`; who is revoked in the middle of his work:
    `tests/contract/api/test_access.py` and `test_shell.py`."""
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
    cy = person("cy", "owner", "walk-speech")

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
    robot = Gcloud(replace(service, token=""), tmp_path / "robot")
    listing = ("ai", "custom-jobs", "list", within)
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
        ("owner@trainshed.local", "SetIamPolicy", 0),
    }
    usage = trainshed("usage", "--project", PROJECT, "--format", "csv", data=service.data).stdout
    assert "ana@corp.example" in {row.partition(",")[0] for row in usage.split()}
    service.call("POST", f"/v1/{name}:cancel")
