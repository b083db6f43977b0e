"""A machine with a service account's key file, as in docs/team.md, and the unmodified SDK."""

import base64
import json
from pathlib import Path

from tests.e2e.running import KEPT_CHANNEL, SKLEARN, Service, env_variables, seen_by
from tests.isolation import needs_view

pytestmark = needs_view
PROJECT = "machine-vision"
ROBOT = f"nightly@{PROJECT}.iam.gserviceaccount.com"
BUCKET = f"trainshed-{PROJECT}"

_SDK = """
import datetime, json, os, sys, urllib.request
from google.cloud import aiplatform, storage

project, script, image = sys.argv[1:]
aiplatform.init(
    project=project,
    location="us-central1",
    api_endpoint=os.environ["TRAINSHED_GRPC_ENDPOINT"],
    api_transport="grpc",
    staging_bucket="gs://trainshed-" + project,
)
bucket = storage.Client(project=project).create_bucket("trainshed-" + project)
job = aiplatform.CustomJob.from_local_script(
    display_name="staged", script_path=script, container_uri=image, args=["7"]
)
job.run()
url = bucket.blob("answer").generate_signed_url(
    version="v4", expiration=datetime.timedelta(minutes=5)
)
answer = urllib.request.urlopen(url).read().decode()
print("SEEN " + json.dumps({"state": job.state.name, "answer": answer}))
"""
_SCRIPT = f"""
import sys
from google.cloud import storage
storage.Client().bucket("{BUCKET}").blob("answer").upload_from_string("got " + sys.argv[1])
"""


def test_machine_account_can_stage_and_run_a_script(service: Service, tmp_path: Path) -> None:
    """Regression: the SDK's storage client connected to Google, or was anonymous."""
    accounts = f"/v1/projects/{PROJECT}/serviceAccounts"
    service.call("POST", accounts, {"accountId": "nightly"})
    member = f"serviceAccount:{ROBOT}"
    binding = {"role": "roles/aiplatform.user", "members": [member]}
    policy = {"policy": {"bindings": [binding]}}
    service.call("POST", f"/v1/projects/{PROJECT}:setIamPolicy", policy)
    made = service.call("POST", f"{accounts}/{ROBOT}/keys", {})
    key = tmp_path / "key.json"
    key.write_bytes(base64.b64decode(made["privateKeyData"]))
    (script := tmp_path / "train.py").write_text(_SCRIPT)
    (program := tmp_path / "program.py").write_text(KEPT_CHANNEL + _SDK)
    variables = env_variables(service)
    for name in (
        *("TRAINSHED_TOKEN", "CLOUDSDK_AUTH_ACCESS_TOKEN"),
        *("STORAGE_EMULATOR_HOST", "CLOUD_STORAGE_EMULATOR_ENDPOINT", "BOTO_CONFIG"),
    ):
        variables.pop(name, None)
    storage = variables["CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE"]
    variables["API_ENDPOINT_OVERRIDE"] = storage.removesuffix("/storage/v1/")
    variables["GOOGLE_APPLICATION_CREDENTIALS"] = str(key)
    assert not [name for name, value in variables.items() if "/with/" in value]
    seen = seen_by(program, PROJECT, str(script), SKLEARN, variables=variables)
    assert seen == {"state": "JOB_STATE_SUCCEEDED", "answer": "got 7"}
    assert json.loads(key.read_text())["client_email"] == ROBOT
