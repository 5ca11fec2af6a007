"""A curve as rows of text: braille dots, or stars on a terminal without UTF-8. Pure."""

import math
from collections.abc import Sequence

from console.render.safe import is_ascii

_BRAILLE = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bit of each dot in a braille sign, by column and then by row from the top."""
_POINTS_PER_DOT = 4

Point = tuple[float, float]


def thin(points: Sequence[Point], buckets: int) -> list[Point]:
    """At most about two points a bucket of neighbours, its lowest and its highest, so that no spike is lost.

    A bucket with a gap (a value that is not finite) keeps one, so that the line stays broken there.
    """
    size = len(points) // max(1, buckets)
    if size < _POINTS_PER_DOT:
        return list(points)
    out: list[Point] = []
    for at in range(0, len(points), size):
        bucket = points[at : at + size]
        finite = [point for point in bucket if math.isfinite(point[1])]
        if finite:
            low, high = min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])
            out.extend(sorted({low, high}))
        if len(finite) < len(bucket):
            out.append((bucket[-1][0], math.nan))
    return out


def limits(values: Sequence[float]) -> tuple[float, float] | None:
    """The smallest and the largest finite value; ``None`` if there is none."""
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else None


def curve(
    points: Sequence[Point], columns: int, rows: int, x_range: tuple[float, float], y_range: tuple[float, float]
) -> list[str]:
    """The line through the points, as ``rows`` texts of ``columns`` signs; a space where nothing is drawn.

    Args:
        points: In the order they are joined. A value that is not finite breaks the line.
        columns: Terminal cells across.
        rows: Terminal cells down.
        x_range: What the left and the right edge stand for.
        y_range: What the lower and the upper edge stand for.
    """
    plain = is_ascii()
    across, down = (1, 1) if plain else (2, 4)
    width, height = columns * across, rows * down
    cells = [[0] * columns for _ in range(rows)]

    def place(value: float, span: tuple[float, float], size: int) -> int:
        share = 0.5 if span[1] <= span[0] else (value - span[0]) / (span[1] - span[0])
        return min(size - 1, max(0, round(share * (size - 1))))

    before: tuple[int, int] | None = None
    for x, y in thin(points, width):
        if not (math.isfinite(x) and math.isfinite(y)):
            before = None
            continue
        here = place(x, x_range, width), height - 1 - place(y, y_range, height)
        start = before or here
        steps = max(abs(here[0] - start[0]), abs(here[1] - start[1]), 1)
        for step in range(steps + 1):
            column = round(start[0] + (here[0] - start[0]) * step / steps)
            row = round(start[1] + (here[1] - start[1]) * step / steps)
            cells[row // down][column // across] |= 1 if plain else _DOTS[column % 2][row % 4]
        before = here
    if plain:
        return ["".join("*" if bits else " " for bits in line) for line in cells]
    return ["".join(chr(_BRAILLE + bits) if bits else " " for bits in line) for line in cells]
