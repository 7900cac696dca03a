"""The README's picture of the viewer, light and dark: the siblings of one task, and where a turn's credit comes from.

    alignopsd train webshop_trips --rounds 3 --panel_limit 24 --output_dir outputs/webshop_trips
    python docs/viewer_picture.py outputs/webshop_trips              # docs/images/viewer.png and viewer_dark.png

Needs the extra ``browser`` and Debian's packages chromium and chromium-driver. ``--place`` takes what stands behind the
``#`` of the page's address; without it the picture shows the turn whose credit was moved furthest.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import tempfile
from pathlib import Path
from typing import Any

from alignopsd_trl.commands.viewer import view_run

FLAGS = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-sync".split()
WIDTH, SCALE = 900, 1.6
NAMES = {"light": "viewer.png", "dark": "viewer_dark.png"}

TRIM = """
const gone = ["header", ".curves", ".tasks", ".siblings > div:first-child", ".matched", ".fold", ".why > details"];
document.querySelectorAll(`${gone.join(", ")}, .turn details`).forEach((one) => one.remove());
[...document.querySelectorAll(".why > div")].slice(1).forEach((one) => one.remove());
const seen = [...document.querySelectorAll(".turn h2")].find((one) => one.textContent === "observation");
seen.nextSibling.remove(); seen.remove();
document.querySelector(".panes").style.gridTemplate = '"siblings siblings" auto "why detail" auto / 1fr 1.05fr';
document.querySelector(".pair").style.gridTemplateColumns = "1fr";
"""
"""Leaves the grid, the way to the turn's credit, and what student and teacher thought."""


def browser(theme: str) -> Any:
    """A headless Chromium that asks pages for a theme."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in FLAGS:
        options.add_argument(f"--{flag}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    size = {"width": WIDTH, "height": 900, "deviceScaleFactor": SCALE, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": theme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    return driver


def picture(page: Path, place: str, theme: str) -> bytes:
    """A PNG of the page's middle."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver = browser(theme)
    try:
        driver.get(f"{page.as_uri()}#{place}")
        WebDriverWait(driver, 20).until(lambda one: one.execute_script("return !!document.querySelector('.grid')"))
        driver.execute_script(TRIM)
        height = driver.execute_script("return document.querySelector('.panes').getBoundingClientRect().height")
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": height + 8, "scale": 1}
        shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
        return base64.b64decode(shot["data"])
    finally:
        driver.quit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="output folder of a run")
    parser.add_argument("--place", default="", help="such as 'step=0&task=NAME&rollout=0004&turn=16'")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/images"), help="folder of the two files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = view_run(arguments.run).save(Path(folder) / "view.html")
        for theme, name in NAMES.items():
            (arguments.output / name).write_bytes(picture(page, arguments.place, theme))
            print(arguments.output / name)


if __name__ == "__main__":
    main()
