"""Take the README's pictures of the playground: `python docs/playground.py` (after make setup-browser).

Starts `hdlm serve`, writes one text in the page, and keeps docs/images/playground.gif, the text on its way, and
docs/images/playground.png, the text done with one of its tokens opened.
"""

import io
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
SIZE = {"width": 1100, "height": 830}
STEPS = 32  # pictures of the text on its way
PAUSE = 220  # milliseconds that each is shown; the last one longer
OPENED = 12  # the token that is clicked


def take(page: Page, address: str) -> None:
    """Write a text, take its pictures."""
    page.goto(address)
    page.wait_for_selector("#go:enabled")
    page.locator("#more > summary").click()
    page.fill("#seed", "7")
    page.locator("#more > summary").click()
    page.click("#go")
    page.locator("#status", has_text="Done").wait_for(timeout=60_000)
    page.locator("#stage").scroll_into_view_if_needed()
    slider, frames = page.locator("#step"), []
    last = int(slider.get_attribute("max") or 0)
    for n in range(STEPS + 1):
        at = round(last * n / STEPS)
        slider.evaluate("(bar, at) => { bar.value = at; bar.dispatchEvent(new Event('input')); }", at)
        picture = Image.open(io.BytesIO(page.locator("#stage").screenshot()))
        frames.append(picture.convert("P", palette=Image.Palette.ADAPTIVE))
    shown = [PAUSE] * STEPS + [12 * PAUSE]
    how = {"save_all": True, "append_images": frames[1:], "duration": shown, "loop": 0, "optimize": True}
    frames[0].save(IMAGES / "playground.gif", **how)
    page.locator("#text span").nth(OPENED).click()
    page.screenshot(path=IMAGES / "playground.png", full_page=True)


def main() -> None:
    """Start a server, look at it, stop it."""
    command = [sys.executable, "-m", "hdlm", "serve", "--port", "0", "--quiet"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    address = server.stderr.readline().strip().rpartition(" at ")[2]
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            take(browser.new_page(viewport=SIZE, color_scheme="light"), address)
            browser.close()
    finally:
        server.terminate()
        server.wait()
    print(f"wrote {IMAGES / 'playground.gif'} and {IMAGES / 'playground.png'}")


if __name__ == "__main__":
    main()
