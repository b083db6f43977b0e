"""Whose buckets a job's program reaches, by every way there is from inside (SPEC §3, "no access to other projects' buckets")."""

import json
from typing import Any

from tests.e2e.running import PROJECT, Service, container_job, submit

_PROGRAM = """
import json, os, urllib.error, urllib.parse, urllib.request

own, port, owner = os.environ["STORAGE_EMULATOR_HOST"], {port!r}, {forged!r}

def status(base, bucket, body=None, **headers):
    path = f"/storage/v1/b/{{bucket}}/o/x?alt=media"
    if body is not None:
        path = f"/upload/storage/v1/b/{{bucket}}/o?uploadType=media&name=y"
    request = urllib.request.Request(base + path, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code

buckets = ["buckets-mine", "buckets-theirs", "trainshed"]
seen = {{
    "read": [status(own, bucket) for bucket in buckets],
    "written": [status(own, bucket, b"1") for bucket in buckets],
    "forged": [status(own, bucket, **{{"x-trainshed-identity": owner}}) for bucket in buckets],
    "port": [status(port, bucket) for bucket in buckets],
    "mounted": [os.path.exists("/gcs/" + bucket) for bucket in buckets] if os.path.isdir("/gcs") else None,
}}
print("SEEN " + json.dumps(seen), flush=True)
"""


def test_a_program_reaches_its_own_project_s_buckets_and_shared_ones(service: Service) -> None:
    for bucket, project in (("buckets-mine", PROJECT), ("buckets-theirs", "their-project")):
        service.call("POST", f"/storage/v1/b?project={project}", {"name": bucket})
        service.put(bucket, "x", b"content")
    service.put("trainshed", "x", b"content")
    forged = json.dumps({"kind": "person", "email": "owner@trainshed.local"})
    program = _PROGRAM.format(port=service.extra["storage"], forged=forged)
    job = submit(service, container_job(program))
    view = service.finish(job)
    lines = service.lines(job)
    assert view["state"] == "SUCCEEDED", lines
    (said,) = (line for line in lines if line.startswith("SEEN "))
    seen: dict[str, Any] = json.loads(said.removeprefix("SEEN "))
    assert seen["read"] == [200, 403, 200]
    assert seen["written"] == [200, 403, 200]
    assert seen["forged"] == [200, 403, 200]
    assert seen["port"] == [401, 401, 401]
    # Where nothing can be mounted there is no such directory at all.
    assert seen["mounted"] in (None, [True, False, True])
