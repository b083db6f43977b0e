"""Debian's chromium, the headless build if installed, which uses a third less CPU time. Also the screen sizes
of pages, and the browser's complaints.
"""

import base64
import shutil
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.running import Service

expect.set_options(timeout=60_000)
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
WITH_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed: the console is NOT tested"
)
FORMS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}


def sign_in(page: Page, service: Service) -> None:
    """Follow the link of `trainshed console`."""
    page.goto(service.call("POST", "/login/link", {})["uri"])
    page.wait_for_url(f"{service.rest}/overview")


def credentials_of(service: Service) -> str:
    """Return the `Authorization` header of a signed-in browser."""
    code = service.call("POST", "/login/link", {})["uri"].partition("code=")[2]
    headers = {
        "Origin": service.rest,
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    answer = service.ask("POST", "/login", f"code={code}".encode(), token=None, headers=headers)
    session = answer.json["session"]
    return f"Basic {base64.b64encode(f'session:{session}'.encode()).decode()}"


@dataclass
class PageMessages:
    """The complaints of the browser."""

    texts: list[str] = field(default_factory=list[str])

    def listen(self, page: Page) -> None:
        """Record errors and warnings of a page."""
        page.on("pageerror", lambda error: self.texts.append(f"{page.url}: {error}"))
        page.on(
            "console",
            lambda output: (
                self.texts.append(f"{page.url}: {output.text}")
                if output.type in ("error", "warning")
                else None
            ),
        )
