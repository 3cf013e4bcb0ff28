"""The hyperschedule explorer, and the site as it is built, in a real browser without a network."""

import subprocess
import sys
import warnings

import pytest
from support.blocks import ROOT
from support.browser import chromium

import hdlm
from hdlm.bench.count import count

EXPLORER = ROOT / "docs" / "concepts" / "explorer.html"
RATES = [0.25, 0.5, 1, 2, 4, 8]
KINDS = {"quench": hdlm.Quench, "flat": hdlm.Flat, "block": hdlm.Block, "slide": hdlm.Slide}


def of(kind, length, width, rate):
    settings = {"quench": {}, "flat": {"rate": rate}}.get(kind, {"width": width, "rate": rate})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return KINDS[kind](length, **settings)


def test_the_explorer_draws_what_the_library_computes():
    with chromium() as browser:
        page, errors = browser.new_page(), []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(EXPLORER.as_uri())
        for kind in KINDS:
            for length, width, rate in ((24, 6, 1), (25, 7, 0.5), (13, 5, 4), (12, 12, 8), (9, 1, 1)):
                schedule, asked = of(kind, length, width, rate), [kind, length, width, rate]
                made = page.evaluate("(asked) => schedule(...asked)", asked)
                assert made["levels"] == schedule.levels.tolist(), asked
                for step in (0, schedule.steps // 2, schedule.steps - 1):
                    parts = page.evaluate("([asked, step]) => partition(schedule(...asked), step)", [asked, step])
                    masks = zip(("settled", "active", "worthless"), schedule.partition(step), strict=True)
                    assert {name: mask.tolist() for name, mask in masks} == {
                        name: [part == name for part in parts] for name in ("settled", "active", "worthless")
                    }
                slots = page.evaluate("(asked) => slots(schedule(...asked))", asked)
                cost = count(schedule, shifted=True)
                assert slots == {"cached": cost.slots_cached, "uncached": cost.slots_uncached}, asked
        assert errors == []


def test_the_explorer_is_moved_by_its_sliders():
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 700, "height": 700})
        page.goto(EXPLORER.as_uri())
        assert page.inner_text("#calls") == "24"
        page.locator('.kinds span:text("slide")').click()
        page.fill("#rate", str(RATES.index(2)))
        page.fill("#step", "3")
        schedule = of("slide", 24, 6, 2)
        assert page.inner_text("#calls") == str(schedule.steps)
        settled, active, worthless = (mask.sum().item() for mask in schedule.partition(3))
        assert [page.inner_text(f"#{name}") for name in ("settled", "active", "worthless")] == [
            str(settled),
            str(active),
            str(worthless),
        ]
        assert page.locator("#strip .active").count() == active


@pytest.mark.slow
def test_the_built_site_works_from_files_alone(tmp_path):
    """Strictly built; in a browser nothing is asked of a network, search finds, frames follow light and dark."""
    pytest.importorskip("mkdocs", reason="no mkdocs here: make setup-docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    with chromium() as browser:
        page, asked, errors = browser.new_page(color_scheme="light"), [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((tmp_path / "site" / "index.html").as_uri())
        page.wait_for_function("document.querySelector('.lane .calls').textContent.startsWith('3 of')")
        page.goto((tmp_path / "site" / "concepts" / "hyperschedules.html").as_uri())
        frame = page.frame(url=lambda url: url.endswith("explorer.html"))
        assert frame.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        page.locator("label[title=Dark]").click()
        frame.wait_for_function("getComputedStyle(document.body).backgroundColor === 'rgb(27, 31, 39)'")
        page.click(".md-search__input")
        page.keyboard.type("speculation")
        page.locator(".md-search-result__item").first.wait_for(timeout=20_000)
    assert errors == []
    assert {url.split(":")[0] for url in asked} <= {"file", "data", "blob"}
