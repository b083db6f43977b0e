"""The console during changes: the layout does not jump, lines stay readable, and a page shows when its
service is down, its job deleted or its user signed out.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.e2e.browsing import FORMS, WITH_CHROMIUM, sign_in
from tests.e2e.job_history import make_pipe
from tests.e2e.running import Service, container_job, down, start, submit
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, WITH_CHROMIUM]
SHIFTS = """const named = node => node &&
  `${node.nodeName} ${node.className} in ${node.parentElement?.closest("[id]")?.id}`;
new PerformanceObserver(seen => { window.shifts = (window.shifts || []).concat(
  seen.getEntries().filter(each => !each.hadRecentInput).map(each => [each.value,
    ...each.sources.map(source => named(source.node))]));
  }).observe({type: 'layout-shift', buffered: true})"""
MAX_LAYOUT_SHIFT = 0.05
"""Sum of all layout shifts of a page. A sum of 0.1 counts as good (web.dev/cls)."""
STREAMING = """
import time
open({gate!r}).read()
for step in range(1, 41):
    print(f"step {{step}}/40 loss {{1 / step:.4f}}" + " and a longer line" * (step % 5), flush=True)
    time.sleep(0.05)
open({gate!r}).read()
"""


@pytest.mark.parametrize("form", ["light", pytest.param("phone", marks=pytest.mark.soak)])
def test_layout_does_not_shift_while_data_streams(
    service: Service, enter: Callable[..., Page], commons: Path, form: str
) -> None:
    """The list of jobs, and a job from its submission over its lines and progress to its end."""
    gate = make_pipe(commons / "gate")
    listed = enter(form)
    job = submit(service, container_job(STREAMING.format(gate=str(gate)), name="streams"))
    shown = listed.context.new_page()
    for page, path in ((listed, "/"), (shown, f"/jobs/{job}")):
        page.add_init_script(SHIFTS)
        page.goto(service.rest + path)
    row = listed.get_by_role("row").filter(has=listed.locator(f'a[href="/jobs/{job}"]'))
    expect(row).to_contain_text("Running")
    expect(shown.locator("#replicas")).to_contain_text("Running")
    gate.write_text("")
    expect(shown.locator("#tail")).to_contain_text("step 40/40")
    expect(shown.locator("#notice")).to_contain_text("step 40 of 40")
    expect(row).to_contain_text("step 40 of 40")
    gate.write_text("")
    expect(shown.locator("#head")).to_contain_text("Succeeded")
    expect(row).to_contain_text("Succeeded")
    shifts = {page.url: page.evaluate("window.shifts || []") for page in (listed, shown)}
    amounts = {url: sum(item[0] for item in items) for url, items in shifts.items()}
    print({url: round(amount, 4) for url, amount in amounts.items()})
    assert all(amount < MAX_LAYOUT_SHIFT for amount in amounts.values()), shifts


def test_job_list_shows_all_jobs_after_many_jobs_are_created_at_once(
    service: Service, enter: Callable[..., Page]
) -> None:
    """More rows than the stream renders. Rows that moved down are updated too."""
    quota = {"project": "crowd", "region": "us-central1", "metric": "cpus_n1_e2", "limit": 0}
    service.call("POST", "/trainshed/v1/quotas:set", quota)
    jobs = "/v1/projects/crowd/locations/us-central1/customJobs"

    def come(first: int, last: int) -> list[str]:
        bodies = [container_job("", name=f"number-{n}") for n in range(first, last)]
        return [service.call("POST", jobs, body)["name"].rpartition("/")[2] for body in bodies]

    page, early = enter("light"), come(0, 31)
    page.goto(f"{service.rest}/?project=crowd")
    rows = page.locator("[data-row]")
    expect(rows.nth(29)).to_contain_text("number-1")
    come(31, 41)
    expect(rows.first).to_contain_text("number-40")
    service.call("POST", f"/trainshed/v1/jobs/{early[1]}:cancel", {})
    expect(rows.nth(39)).to_contain_text("Cancelled")
    come(41, 100)
    expect(rows.first).to_contain_text("number-99")
    expect(rows.nth(29)).to_contain_text("number-70")


def test_hidden_browser_tab_keeps_no_connection_open(
    service: Service, enter: Callable[..., Page], gate: Path
) -> None:
    """Browsers allow six connections per host. More tabs with followed logs block no other page, and resume
    where they stopped.
    """
    job = submit(service, container_job(GOES_ON.format(gate=str(gate)), name="many tabs"))
    page = enter()
    streams: list[str] = []
    page.context.on("request", lambda r: streams.append(r.url) if "/events/" in r.url else None)
    tabs = [page.context.new_page() for _ in range(7)]
    for tab in tabs:
        tab.goto(f"{service.rest}/jobs/{job}/logs")
        expect(tab.locator("[data-log]")).to_contain_text("before")
        tab.evaluate(HIDE)
    gate.write_text("")
    page.goto(f"{service.rest}/jobs/{job}")
    expect(page.locator("#tail")).to_contain_text("after")
    streams.clear()
    tabs[0].evaluate(SHOW)
    expect(tabs[0].locator("[data-log]")).to_contain_text("after")
    assert len(streams) == 1, "one stream of a page"
    assert tabs[0].locator(".log-text", has_text="before").count() == 1
    gate.write_text("")


HIDE = """() => { Object.defineProperty(document, "hidden", {value: true, configurable: true});
  document.dispatchEvent(new Event("visibilitychange")); }"""
SHOW = HIDE.replace("true, conf", "false, conf")
GOES_ON = """
print("before", flush=True)
open({gate!r}).read()
print("after", flush=True)
open({gate!r}).read()
"""
PRINTED = r"""
import sys
out = sys.stdout.buffer
out.write(b"\x1b[31mred\x1b[0m and \x1b[1;33mbold yellow\x1b[0m\n")
out.write(b"caf\xe9 \xff\xfe end\n")
for n in range(101):
    out.write(b"\r%3d%%|%s| %d/100" % (n, b"#" * (n // 5), n))
out.write(b"\n" + b"x" * 5000 + b"END\n")
out.write("\u202eevil\u2066 \x1b]8;;https://evil.example\x07click\x1b]8;;\x07\x1b[2J\n".encode())
for n in range(2000):
    out.write(b"line %d\n" % n)
"""


def test_log_lines_are_rendered_selected_copied_and_linked(
    service: Service, enter: Callable[..., Page]
) -> None:
    job = submit(service, container_job(PRINTED, name="prints"))
    service.finish(job, 60)
    page = enter()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{service.rest}/jobs/{job}/logs")
    log = page.locator("[data-log]")
    expect(log).to_contain_text("line 1999")
    page.get_by_role("button", name="Top").click()
    # The service first prints a note about a runtime that is not available.
    lines = log.locator(".log-line:not(.notice)")
    expect(lines.first).to_contain_text("red and bold yellow")
    assert lines.first.locator(".ink-1").inner_text() == "red"
    assert lines.first.locator(".bold.ink-3").inner_text() == "bold yellow"
    expect(lines.nth(1)).to_contain_text("caf\ufffd \ufffd\ufffd end")
    bar = lines.nth(2).locator(".log-text").inner_text()
    assert bar == f"100%|{'#' * 20}| 100/100", "a bar is its last state, not all of them"
    assert lines.nth(3).locator(".log-text").inner_text().endswith("xEND")
    assert lines.nth(4).locator(".log-text").inner_text() == "\ufffdevil\ufffd click"
    at = log.locator(".log-line", has_text=re.compile(r"line 100$"))
    at.locator("time").click()
    page.keyboard.down("Shift")
    log.locator(".log-line", has_text=re.compile(r"line 102$")).locator("time").click()
    page.keyboard.up("Shift")
    marked = page.locator("[data-marked]")
    expect(marked).to_contain_text("3 lines selected")
    page.get_by_label("Times").uncheck()
    page.evaluate("setTimeout = () => 0")  # The button's message then stays until it is read.
    marked.get_by_role("button", name="Copy", exact=True).click()
    expect(marked).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "line 100\nline 101\nline 102"
    assert "line=" in page.url
    linked = page.context.new_page()
    linked.goto(page.url)
    expect(linked.locator(".log-line.is-marked")).to_have_count(3)
    expect(linked.locator(".log-line", has_text=re.compile(r"line 101$"))).to_be_in_viewport()
    expect(linked.locator(".log-line", has_text=re.compile(r"line 98$"))).to_be_in_viewport()
    # The same by keyboard: the selected line is read aloud.
    linked.keyboard.press("Escape")
    expect(linked.locator(".log-line.is-marked")).to_have_count(0)
    assert "line=" not in linked.url
    linked.keyboard.press("j")
    first = linked.locator(".log-line.is-chosen .log-text").inner_text()
    expect(linked.locator("[data-log-said]")).to_contain_text(first)
    linked.keyboard.press("m")
    expect(linked.locator("[data-marked]")).to_contain_text("1 line selected")
    linked.keyboard.press("Shift+J")
    linked.keyboard.press("Shift+J")
    expect(linked.locator("[data-marked]")).to_contain_text("3 lines selected")
    linked.keyboard.press("Shift+K")
    expect(linked.locator("[data-marked]")).to_contain_text("2 lines selected")
    assert "to=" in linked.url
    linked.evaluate("setTimeout = () => 0")
    linked.get_by_role("button", name="Copy", exact=True).press("Enter")
    expect(linked.locator("[data-marked]")).to_contain_text("Copied")
    assert linked.evaluate("navigator.clipboard.readText()").splitlines()[0].endswith(first)


def test_open_job_page_shows_that_its_job_was_deleted_or_its_user_signed_out(
    service: Service, enter: Callable[..., Page], gate: Path
) -> None:
    job = submit(service, container_job(f"open({str(gate)!r}).read()", name="short-lived"))
    page = enter()
    page.goto(f"{service.rest}/jobs/{job}")
    expect(page.locator("#replicas")).to_contain_text("Running")
    # Below an open sheet the page does not change.
    page.get_by_role("button", name="Cancel").click()
    gate.write_text("")
    expect(page.get_by_role("list", name="Timeline")).to_contain_text("succeeded")
    page.keyboard.press("Escape")
    expect(page.locator("#head")).to_contain_text("Succeeded")
    service.call("DELETE", f"/trainshed/v1/jobs/{job}")
    banner = page.locator("[data-live]")
    expect(banner).to_contain_text("does not exist")
    page.get_by_role("link", name="Show jobs").click()
    page.wait_for_url(f"{service.rest}/")
    other = page.context.new_page()
    other.goto(f"{service.rest}/nodes")
    other.get_by_role("button", name="Sign out").click()
    expect(other.get_by_role("heading", name="Sign in")).to_be_visible()
    submit(service, container_job("pass"))  # A stream without events polls every 15 seconds.
    expect(banner).to_contain_text("signed out")
    page.get_by_role("link", name="Sign in").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


@pytest.fixture
def service_and_browser(tmp_path: Path, chromium: Browser) -> Iterator[tuple[Service, BrowserContext]]:
    """A service for this test, and a signed-in browser."""
    service = start(tmp_path / "data", "--port", str(free_port()))
    context = chromium.new_context(**FORMS["light"], reduced_motion="reduce")
    yield service, context
    context.close()
    down(tmp_path / "data")


def test_open_job_page_continues_to_update_after_a_service_restart(
    service_and_browser: tuple[Service, BrowserContext], gate: Path
) -> None:
    service, context = service_and_browser
    script = (
        f"for n in range(3):\n    open({str(gate)!r}).read()\n    print('life', n, flush=True)\n"
        f"open({str(gate)!r}).read()"
    )
    job = submit(service, container_job(script, name="goes on"))
    shown, log = context.new_page(), context.new_page()
    sign_in(shown, service)
    shown.goto(f"{service.rest}/jobs/{job}")
    log.goto(f"{service.rest}/jobs/{job}/logs")
    expect(shown.locator("#replicas")).to_contain_text("Running")
    gate.write_text("")
    expect(log.locator("[data-log]")).to_contain_text("life 0")
    service.kill()
    expect(shown.locator("[data-live]")).to_contain_text("does not respond")
    gate.write_text("")
    start(service.data, "--port", service.rest.rpartition(":")[2])
    expect(shown.locator("[data-live]")).to_be_hidden()
    expect(shown.locator("#tail")).to_contain_text("life 1")
    expect(log.locator("[data-log]")).to_contain_text("life 1")
    gate.write_text("")
    expect(log.locator("[data-log]")).to_contain_text("life 2")
    output = [text for text in log.locator(".log-text").all_inner_texts() if "life" in text]
    assert output == ["life 0", "life 1", "life 2"], "each once, none left out"
    gate.write_text("")
    expect(shown.locator("#head")).to_contain_text("Succeeded")
