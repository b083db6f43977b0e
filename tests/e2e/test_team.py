"""The walk of docs/team.md: an admin and people with tokens, keys and roles, by unmodified clients."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.gcloud import Gcloud, needs_gcloud
from tests.e2e.running import (
    REGION,
    Service,
    command,
    container_job,
    environment,
    given_by_env,
    seen_by,
    trainshed,
)

PROJECT = "walk-vision"
JOBS = f"/v1/projects/{PROJECT}/locations/{REGION}/customJobs"
ROBOT = f"nightly@{PROJECT}.iam.gserviceaccount.com"
TALKS = "import time\nprint('talks', flush=True)\ntime.sleep(600)"

_SDK = """
import json, os
from google.cloud import aiplatform, storage

aiplatform.init(
    project="walk-vision",
    location="us-central1",
    api_endpoint=os.environ["TRAINSHED_GRPC_ENDPOINT"],
    api_transport="grpc",
)
seen = {"jobs": [job.display_name for job in aiplatform.CustomJob.list()]}
try:
    aiplatform.CustomJob.list(project="walk-speech")
except Exception as error:
    seen["elsewhere"] = type(error).__name__
client = storage.Client(
    project="walk-vision", client_options={"api_endpoint": os.environ["TRAINSHED_ENDPOINT"]}
)
client.create_bucket("walk-vision-data").blob("x").upload_from_string("hello")
seen["objects"] = [blob.name for blob in client.list_blobs("walk-vision-data")]
print("SEEN " + json.dumps(seen))
"""


class ByKey(Gcloud):
    """As the account that was activated, in place of the service's owner."""

    def environment(self) -> dict[str, str]:
        variables = super().environment()
        del variables["CLOUDSDK_AUTH_ACCESS_TOKEN"]
        return variables


@pytest.fixture(scope="module")
def gcloud(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Gcloud:
    return Gcloud(service, tmp_path_factory.mktemp("gcloud"))


@pytest.fixture(scope="module")
def vision(gcloud: Gcloud) -> str:
    """A project, by gcloud."""
    gcloud.run("projects", "create", PROJECT, "--name=Vision")
    return PROJECT


@pytest.fixture(scope="module")
def key(gcloud: Gcloud, vision: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key file of a service account that may use Vertex in the project."""
    file = tmp_path_factory.mktemp("key") / "key.json"
    accounts = ("iam", "service-accounts")
    gcloud.run(*accounts, "create", "nightly", f"--project={vision}")
    member, role = f"serviceAccount:{ROBOT}", "roles/aiplatform.user"
    bind = ("projects", "add-iam-policy-binding", vision)
    gcloud.run(*bind, f"--member={member}", f"--role={role}")
    made = ("keys", "create", str(file), f"--iam-account={ROBOT}", f"--project={vision}")
    gcloud.run(*accounts, *made)
    return file


def token_of(service: Service, email: str, role: str, project: str = PROJECT) -> dict[str, str]:
    words = ("tokens", "create", email, "--role", role, "--project", project)
    run = trainshed(*words, data=service.data)
    return {"id": run.stderr.split()[0], "token": run.stdout.strip()}


@pytest.fixture
def job(service: Service) -> Iterator[str]:
    """One that runs in the project, which Ana has submitted."""
    ana = token_of(service, "ana@corp.example", "roles/aiplatform.user")
    mine = Service(service.data, service.process, service.rest, ana["token"], service.pid)
    name = mine.call("POST", JOBS, container_job(TALKS))["name"]
    yield name.rpartition("/")[2]
    service.call("POST", f"/v1/{name}:cancel")


@pytest.mark.gcloud
@needs_gcloud
def test_a_key_file_opens_the_project_to_gcloud_and_the_sdk(
    service: Service, key: Path, vision: str, tmp_path: Path
) -> None:
    """And nothing else; deleting the key ends it."""
    robot = ByKey(service, tmp_path / "configuration")
    robot.run("auth", "activate-service-account", f"--key-file={key}")
    robot.run("ai", "custom-jobs", "list", f"--project={vision}")
    refused = robot.run("ai", "custom-jobs", "list", "--project=walk-speech", fails=True)
    assert "add-iam-policy-binding walk-speech" in refused.stderr
    program = tmp_path / "program.py"
    program.write_text(_SDK)
    variables = {
        name: value
        for name, value in given_by_env(service).items()
        if "STORAGE_EMULATOR" not in name and name != "TRAINSHED_TOKEN"
    }
    variables["GOOGLE_APPLICATION_CREDENTIALS"] = str(key)
    seen = seen_by(program, variables=variables)
    assert seen == {"jobs": [], "elsewhere": "PermissionDenied", "objects": ["x"]}
    owner = Gcloud(service, tmp_path / "owner")
    as_robot = ("ai", "custom-jobs", "list", f"--project={vision}", "--format=json")
    assert owner.run(*as_robot, f"--impersonate-service-account={ROBOT}").stdout.strip() == "[]"
    id_ = json.loads(key.read_text())["private_key_id"]
    delete = ("iam", "service-accounts", "keys", "delete", id_, f"--iam-account={ROBOT}")
    owner.run(*delete, f"--project={vision}")
    robot.run("ai", "custom-jobs", "list", f"--project={vision}", fails=True)
    owner.run("projects", "create", "walk-gone")
    owner.run("projects", "delete", "walk-gone", "--quiet")
    assert "walk-gone" not in owner.run("projects", "list", "--format=value(projectId)").stdout


def test_a_token_that_is_deleted_ends_all_that_goes_on_by_it(service: Service, job: str) -> None:
    """A log that is followed, a shell, REST, and the buckets, which are another process."""
    bo = token_of(service, "bo@corp.example", "roles/aiplatform.user")
    his = Service(service.data, service.process, service.rest, bo["token"], service.pid)
    storage = f"/storage/v1/b?project={PROJECT}"
    assert his.ask("GET", storage).status == 200
    log = his.follow(job)
    assert next(log) == "talks"
    known = {"TRAINSHED_ENDPOINT": service.rest, "TRAINSHED_TOKEN": bo["token"]}
    with subprocess.Popen(
        command("jobs", "shell", job, "-c", "echo in; sleep 1000"),
        env=environment(service.data) | known,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.stdout is not None and shell.stdout.readline() == "in\n"
        trainshed("tokens", "delete", bo["id"], data=service.data)
        assert "Your rights here have changed" in shell.communicate(timeout=60)[1]
    assert list(log) == []
    assert his.ask("GET", JOBS).status == 401
    assert his.ask("GET", storage).status == 401


def test_limits_and_budgets_hold_jobs_and_say_so_until_they_are_raised(
    service: Service, job: str
) -> None:
    ana = token_of(service, "ana@corp.example", "roles/aiplatform.user")
    hers = Service(service.data, service.process, service.rest, ana["token"], service.pid)
    until_running(service, job)

    def limit(metric: str, value: str, *more: str) -> None:
        words = ("quotas", "set", metric, value, "--project", PROJECT, *more)
        trainshed(*words, data=service.data)

    limit("jobs", "1", "--user", "each")
    second = hers.call("POST", JOBS, container_job("pass"))["name"].rpartition("/")[2]
    waiting = hers.call("GET", f"/trainshed/v1/jobs/{second}")["waiting"]
    assert (
        waiting["message"] == f"ana@corp.example may have at most 1 job at once, and has job {job}"
    )
    limit("cpu_hours_per_month", "0")
    limit("jobs", "unlimited", "--user", "each")
    waiting = hers.call("GET", f"/trainshed/v1/jobs/{second}")["waiting"]
    assert "of this month's budget" in waiting["message"]
    limit("cpu_hours_per_month", "unlimited")
    assert hers.finish(second)["state"] == "SUCCEEDED"
    usage = trainshed("usage", "--project", PROJECT, "--format", "csv", data=service.data).stdout
    assert usage.splitlines()[1].startswith("ana@corp.example,")
    listed = trainshed(
        "jobs", "list", "--user", "ana@corp.example", "--project", PROJECT, data=service.data
    )
    assert second in listed.stdout and job in listed.stdout
    mine = trainshed("jobs", "list", "--mine", "--project", PROJECT, data=service.data)
    assert second not in mine.stdout


def test_a_hard_budget_stops_what_runs_at_the_moment_it_is_used_up(service: Service) -> None:
    """And lets it go on when it is raised."""
    metric, project = "cpu_hours_per_month_hard", "walk-budget"
    program = (
        f"import signal\nsignal.signal(15, lambda *_: exit(print('stops', flush=True)))\n{TALKS}"
    )
    jobs = JOBS.replace(PROJECT, project)
    name = service.call("POST", jobs, container_job(program))["name"]
    job = name.rpartition("/")[2]
    log = service.follow(job)
    assert next(log) == "talks"
    [row] = service.call("GET", f"/trainshed/v1/usage?project={project}&by=project")["rows"]
    # Some three seconds of four processors more.
    limit = f"{row['cpuHours'] + 0.003:.6f}"
    trainshed("quotas", "set", metric, limit, "--project", project, data=service.data)
    assert next(log) == "stops"
    waits = next(view for view in service.watch(job) if view.get("waiting"))
    spent = f"project {project} has used"
    assert waits["waiting"]["message"].startswith(spent), "and so says trainshed explain"
    assert waits["retries"] == {"budget_used_up": 1}
    trainshed("quotas", "set", metric, "unlimited", "--project", project, data=service.data)
    assert next(log) == "talks"
    timeline = json.dumps(service.call("GET", f"/trainshed/v1/jobs/{job}/timeline"))
    assert spent in timeline and f"of {float(limit):g} CPU-hours of this month's budget" in timeline
    service.call("POST", f"/v1/{name}:cancel")


def until_running(service: Service, job: str) -> None:
    """The log is followed until its first line."""
    assert next(service.follow(job)) == "talks"
