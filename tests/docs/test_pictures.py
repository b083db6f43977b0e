"""The pictures of the guides show what is there now."""

from pathlib import Path

import pytest
from PIL import Image, ImageChops, ImageStat
from playwright.sync_api import ViewportSize, expect, sync_playwright

from tests.docs.blocks import ROOT
from tests.e2e.browsing import CHROMIUM, WITH_CHROMIUM, sign_in
from tests.e2e.running import common_place, container_job, running, submit
from tests.e2e.stories import make_pipe

PICTURES = ROOT / "build" / "pictures"
_SIZE: ViewportSize = {"width": 1280, "height": 510}
_TRAINS = """
for epoch in range(1, 40):
    print(f"epoch {{epoch}}/{epochs} loss {{2 / (epoch + 1):.3f}} accuracy 0.987", flush=True)
open({gate!r}).read()
"""
_JOBS = ("resnet-finetune", "baseline", "evaluate", "ablation-lr")


@pytest.mark.soak
@WITH_CHROMIUM
def test_the_picture_of_the_console_is_what_it_shows(tmp_path: Path) -> None:
    """The new picture is in build/pictures; if this fails because the console looks otherwise now, look at it
    and copy it to docs/images."""
    gate = make_pipe(common_place() / "gate-of-the-picture")
    programs = {
        "resnet-finetune": _TRAINS.format(epochs=40, gate=str(gate)),
        "baseline": "print('done')",
        "evaluate": "open('metrics.json')",
        "ablation-lr": _TRAINS.format(epochs=60, gate=str(gate)),
    }
    PICTURES.mkdir(parents=True, exist_ok=True)
    with running(tmp_path / "data") as service, sync_playwright() as playwright:
        for name in _JOBS:
            uid = submit(service, container_job(programs[name], name=name))
            if "open" not in programs[name] or name == "evaluate":
                service.finish(uid, 120)
            else:
                assert any("epoch 39/" in line for line in service.follow(uid))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(viewport=_SIZE, reduced_motion="reduce").new_page()
        sign_in(page, service)
        for name in _JOBS:
            expect(page.get_by_role("row").filter(has_text=name)).to_be_visible()
        expect(page.get_by_text("epoch 39 of 40")).to_be_visible(timeout=15_000)
        page.screenshot(path=PICTURES / "console.png")
        browser.close()
    with (
        Image.open(PICTURES / "console.png") as now,
        Image.open(ROOT / "docs/images/console.png") as shown,
    ):
        assert now.size == shown.size
        # Small and grey: ids, ages and one shade of a font do not count.
        small = [picture.convert("L").resize((64, 26)) for picture in (now, shown)]
        different = ImageStat.Stat(ImageChops.difference(*small)).mean[0]
        assert different < 0.5, "the console looks otherwise: see build/pictures/console.png"
