"""The rows of the roofline: what a machine can compute at each arithmetic intensity, with the operations of a step placed on it.

Vega-Lite cannot keep labels apart, so they are placed here, on a frame of known size: the roof's first, then those of each step.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import polars as pl

from tokentape.dashboards.hardware.words import HEIGHT, OTHERS, PEAK, REACHED, SIZES, WIDTH
from tokentape.dashboards.units import quantity, share

LETTER, LINE, GAP = 6.7, 16, 6  # pixels: width and height of a label's text, and its distance from a point
Row = dict[str, Any]
Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels


@dataclass(frozen=True)
class Frame:
    """The part of the plane that a machine's chart shows: operations per byte, operations per second, both on a log scale."""

    x: tuple[float, float]
    y: tuple[float, float]

    def pixel(self, x: float, y: float) -> tuple[float, float]:
        return WIDTH * _share(x, self.x), HEIGHT * (1.0 - _share(y, self.y))

    def value(self, left: float, top: float) -> tuple[float, float]:
        """The inverse of pixel()."""
        return _at(left / WIDTH, self.x), _at(1.0 - top / HEIGHT, self.y)


@dataclass
class Labels:
    """Places texts where they cover neither each other nor what is drawn at `taken`."""

    frame: Frame
    taken: list[Box] = field(default_factory=list)

    def place(self, text: str, corners: Iterable[tuple[float, float]]) -> tuple[float, float]:
        """Data coordinates of the text's left middle: of `corners` (left, middle in pixels) the first that is free."""
        width = LETTER * len(text)
        boxes = [(left, middle - LINE / 2, left + width, middle + LINE / 2) for left, middle in corners]
        inside = [b for b in boxes if b[0] >= 4 and b[1] >= 0 and b[2] <= WIDTH and b[3] <= HEIGHT]
        box = next((b for b in inside if not any(_overlap(b, other) for other in self.taken)), (inside or boxes)[0])
        self.taken.append(box)
        return self.frame.value(box[0], (box[1] + box[3]) / 2)


def roofs(ceilings: pl.DataFrame, points: pl.DataFrame) -> tuple[dict[str, Frame], pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Frames by machine, the lines of all roofs, their labels, and the points with the places of theirs.

    ceilings, points: as in rows.py, points with the machine they are on. A machine without a peak and a fast tier has none.
    """
    frames: dict[str, Frame] = {}
    lines: list[Row] = []
    words: list[Row] = []
    placed: list[Row] = []
    on = points.filter((pl.col("ops") > 0) & (pl.col("bytes") > 0)).with_columns(
        intensity=pl.col("ops") / pl.col("bytes"), speed=pl.col("ops") / pl.col("seconds")
    )
    for (hardware,), group in ceilings.group_by("hardware", maintain_order=True):
        rows = group.to_dicts()
        engine = next((row for row in rows if row["is_main"] and row["kind"] == "engines"), None)
        memory = next((row for row in rows if row["is_main"] and row["kind"] != "engines"), None)
        if engine is None or memory is None:
            continue
        frame = frames[str(hardware)] = _frame(rows, engine, memory, on.filter(pl.col("hardware") == hardware))
        drawn = list(_lines(rows, engine, memory, frame))
        lines += [{"hardware": hardware, **line} for line in drawn]
        for step_id in points.filter(pl.col("hardware") == hardware)["step"].unique(maintain_order=True).to_list() or [""]:
            step = on.filter(pl.col("step") == step_id)
            labels = Labels(frame, [*_along(drawn, frame), *(_circle(row, frame) for row in step.to_dicts())])
            key = {"hardware": hardware, "step": step_id}
            words += [key | word for word in _words(rows, engine, memory, labels)]
            placed += [key | point for point in _on_roof(step, labels)]
    return frames, pl.DataFrame(lines), pl.DataFrame(words), pl.DataFrame(placed)


def _frame(rows: list[Row], engine: Row, memory: Row, points: pl.DataFrame) -> Frame:
    """Room for the roof on both sides of its ridge, for every engine, and for all points of the machine."""
    ridge = engine["reached"] / memory["reached"]
    xs, ys = (points[name].to_list() for name in ("intensity", "speed"))
    x = min([ridge / 100.0, *(v / 4.0 for v in xs)]), max([ridge * 30.0, *(v * 6.0 for v in xs)])
    lowest = memory["reached"] * x[0]
    highest = max(row["peak"] for row in rows if row["kind"] == "engines")
    return Frame(x, (min([lowest / 4.0, *(v / 3.0 for v in ys)]), highest * 2.5))


def _lines(rows: list[Row], engine: Row, memory: Row, frame: Frame) -> Iterator[Row]:
    """The roof at its peaks and as reached; slopes of other tiers and links, up to the roof; levels of other engines."""
    for row in rows:
        if row["is_main"]:
            continue
        level = row["reached"]
        if row["kind"] == "engines":
            corners = [(x, level) for x in frame.x]
        else:
            first = max(frame.x[0], frame.y[0] / level)
            corners = [(x, level * x) for x in (first, min(frame.x[1], engine["reached"] / level))]
        yield from _line(f"{row['kind']} {row['name']}", OTHERS, _rate(row, "reached"), corners)
    for role, which in ((PEAK, "peak"), (REACHED, "reached")):
        corners = [(x, min(memory[which] * x, engine[which])) for x in (frame.x[0], engine[which] / memory[which], frame.x[1])]
        yield from _line("roof", role, f"{_rate(memory, which)}, {_rate(engine, which)}", corners)


def _line(name: str, role: str, word: str, corners: list[tuple[float, float]]) -> Iterator[Row]:
    for order, (x, y) in enumerate(corners):
        yield {"name": name, "role": role, "word": word, "order": order, "x": x, "y": y}


def _words(rows: list[Row], engine: Row, memory: Row, labels: Labels) -> Iterator[Row]:
    """Names and rates: below a slope near its start, above a level near its end."""
    frame = labels.frame
    by_rate: dict[tuple[bool, float], list[Row]] = {}
    for row in [engine, memory, *(row for row in rows if not row["is_main"])]:
        by_rate.setdefault((row["kind"] == "engines", row["reached"]), []).append(row)
    for (is_level, reached), same in by_rate.items():
        word = f"{', '.join(row['name'] for row in same)}: {_rates(same[0])}"
        width = LETTER * len(word)
        if is_level:
            above, below = (frame.pixel(1.0, same[0][which])[1] for which in ("peak", "reached"))
            corners = [(WIDTH - width - 4 - 40 * n, middle) for n in range(12) for middle in (above - 11, below + 12)]
        else:
            first = max(frame.x[0], frame.y[0] / reached)
            last = min(frame.x[1], engine["reached"] / reached)
            along = [frame.pixel(x, reached * x) for x in (first * (last / first) ** (t / 30) for t in range(30))]
            corners = [c for x, y in along for c in ((x + 14, y + 10), (x - width - 8, y - 10))]
        x, y = labels.place(word, corners)
        yield {"word": word, "x": x, "y": y}


def _on_roof(step: pl.DataFrame, labels: Labels) -> Iterator[Row]:
    """The points of one step, the longest first: it gets the best place for its label. edge_x: where the label's leader ends."""
    frame = labels.frame
    for row in step.sort("share", descending=True).to_dicts():
        left, top, right, bottom = _circle(row, frame)
        word = f"{row['operation']}, {share(row['share'])}"
        middle, before = (top + bottom) / 2, left - GAP - LETTER * len(word)
        offsets = [(side, dy) for dy in range(0, 200, 9) for side in (right + GAP + dy / 2, before - dy / 2)]
        corners = [(side, middle + sign * dy) for side, dy in offsets for sign in (1, -1)]
        label_x, label_y = labels.place(word, corners)
        is_before = label_x < row["intensity"]
        shift = LETTER * len(word) + 1 if is_before else -3
        edge_x = frame.value(frame.pixel(label_x, label_y)[0] + shift, 0.0)[0]
        yield {
            "step": row["step"], "operation": row["operation"], "share": row["share"], "time": quantity(row["seconds"], "s"),
            "moved": quantity(row["bytes"], "B"), "ops": row["ops"], "word": word,
            "x": row["intensity"], "y": row["speed"], "label_x": label_x, "label_y": label_y,
            "edge_x": edge_x,
        }  # fmt: skip


def _circle(row: Row, frame: Frame) -> Box:
    """What the point of an operation covers."""
    x, y = frame.pixel(row["intensity"], row["speed"])
    radius = math.sqrt((SIZES[0] + row["share"] * (SIZES[1] - SIZES[0])) / math.pi)
    return x - radius, y - radius, x + radius, y + radius


def _along(lines: list[Row], frame: Frame) -> Iterator[Box]:
    """Small boxes along the lines, for labels to keep clear of."""
    for a, b in pairwise(lines):
        if b["order"] == 0:
            continue
        (x0, y0), (x1, y1) = frame.pixel(a["x"], a["y"]), frame.pixel(b["x"], b["y"])
        n = max(1, round(math.hypot(x1 - x0, y1 - y0) / 10))
        for i in range(n + 1):
            x, y = x0 + (x1 - x0) * i / n, y0 + (y1 - y0) * i / n
            yield x - 2, y - 2, x + 2, y + 2


def _rates(row: Row) -> str:
    """Reached of peak, once where they are the same."""
    if row["reached"] == row["peak"]:
        return _rate(row, "peak")
    return f"{_rate(row, 'reached')} of {_rate(row, 'peak')}"


def _rate(row: Row, which: str) -> str:
    if row["kind"] == "engines":
        return f"{quantity(row[which], 'op/s')} {row['dtype']}"
    return quantity(row[which], "B/s") + (" inside the memory" if row["kind"] == "memory" else "")


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _share(value: float, ends: tuple[float, float]) -> float:
    return math.log(value / ends[0]) / math.log(ends[1] / ends[0])


def _at(share: float, ends: tuple[float, float]) -> float:
    return float(ends[0] * (ends[1] / ends[0]) ** share)
