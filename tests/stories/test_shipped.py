"""The shipped model: it loads by name, writes words, and is as far from the truth as its card says."""

import json
import re
from importlib.resources import files

import pytest

import hdlm
from hdlm.cli.main import main
from hdlm.evaluate.likelihood import estimate
from hdlm.evaluate.texts import rows_of_set


@pytest.fixture(scope="module")
def stories():
    return hdlm.load("stories")


def on_the_card(way):
    """Nats per byte above the source, and their error, by the card's table."""
    card = (files("hdlm") / "models" / "stories" / "README.md").read_text()
    found = re.search(rf"\| {way} \| ([\d.]+) ± ([\d.]+) \| ([\d.]+) \|", card)
    above, error, per_byte = map(float, found.groups())
    return per_byte, error * per_byte / above


def test_it_is_as_small_as_promised(stories):
    draft = sum(parameter.numel() for parameter in stories.model.draft.parameters())
    assert stories.model.num_parameters - draft <= 11_500_000
    assert draft <= 400_000
    assert stories.config.shifted
    assert stories.config.next_token


@pytest.mark.parametrize(
    ("way", "schedule", "rows"),
    [("AR", hdlm.Quench(256), 60), ("block 16", hdlm.Block(256, 16), 40)],
)
def test_it_is_as_far_from_the_truth_as_its_card_says(stories, way, schedule, rows):
    held_out = rows_of_set(stories, "stories-test")
    lines = held_out.tokens[:rows]
    bound = estimate(stories, lines, draws=1, hyperschedule=schedule, batch_size=10)
    size = held_out.counts["bytes"] * sum(map(len, lines)) / sum(map(len, held_out.tokens))
    above, error = bound.above(held_out.source[:rows], size)
    expected, expected_error = on_the_card(way)
    assert abs(above - expected) < 4 * (error**2 + expected_error**2) ** 0.5
    assert error < 0.02


def test_it_writes_words_and_fills_gaps(stories):
    known = {
        word for line in rows_of_set(stories, "stories-test").tokens for word in words(stories.tokenizer.decode(line))
    }
    written = [
        *stories.generate("Once upon a time", num_samples=2, length=48, seed=0).text,
        *stories.generate("Once upon a time", num_samples=2, length=48, hyperschedule=hdlm.Quench(48), seed=0).text,
        *stories.infill("Tom had a red ball. He [[gap:12]]. He was very sad.", seed=0).text,
    ]
    found = [word for text in written for word in words(text)]
    assert len(found) > 100
    assert sum(word in known for word in found) > 0.9 * len(found)


def words(text):
    return re.findall(r"[a-z]+", text.lower())


def test_own_text_is_scored_by_the_command(tmp_path, capsys):
    path = tmp_path / "any.txt"
    path.write_text("Once upon a time, there was a little dog. He liked to run and play in the sun.\n")
    assert main(["evaluate", "stories", "--data", str(path), "--metrics", "bound", "--json"]) == 0
    [cell] = json.loads(capsys.readouterr().out)["cells"]
    assert 0.2 < cell["result"]["bits_per_byte"] < 1.5
