"""Inside a job: makes more jobs than it may, and cancels one that is not its own. Prints the answers, as JSON
in one line `SEEN ...`."""

import collections
import concurrent.futures
import json
import sys
import urllib.error
import urllib.request

parent, victim, image = sys.argv[1:]
METADATA = (
    "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
)
API = "https://us-central1-aiplatform.googleapis.com/v1/"


def ask(url, body=None, headers=()):
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, dict(headers))) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)["error"]["message"]


token = ask(METADATA, None, {"Metadata-Flavor": "Google"})[1]["access_token"]
HEADERS = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}


def make(labels):
    program = {"imageUri": image, "command": ["python3", "-c", "import time; time.sleep(600)"]}
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": 1,
        "containerSpec": program,
    }
    body = {"displayName": "made inside", "labels": labels, "jobSpec": {"workerPoolSpecs": [pool]}}
    return ask(f"{API}{parent}/customJobs", body, HEADERS)


def cancel(name):
    return ask(f"{API}{name}:cancel", {}, HEADERS)


outliving = make({"trainshed-outlives": "on"})[1]["name"]
with concurrent.futures.ThreadPoolExecutor(20) as threads:
    answers = list(threads.map(make, [{}] * 60))
made = [answer["name"] for status, answer in answers if status == 200]
seen = {
    "statuses": collections.Counter(str(status) for status, _ in answers),
    "too many": next(answer for status, answer in answers if status == 429),
    "outliving": outliving,
    "made": made,
    "victim": cancel(victim),
    "own": cancel(made[0]),
}
print("SEEN " + json.dumps(seen))
