"""Programs that call gsutil, as written for the hosted services: the real gsutil, prepared for jobs that use
it.
"""

from tests.e2e.packages import package_job, source_package, upload
from tests.e2e.running import PROJECT, Service, container_job, submit

_COMMANDS = """
import os, pathlib, subprocess

def gsutil(*words, given=b""):
    done = subprocess.run(["gsutil", *words], input=given, capture_output=True)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout.decode()

for name in ("data/a.csv", "data/deep/b.csv", "data/notes.txt"):
    pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(name).write_text(name)

content = os.urandom(1 << 20) * 9
gsutil("-h", "x-goog-meta-k:v", "-m", "cp", "-z", "csv", "-r", "data", "gs://gsutil-dirs")
gsutil("mv", "gs://gsutil-dirs/data", "gs://gsutil-dirs/moved")
gsutil("cp", "-", "gs://gsutil-dirs/stream", given=content)
listed = gsutil("ls", "-L", "gs://gsutil-dirs/**")
for text in ("text/csv", "Content-Encoding:       gzip", "k:", "gs://gsutil-dirs/moved/"):
    assert text in listed, listed
assert "gs://gsutil-dirs/data/" not in listed, listed
os.mkdir("back")
gsutil("-m", "rsync", "-r", "gs://gsutil-dirs", "back")
assert pathlib.Path("back/moved/deep/b.csv").read_text() == "data/deep/b.csv"
assert pathlib.Path("back/stream").read_bytes() == content
"""


def test_program_of_a_package_can_call_gsutil(service: Service) -> None:
    """tests/contract/test_buckets_callers.py tests the buckets that a job reaches."""
    service.call("POST", f"/storage/v1/b?project={PROJECT}", {"name": "gsutil-dirs"})
    uri = upload(service, "calls/gsutil-1.0.tar.gz", source_package(_COMMANDS))
    job = submit(service, package_job(uri))
    view = service.finish(job)
    assert view["state"] == "SUCCEEDED", service.lines(job)


_WHERE = "import shutil; print('AT', shutil.which('gsu' + 'til'))"


def test_gsutil_is_available_only_to_commands_that_call_gsutil(service: Service) -> None:
    for script, is_there in ((f"{_WHERE}  # gsutil", True), (_WHERE, False)):
        job = submit(service, container_job(script))
        service.finish(job)
        (line,) = [line for line in service.lines(job) if line.startswith("AT ")]
        # A machine may have its own gsutil, which does not know the job.
        assert ("/environments/gsutil-" in line) == is_there
