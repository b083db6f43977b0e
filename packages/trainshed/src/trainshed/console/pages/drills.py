"""The page of a job's drills: a form to order one, and what came of each."""

from typing import Final

from trainshed.console.pages.job import FINAL, describe, tab_view
from trainshed.console.visits import Part, View, Visit, job_path, of_job, redirect
from trainshed.httpd.messages import Response
from trainshed.wire.status import Refused, StatusCode, Violation
from trainshed.wire.trainshed_v1.timeline import ResumeReport

KINDS: Final = (
    ("kill", "Kill", "The replica’s program is killed, as if its machine had died under it."),
    ("segv", "Crash", "Its main process gets SIGSEGV."),
    ("oom", "Out of memory", "The memory limit costs its main process."),
    ("maintenance", "Maintenance", "The replica has to leave its node: SIGTERM, then SIGKILL."),
    ("preempt", "Preemption", "The attempt’s capacity is taken away."),
    ("stockout", "Stock-out", "There is no capacity for the attempt any more."),
    ("internal", "Internal error", "The service fails the attempt."),
)
"""(the API's word, name, what is done) of each kind of drill (docs/drills.md)."""
_OUTCOMES: Final = {"resumed": "good", "started_over": "bad", "unknown": "wait"}
"""The tone of each outcome that a resume report tells of a drill."""


async def page(visit: Visit) -> View:
    """`/jobs/J/drills`: the form of a drill, the drills so far, and the report on what came of them."""
    job = await describe(visit)
    report = await visit.get(ResumeReport, of_job(job.uid, "/resumeReport"))
    is_over = job.state in FINAL
    drills = {
        "findings": report.drills[::-1],
        "names": {word: name for word, name, _ in KINDS},
        "result": report.result,
        "outcomes": _OUTCOMES,
        "is_over": is_over,
    }
    values = {"is_over": is_over, "kinds": KINDS}
    return tab_view(visit, job, "drills", values, {"drills": Part("_job_drills.html", drills)})


async def order(visit: Visit) -> Response:
    """`POST /jobs/J/drills`: order a fault now or at a line. Raises Refused."""
    target, form = visit.variables["job"], visit.form
    body = {"kind": form.get("kind", ""), "replica": form.get("replica", "")}
    if form.get("when") == "line":
        text = "Say at which line."
        body["atLine"] = form.get("line", "")
        if not body["atLine"]:
            raise Refused(StatusCode.INVALID_ARGUMENT, f"line: {text}", (Violation("line", text),))
    await visit.do("POST", of_job(target, ":drill"), {k: v for k, v in body.items() if v})
    return redirect(job_path(target, "drills"))
