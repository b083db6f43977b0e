"""Submits by the API client library: a chief and one worker of machine types of the old service."""

import os
import subprocess
import sys
import time

from google.cloud import storage
from googleapiclient import discovery

BUCKET = os.environ["BUCKET_NAME"]
subprocess.check_call([sys.executable, "setup.py", "-q", "sdist"])
storage.Client(project=os.environ["PROJECT_ID"]).bucket(BUCKET).blob(
    "mwms/trainer-0.1.tar.gz"
).upload_from_filename("dist/trainer-0.1.tar.gz")

ml = discovery.build(
    "ml", "v1", static_discovery=True, client_options={"api_endpoint": os.environ["TRAINSHED_ENDPOINT"]}
)
body = {
    "jobId": "mwms_%d" % time.time(),
    "trainingInput": {
        "scaleTier": "CUSTOM",
        "masterType": "n1-standard-4",
        "workerType": "n1-standard-4",
        "workerCount": 1,
        "packageUris": ["gs://%s/mwms/trainer-0.1.tar.gz" % BUCKET],
        "pythonModule": "trainer.task",
        "region": os.environ["REGION"],
        "jobDir": "gs://%s/mwms/out" % BUCKET,
        "runtimeVersion": "2.6",
        "pythonVersion": "3.7",
        "args": ["--epochs", "3"],
    },
}
print(ml.projects().jobs().create(parent="projects/" + os.environ["PROJECT_ID"], body=body).execute())
