"""The corpus whose truth is known: probabilities of rows and of rows that were cut, by enumeration on a tiny source."""

import json
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "stories"))
import make_corpus
import source as source_module
from make_corpus import Cut, Cutter, nats_of, train_tokenizer
from source import BOS, END, Source, pick

PIECES = [" a", "b", "ba", " ab", "a", " b", "abb", " "]
FIRST = 259


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama of random weights whose pieces are few."""
    out = tmp_path_factory.mktemp("source")
    size = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    pieces = ["<unk>", "\n<s>\n", "\n</s>\n", *map(chr, range(256)), *PIECES]
    config = {"model_type": "llama", "vocab_size": len(pieces), "max_position_embeddings": 8, **size}
    config |= {"tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "rms_norm_eps": 1e-5}
    source = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens": (len(pieces), 16), "model.norm": (16,)}
    for layer in range(2):
        name = f"model.layers.{layer}"
        shapes |= {f"{name}.self_attn.{part}_proj": (16, 16) for part in "qkvo"}
        shapes |= {f"{name}.mlp.{part}_proj": (24, 16) for part in ("gate", "up")}
        shapes |= {f"{name}.mlp.down_proj": (16, 24), f"{name}.input_layernorm": (16,)}
        shapes |= {f"{name}.post_attention_layernorm": (16,)}
    tensors = {f"{name}.weight": torch.randn(shape, generator=source) for name, shape in shapes.items()}
    save_file(tensors, out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(config))
    (out / "pieces.json").write_text(json.dumps(pieces))
    return out


def next_law(source, row):
    """p of each piece after a row, by the plain network on that row alone."""
    _, after = source.log_p(torch.tensor([[*row, 0]]), torch.tensor([len(row)]))
    return after[0].exp()


def test_probabilities_are_those_of_drawing_piece_by_piece(folder):
    source = Source(folder)
    row = [FIRST, FIRST + 2, BOS, FIRST + 5]
    log_p, _ = source.log_p(torch.tensor([row]), torch.tensor([0]))
    for place, piece in enumerate(row):
        assert log_p[0, place].exp().item() == pytest.approx(next_law(source, row[:place])[piece].item(), rel=1e-5)


def test_a_cut_rows_probability_is_that_of_all_rows_that_go_on_so(folder, monkeypatch):
    monkeypatch.setattr(make_corpus, "ROW", 2)
    source = Source(folder)
    row, begun = [FIRST, FIRST + 2], "b"  # " a" and then a piece that begins with b
    found = nats_of(source, torch.tensor([row]), [Cut([0], 1, begun, "ab")])
    total = 0.0
    for pieces in product(range(len(source.pieces)), repeat=2):
        if pieces[0] == row[0] and source.pieces[pieces[1]].startswith(begun):
            total += (next_law(source, [])[pieces[0]] * next_law(source, pieces[:1])[pieces[1]]).item()
    assert found.item() == pytest.approx(-torch.tensor(total).log().item(), rel=1e-5)


def test_the_first_piece_of_a_story_counts_with_its_space(folder, monkeypatch):
    monkeypatch.setattr(make_corpus, "ROW", 2)
    source = Source(folder)
    row = [BOS, FIRST + 3]
    found = nats_of(source, torch.tensor([row]), [Cut([0], 1, "a", END + "a")])
    law = next_law(source, [BOS])
    able = [number for number, piece in enumerate(source.pieces) if piece.startswith(" a")]
    assert found.item() == pytest.approx(-(next_law(source, [])[BOS] * law[able].sum()).log().item(), rel=1e-5)


def test_text_and_pieces_go_both_ways(folder):
    source = Source(folder)
    row = [FIRST + 3, FIRST + 1, 13, FIRST + 4, BOS, FIRST + 5, FIRST + 2]
    assert source.text(row) == f"abb\na{END}bba"
    assert source.encode("abb\na") == [FIRST + 3, FIRST + 1, 13, FIRST + 4]


def test_rows_are_cut_where_their_tokens_end(folder, monkeypatch):
    monkeypatch.setattr(make_corpus, "LENGTH", 3)
    source = Source(folder)
    tokenizer = train_tokenizer(["ab abb ba bab a b"], 257)  # a mark and single bytes: a token is a letter
    long, short = [FIRST + 6, FIRST + 2, BOS, FIRST], [FIRST + 4, BOS]
    cuts = Cutter(source, tokenizer)(np.array([long]))
    assert (cuts[0].text, cuts[0].pieces, cuts[0].begun) == ("abb", 1, "")
    cuts = Cutter(source, tokenizer)(np.array([[FIRST + 4, FIRST + 6, FIRST + 2, FIRST]]))
    assert (cuts[0].text, cuts[0].pieces, cuts[0].begun) == ("aab", 1, "ab")
    cuts = Cutter(source, tokenizer)(np.array([short]))
    assert (cuts[0].text, cuts[0].pieces, cuts[0].begun, len(cuts[0].tokens)) == (f"a{END}", 2, "", 2)
    assert make_corpus.matrix(cuts).tolist() == [[*cuts[0].tokens, 65535]]
    assert cuts[0].size == 2


def test_drawn_rows_follow_the_source(folder):
    source = Source(folder)
    rows = source.bundle.generate(num_samples=4000, length=1, stop_at_eos=False, seed=3, batch_size=4000).tokens
    law = next_law(source, [])
    seen = torch.bincount(torch.tensor(rows).flatten(), minlength=len(law)) / 4000
    assert (seen - law).abs().sum() < 2 * (law * (1 - law) / 4000).sqrt().sum()


def test_a_piece_is_picked_where_the_sum_of_probabilities_passes(folder):
    p = torch.rand(64, 384, generator=torch.Generator().manual_seed(1)).float()
    p[:, ::3] = 0
    p = p / p.sum(-1, keepdim=True)
    u = torch.cat([torch.tensor([0.0, 1 - 2.0**-53]), torch.rand(62, dtype=torch.float64)])
    exact = p.double().cumsum(-1)
    found = pick(p, u)
    assert (p.gather(1, found.unsqueeze(1)) > 0).all()
    high = exact.gather(1, found.unsqueeze(1)).squeeze(1)
    low = high - p.double().gather(1, found.unsqueeze(1)).squeeze(1)
    u = u * exact[:, -1]
    assert (low <= u + 1e-6).all()
    assert (u <= high + 1e-6).all()


def test_rows_are_drawn_by_the_law_of_the_network(folder, monkeypatch):
    """Chi-squared of first pieces, and of second ones after the likeliest first."""
    monkeypatch.setattr(source_module, "ROW", 3)
    source = Source(folder)
    rows = source.draw(6_000, seed=1, batch=4_000)
    assert rows.shape == (6_000, 3)
    assert torch.equal(rows, source.draw(6_000, seed=1, batch=4_000))
    first = int(rows[:, 0].mode().values)
    for drawn, law in (
        (rows[:, 0], next_law(source, [])),
        (rows[rows[:, 0] == first, 1], next_law(source, [first])),
    ):
        expected = law * len(drawn)
        common = expected > 5
        counts = torch.bincount(drawn, minlength=len(law)).double()
        seen = torch.cat([counts[common], counts[~common].sum().view(1)])
        wanted = torch.cat([expected[common], expected[~common].sum().view(1)])
        freedom = len(seen) - 1
        statistic = ((seen - wanted) ** 2 / wanted).sum().item()
        assert statistic < freedom + 5 * (2 * freedom) ** 0.5
