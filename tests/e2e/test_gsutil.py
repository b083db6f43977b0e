"""Programs that call gsutil, as programs written for the hosted services do: it is the real one, prepared for
jobs that name it."""

from tests.e2e.packages import package_job, source_package, upload
from tests.e2e.running import Service, container_job, submit

_COMMANDS = """
import os, pathlib, subprocess

def gsutil(*words, given=b""):
    done = subprocess.run(["gsutil", *words], input=given, capture_output=True)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout.decode()

for name in ("data/a.csv", "data/deep/b.csv", "data/notes.txt"):
    pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(name).write_text(name)

gsutil("mb", "gs://gsutil-dirs")
gsutil("-m", "cp", "-r", "data", "gs://gsutil-dirs")
gsutil("mv", "gs://gsutil-dirs/data", "gs://gsutil-dirs/moved")
os.mkdir("back")
gsutil("-m", "rsync", "-r", "gs://gsutil-dirs/moved", "back")
assert pathlib.Path("back/deep/b.csv").read_text() == "data/deep/b.csv"

content = os.urandom(1 << 20) * 9
gsutil("cp", "-", "gs://gsutil-dirs/stream", given=content)
gsutil("-h", "x-goog-meta-k:v", "cp", "-Z", "data/a.csv", "gs://gsutil-dirs/z.csv")
listed = gsutil("ls", "-L", "gs://gsutil-dirs")
for text in ("text/csv", "Content-Encoding:       gzip", "k:", "gs://gsutil-dirs/moved/"):
    assert text in listed, listed
assert "gs://gsutil-dirs/data/" not in listed, listed
gsutil("cp", "gs://gsutil-dirs/stream", "gs://gsutil-dirs/z.csv", ".")
assert pathlib.Path("stream").read_bytes() == content
assert pathlib.Path("z.csv").read_text() == "data/a.csv"
gsutil("-m", "-q", "rm", "-r", "gs://gsutil-dirs")
print("refused", os.system("gsutil ls gs://gsutil-theirs") >> 8, flush=True)
"""


def test_a_package_calls_gsutil(service: Service) -> None:
    service.call("POST", "/storage/v1/b?project=their-project", {"name": "gsutil-theirs"})
    uri = upload(service, "calls/gsutil-1.0.tar.gz", source_package(_COMMANDS))
    job = submit(service, package_job(uri))
    view = service.finish(job)
    lines = service.lines(job)
    assert view["state"] == "SUCCEEDED", lines
    assert "refused 1" in lines
    assert any(line.startswith("AccessDeniedException: 403") for line in lines), lines


_WHERE = "import shutil; print('AT', shutil.which('gsu' + 'til'))"


def test_a_command_line_that_names_it_has_it_and_others_do_not(service: Service) -> None:
    for script, is_there in ((f"{_WHERE}  # gsutil", True), (_WHERE, False)):
        job = submit(service, container_job(script))
        service.finish(job)
        (line,) = [line for line in service.lines(job) if line.startswith("AT ")]
        # A machine may have one of its own, which knows nothing of the job.
        assert ("/environments/gsutil-" in line) == is_there
