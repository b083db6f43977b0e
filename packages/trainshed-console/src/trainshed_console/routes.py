"""The table of the console's paths, with their pages, actions and streams."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from trainshed.httpd.messages import Response
from trainshed_console.pages import (
    buckets,
    capacity,
    collections,
    compare,
    job,
    jobs,
    logs,
    overview,
    pipeline_job,
    schedules,
    searches,
    studies,
    submit,
    team,
)
from trainshed_console.views import Action, Page, Visit

PAGES: Final[Mapping[tuple[str, str], Page]] = {
    ("GET", "/"): jobs.page,
    ("GET", "/jobs"): jobs.page,
    ("GET", "/overview"): overview.page,
    ("GET", "/jobs/{job}"): pipeline_job.page,
    ("GET", "/jobs/{job}/logs"): logs.page,
    ("GET", "/jobs/{job}/usage"): job.usage,
    ("GET", "/jobs/{job}/drills"): job.drills,
    ("GET", "/jobs/{job}/spec"): job.spec,
    ("GET", "/jobs/{job}/trials"): searches.trials,
    ("GET", "/compare"): compare.page,
    ("GET", "/logs"): logs.search,
    ("GET", "/submit"): submit.page,
    ("GET", "/submit/json"): submit.json_page,
    ("GET", "/queue"): capacity.queue,
    ("GET", "/nodes"): capacity.nodes,
    ("GET", "/experiments"): collections.experiments,
    ("GET", "/experiments/{experiment}"): collections.experiment,
    ("GET", "/models"): collections.models,
    ("GET", "/models/{model}"): collections.model,
    ("GET", "/datasets"): collections.datasets,
    ("GET", "/datasets/{dataset}"): collections.dataset,
    ("GET", "/studies"): studies.studies,
    ("GET", "/studies/{study}"): studies.study,
    ("GET", "/schedules"): schedules.page,
    ("GET", "/team"): team.page,
    ("GET", "/team/audit"): team.audit,
    ("GET", "/settings"): overview.settings,
    ("GET", "/buckets"): buckets.buckets,
    ("GET", "/buckets/{bucket}"): buckets.bucket,
    ("GET", "/jobs/{job}/outputs"): buckets.outputs,
}
"""Pages by path. The event stream of a page is at `/events` followed by the page's path."""
ACTIONS: Final[Mapping[tuple[str, str], Action]] = {
    ("POST", "/jobs/{job}/cancel"): job.cancel,
    ("POST", "/jobs/{job}/retry"): job.retry,
    ("POST", "/marked/{does}"): job.change_selected,
    ("POST", "/jobs/{job}/drills"): job.order_drill,
    ("POST", "/submit"): submit.create,
    ("POST", "/submit/check"): submit.check,
    ("POST", "/submit/json"): submit.create_of_json,
    ("POST", "/submit/json/check"): submit.check_json,
    ("POST", "/nodes/{node}/drain"): capacity.drain,
    ("POST", "/nodes/{node}/undrain"): capacity.undrain,
    ("POST", "/team/roles"): team.grant_role,
    ("POST", "/team/roles/remove"): team.revoke_role,
    ("POST", "/team/tokens"): team.create_token,
    ("POST", "/team/tokens/{token}/delete"): team.delete_token,
    ("POST", "/quotas"): capacity.set_quota,
    ("POST", "/schedules/{schedule}/{does}"): schedules.change,
}
STREAMS: Final[Mapping[tuple[str, str], Callable[[Visit], Awaitable[Response]]]] = {
    ("GET", "/jobs/{job}/lines"): logs.lines,
    ("GET", "/jobs/{job}/lines/new"): logs.following,
    ("GET", "/jobs/{job}/log.txt"): logs.download,
    ("GET", "/buckets/{bucket}/download"): buckets.download,
    ("GET", "/compare/table.csv"): compare.table,
    ("GET", "/jobs/{job}/trials/outlook"): studies.outlook,
    ("GET", "/studies/{study}/outlook"): studies.outlook,
    ("GET", "/jobs/{job}/ports/{port}"): job.open_page,
    ("GET", "/jobs/{project}/named/{job}"): job.by_name,
}
"""Responses other than pages: data for scripts, downloads, and redirects to pages of jobs."""
