"""`hdlm plot front` and `hdlm plot gamma`: several evaluations in one figure."""

import json
import re

import numpy as np
import pytest
from support.bundles import bundle

from hdlm.cli.main import main
from hdlm.evaluate.figure import front


def judged(folder, model, points):
    """What `hdlm evaluate --metrics gen-ppl,entropy --sweep ...` leaves, of numbers made up."""
    folder.mkdir()
    cells = {
        str(rate): {
            "spec": {"kind": "samples", "settings": {"rate": rate}},
            "result": {
                "gen_ppl": {"value": cost, "error": 1.0, "judge": "a judge"},
                "entropy": {"value": gain, "error": 0.1},
            },
        }
        for rate, cost, gain in points
    }
    (folder / "results.json").write_text(json.dumps({"about": {"model": model}, "cells": cells}))
    return str(folder)


def test_several_models_share_a_front(tmp_path, capsys):
    folders = [
        judged(tmp_path / "one", "first", [(1.0, 40.0, 5.0), (4.0, 80.0, 5.5)]),
        judged(tmp_path / "two", "second", [(1.0, 30.0, 5.2)]),
    ]
    out = tmp_path / "front.svg"
    assert main(["plot", "front", *folders, "--out", str(out)]) == 0
    drawn = out.read_text()
    assert all(f"<!-- {word} -->" in drawn for word in ("first", "second", "Pareto front of all of them"))
    assert main(["plot", "front", *folders, "--json"]) == 0
    said = capsys.readouterr().out
    found = json.loads(said[said.index("[") :])
    assert [(row["model"], row["settings"]) for row in found] == [
        ("first", "rate 1"),
        ("first", "rate 4"),
        ("second", "rate 1"),
    ]
    assert front([(row["gen_ppl"]["value"], row["entropy"]["value"]) for row in found]) == [2, 1]


def test_bounds_by_gamma(tmp_path, capsys):
    """Two real models and their real bounds: the masked one beside that of the hybrid is drawn too."""
    rows = np.random.default_rng(0).integers(0, 11, (6, 24)).astype(np.uint16)
    np.save(tmp_path / "rows.npy", rows)
    folders = []
    for process in ("gamma", "absorbing"):
        bundle(process=process).save(tmp_path / process)
        folders.append(str(tmp_path / f"{process}-results"))
        how = ["--data", str(tmp_path / "rows.npy"), "--metrics", "bound", "--out", folders[-1], "--json"]
        assert main(["evaluate", str(tmp_path / process), *how]) == 0
    capsys.readouterr()
    assert main(["plot", "gamma", *folders, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {(row["bound"].partition(", ")[2], row["gamma"]) for row in found} == {
        ("score-entropy bound", 0.2),
        ("masked bound of the absorbing process", 0.2),
        ("masked bound", 0.0),
    }
    told = json.loads((tmp_path / "gamma-results" / "results.json").read_text())["cells"]
    [cell] = told.values()
    assert cell["result"]["value"] in [row["nats_per_token"] for row in found]
    out = tmp_path / "gamma.png"
    assert main(["plot", "gamma", *folders, "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("picture", ["front", "gamma"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "holds no results of hdlm evaluate"),
        ("{", "holds no results that can be gone on with"),
        ('{"about": {}, "cells": {"a": 3}}', "holds something else"),
        ('{"about": {"process": {"kind": "epsilon"}}, "cells": {}}', "no judged samples|neither absorbing"),
        ('{"about": {"process": {"kind": "uniform"}}, "cells": {}}', "no judged samples|no bound"),
    ],
)
def test_folders_without_such_results_are_refused(picture, text, message, tmp_path, capsys):
    if text is not None:
        (tmp_path / "results.json").write_text(text)
    assert main(["plot", picture, str(tmp_path), "--out", str(tmp_path / "x.png")]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "x.png").exists()
