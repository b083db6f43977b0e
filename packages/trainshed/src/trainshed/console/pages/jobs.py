"""The list of jobs of both APIs, newest first, and the texts that show a job in a row."""

from typing import Final

from trainshed.console.backend import Facts
from trainshed.console.rendering import epoch
from trainshed.console.visits import Part, View, Visit
from trainshed.wire.trainshed_v1.jobs import JobList, JobSummary

_PAGE: Final = 50
"""Rows that are loaded at a time."""
_MOST: Final = 300
"""Maximum rows that are kept up to date, however far the list was scrolled."""
_BEFORE: Final = 3
"""Lines before a traceback that are shown with it."""
_LAST: Final = 20
"""Last lines that are shown of a program without a traceback."""
FILTERS: Final = (
    ("", "All"),
    ("RUNNING", "Running"),
    ("QUEUED,PREPARING", "Waiting"),
    ("SUCCEEDED", "Succeeded"),
    ("FAILED", "Failed"),
    ("CANCELLED", "Cancelled"),
)


async def page(visit: Visit) -> View:
    """`/` and `/jobs`: the jobs, filtered by state and a search. Further rows load on scrolling."""
    token = visit.query("page")
    listed = await visit.get(
        JobList,
        "jobs",
        project=visit.project,
        state=visit.query("state"),
        user=visit.query("user"),
        search=visit.query("search")[:200],
        glance="true",
        limit=str(_PAGE if token else _shown(visit.query("rows"))),
        pageToken=token,
    )
    own = visit.principal.email
    rows = {
        f"job-{job.uid}": Part(
            "_job_row.html", {"job": job, "by": job.user if job.user != own else "", **row(job)}
        )
        for job in listed.jobs
    }
    further = visit.next_page(listed.next_page_token)
    is_filtered = any(visit.query(name) for name in ("state", "user", "search"))
    return View(
        "Jobs",
        "_job_rows.html" if token else "jobs.html",
        {
            "jobs": listed.jobs,
            "filters": FILTERS,
            "is_filtered": is_filtered,
            "is_shared": bool(visit.query("user"))
            or any(job.user not in ("", own) for job in listed.jobs),
            # Not `/`: a script's request accepts any type, and `/` answers those with the service's health
            # (`api.rest`).
            "following": further and f"/jobs?{further.partition('?')[2]}",
            "snippets": snippets(visit.facts),
            "is_empty": not listed.jobs and not is_filtered and not token,
        },
        parts=rows,
        lists={"jobs": tuple(rows)},
        whole=frozenset({"jobs"}) if not listed.next_page_token else frozenset[str](),
        lives=not token,
        place="jobs",
    )


def _shown(rows: str) -> int:
    """Return how many rows the browser has loaded, within limits; the page's stream keeps them up to date."""
    is_number = rows.isascii() and rows.isdecimal() and len(rows) < 5
    return min(max(int(rows), _PAGE), _MOST) if is_number else _PAGE


def row(job: JobSummary) -> dict[str, object]:
    """Return what a row shows besides the job's own fields."""
    glance = job.glance if job.glance else None
    error = job.error.message if job.error else ""
    return {
        "glance": glance,
        "title": job.display_name or job.job_id,
        "said": first_line(error),
        "began": epoch(job.create_time),
        "lasted": lasted(job),
    }


def lasted(job: JobSummary) -> float | None:
    """Return the seconds from a job's start to its end; None if it has not ended, or never started."""
    if not (job.end_time and job.start_time):
        return None
    return epoch(job.end_time) - epoch(job.start_time)


def telling(tail: str) -> str:
    """Return those of a program's last lines that say why it ended: from a little before the first traceback,
    or the very last lines if there is none."""
    lines = tail.splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith("Traceback (most recent call")]
    return "\n".join(lines[max(0, starts[0] - _BEFORE) :] if starts else lines[-_LAST:])


def first_line(text: str) -> str:
    """Return an error's most useful line, at most 300 characters: the exception of its first traceback, else
    its first line; "" if it has none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    if "Traceback (most recent call last):" in text:
        after = text.partition("Traceback (most recent call last):")[2].splitlines()
        raised = [line for line in after if line and not line[0].isspace()]
        if raised:
            return raised[0].strip()[:300]
    return lines[0][:300]


_IMAGE = "us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:latest"


def snippets(facts: Facts) -> tuple[tuple[str, str], ...]:
    """Return (name, text) of each example."""
    project, region = facts.project or "trainshed", facts.region or "us-central1"
    enter = 'eval "$(trainshed env)"'
    return (
        ("This service’s own command", "trainshed run task.py --watch"),
        (
            "gcloud",
            f"{enter}\n"
            f"gcloud ai custom-jobs create --region={region} --display-name=hello \\\n"
            "  --worker-pool-spec=machine-type=n1-standard-4,replica-count=1,"
            f"container-image-uri={_IMAGE} \\\n"
            "  --command=python3 --args=-c,'print(\"hello\")'",
        ),
        (
            "Python, with the Vertex SDK",
            f"{enter}\npython3 - <<'END'\n"
            "import os\n"
            "from google.cloud import aiplatform\n\n"
            f'aiplatform.init(project="{project}", location="{region}",\n'
            f'                staging_bucket="gs://{facts.bucket}",\n'
            f'                api_endpoint="{facts.address}", api_transport="rest")\n'
            'aiplatform.CustomJob("hello", [{\n'
            '    "machine_spec": {"machine_type": "n1-standard-4"}, "replica_count": 1,\n'
            f'    "container_spec": {{"image_uri": "{_IMAGE}",\n'
            '                       "command": ["python3", "-c", "print(\'hello\')"]}}]).run()\nEND',
        ),
    )
