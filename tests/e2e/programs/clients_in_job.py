"""A notebook's cells inside a job, with Google's clients in their default configuration. Prints the results
as JSON in one line `SEEN ...`.
"""

import json
import os
import sys
import time

import google.auth
import google.auth.transport.grpc
import google.auth.transport.requests
import grpc
import requests
from google.api_core import exceptions
from google.cloud import aiplatform, storage
from google.cloud.aiplatform.utils import gcs_utils
from googleapiclient import discovery

bucket, foreign, image = sys.argv[1:]
seen = {}
started = time.monotonic()
# Without a project: CLOUD_ML_PROJECT_ID contains its number, and Resource Manager has the ID.
aiplatform.init()
seen["project"] = aiplatform.initializer.global_config.project
own = f"/{os.environ['CLOUD_ML_JOB_ID']}"
seen["own job"] = any(job.resource_name.endswith(own) for job in aiplatform.CustomJob.list())
seen["seconds"] = time.monotonic() - started

for transport in ("grpc", "rest"):
    aiplatform.init(project=seen["project"], location="us-central1", api_transport=transport)
    storage.Client().bucket(bucket).blob(f"{transport}/model.txt").upload_from_string("y = 3x")
    model = aiplatform.Model.upload(
        display_name=transport,
        artifact_uri=f"gs://{bucket}/{transport}",
        serving_container_image_uri="us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest",
    )
    names = [listed.display_name for listed in aiplatform.Model.list()]
    seen[f"models {transport}"] = [aiplatform.Model(model.resource_name).uri, *names]
    model.delete()
    try:
        aiplatform.CustomJob.list(project=foreign)
    except exceptions.Forbidden as refused:
        seen[f"foreign {transport}"] = refused.code

# No staging bucket is set: the first call creates one, and the second checks its owner.
with open("data.txt", "w") as file:
    file.write("x")
seen["staged"] = [gcs_utils.stage_local_data_in_gcs("data.txt") for _ in range(2)]

spec = {
    "machine_spec": {"machine_type": "n1-standard-4"},
    "replica_count": 1,
    "container_spec": {"image_uri": image, "command": ["echo", "made inside"]},
}
job = aiplatform.CustomJob(
    "made inside",
    [spec],
    staging_bucket=f"gs://{bucket}",
    labels={"trainshed-outlives": "on"},  # No reader waits for it.
)
job.submit()
seen["made"] = job.resource_name

parent = f"projects/{seen['project']}"
ml = discovery.build("ml", "v1").projects().jobs().list(parent=parent)
seen["ml"] = ml.execute().get("jobs", [])
numbered = f"projects/{os.environ['CLOUD_ML_PROJECT_ID']}"
manager = discovery.build("cloudresourcemanager", "v3").projects().get(name=numbered)
seen["by number"] = manager.execute()["projectId"]
entry = {"severity": "ERROR", "jsonPayload": {"message": "said by the API", "loss": 0.5}}
body = {"logName": f"{parent}/logs/cells", "resource": {"type": "global"}, "entries": [entry]}
discovery.build("logging", "v2").entries().write(body=body).execute()
# Like older versions of the API's client, which contain no documents.
dynamic = discovery.build("ml", "v1", static_discovery=False)
seen["dynamic"] = dynamic.projects().jobs().list(parent=parent).execute().get("jobs", [])

# google-cloud-secret-manager calls by gRPC, and retries for a minute without an answer.
started = time.monotonic()
secret = f"{parent}/secrets/key/versions/latest"
credentials, _ = google.auth.default()
authorized = google.auth.transport.grpc.secure_authorized_channel(
    credentials, google.auth.transport.requests.Request(), "secretmanager.googleapis.com:443"
)
access = authorized.unary_unary(
    "/google.cloud.secretmanager.v1.SecretManagerService/AccessSecretVersion",
    request_serializer=lambda name: b"\n" + bytes([len(name)]) + name.encode(),
)
try:
    access(secret, timeout=60)
except grpc.RpcError as refused:
    seen["secret grpc"] = [refused.code().name, refused.details()]
answer = google.auth.transport.requests.AuthorizedSession(credentials).get(
    f"https://secretmanager.googleapis.com/v1/{secret}:access"
)
seen["secret rest"] = [answer.json()["error"]["status"], answer.json()["error"]["message"]]
seen["secret seconds"] = time.monotonic() - started

host = "https://europe-west4-aiplatform.googleapis.com"
seen["without a token"] = requests.get(f"{host}/v1/{parent}/locations/europe-west4/models").status_code
print("SEEN " + json.dumps(seen))
