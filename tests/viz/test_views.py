"""The live view and the replay page, the latter in a real browser where there is one."""

import io
import json
import re
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from support.browser import chromium
from support.bundles import bundle

import hdlm
from hdlm.config.sampling import DrawSettings
from hdlm.sampling.generate import exhaust, generate
from hdlm.sampling.request import gap_request, prompt_request
from hdlm.sampling.results import Frame
from hdlm.viz.history import History
from hdlm.viz.replay import replay_data, write_replay
from hdlm.viz.watch import Watch, watching


def recorded(model, request):
    history, frames = History(request), []
    written = generate(model, request)
    while True:
        try:
            frames.append(next(written))
        except StopIteration as end:
            return end.value, history, frames
        history.see(frames[-1])


def replayed(data, number):
    """The page's rules in Python: the state after every change, and the text of the end."""
    sample = data["samples"][number]
    tokens = list(sample["first"])
    for _, position, token, *_ in sample["changes"]:
        tokens[position] = token
    return "".join(data["pieces"][str(token)] for token in tokens[: sample["length"]])


@pytest.mark.parametrize(("process", "sampler"), [("gamma", None), ("uniform", None), ("absorbing", "speculative")])
def test_a_replay_holds_the_whole_story(process, sampler):
    model = bundle(process=process)
    settings = DrawSettings(seed=2, temperature=3.0, sampler=sampler, draft=3 if sampler else None)
    request = prompt_request(model, ["abc", "j"], num_samples=2, length=12, settings=settings)
    samples, history, frames = recorded(model, request)
    data = replay_data(samples, history, mask_id=model.process.mask_id, title="a test")
    for number, text in enumerate(samples.text):
        assert replayed(data, number) == text
    schedule = data["samples"][0]["schedule"]
    for frame in frames:
        levels = [
            max(0, min(schedule["maxLevel"], e + schedule["maxLevel"] - frame.step - 1)) for e in schedule["entry"]
        ]
        assert frame.levels[0, 3:].tolist()[:12] == levels
    said = [c[3] for c in data["samples"][0]["changes"] if c[3] is not None]
    assert said
    assert all(0 <= share <= 1 for share in said)


def levels_of(schedule):
    """The page's rules in Python: all levels of a schedule."""
    if "levels" in schedule:
        return schedule["levels"]
    top = schedule["maxLevel"]
    return [[max(0, min(top, e + top - step)) for e in schedule["entry"]] for step in range(schedule["steps"] + 1)]


@pytest.mark.parametrize(
    "schedule",
    [
        hdlm.Quench(7),
        hdlm.Flat(7, 2),
        hdlm.Block(7, 3, 0.7),
        hdlm.Slide(7, 3, 2),
        hdlm.Custom(hdlm.Slide(7, 3).levels),
        hdlm.Custom([[2, 2, 2], [2, 2, 2], [1, 2, 1], [1, 2, 1], [0, 1, 1], [0, 0, 0]]),
        hdlm.Custom([[3, 3], [1, 3], [1, 1], [0, 0]]),
        hdlm.Custom([[1, 1], [1, 0], [0, 0]]),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore:.*trained on.*")
def test_a_replay_has_the_levels_of_every_schedule(schedule):
    model = bundle("flat")
    settings = DrawSettings(seed=0, stop_at_eos=False)
    samples, history, _ = recorded(model, prompt_request(model, hyperschedule=schedule, settings=settings))
    data = replay_data(samples, history, mask_id=model.process.mask_id, title="")
    assert levels_of(data["samples"][0]["schedule"]) == schedule.levels.tolist()


def test_a_page_is_one_file_that_no_text_can_break(tmp_path):
    model = bundle()
    samples, history, _ = recorded(model, prompt_request(model, "a", length=4, settings=DrawSettings(seed=0)))
    path = write_replay(
        tmp_path / "new" / "r.html", samples, history, mask_id=model.process.mask_id, title="</script><b>bold"
    )
    text = path.read_text(encoding="utf-8")
    assert "</script><b>" not in text
    assert not re.search(r"https?://", text), "nothing is fetched"
    inside = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL).group(1)
    assert json.loads(inside)["title"] == "</script><b>bold"
    with pytest.raises(ValueError, match=r"must end in \.html"):
        write_replay(tmp_path / "r.txt", samples, history, mask_id=model.process.mask_id, title="")


def test_watching_in_colour_fits_the_terminal():
    """Masks, fresh and corrected tokens look different, and no line is wider than the terminal."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, height=40, color_system="truecolor")
    frame = Frame(
        step=0,
        tokens=torch.tensor([[0, 1, 2, 3, 11, 5]]),
        window=torch.arange(2, 6).unsqueeze(0),
        before=torch.tensor([[11, 4, 11, 5]]),
        window_levels=torch.tensor([1, 1, 1, 1]),
        confidence=torch.full((1, 4), 0.5),
        doubt=torch.full((1, 4), 0.1),
        given=torch.zeros(1, 6, dtype=torch.bool),
        max_level=2,
        rows=(0,),
    )
    letters = "abcdefghij "
    with Watch(lambda token: letters[token], 11, {0: [True, True, *[False] * 4]}, 1, console=console, pause=0) as watch:
        watch.see(frame)
    shown = output.getvalue()
    assert "\x1b[1;30;42mc" in shown, "just written, green"
    assert "\x1b[1;30;43md" in shown, "just corrected, yellow"
    assert "\x1b[36mf" in shown, "may still change, cyan"
    assert "░" in shown
    assert "step 1 of 1" in shown
    assert max(len(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line)) for line in shown.splitlines()) <= 80


def test_a_text_that_ends_early_is_shown_to_its_end():
    """Into a file, too, and nothing behind the end of text."""
    model, ended = bundle(process="absorbing", eos_id=2), 0
    for seed in range(12):
        request = prompt_request(model, "bdb", length=18, settings=DrawSettings(seed=seed, temperature=3.0))
        output = io.StringIO()
        with watching(model, request, console=Console(file=output)) as watch:
            samples = exhaust(generate(model, request), watch.see)
        last = output.getvalue().split("step ")[-1].splitlines()[1]
        assert last.strip() == samples.text[0].strip()
        ended += samples.ended[0]
    assert ended > 3


def test_the_time_of_watching_is_not_the_time_of_sampling(monkeypatch):
    """A clock that runs while a step is shown, and for a second in all else."""
    now = 0.0

    def clock():
        return now

    def sleep(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr("hdlm.sampling.generate.time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr("hdlm.viz.watch.time", SimpleNamespace(sleep=sleep))
    model = bundle()
    request = prompt_request(model, ["abc", "j"], length=8, settings=DrawSettings(seed=0, batch_size=1))
    console = Console(file=io.StringIO(), force_terminal=True)
    with watching(model, request, console=console, pause=0.5) as watch:
        stats = exhaust(generate(model, request, progress=lambda _: sleep(1.0)), watch.see).stats
    assert now == 16 * 0.5 + stats.seconds
    assert stats.seconds >= 2.0
    assert stats.tokens_per_second == 16 / stats.seconds


@pytest.mark.parametrize("how", ["prompts", "gaps"])
def test_a_browser_plays_a_replay_to_the_end(tmp_path, how):
    if how == "prompts":
        model = bundle()
        request = prompt_request(model, ["abc", "j a"], length=12, settings=DrawSettings(seed=2, temperature=3.0))
    else:
        model = bundle("flat")
        request = gap_request(model, "ab[[gap:6]]cd", settings=DrawSettings(seed=1))
    samples, history, _ = recorded(model, request)
    file = write_replay(tmp_path / "r.html", samples, history, mask_id=model.process.mask_id, title="a test")
    with chromium() as browser:
        page = browser.new_page()
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(file.as_uri())
        assert page.inner_text("#where").startswith("step 0 /")
        assert page.locator("#text .mask").count() == sum(token is None for token in request.batches[0].rows[0])
        page.select_option("#speed", "100")
        page.click("#play")
        page.wait_for_selector("body[data-state=end]", timeout=20_000)
        assert page.evaluate("document.getElementById('text').textContent") == samples.text[0]
        assert page.locator("#text .mask").count() == 0
        page.locator("#text span").nth(4).hover()
        assert "confidence" in page.inner_text("#tip") or "given" in page.inner_text("#tip")
        page.keyboard.press("ArrowLeft")
        assert page.get_attribute("body", "data-state") == "paused"
        if how == "prompts":
            page.click("#tabs button:nth-child(2)")
            page.keyboard.press("End")
            assert page.evaluate("document.getElementById('text').textContent") == samples.text[1]
    assert errors == []
