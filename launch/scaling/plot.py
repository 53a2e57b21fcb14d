"""The picture of a scaling measurement, as SVG: tokens/s over ranks, measured and predicted, and what a step is
spent on."""
import math
from xml.sax.saxutils import escape

COLOURS = {"data": "#3a7d44", "synthetic": "#2e6f9e"}
PARTS = [("compute_ms", "#8fb8d6", "computing"), ("exposed_ms", "#edae49", "waiting for other ranks"),
         ("data_ms", "#d1495b", "waiting for data")]
INK, FAINT = "#333", "#ddd"
WIDTH, ROW, TOP = 1080, 400, 92


class Drawing:
    def __init__(self, height):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'font-family="sans-serif" font-size="12" fill="{INK}">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>']

    def line(self, points, colour, width=1.0, dashes=""):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>')

    def text(self, x, y, text, anchor="middle", size=12, colour=INK, weight="normal"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}" '
                          f'font-weight="{weight}">{escape(text)}</text>')

    def box(self, x, y, width, height, colour, outline="none", dashes=""):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0):.1f}" '
                          f'fill="{colour}" stroke="{outline}" stroke-dasharray="{dashes}"/>')

    def dot(self, x, y, colour, hollow):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{"white" if hollow else colour}" '
                          f'stroke="{colour}" stroke-width="2"/>')

    def end(self):
        return "\n".join(self.parts + ["</svg>", ""])


def short(value):
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def draw_rates(d, left, top, width, height, rows, predictions):
    """tokens/s over ranks, both logarithmic."""
    ranks = sorted({r["ranks"] for r in rows} | {p["ranks"] for p in predictions})
    rates = [r["tokens_per_s"] for r in rows + predictions]
    first = min(rows, key=lambda r: r["ranks"])
    one = first["tokens_per_s"] / first["ranks"]
    low, high = math.log10(min(rates)), math.log10(max(max(rates), one * ranks[-1]))
    low, high = low - 0.08 * (high - low + 0.1), high + 0.08 * (high - low + 0.1)
    span = max(math.log2(ranks[-1] / ranks[0]), 1)

    def at(n, rate):
        return (left + width * (0.03 + 0.94 * math.log2(n / ranks[0]) / span),
                top + height * (1 - (math.log10(rate) - low) / (high - low)))

    for exponent in range(math.floor(low), math.ceil(high) + 1):
        for step in (1, 2, 5) if high - low < 3 else (1,):
            value = step * 10.0 ** exponent
            if low <= math.log10(value) <= high:
                y = at(ranks[0], value)[1]
                d.line([(left, y), (left + width, y)], FAINT)
                d.text(left - 6, y + 4, short(value), "end", 11)
    for n in ranks:
        x = at(n, 10 ** low)[0]
        d.line([(x, top + height), (x, top + height + 4)], INK)
        d.text(x, top + height + 17, str(n), size=11)
    d.line([(left, top), (left, top + height), (left + width, top + height)], INK)
    d.text(left + width / 2, top + height + 36, "ranks")
    d.text(left, top - 10, "training speed, tokens/s", "start", 13, weight="bold")
    d.line([at(n, one * n) for n in (ranks[0], ranks[-1])], "#aaa", 1.2, "2 3")
    key = [("ideal: as many times the smallest job as it has ranks", "#aaa", "2 3", None)]
    for mode, dashes in (("strong", "6 4"), ("weak", "12 4")):
        mine = [p for p in predictions if p["mode"] == mode]
        if mine:
            d.line([at(p["ranks"], p["tokens_per_s"]) for p in mine], COLOURS[mine[0]["data"]], 1.6, dashes)
            batch = "this batch" if mode == "strong" else f"{mine[0]['sequences']:g} sequences per rank"
            key.append((f"predicted, {batch}, with cores for all ranks", COLOURS[mine[0]["data"]], dashes, None))
    for data in sorted({r["data"] for r in rows}):
        mine = sorted((r for r in rows if r["data"] == data), key=lambda r: r["ranks"])
        d.line([at(r["ranks"], r["tokens_per_s"]) for r in mine], COLOURS[data], 2)
        for r in mine:
            d.dot(*at(r["ranks"], r["tokens_per_s"]), COLOURS[data], r["oversubscribed"])
        key.append((f"measured, {name_of(data)}", COLOURS[data], "", False))
    if any(r["oversubscribed"] for r in rows):
        key.append(("more ranks than cores: they take turns", INK, "", True))
    for i, (words, colour, dashes, hollow) in enumerate(key):
        x, y = left + 14, top + 14 + 17 * i
        d.line([(x, y), (x + 26, y)], colour, 2, dashes) if hollow is not True else None
        if hollow is not None:
            d.dot(x + 13, y, colour, hollow)
        d.text(x + 34, y + 4, words, "start", 11)


def name_of(data):
    return "synthetic data" if data == "synthetic" else "real data"


def draw_steps(d, left, top, width, height, rows):
    """The time of a step in parts, a bar for each measurement."""
    rows = sorted(rows, key=lambda r: (r["ranks"], r["data"]))
    most = max(r["step_ms"] for r in rows) * 1.15
    pitch = width / len(rows)
    unit = 10 ** math.floor(math.log10(most))
    unit = unit if most / unit >= 4 else unit / 2 if most / unit >= 2 else unit / 5
    for k in range(int(most / unit) + 1):
        y = top + height * (1 - k * unit / most)
        d.line([(left, y), (left + width, y)], FAINT)
        d.text(left - 6, y + 4, f"{k * unit:g}", "end", 11)
    for i, r in enumerate(rows):
        x, y = left + pitch * (i + 0.15), top + height
        for name, colour, _ in PARTS:
            size = height * r[name] / most
            y -= size
            d.box(x, y, pitch * 0.7, size, colour)
        if r["oversubscribed"]:
            d.box(x, y, pitch * 0.7, top + height - y, "none", INK, "3 3")
        d.text(x + pitch * 0.35, y - 5, f"{100 * r['efficiency']:.0f} %", size=11)
        d.text(x + pitch * 0.35, top + height + 15, str(r["ranks"]), size=11)
        kind = "synthetic" if r["data"] == "synthetic" else "real"
        d.text(x + pitch * 0.35, top + height + 28, kind if pitch > 54 else kind[0], size=10, colour=COLOURS[r["data"]])
    d.line([(left, top), (left, top + height), (left + width, top + height)], INK)
    d.text(left + width / 2, top + height + 45, "ranks (above the bars: efficiency; dashed: more ranks than cores)")
    d.text(left, top - 28, "time of a step, ms", "start", 13, weight="bold")
    x = left
    for _, colour, words in PARTS:
        d.box(x, top - 19, 10, 10, colour)
        d.text(x + 14, top - 10, words, "start", 11)
        x += 24 + 6.2 * len(words)


def draw(title, subtitle, groups):
    """groups: (heading, rows, predictions) for each way of scaling."""
    d = Drawing(TOP + ROW * len(groups))
    d.text(20, 28, title, "start", 17, weight="bold")
    d.text(20, 48, subtitle, "start", 12, "#666")
    for i, (heading, rows, predictions) in enumerate(groups):
        top = TOP + ROW * i + 38
        d.text(20, top - 44, heading, "start", 13, "#666")
        draw_rates(d, 70, top, 520, ROW - 120, rows, predictions)
        draw_steps(d, 670, top, 390, ROW - 120, rows)
    return d.end()
