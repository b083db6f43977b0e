"""The console in a real browser: a newcomer's steps, and every page without errors and accessibility
problems. `./dev test-all` saves a picture of each (build/console).
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import axe_playwright_python  # pyright: ignore[reportMissingTypeStubs]
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browsing import FORMS, WITH_CHROMIUM, credentials_of
from tests.e2e.conftest import NODE
from tests.e2e.job_history import make_pipe
from tests.e2e.packages import PROGRAMS
from tests.e2e.running import PROJECT, REGION, ROOT, SMALL, Service, container_job, running
from tests.e2e.tuning_programs import TUNING_JOBS, double, study_spec, tuning_job
from tests.isolation import needs_view
from tests.soaks import SOAKS

pytestmark = [pytest.mark.e2e, WITH_CHROMIUM]
PICTURES = ROOT / "build" / "console"
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
FIND_VIOLATIONS = """rules => axe.run(document, {runOnly: rules, resultTypes: ["violations"]}).then(report =>
  report.violations.map(v => `${v.id}: ${v.help} at ${v.nodes.slice(0, 3).map(n => n.target)}`))"""
"""Return only violations: reporting passed rules takes axe longer than checking them."""
TABLES = """() => [...document.querySelectorAll(".table-frame")].map(
  frame => frame.scrollWidth - frame.clientWidth).filter(n => n > 0)"""
"""Return the pixels by which tables are wider than their containers."""
UNFILLED = """() => Math.max(0, ...[...document.querySelectorAll("thead tr")].map(row => Math.round(
  row.getBoundingClientRect().right - row.lastElementChild.getBoundingClientRect().right)))"""
"""Return the empty pixels in the columns of a table."""
BAR = "Math.max(...[...document.querySelectorAll('.bar nav')].map(n => n.scrollWidth - n.clientWidth), 0)"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
WRITER = (PROGRAMS / "event_writer.py").read_text()
JOBS = f"/v1/projects/{PROJECT}/locations/{REGION}/customJobs"
FAILING = """
print("reading features")
def load(path):
    return open(path).read()
load("/nowhere/features.csv")
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = f'[[images]]\npattern = "*/vertex-ai/training/*"\n{SMALL}\n'
    with running(tmp_path_factory.mktemp("console") / "data", settings=settings) as started:
        yield started


def run_job(service: Service, job: dict[str, Any]) -> str:
    """Run a job to its end, and return its UID."""
    uid = service.call("POST", JOBS, job)["name"].rpartition("/")[2]
    service.finish(uid, 120)
    return uid


def test_new_user_can_submit_a_job_and_watch_its_progress(
    service: Service, enter: Callable[..., Page], commons: Path
) -> None:
    gate = make_pipe(commons / "gate")
    page = enter()
    page.keyboard.press("c")
    page.wait_for_url("**/submit")
    page.locator("[name=name]").fill("my-first")
    page.get_by_label("Framework").select_option("scikit-learn")
    page.locator("[name=machine]").fill("n1-standard-5")
    expect(page.locator("#fault-machine")).to_contain_text("n1-standard-5")
    page.locator("[name=machine]").fill("n1-standard-4")
    script = (
        'print("Epoch 1/10 loss 0.9\\nEpoch 2/10 loss 0.7\\nEpoch 3/10 loss <b>0.5</b>", flush=True)\n'
        f'open("{gate}").read()\nprint("done")'
    )
    page.locator("[name=script]").fill(script)
    expect(page.get_by_role("heading", name="Would start now")).to_be_visible()
    page.get_by_role("button", name="Submit").dblclick()
    expect(page.get_by_role("heading", name="my-first")).to_be_visible()
    expect(page.locator("#tail")).to_contain_text("loss <b>0.5</b>", timeout=600_000)
    expect(page.locator("figure", has_text="loss train 0.7").locator("canvas")).to_be_visible()
    page.get_by_role("button", name="Log scale").click()
    expect(page.get_by_role("button", name="Log scale", pressed=True)).to_be_visible()
    page.get_by_role("link", name="Specification").click()
    page.wait_for_url("**/spec")
    ran = page.get_by_role("region", name="As run")
    expect(ran).to_contain_text("scikit-learn")
    expect(ran).to_contain_text("CLUSTER_SPEC")
    page.evaluate("Date.now = () => 1e12")  # The keys form one sequence, even with delays.
    page.keyboard.type("gj")
    row = page.get_by_role("row").filter(has_text="my-first")
    expect(row).to_have_count(1)  # The user double-clicked once.
    expect(row).to_contain_text("Running")
    expect(row).to_contain_text("epoch 3 of 10")
    gate.write_text("")
    expect(row).to_contain_text("Succeeded")


@needs_view
def test_zoom_into_a_long_curve_shows_more_points(service: Service, enter: Callable[..., Page]) -> None:
    lines = 'for n in range(5000):\n    w.scalar("loss", 9.0 if n == 3333 else 1 / (n + 1), n)\n'
    job = container_job(f'{WRITER}\nw = EventWriter("/gcs/trainshed/long/logs")\n{lines}')
    job["jobSpec"]["baseOutputDirectory"] = {"outputUriPrefix": "gs://trainshed/long"}
    page = enter()
    page.goto(f"{service.rest}/jobs/{run_job(service, job)}")
    chart = page.locator("[data-curves]")
    assert " 9.0," in str(chart.get_attribute("data-curves"))  # No extreme is omitted.
    expect(page.locator("figcaption")).to_contain_text(" to 9")
    chart.focus()
    for _ in range(3):
        page.keyboard.press("+")
    expect(chart).to_have_attribute("data-curves", re.compile(r'"at": \[218\d, 218'))
    page.keyboard.press("Escape")
    expect(chart).to_have_attribute("data-curves", re.compile(r'"at": \[0, '))
    page.get_by_role("button", name="Smooth").click()
    expect(chart).not_to_have_attribute("data-curves", re.compile(r" 9\.0,"))


def test_user_finds_the_reason_for_a_failed_job(service: Service, enter: Callable[..., Page]) -> None:
    run_job(service, container_job(FAILING, name="broken"))
    page = enter()
    page.goto(service.rest)
    page.keyboard.press("/")
    page.keyboard.insert_text("broken")
    page.wait_for_url("**/?search=broken")
    page.once("dialog", lambda dialog: dialog.accept("my view"))
    page.get_by_role("button", name="Save this view").click()
    page.goto(service.rest)
    page.get_by_role("link", name="my view").click()
    page.get_by_role("link", name="Failed", exact=True).click()
    page.get_by_role("link", name="broken").click()
    error = page.locator("#notice")
    expect(error.get_by_role("heading")).to_contain_text("FileNotFoundError")
    expect(error.get_by_role("paragraph").first).to_contain_text("workerpool0-0: Exit status 1.")
    expect(error).to_contain_text("Traceback (most recent call last)")
    page.get_by_role("link", name="Log", exact=True).click()
    page.get_by_label("Severity").select_option("ERROR")
    expect(page.locator("[data-log]")).to_contain_text("FileNotFoundError")
    expect(page.locator("[data-log]")).not_to_contain_text("reading features")
    page.get_by_label("Severity").select_option("")
    expect(page.locator("[data-log]")).to_contain_text("reading features")
    page.get_by_role("button", name="Top").click()
    page.get_by_role("button", name="Next error").click()
    expect(page.locator(".is-marked")).to_contain_text("Traceback")
    page.evaluate("Date.now = () => 1e12")
    page.keyboard.type("gl")
    page.get_by_label("Search in the logs of all jobs").fill("filenotfound")
    page.get_by_role("button", name="Search").click()
    hits = page.get_by_role("article").filter(has_text="broken")
    expect(hits.locator("mark").first).to_have_text("FileNotFound")
    hits.locator(".log-when").first.click()
    expect(page.locator(".is-marked")).to_contain_text("FileNotFoundError")


def test_selected_jobs_stay_selected_and_can_be_compared(
    service: Service, enter: Callable[..., Page]
) -> None:
    """The selection also remains while rows change. A click anywhere on a row opens its job."""
    script = "for n in (1, 2, 3):\n    print(f'epoch {n} loss: {1 / n}')"
    for name in ("left", "middle", "right"):
        uid = run_job(service, container_job(script, name=name))
    page = enter()
    page.goto(f"{service.rest}/?mark={uid}")
    for name in ("left", "middle"):
        page.get_by_label(f"Select {name}").check()
    run_job(service, container_job("pass", name="between"))
    page.locator("[data-arrivals]").click()
    expect(page.get_by_role("row").filter(has_text="between")).to_contain_text("Succeeded")
    expect(page.get_by_label("Select left")).to_be_checked()
    sheet = page.get_by_role("heading", name="Delete the selected jobs?")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(sheet).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", name="3 jobs compared")).to_be_visible()
    expect(page.locator("figure", has_text="loss").locator("canvas")).to_be_visible()
    page.go_back()
    page.get_by_role("row").filter(has_text="between").locator(".age").click()
    expect(page.get_by_role("heading", name="between")).to_be_visible()


def test_environment_build_log_is_collapsed(service: Service, enter: Callable[..., Page]) -> None:
    uid = run_job(service, container_job("print('hello')", name="folds"))
    page = enter()
    lines: list[list[Any]] = [
        ["2026-01-01T00:00:00Z", task, "INFO", f"{task} {n}", f"0/{task}/1/{n}", f"{task}{n}", []]
        for task, count in (("service", 6), ("workerpool0-0", 2), ("workerpool1-0", 1))
        for n in range(count)
    ]
    answer = {"lines": lines, "earlier": "", "later": "", "more": False, "over": True}
    page.route("**/lines?*", lambda route: route.fulfill(json=answer))
    page.goto(f"{service.rest}/jobs/{uid}/logs")
    expect(page.locator("[data-log]")).to_contain_text("workerpool0-0 1")
    expect(page.get_by_text("workerpool1-0", exact=True)).to_have_class("log-task ink-4")
    expect(page.get_by_text("service 3")).to_be_hidden()
    page.get_by_role("button", name="6 lines about the preparation of the environment").click()
    expect(page.get_by_text("service 3")).to_be_visible()


FREEZES = """() => { window.freezes = [0];
  new PerformanceObserver(seen => seen.getEntries().forEach(each => window.freezes.push(each.duration)))
    .observe({type: "longtask", buffered: true}); }"""


@pytest.mark.soak
def test_log_of_a_million_lines_does_not_freeze_the_browser(
    service: Service, enter: Callable[..., Page]
) -> None:
    """End, start, scrolling, search and a time in the middle: no task of the page takes longer than a third
    of a second.
    """
    many = 1_000_000
    script = f"import sys\nsys.stdout.write(''.join(f'line {{n}}\\n' for n in range({many})))"
    uid = run_job(service, container_job(script, name="a million"))
    page = enter()
    page.goto(f"{service.rest}/jobs/{uid}/logs")
    page.evaluate(FREEZES)
    log = page.locator("[data-log]")
    expect(log).to_contain_text(f"line {many - 1}")
    for _ in range(10):
        before = log.locator(".log-line").first.inner_text()
        log.evaluate("box => { box.scrollTop = 0 }")
        expect(log.locator(".log-line").first).not_to_have_text(before)
    page.get_by_role("button", name="Top").click()
    expect(log.locator(".log-line").first).to_contain_text("line 0")
    for _ in range(20):
        before = log.locator(".log-line").last.inner_text()
        log.evaluate("box => { box.scrollTop = box.scrollHeight }")
        expect(log.locator(".log-line").last).not_to_have_text(before)
    page.get_by_label("Search in the log").fill("line 99999")
    expect(log).to_contain_text("line 999999")
    assert log.locator(".log-line").count() <= 3_500
    longest = max(page.evaluate("window.freezes"))
    print(f"longest task of the page: {longest:.0f} ms")
    assert longest < 333


@pytest.fixture(scope="module")
def pages(service: Service) -> dict[str, str]:
    """The address of every page, each with contents, by the name of its picture."""
    steps = "for step in (1, 2, 3): report(float(given['rate']) * step / 3, step)"
    search = tuning_job(steps, trials=4, parallel=2, study=study_spec(double("rate", 0.1)))
    tuning = service.call("POST", TUNING_JOBS, search)["name"].rpartition("/")[2]
    broken = run_job(service, container_job(FAILING, name="broken"))
    whole = run_job(service, container_job("print('hello')", pools=(1, 2), name="whole"))
    assert service.finish(tuning, 120)["state"] == "SUCCEEDED"
    here = f"?project={PROJECT}"
    study, dataset, model = create_resources(service)
    run, schedule = create_runs(service)
    return {
        "jobs": "/",
        "none": "/?search=nothing",
        "compare": f"/compare?job={whole}&job={broken}&job={tuning}",
        "overview": "/overview",
        "search": "/logs?search=Traceback",
        "job": f"/jobs/{whole}",
        "failed": f"/jobs/{broken}",
        "logs": f"/jobs/{whole}/logs",
        "usage": f"/jobs/{whole}/usage",
        "drills": f"/jobs/{whole}/drills",
        "spec": f"/jobs/{whole}/spec",
        "tuning": f"/jobs/{tuning}",
        "trials": f"/jobs/{tuning}/trials?trial=2",
        "submit": "/submit",
        "json": f"/submit/json?from={tuning}",
        "queue": f"/queue{here}",
        "nodes": "/nodes",
        "experiments": f"/experiments{here}",
        "experiment": f"/experiments/exp{here}",
        "models": f"/models{here}",
        "datasets": f"/datasets{here}",
        "studies": f"/studies{here}",
        "study": f"/studies/{study}{here}&trial=2",
        "dataset": f"/datasets/{dataset}{here}",
        "model": f"/models/{model}{here}",
        "pipeline": f"/jobs/{run}?task=data",
        "schedules": f"/schedules{here}&schedule={schedule}",
        "settings": "/settings",
        "team": "/team",
        "audit": "/team/audit",
        "buckets": "/buckets",
        "bucket": f"/buckets/{service.extra['bucket']}",
        "outputs": f"/jobs/{whole}/outputs",
    }


def create_resources(service: Service) -> tuple[str, str, str]:
    """The IDs of a study with trials, a dataset and a model."""
    place = f"/v1/projects/{PROJECT}/locations/{REGION}"
    bucket = service.extra["bucket"]
    metrics = [{"metricId": metric, "goal": "MINIMIZE"} for metric in ("loss", "seconds")]
    spec = study_spec(double("rate"), double("decay"), metrics=metrics)
    study = service.call("POST", f"{place}/studies", {"displayName": "fast", "studySpec": spec})
    for rate in (0.2, 0.5, 0.9):
        words = {"parameters": [{"parameterId": name, "value": rate} for name in ("rate", "decay")]}
        trial = service.call("POST", f"/v1/{study['name']}/trials", words)["name"]
        values = {"loss": 1 - rate, "seconds": 10 * rate}
        metrics = [{"metricId": name, "value": value} for name, value in values.items()]
        measured = {"measurement": {"stepCount": "1", "metrics": metrics}}
        service.call("POST", f"/v1/{trial}:addTrialMeasurement", measured)
        service.call("POST", f"/v1/{trial}:complete", {})
    service.put(bucket, "data/a.csv", b"a,b\n1,2\n")
    dataset = {
        "displayName": "flowers",
        "metadataSchemaUri": "gs://google-cloud-aiplatform/schema/dataset/metadata/tabular_1.0.0.yaml",
        "metadata": {"inputConfig": {"gcsSource": {"uri": [f"gs://{bucket}/data/a.csv"]}}},
    }
    service.call("POST", f"{place}/datasets", dataset)
    (result,) = service.call("GET", f"{place}/datasets")["datasets"]
    metadata = f"{place}/metadataStores/default/contexts"
    service.call("POST", f"{place}/metadataStores?metadataStoreId=default", {})
    titles = {"exp": "Experiment", "exp-1": "ExperimentRun", "exp-2": "ExperimentRun"}
    for number, (name, title) in enumerate(titles.items()):
        words = {"_params": {"rate": number}, "_metrics": {"loss": number}, "_state": "COMPLETE"}
        context = {"displayName": name, "schemaTitle": f"system.{title}", "metadata": words}
        service.call("POST", f"{metadata}?contextId={name}", context)
    runs = [f"{metadata.removeprefix('/v1/')}/{name}" for name in list(titles)[1:]]
    service.call("POST", f"{metadata}/exp:addContextChildren", {"childContexts": runs})
    model = {"model": {"displayName": "classifier", "artifactUri": f"gs://{bucket}/data"}}
    uploaded = service.call("POST", f"{place}/models:upload", model)["response"]["model"]
    return tuple(name.rpartition("/")[2] for name in (study["name"], result["name"], uploaded))


def create_runs(service: Service) -> tuple[str, str]:
    """The IDs of a finished pipeline job, which imports an artifact, and of a schedule."""
    place = f"projects/{PROJECT}/locations/{REGION}"
    kind = {"schemaTitle": "system.Dataset", "schemaVersion": "0.0.1"}
    importer = {"artifactUri": {"constant": "gs://trainshed/data"}, "typeSchema": kind}
    tasks = {"data": {"taskInfo": {"name": "data"}, "componentRef": {"name": "c"}}}
    output = {"artifacts": {"artifact": {"artifactType": kind}}}
    spec = {
        "schemaVersion": "2.1.0",
        "sdkVersion": "kfp-2.17.3",
        "pipelineInfo": {"name": "import"},
        "root": {"dag": {"tasks": tasks}},
        "components": {"c": {"executorLabel": "e", "outputDefinitions": output}},
        "deploymentSpec": {"executors": {"e": {"importer": importer}}},
    }
    job = {"pipelineSpec": spec, "runtimeConfig": {"gcsOutputDirectory": "gs://trainshed/root"}}
    run = service.call("POST", f"/v1/{place}/pipelineJobs", job)["name"].rpartition("/")[2]
    service.finish(run, 60)
    request = {"createPipelineJobRequest": {"parent": place, "pipelineJob": job}}
    schedule = {"displayName": "nightly", "cron": "0 2 * * *", "maxConcurrentRunCount": "1"} | request
    made = service.call("POST", f"/v1/{place}/schedules", schedule)["name"]
    return run, made.rpartition("/")[2]


def arrive(page: Page, service: Service, name: str, path: str) -> None:
    """Open a page and wait until its scripts have rendered."""
    page.goto(service.rest + path)
    if name in ("usage", "tuning", "trials", "study"):
        expect(page.locator("canvas").first).to_be_visible()
    if name == "logs":
        expect(page.locator(".log-line").first).to_be_visible()


DRAWN = """() => [...document.querySelectorAll(".uplot")].every(chart => !chart.offsetWidth ||
  Math.abs(chart.offsetWidth - Math.max(chart.parentElement.clientWidth, 200)) < 2)"""
"""Charts adapt to the width of the page after a moment."""


def too_wide(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def picture(page: Page, name: str, form: str) -> None:
    """Save a JPEG for people: compressing a PNG of a whole page takes several times as long."""
    page.screenshot(path=PICTURES / f"{name}-{form}.jpeg", type="jpeg", full_page=True, quality=80)


def test_every_console_page_meets_the_accessibility_rules(
    service: Service, enter: Callable[..., Page], pages: dict[str, str]
) -> None:
    """WCAG 2 AA as far as axe can check, in light and dark mode, with no page wider than a screen or a phone.
    Each page is loaded once. axe checks dark mode for every fifth page. `./dev test-all` checks it for each,
    and saves pictures of all three.
    """
    if SOAKS:
        shutil.rmtree(PICTURES, ignore_errors=True)
        PICTURES.mkdir(parents=True)
    page = enter()
    page.add_init_script(AXE)
    faults: list[str] = []
    for number, (name, path) in enumerate(pages.items()):
        arrive(page, service, name, path)
        if SOAKS:
            picture(page, name, "light")
        result = page.evaluate(FIND_VIOLATIONS, RULES)
        wide = {"screen": too_wide(page) + page.evaluate(BAR) + page.evaluate(UNFILLED)}
        if SOAKS or number % 5 == 0:
            page.emulate_media(color_scheme="dark")
            if SOAKS:
                picture(page, name, "dark")
            result += [f"in dark, {item}" for item in page.evaluate(FIND_VIOLATIONS, ["color-contrast"])]
            page.emulate_media(color_scheme="light")
        page.set_viewport_size(FORMS["phone"]["viewport"])
        page.wait_for_function(DRAWN)
        wide["phone"] = too_wide(page) + sum(page.evaluate(TABLES))
        if SOAKS:
            picture(page, name, "phone")
        page.set_viewport_size(FORMS["light"]["viewport"])
        faults += [f"{name}: {item}" for item in result]
        faults += [f"{name}: {n} pixels too wide ({form})" for form, n in wide.items() if n > 0]
    assert faults == []


def test_bucket_objects_are_served_as_downloads(service: Service, enter: Callable[..., Page]) -> None:
    bucket = service.extra["bucket"]
    path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name=out/page.html"
    service.ask("POST", path, b"<script>alert(1)</script>", headers={"Content-Type": "text/html"})
    page = enter()
    page.goto(f"{service.rest}/buckets/{bucket}")
    page.get_by_role("link", name="out/").click()
    with page.expect_download() as waiting, page.expect_response("**/download?*") as answered:
        page.get_by_role("link", name="page.html").click()
    assert waiting.value.suggested_filename == "page.html"
    headers = answered.value.headers
    assert headers["content-disposition"].startswith("attachment")
    assert headers["content-security-policy"].startswith("sandbox")
    assert headers["x-content-type-options"] == "nosniff"
    credentials = {"Authorization": credentials_of(service)}
    nowhere = f"{service.rest}/buckets/nobody-has-this"
    assert page.request.get(nowhere, headers=credentials).status == 404
    below = f"{service.rest}/buckets/{bucket}/download?object="
    for name, status in (("", 400), ("gone.html", 404), ("..", 400), ("../../owner.token", 404)):
        refused = page.request.get(below + name, headers=credentials)
        assert refused.status == status, name
        assert "content-disposition" not in refused.headers, "an error is no file"


def test_ranges_on_the_axes_of_a_study_chart_filter_its_trials(
    service: Service, enter: Callable[..., Page], pages: dict[str, str]
) -> None:
    """The user sets ranges by pointer and by keys, for any number of axes. Escape clears a range."""
    page = enter()
    page.goto(service.rest + pages["study"])
    rate, loss = (page.get_by_role("button", name=f"Range of {name}") for name in ("rate", "loss"))
    kept = page.locator("[data-brushed]")
    box = rate.bounding_box()
    assert box is not None
    middle = box["x"] + box["width"] / 2
    page.mouse.move(middle, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(middle, box["y"] + box["height"] * 0.7)
    page.mouse.up()
    expect(kept).to_have_text("2 of 3")
    expect(page.locator(".trial.out")).to_have_count(1)
    loss.press("ArrowDown")
    loss.press("ArrowDown")
    expect(kept).to_have_text("1 of 3")
    for axis in (rate, loss):
        axis.press("Escape")
    expect(kept).to_be_empty()


def test_user_finds_where_the_tuner_is_uncertain(
    service: Service, enter: Callable[..., Page], pages: dict[str, str]
) -> None:
    page = enter()
    page.goto(service.rest + pages["study"])
    says, box = page.locator("[data-outlook-says]"), page.locator("[data-outlook-box]")
    over, beside = page.locator("[data-outlook] select").all()
    over.scroll_into_view_if_needed()
    expect(over).to_have_value("decay")
    expect(says).to_contain_text("Most uncertain")
    expect(box.locator(".uplot")).to_be_visible()
    beside.select_option("rate")
    expect(box.locator("canvas")).to_have_count(2)
    box.press("ArrowRight")
    expect(says).to_have_text(re.compile(r"loss \S+ ± \S+ at decay \S+, rate \S+"))
    page.evaluate(AXE)
    assert page.evaluate(FIND_VIOLATIONS, RULES) == []


def test_console_scripts_pass_the_type_checker(node_modules: Path) -> None:
    compiler = [node_modules / ".bin/tsc", "--typeRoots", node_modules, "--types", "uplot"]
    checked = subprocess.run([*compiler, "-p", NODE], capture_output=True, text=True, check=False)
    assert (checked.stdout, checked.returncode) == ("", 0)
