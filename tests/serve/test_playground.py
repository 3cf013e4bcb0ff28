"""The playground in a real browser, before a real server that asks for a key."""

import json
import re
import shlex
import shutil
import urllib.request
from contextlib import contextmanager

import pytest
from support.bundles import bundle
from support.server import serving

import hdlm
from hdlm.serve.guard import Access

KEY = "sesame"
LENGTH = 24
PROMPT = "One day, a dragon"

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")
playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here: make setup-browser")


@pytest.fixture(scope="module")
def address():
    models = {"stories": hdlm.load("stories"), "aligned": bundle(process="absorbing", shifted=False)}
    with serving(models, access=Access([KEY])) as client:
        yield client.url


@pytest.fixture(scope="module")
def browser():
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium here: make setup-browser")
    quiet = ["--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", *quiet])
        yield browser
        browser.close()


@contextmanager
def opened(browser, address, *, key=KEY, **how):
    """The playground in a tab of its own, which must have nothing to complain of but requests that were refused."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **how)
    page, errors = context.new_page(), []
    page.set_default_timeout(20_000)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    if key is not None:
        page.add_init_script(f"sessionStorage.setItem('hdlm-key', {json.dumps(key)})")
    page.goto(address)
    if key is not None:
        page.wait_for_selector("#go:enabled")
        put(page, "length", LENGTH)
    yield page
    assert [error for error in errors if "Failed to load resource" not in error] == []
    context.close()


@pytest.fixture
def page(browser, address):
    with opened(browser, address) as page:
        yield page


def put(page, name, value):
    page.eval_on_selector(
        f"#{name}",
        "(field, value) => { field.value = value; field.dispatchEvent(new Event('input', {bubbles: true})) }",
        value,
    )


def mark(page, name, words):
    """Select a stretch of a text area, as a reader does."""
    page.eval_on_selector(
        f"#{name}",
        "(area, words) => { const at = area.value.indexOf(words); area.focus(); "
        "area.setSelectionRange(at, at + words.length) }",
        words,
    )


def done(page):
    page.wait_for_selector("#stage[data-state=done]")


def write(page, *, seed=3, way=None):
    put(page, "seed", seed)
    if way is not None:
        page.locator(f"input[name=way][value={way}]").check(force=True)
    page.click("#go")
    done(page)
    return shown(page)


def shown(page):
    return page.eval_on_selector_all(
        "#text span:not([hidden])", "spans => spans.map(span => span.textContent).join('')"
    )


def copied(page, name):
    page.click(f"#copy-{name}")
    page.wait_for_selector(f"#copy-{name}:text-is('Copied')")
    return page.evaluate("navigator.clipboard.readText()")


def test_a_visitor_presses_one_button_and_looks_into_a_token(page):
    page.click("#go")
    done(page)
    assert shown(page).startswith(PROMPT)
    assert page.locator("#text .mask").count() == 0
    assert re.search(r"Seed\s+\d+", page.inner_text("#stats"))
    page.locator("#text span:not(.given)").nth(6).click()
    panel = page.inner_text("#panel")
    assert re.search(r"\d+\s+MASK\s+\S+\s+\d", panel), "its history"
    assert page.locator("#panel .bars li").count() == 8
    assert page.locator("#panel .bars .chosen").count() <= 1
    page.keyboard.press("Escape")
    assert page.is_hidden("#panel")
    put(page, "step", 1)
    assert page.locator("#text .mask").count() == LENGTH - 1
    assert page.locator("#text .fresh").count() == 1


def test_the_keyboard_alone_is_enough(page):
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    done(page)
    page.focus("#text [tabindex='0']")
    first = page.evaluate("Number(document.activeElement.dataset.place)")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "panel"
    assert f"Position {first + 1}" in page.inner_text("#panel")
    page.keyboard.press("Escape")
    assert page.evaluate("Number(document.activeElement.dataset.place)") == first + 1
    page.focus("#map")
    page.keyboard.press("ArrowRight")
    assert re.search(r"position \d+, step \d+: level \d+ of 16", page.inner_text("#map-said"))


def test_one_seed_gives_one_text_and_the_seed_can_be_kept(page):
    first = write(page, seed="")
    page.click("#keep-seed")
    page.click("#go")
    done(page)
    assert shown(page) == first
    page.click("#keep-seed")
    assert page.input_value("#seed") == ""


def test_several_texts_correct_themselves_and_say_so(page):
    page.click("#more summary")
    page.select_option("#count", "2")
    page.select_option("#sampler", "remask")
    put(page, "eta", 0.4)
    first = write(page)
    page.click("#texts button:nth-child(2)")
    assert shown(page) != first
    corrected = int(re.search(r"Corrected\s+(\d+)", page.inner_text("#stats")).group(1))
    assert 0 < page.locator("#text .fixed").count() <= corrected
    page.locator("#text .fixed").first.click()
    assert page.locator("#panel tbody tr").count() >= 3, "written, taken back, written"
    put(page, "step", 0)
    assert re.search(r"Corrected\s+0", page.inner_text("#stats"))


def test_a_marked_stretch_of_the_prompt_becomes_a_gap_that_is_filled(page):
    page.fill("#prompt", "Tom had a big red ball. He was sad because it was gone.")
    mark(page, "prompt", "ig red bal")
    page.click("#make-gap")
    assert page.input_value("#prompt") == "Tom had a [[gap:3]]. He was sad because it was gone."
    assert page.is_disabled("input[name=way][value=block]")
    text = write(page)
    assert text.startswith("Tom had a")
    assert text.endswith(". He was sad because it was gone.")
    assert page.locator("#text .filled").count() == 3
    found = re.search(r"-d (.*)", copied(page, "curl"), re.DOTALL).group(1)
    assert json.loads(shlex.split(found)[0])["text"].startswith("Tom had a [[gap:3]]")


def test_a_word_is_edited_a_stretch_rewritten_and_all_of_it_undone(page):
    first = write(page)
    page.click("#edit-text")
    put(page, "edit", first.replace("dragon", "mouse", 1))
    words = re.search(r"\w+ \w+ \w+", first[len(PROMPT) :]).group()
    mark(page, "edit", words)
    with page.expect_request("**/v1/stream") as asked:
        page.click("#rewrite")
    assert re.fullmatch(r"One day, a mouse.*\[\[gap:[1-6]\]\].*", asked.value.post_data_json["text"], re.DOTALL)
    page.wait_for_selector("#text .filled")
    done(page)
    before, after = first.replace("dragon", "mouse", 1).split(words, 1)
    assert shown(page).startswith(before.rstrip())
    assert shown(page).endswith(after)
    page.click("#undo")
    assert shown(page) == first


def test_a_schedule_drawn_by_hand_is_valid_and_the_copied_program_writes_its_text(page):
    page.locator("input[name=way][value=drawn]").check(force=True)
    page.click("[data-preset=back]")
    page.locator("#grid").scroll_into_view_if_needed()
    box = page.locator("#grid").bounding_box()
    page.mouse.move(box["x"] + 4, box["y"] + box["height"] * 0.8)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 12, steps=8)
    page.mouse.up()
    page.focus("#grid")
    page.keyboard.press("Shift+ArrowDown")
    assert "Column 17 of 32" in page.inner_text("#grid-said")
    with page.expect_request("**/v1/stream") as asked:
        text = write(page)
    levels = asked.value.post_data_json["levels"]
    assert hdlm.Custom(levels).length == LENGTH
    assert levels[4][LENGTH // 2] < levels[4][2], "drawn: the middle is before the left end"
    program = {}
    exec(copied(page, "python").replace("print(samples)", ""), program)
    assert program["levels"] == levels
    assert program["samples"].text == [text]


def test_speculation_races_autoregression_to_the_same_text(page):
    page.click("#tab-race")
    put(page, "seed", 3)
    page.click("#go")
    page.wait_for_selector("#race[data-state=playing]")
    page.select_option("#race-speed", "1")
    page.wait_for_selector("#race[data-state=done]")
    assert "The texts are the same, token for token." in page.inner_text("#verdict")
    calls = [int(words.split()[0]) for words in page.locator(".lane-card .calls").all_inner_texts()]
    assert calls[0] == LENGTH
    assert calls[1] < LENGTH
    assert page.locator(".lane-card.first").count() == 1
    clocks = [float(words.split()[0]) for words in page.locator(".lane-card .clock").all_inner_texts()]
    assert page.locator(".lane-card").nth(clocks.index(min(clocks))).get_attribute("class").endswith("first")


def test_a_replay_is_one_file_that_plays_the_same_text(page, browser, tmp_path):
    page.fill("#prompt", "</script><b>bold</b>")
    text = write(page)
    assert page.locator("#text b").count() == 0, "a text is no markup"
    with page.expect_download() as download:
        page.click("#save-replay")
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.name == "replay-stories-3.html"
    replay = browser.new_page()
    replay.goto(file.as_uri())
    replay.keyboard.press("End")
    assert replay.evaluate("document.getElementById('text').textContent") == text
    replay.close()


def test_the_copied_curl_asks_for_the_same_text(page, address):
    page.fill("#prompt", 'Tom\'s dog said "no"\nand left')
    text = write(page, way="slide")
    words = shlex.split(copied(page, "curl").replace("\\\n", ""))
    assert words[:3] == ["curl", "-sS", f"{address}/v1/completions"]
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    body = words[words.index("-d") + 1].encode()
    with urllib.request.urlopen(urllib.request.Request(words[2], body, headers)) as answer:
        choice = json.load(answer)["choices"][0]
    assert json.loads(body)["prompt"] + choice["text"] == text


def test_a_key_is_asked_for_and_kept(browser, address):
    with opened(browser, address, key=None) as page:
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#status:has-text('does not know')")
        assert page.is_disabled("#go")
        page.fill("#key", KEY)
        page.keyboard.press("Enter")
        page.wait_for_selector("#key-card", state="hidden")
        page.reload()
        page.wait_for_selector("#go:enabled")
        assert page.is_hidden("#key-card")


def test_what_a_model_cannot_do_is_disabled_with_the_reason(page):
    assert page.is_enabled("input[name=way][value=speculation]")
    page.select_option("#model", "aligned")
    assert page.is_disabled("input[name=way][value=speculation]")
    assert "speculation needs a network that predicts the next token" in page.inner_text("#way-note")
    assert page.locator("#gap-length [value=open]").is_disabled()
    assert "for any length" in page.inner_text("#gap-note")
    assert page.locator("#sampler option[value=acs]").is_disabled()
    assert page.locator("#sampler option[value=acs]").text_content() == "acs: needs noise that alters tokens"
    page.fill("#prompt", "abc")
    page.select_option("#sampler", "remask", force=True)
    assert write(page).startswith("abc")


def test_what_the_server_refuses_is_said_at_its_field(page):
    page.click("#more summary")
    page.fill("#top-k", "0")
    page.click("#go")
    page.wait_for_selector("#error:not([hidden])")
    assert "top_k" in page.inner_text("#error")
    assert page.get_attribute("#top-k", "aria-invalid") == "true"
    page.click("#error button")
    assert page.evaluate("document.activeElement.id") == "top-k"
    page.fill("#top-k", "5")
    write(page)
    assert page.is_hidden("#error")


def test_a_phone_in_the_dark_scrolls_down_alone(browser, address):
    with opened(browser, address, viewport={"width": 375, "height": 740}, color_scheme="dark") as page:
        for way in ("block", "drawn"):
            write(page, way=way)
            assert page.evaluate("document.documentElement.scrollWidth") <= 375
        page.locator("#text span").nth(8).click()
        page.click("#panel button")
        page.click("#tab-race")
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.click("#theme")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
