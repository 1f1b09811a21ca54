"""The plots of the report, as SVG: the same figures give the same bytes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Bars = Mapping[str, Mapping[str, float]]
"""The labels of the bars, and their values."""
_COLOURS = ("#1f6f8b", "#7fb7be", "#d9822b", "#8c8c8c", "#5b4b8a", "#b8b8b8")
_OF_BARS = ("#8c8c8c", "#d9822b", "#9fd0d6", "#3f9bb3", "#12506a", "#c4c4c4")
"""Others are grey, the baseline is orange, Holdfast is blue."""
_STYLE: Any = {
    "svg.hashsalt": "holdfast", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.grid.axis": "y",
    "grid.color": "#e4e4e4", "legend.frameon": False,
}  # fmt: skip


def bars(path: str, panels: Mapping[str, Bars], label: str) -> None:
    """Draw groups of bars, one panel for each set."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8.4, 3.1 * len(panels)), layout="constrained")
        places = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        names = dict.fromkeys(name for rows in panels.values() for name in rows)
        colours = dict(zip(names, itertools.cycle(_OF_BARS)))  # the second never ends
        for axes, (title, rows) in zip(places, panels.items(), strict=True):
            _bars(axes, rows, colours, title, label)
        _save(figure, path)


def _bars(axes: Axes, rows: Bars, colours: Mapping[str, str], title: str, label: str) -> None:
    groups = list(dict.fromkeys(name for values in rows.values() for name in values))
    width = 0.8 / len(rows)
    for number, (name, values) in enumerate(rows.items()):
        shown = [(place, values[group]) for place, group in enumerate(groups) if group in values]
        left = [place + (number - (len(rows) - 1) / 2) * width for place, _ in shown]
        drawn = axes.bar(left, [value for _, value in shown], width, label=name, color=colours[name])
        axes.bar_label(drawn, fmt="%.0f", fontsize=7, padding=1)
    axes.set_xticks(range(len(groups)), groups)
    axes.set(title=title, ylabel=label, ylim=(0, 108))
    axes.grid(True)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)


def changes(path: str, panels: Mapping[str, Bars], label: str) -> None:
    """Draw the change without each step, one panel for each set."""
    with mpl.rc_context(_STYLE | {"axes.grid.axis": "x"}):
        figure = Figure(figsize=(8.4, 4.6), layout="constrained")
        places = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (title, rows) in zip(places, panels.items(), strict=True):
            _changes(axes, rows, title, label)
        places[0].invert_yaxis()
        _save(figure, path)


def _changes(axes: Axes, rows: Bars, title: str, label: str) -> None:
    steps = list(next(iter(rows.values())))
    height = 0.8 / len(rows)
    for number, (name, values) in enumerate(rows.items()):
        lower = [place + (number - (len(rows) - 1) / 2) * height for place in range(len(steps))]
        axes.barh(lower, [values[step] for step in steps], height, label=name, color=_COLOURS[number % 6])
    axes.set_yticks(range(len(steps)), steps)
    axes.axvline(0, color="#444444", linewidth=0.8)
    axes.set(title=title, xlabel=label)
    axes.grid(True)
    axes.legend(fontsize=8)


def lines(path: str, rows: Mapping[str, Sequence[tuple[float, float, float]]], across: str, label: str) -> None:
    """Draw the median as a solid line and the 95th percentile as a dashed one, against a size."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8.4, 3.2), layout="constrained")
        axes = figure.subplots()
        for number, (name, points) in enumerate(rows.items()):
            sizes = [size for size, _, _ in points]
            for which, style in ((1, "-"), (2, "--")):
                told = f"{name}, {'p50' if which == 1 else 'p95'}"
                heights = [point[which] for point in points]
                axes.plot(sizes, heights, style, marker="o", markersize=4, label=told, color=_COLOURS[2 * number % 6])
        axes.set_xscale("log")
        axes.set_xticks([size for size, _, _ in next(iter(rows.values()))])
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.minorticks_off()
        axes.set(xlabel=across, ylabel=label)
        axes.set_ylim(bottom=0)
        axes.grid(True)
        axes.legend(fontsize=8)
        _save(figure, path)


def panels(path: str, measures: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a panel for each measure, with a bar for each of the things that are compared."""
    with mpl.rc_context(_STYLE | {"axes.grid.axis": "x"}):
        figure = Figure(figsize=(8.4, 3.6), layout="constrained")
        places = figure.subplots(2, -(-len(measures) // 2), squeeze=False, sharey=True).flatten()
        for axes, (title, values) in zip(places, measures.items(), strict=False):
            drawn = axes.barh(list(values), list(values.values()), color=_OF_BARS[: len(values)])
            axes.bar_label(drawn, fmt="%.3g", fontsize=7, padding=2)
            axes.set_title(title, fontsize=9)
            axes.margins(x=0.15)
            axes.grid(True)
        places[0].invert_yaxis()
        _save(figure, path)


def _save(figure: Figure, path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")
