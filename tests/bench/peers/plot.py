"""Tokens a second over the number of requests, prefill and decode side by side, as SVG.

Both axes are logarithmic, so that equal distances are equal ratios. The picture brings its own background, and a
second set of colours for readers who prefer a dark one."""
from html import escape
from math import log2

STYLE = """
text { font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 } .note { fill: #57606a; font-size: 12px }
.back { fill: #ffffff; stroke: #d0d7de } .grid { stroke: #e4e8ec } .axis { stroke: #8c959f }
.limit { stroke: #8c959f; stroke-width: 1.5; stroke-dasharray: 5 4; fill: none }
.a { color: #0550ae } .b { color: #bc4c00 } .c { color: #1a7f37 }
.line { stroke: currentColor; stroke-width: 2.2; fill: none } .whisker { stroke: currentColor; stroke-width: 1.4 }
.dot { fill: currentColor } .value { fill: currentColor; font-size: 12px; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .note { fill: #9198a1 } .back { fill: #0d1117; stroke: #30363d } .grid { stroke: #21262d }
  .axis, .limit { stroke: #6e7681 } .a { color: #58a6ff } .b { color: #f0883e } .c { color: #3fb950 }
  .value { fill: currentColor }
}
"""
CLASSES = "abc"
WIDTH, HEIGHT = 860, 444
LEFT, TOP, PANEL_WIDTH, PANEL_HEIGHT, GAP = 62, 88, 340, 262, 84
MARGIN = 24  # between a panel's sides and its outermost points


class Panel:
    """A pair of logarithmic axes. counts: the numbers of requests; low, high: the ends of the upright axis."""

    def __init__(self, left, title, counts, low, high):
        self.left, self.title, self.counts, self.low, self.high = left, title, counts, low, high

    def x(self, n):
        span = log2(self.counts[-1] / self.counts[0]) or 1
        return self.left + MARGIN + (PANEL_WIDTH - 2 * MARGIN) * log2(n / self.counts[0]) / span

    def y(self, value):
        return TOP + PANEL_HEIGHT * (1 - log2(value / self.low) / log2(self.high / self.low))

    def axes(self):
        right, bottom = self.left + PANEL_WIDTH, TOP + PANEL_HEIGHT
        yield f'<text class="title" x="{self.left}" y="{TOP - 14}">{escape(self.title)}</text>'
        for power in range(6):
            for digit in (1, 2, 5):
                tick = digit * 10**power
                if self.low <= tick <= self.high:
                    y = self.y(tick)
                    yield f'<line class="grid" x1="{self.left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
                    yield f'<text x="{self.left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick}</text>'
        yield f'<path class="axis" fill="none" d="M{self.left} {TOP}V{bottom}H{right}"/>'
        for n in self.counts:
            yield f'<line class="axis" x1="{self.x(n):.1f}" y1="{bottom}" x2="{self.x(n):.1f}" y2="{bottom + 5}"/>'
            yield f'<text x="{self.x(n):.1f}" y="{bottom + 20}" text-anchor="middle">{n}</text>'
        middle = self.left + PANEL_WIDTH / 2
        yield f'<text x="{middle}" y="{bottom + 42}" text-anchor="middle">requests at once</text>'

    def path(self, css, points):
        d = "L".join(f"{self.x(n):.1f} {self.y(v):.1f}" for n, v in points)
        return f'<path class="{css}" d="M{d}"/>'

    def series(self, points, label_values):
        """points: (n, median, least, most); whiskers from least to most."""
        yield self.path("line", [(n, median) for n, median, _, _ in points])
        for n, median, least, most in points:
            x, y = self.x(n), self.y(median)
            yield f'<line class="whisker" x1="{x:.1f}" y1="{self.y(least):.1f}" x2="{x:.1f}" y2="{self.y(most):.1f}"/>'
            yield f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.8"/>'
            if label_values:
                yield f'<text class="value" x="{x:.1f}" y="{self.y(most) - 9:.1f}" text-anchor="middle">{median:.0f}</text>'


def legend(systems, with_limit):
    x = LEFT
    for css, name in zip(CLASSES, systems):
        yield f'<g class="{css}"><path class="line" d="M{x} 32h26"/><circle class="dot" cx="{x + 13}" cy="32" r="3.8"/></g>'
        yield f'<text x="{x + 34}" y="36">{escape(name)}</text>'
        x += 62 + 7.4 * len(name)
    if with_limit:
        yield f'<path class="limit" d="M{x} 32h26"/><text x="{x + 34}" y="36">limit of the machine</text>'


def svg(systems, counts, figures, limits, notes):
    """systems: names, the first is the one with its values written; figures[phase][system] = [(n, median, least, most)];
    limits[phase] = [(n, value)], or limits is empty; phase: "prefill" and "decode"; notes: lines below. The text of the SVG."""
    out = []
    values = [v for phase in figures.values() for points in phase.values() for p in points for v in p[2:]]
    values += [v for points in limits.values() for _, v in points]
    low, high = min(values) / 1.25, max(values) * 1.35
    for i, phase in enumerate(("prefill", "decode")):
        panel = Panel(LEFT + i * (PANEL_WIDTH + GAP), f"{phase}: tokens a second", counts, low, high)
        out += panel.axes()
        if limits:
            out.append(panel.path("limit", limits[phase]))
        for css, system in reversed(list(zip(CLASSES, systems))):
            out += [f'<g class="{css}">', *panel.series(figures[phase][system], system == systems[0]), "</g>"]
    out += legend(systems, bool(limits))
    for i, line in enumerate(reversed(notes)):
        out.append(f'<text class="note" x="{LEFT}" y="{HEIGHT - 14 - 17 * i}">{escape(line)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    back = f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", back, *out, "</svg>", ""])
