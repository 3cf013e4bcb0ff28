"""Look at the built site: `python docs/site/screenshots.py` (after make docs and make setup-browser).

Keeps docs/images/site/: wide and narrow, light and dark.
"""

import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images" / "site"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
SHOTS = {
    "wide-light": ("index", WIDE, "light"),
    "wide-dark": ("concepts/hyperschedules", WIDE, "dark"),
    "narrow-light": ("concepts/hyperschedules", NARROW, "light"),
    "narrow-dark": ("index", NARROW, "dark"),
}
WAIT = 2500  # milliseconds, for the animation to be on its way
COLOURS = 128


def main() -> None:
    """Take the pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        for name, (path, size, scheme) in SHOTS.items():
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto((ROOT / "build" / "site" / f"{path}.html").as_uri())
            page.wait_for_timeout(WAIT)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            picture.quantize(COLOURS).save(IMAGES / f"{name}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
