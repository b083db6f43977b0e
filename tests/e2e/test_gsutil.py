"""Programs that call gsutil, as programs written for the hosted services do: it is the real one, prepared for
jobs that name it. Its commands: tests/contract/test_gsutil.py."""

from tests.e2e.packages import package_job, source_package, upload
from tests.e2e.running import PROJECT, Service, container_job, submit

_PROGRAM = """
import os, subprocess

def run(command):
    print(f"{command} -> {os.system(command) >> 8}", flush=True)

def output(*command):
    return subprocess.check_output(command, text=True).split()

os.mkdir("data")
for name in ("a.csv", "b.csv", "notes.txt"):
    with open("data/" + name, "w") as file:
        file.write(name * 3)
run("gsutil mb -l us-central1 gs://gsutil-own")
run("gsutil -m cp -r data gs://gsutil-own")
print("LIST", output("gsutil", "ls", "gs://gsutil-own/data/*.csv"))
print("CAT", output("gsutil", "cat", "gs://gsutil-own/data/a.csv"))
run("gsutil ls gs://gsutil-theirs")
run("gsutil -m -q rm -r gs://gsutil-own")
"""


def test_a_package_calls_gsutil(service: Service) -> None:
    service.call("POST", "/storage/v1/b?project=their-project", {"name": "gsutil-theirs"})
    uri = upload(service, "calls/gsutil-1.0.tar.gz", source_package(_PROGRAM))
    job = submit(service, package_job(uri))
    view = service.finish(job)
    lines = service.lines(job)
    assert view["state"] == "SUCCEEDED", lines
    for line in (
        "gsutil mb -l us-central1 gs://gsutil-own -> 0",
        "gsutil -m cp -r data gs://gsutil-own -> 0",
        "LIST ['gs://gsutil-own/data/a.csv', 'gs://gsutil-own/data/b.csv']",
        "CAT ['a.csva.csva.csv']",
        "gsutil ls gs://gsutil-theirs -> 1",
        "gsutil -m -q rm -r gs://gsutil-own -> 0",
    ):
        assert line in lines, lines
    assert any(line.startswith("AccessDeniedException: 403") for line in lines), lines
    buckets = service.call("GET", f"/storage/v1/b?project={PROJECT}").get("items", [])
    assert "gsutil-own" not in [bucket["name"] for bucket in buckets]


_WHERE = "import shutil; print('AT', shutil.which('gsu' + 'til'))"


def test_a_command_line_that_names_it_has_it_and_others_do_not(service: Service) -> None:
    for script, is_there in ((f"{_WHERE}  # gsutil", True), (_WHERE, False)):
        job = submit(service, container_job(script))
        service.finish(job)
        (line,) = [line for line in service.lines(job) if line.startswith("AT ")]
        # A machine may have one of its own, which knows nothing of the job.
        assert ("/environments/gsutil-" in line) == is_there
