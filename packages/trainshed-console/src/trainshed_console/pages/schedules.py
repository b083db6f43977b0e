"""The page of schedules, which start pipeline jobs; actions to pause, resume and delete a schedule."""

import re
from typing import Any, Final
from urllib.parse import quote

from trainshed.httpd.messages import Response
from trainshed.wire.status import CallRejected, StatusCode
from trainshed_console.pages.collections import vertex_page, vertex_path
from trainshed_console.rendering import epoch
from trainshed_console.views import View, Visit, redirect

_MAX_RUNS: Final = 20
"""Number of newest runs of a schedule on the page."""
_CRON: Final = re.compile(r"\s*(?:(?:CRON_)?TZ=(\S+)\s+)?" + r"(\S+)\s+" * 4 + r"(\S+)\s*")
_DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_CHANGES: Final = {"pause": "POST", "resume": "POST", "delete": "DELETE"}


async def page(visit: Visit) -> View:
    """`/schedules[?schedule=S]`: the schedules of the project, newest first, and the newest runs of one of
    them."""
    answer = await vertex_page(visit, "schedules", token=visit.query("page"))
    chosen: Any = None
    runs: Any = {}
    if schedule := visit.query("schedule"):
        path = vertex_path(visit, f"schedules/{quote(schedule, safe='')}")
        chosen = await visit.backend.call(visit.principal, "GET", path)
        query = {"filter": f'schedule_name="{chosen["name"]}"', "orderBy": "create_time desc"}
        query["readMask"] = "name,state,createTime,startTime,endTime"
        runs = await vertex_page(visit, "pipelineJobs", size=_MAX_RUNS, **query)
    values: dict[str, Any] = {
        "schedules": answer.get("schedules", ()),
        "chosen": chosen,
        "runs": runs.get("pipelineJobs", ()),
        "words_of": words_of,
        "epoch": epoch,
        "following": visit.next_page(answer.get("nextPageToken")),
    }
    return View("Schedules", "schedules.html", values, place="schedules")


async def change(visit: Visit) -> Response:
    """`POST /schedules/S/D`: apply the action D (pause, resume or delete) to a schedule. Raises
    CallRejected."""
    does = visit.variables["does"]
    if (verb := _CHANGES.get(does)) is None:
        text = "This action does not exist. You can pause, resume or delete a schedule."
        raise CallRejected(StatusCode.NOT_FOUND, text)
    path = vertex_path(visit, f"schedules/{visit.encode_variable('schedule')}")
    path, body = (path, b"") if verb == "DELETE" else (f"{path}:{does}", b"{}")
    await visit.backend.call(visit.principal, verb, path, body)
    return redirect(visit.page_address("/schedules"))


def words_of(cron: str) -> str:
    """Return the times of a cron expression in words, with the time zone. An unusual expression remains
    unchanged."""
    if (parsed := _CRON.fullmatch(cron)) is None:
        return cron
    zone, *fields = parsed.groups()
    minute, hour, *days = fields
    words = " ".join(fields)
    if minute.isdecimal() and hour.replace(",", "").isdecimal():
        time = ", ".join(f"{int(part):02}:{int(minute):02}" for part in hour.split(",") if part)
        match days:
            case ["*", "*", "*"]:
                words = f"Every day at {time}"
            case ["*", "*", weekdays] if re.fullmatch("[0-7](?:[-,][0-7])*", weekdays):
                names = re.sub(r"\d", lambda day: _DAYS[int(day[0]) % 7], weekdays)
                words = f"{names.replace('-', ' to ').replace(',', ', ')} at {time}"
            case [day, "*", "*"] if day.isdecimal():
                words = f"Day {day} of each month at {time}"
            case _:
                pass
    elif hour == "*" and days == ["*"] * 3:
        if minute.isdecimal():
            words = f"Every hour at minute {minute}"
        elif minute == "*" or re.fullmatch(r"\*/\d+", minute):
            words = f"Every {minute[2:]} minutes" if minute[2:] else "Every minute"
    return f"{words} ({zone or 'UTC'})"
