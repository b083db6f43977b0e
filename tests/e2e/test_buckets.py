"""A program's token at the storage port. tests/contract/test_buckets_callers.py tests the buckets that it
opens.
"""

import json
from urllib.parse import urlencode

from tests.e2e.running import CUSTOM_JOBS, PROJECT, Service, container_job, submit

_LENT = """
import os, sys, time, urllib.request
address = os.environ["GCE_METADATA_HOST"]
url = "http://" + address + "/computeMetadata/v1/instance/service-accounts/default/token"
request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
print("TOKEN " + urllib.request.urlopen(request, timeout=60).read().decode(), flush=True)
time.sleep(600)
"""


def test_programs_token_expires_at_the_storage_port_with_its_job(service: Service) -> None:
    """A leaked token works while the job runs. Afterwards it is rejected, also in an exchange."""
    service.call("POST", f"/storage/v1/b?project={PROJECT}", {"name": "buckets-lent"})
    service.put("buckets-lent", "x", b"content")
    job = submit(service, container_job(_LENT))
    printed = next(line for line in service.follow(job) if line.startswith("TOKEN "))
    token = json.loads(printed.removeprefix("TOKEN "))["access_token"]

    def read() -> tuple[int, bytes]:
        path = "/storage/v1/b/buckets-lent/o/x?alt=media"
        answer = service.ask("GET", path, place="storage", token=token)
        return answer.status, answer.body

    def exchange() -> int:
        form = urlencode({"grant_type": "refresh_token", "refresh_token": token}).encode()
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        path = "/oauth2/token"
        return service.ask("POST", path, form, place="storage", token=None, headers=kind).status

    assert read() == (200, b"content")
    assert exchange() == 200
    service.call("POST", f"{CUSTOM_JOBS}/{job}:cancel", {})
    service.finish(job)
    submit(service, container_job("pass"))  # The writer has seen the end, which was stored before.
    status, text = read()
    assert status == 401
    assert b"which has ended" in text
    assert exchange() == 401
