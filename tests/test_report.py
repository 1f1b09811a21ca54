"""The page of benchmarks: it says what was measured, and the same figures give the same bytes."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import msgspec
import pytest
from bench import peers, report

TOP = pathlib.Path(__file__).parent.parent
FIGURES = TOP / "docs" / report.COPY
SAID = (
    "The kettle is broken.",
    "Ann mended the stove on Friday.",
    "The train to Oslo leaves at nine.",
    "A cat sat there.",
)
SET = {
    "name": "small",
    "corpora": [
        {
            "name": "one",
            "turns": [
                {"id": f"t{number}", "session": f"s{number}", "time": "2023-03-01T10:00:00Z", "speaker": "Ann",
                 "role": "user", "text": text} for number, text in enumerate(SAID)
            ],
            "questions": [
                {"id": "q1", "question": "Who mended the stove?", "category": "plain", "turns": ["t1"], "sessions": ["s1"]},
                {"id": "q2", "question": "When does the train leave?", "category": "plain", "turns": ["t2"], "sessions": ["s2"]},
            ],
        }
    ],
}  # fmt: skip
needs_plots = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="the extra bench is not installed: no plots"
)


def run(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(TOP)}
    command = [sys.executable, "-m", "bench.report", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def figures() -> report.Report:
    return msgspec.json.decode(FIGURES.read_bytes(), type=report.Report)


def test_the_page_says_what_its_figures_say() -> None:
    made = figures()
    assert not made.quick
    assert (TOP / "docs" / report.PAGE).read_text(encoding="utf-8") == report.page(made)


def test_every_plot_of_the_page_is_there_and_small() -> None:
    plots = sorted((TOP / "docs" / report.PLOTS).glob("*.svg"))
    page = (TOP / "docs" / report.PAGE).read_text(encoding="utf-8")
    assert [plot.name for plot in plots if f"({report.PLOTS}/{plot.name})" in page] == [plot.name for plot in plots]
    assert len(plots) >= 3
    assert all(plot.stat().st_size < 60_000 for plot in plots)


@needs_plots
def test_the_same_figures_give_the_same_bytes(tmp_path: pathlib.Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        done = run(tmp_path / name, "--from", str(FIGURES))
        assert done.returncode == 0, done.stderr
        made.append({path.name: path.read_bytes() for path in (tmp_path / name / "docs").rglob("*.*")})
    assert len(made[0]) == 2 + len([*(TOP / "docs" / report.PLOTS).glob("*.svg")])
    assert made[0] == made[1]


@needs_plots
def test_what_is_measured_is_kept_and_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "set.json").write_text(json.dumps(SET))
    done = run(tmp_path, "set.json", "--quick", "--only", "recall")
    assert done.returncode == 0, done.stderr
    told = msgspec.json.decode((tmp_path / report.FIGURES).read_bytes(), type=report.Report)
    assert [(one.name, one.questions, one.turns) for one in told.sets] == [("small", 2, 4)]
    assert told.sets[0].ways["none"].scores["turn R@5"] == 100.0
    assert "| by words | 100.0 |" in (tmp_path / ".bench" / report.PAGE).read_text(encoding="utf-8")
    assert not (tmp_path / "docs").exists()


@needs_plots
def test_other_servers_are_compared_where_they_were_measured(tmp_path: pathlib.Path) -> None:
    found = peers.Searched(1_000, 4.2, 6.1, 3.7, 100, 100, 39.0)
    server = peers.Peer("Holdfast by words", 120.0, 81.3, 30.7, 5.5, 4.2, [found], 31.3, 12)
    made = msgspec.structs.replace(figures(), servers=[server], commands=[peers.Command("search", 20, 64.6, 80)])
    report.write(made, str(tmp_path))
    page = (tmp_path / report.PAGE).read_text(encoding="utf-8")
    assert "| Holdfast by words | 81 | 31 | 5.5 | 4.2 | 31 MB, 12 packages |" in page
    assert "| Holdfast by words | 1,000 | 4.2 | 6.1 | 3.7 | 39 | 100 of 100 |" in page
    assert "| `holdfast search` | 20 | 65 |" in page
    assert "Holdfast by words" in (tmp_path / report.PLOTS / "peers.svg").read_text(encoding="utf-8")


def test_what_is_no_report_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "figures.json").write_text("{}")
    for arguments in (("--from", "figures.json"), ("--from", "missing.json"), (), ("missing.json", "--quick")):
        done = run(tmp_path, *arguments)
        assert done.returncode != 0
        assert "Traceback" not in done.stderr, done.stderr
        assert done.stderr.strip()
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
