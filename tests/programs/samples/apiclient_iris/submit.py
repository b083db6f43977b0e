"""The API client library for Python, as the guide to packaged trainers has it."""

import os
import subprocess
import sys
import time

from google.cloud import storage
from googleapiclient import discovery, errors

project_id = "projects/{}".format(os.environ["PROJECT_ID"])
bucket_name = os.environ["BUCKET_NAME"]

subprocess.check_call([sys.executable, "setup.py", "-q", "sdist"])
bucket = storage.Client(project=os.environ["PROJECT_ID"]).bucket(bucket_name)
bucket.blob("iris/package.tar.gz").upload_from_filename("dist/iris_tree-0.1.tar.gz")
bucket.blob("iris/iris.csv").upload_from_filename("data/iris.csv")

training_inputs = {
    "scaleTier": "BASIC",
    "packageUris": ["gs://%s/iris/package.tar.gz" % bucket_name],
    "pythonModule": "trainer.train",
    "args": ["--depth", "3", "--data", "gs://%s/iris/iris.csv" % bucket_name],
    "region": os.environ["REGION"],
    "jobDir": "gs://%s/iris/out" % bucket_name,
    "scheduling": {"maxRunningTime": "3600s"},
}
job_spec = {"jobId": "iris_tree_%d" % time.time(), "trainingInput": training_inputs}

cloudml = discovery.build(
    "ml",
    "v1",
    static_discovery=True,
    client_options={"api_endpoint": os.environ["TRAINSHED_ENDPOINT"]},
)
request = cloudml.projects().jobs().create(body=job_spec, parent=project_id)
try:
    response = request.execute()
    print(response)
except errors.HttpError as err:
    print("There was an error creating the training job. Check the details:")
    print(err._get_reason())
    sys.exit(1)

job_name = "{}/jobs/{}".format(project_id, job_spec["jobId"])
while True:
    response = cloudml.projects().jobs().get(name=job_name).execute()
    if response["state"] in ("SUCCEEDED", "FAILED", "CANCELLED"):
        break
    time.sleep(1)
print(response["state"], response.get("trainingOutput"))
