"""Comparison of jobs: different settings, measurements, and isolation between projects."""

import csv
import io
import json
import re
from typing import Any

from tests.console.browser import Browser, ConsoleService, curves_of, text_of
from tests.console.test_pages import EVIL, submit
from tests.console.test_sessions import JOB
from tests.contract.api.api_service import SECOND, START
from tests.contract.api.test_curves import log_points


async def run_job(service: ConsoleService, name: str, args: list[str], *losses: str) -> str:
    """Return the uid of a running job with these arguments that has printed one loss per epoch."""
    spec: Any = json.loads(json.dumps(JOB["jobSpec"]))
    container = spec["workerPoolSpecs"][0]["containerSpec"]
    container |= {"args": args, "env": [{"name": "SEED", "value": "=1+1"}]}
    uid = await submit(service, displayName=name, jobSpec=spec)
    await service.run(f"projects/p1/locations/us-central1/customJobs/{uid}")
    lines = [(START + n, f"epoch {n} loss: {loss}") for n, loss in enumerate(losses, 1)]
    service.write_log(int(uid), "workerpool0-0", *lines)
    return uid


async def test_job_comparison_shows_the_settings_and_metrics_that_differ(
    service: ConsoleService, browser: Browser
) -> None:
    args = ["in.csv", "--epochs", "9", "--shift", "-0.5", "model.depth=3", "--fast"]
    first = await run_job(service, "first", [*args, "--rate=0.1"], "0.9", "0.5")
    second = await run_job(service, "first", [*args, "--rate=0.2"], "0.8", "nan")
    service.clock += 3600 * SECOND
    query = f"job={first}&job={second}&job={first}"
    page = await browser.get(f"/compare?{query}")
    text = text_of(page)
    assert "2 jobs compared" in text
    assert f"first {first}" in text, "equal names get a suffix"
    after = text[text.index("Parameters") :]
    assert after.index("rate 0.1 0.2") < after.index("epochs 9 9")
    assert "fast on on" in after and "model.depth 3 3" in after and "shift -0.5 -0.5" in after
    assert "loss 0.5 NaN" in after
    assert re.search(r"code ([0-9a-f]{12}) \1 ", after), "the code is equal, regardless of its arguments"
    assert "CPU-hours 4.00 4.00" in after
    drawn = curves_of(page)[0]
    assert drawn["at"] == [1, 2]
    assert [values for _, values in drawn["lines"]] == [[0.9, 0.5], [0.8, None]]
    for run in ("a", "b"):
        await log_points(service, run, "train/loss", 0.5)
    answer = await browser.get(f"/compare/table.csv?{query}")
    first, second = csv.DictReader(io.StringIO(answer.body.decode()))
    assert (first["rate"], second["rate"], second["loss"], first["shift"]) == ("0.1", "0.2", "NaN", "-0.5")
    assert first["loss train"] == first["b train/loss"] == "0.5"
    assert first["$SEED"] == "'=1+1", "a program's text is not a spreadsheet formula (CSV injection)"


async def test_job_comparison_requires_2_to_20_readable_jobs(
    service: ConsoleService, guest: Browser, browser: Browser
) -> None:
    uids = [await submit(service, displayName=EVIL[:100]) for _ in range(21)]
    assert (await browser.get(f"/compare?job={uids[0]}")).status == 400
    assert (await browser.get(f"/compare?job={uids[0]}&job=")).status == 400
    for path in ("/compare", "/compare/table.csv"):
        assert (await browser.get(f"{path}?job={'&job='.join(uids)}")).status == 400
    page = await browser.get(f"/compare?job={'&job='.join(uids[:20])}")
    assert page.status == 200 and b"<script>alert" not in page.body
    theirs = (await service.call("POST", "/v1/projects/p2/locations/us-central1/customJobs", JOB)).json
    mixed = f"job={uids[0]}&job={theirs['name'].rpartition('/')[2]}"
    for path in ("/compare", "/compare/table.csv"):
        assert (await guest.get(f"{path}?{mixed}")).status == 403, path
