"""Renders the results of `bench.py` as docs/performance.md and its picture: pure functions of the results.

The picture refers to no other file, and follows the reader's choice of a light or dark page.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

PAGE = """\
# Performance

<!-- Written by benchmarks/bench.py: do not edit. -->

`make bench` runs the same work under mpilaunch and every installed peer in turn on one machine, with hosts made of network
namespaces that run OpenSSH's sshd. A **ratio** is mpilaunch's time divided by the peer's in the same round: below 1, mpilaunch
was faster. The tables show the median over the rounds, with the minimum and maximum in parentheses. Absolute times differ
between machines; [benchmarks/README.md](../benchmarks/README.md) describes how to measure on yours.

![mpilaunch's time divided by each peer's, for each row of the table](performance.svg)

{ratios}

Measured on: {machine}. {versions}.{missing}

## Medians

{medians}

{notes}
## Footprint

{footprint}
{standby}{scale}"""

STANDBY = """
## Standby daemons

After `mpilaunch up`, `hostname` on {hosts} ssh hosts takes **{ratio}** times as long as with a launch that starts its own
daemons: {warm} instead of {cold} (medians of {rounds} rounds).
"""

SCALE = """
## Scale

`make bench-scale` measures the CPU time of the head for a whole launch, without the loading of its modules, and the growth of
its memory. Scripted nodes run inside the head's process: their time is excluded, but the little memory that they use is not.
Real daemons on this machine share its cores with the head, and each runs a rank; the last column is the time of the whole
launch.

{tables}
"""


def table_page(results: Mapping[str, Any]) -> str:
    """Return the page."""
    rows, peers = results["rows"], _peers(results)
    names = ["mpilaunch", *peers]
    ratios = [["work", *(f"to {peer}" for peer in peers), "rounds"]]
    medians = [["work", *names]]
    notes: list[str] = []
    for row in rows:
        ratios.append([row["title"], *(_ratio(row["ratios"].get(peer)) for peer in peers), str(row["rounds"])])
        medians.append([row["title"], *(_median(row, name) for name in names)])
        for name in names:
            taken = row["launchers"].get(name)
            for note in _notes(taken, row) if taken and row["key"] != "cpu-per-host" else ():
                notes.append(f"- {row['title']}: {name} {note}.")
    footprint = results["footprint"]
    lines = [
        ["quantity", "mpilaunch"],
        ["bytes sent to each node", f"{footprint['bundle_bytes'] / 1000:.0f} kB"],
        ["resident memory of a daemon", f"{footprint['daemon_bytes'] / 1e6:.1f} MB"],
    ]
    for count, seconds in footprint["hello_seconds"].items():
        lines.append([f"time until {count} ssh host{'s have' if count != '1' else ' has'} reported", _time(seconds)])
    missing = results["not_installed"]
    return PAGE.format(
        ratios=_table(ratios),
        machine=results["machine"],
        versions=", ".join(f"{name} {version}" for name, version in results["versions"].items()),
        missing=f" Not installed: {', '.join(missing)}." if missing else "",
        medians=_table(medians),
        notes="".join(f"{note}\n" for note in notes) + ("\n" if notes else ""),
        footprint=_table(lines),
        standby=_standby(results["standby"]),
        scale=_scale(results.get("scale", [])),
    ).replace("\n\n\n", "\n\n")


def _standby(results: Mapping[str, Any]) -> str:
    ratio = f"{results['ratio']['median']:.2f} ({_spread(results['ratio'])})"
    times = {kind: _time(results[kind]) for kind in ("warm", "cold")}
    return STANDBY.format(hosts=results["hosts"], rounds=results["rounds"], ratio=ratio, **times)


def _scale(curves: list[dict[str, Any]]) -> str:
    tables = []
    for curve in curves:
        unit = curve["unit"]
        timed = "seconds" in curve["points"][0]
        rows = [["nodes", "ranks", "CPU time", f"for each {unit[:-1]}", "memory", f"for each {unit[:-1]}"]]
        rows[0] += ["whole launch"] if timed else []
        for point in curve["points"]:
            cpu, size, count = point["cpu"], point["bytes"], point[unit]
            each = [f"{cpu / count * 1e3:.2f} ms", f"{size / 1e6:.1f} MB", f"{size / count / 1e3:.1f} kB"]
            each += [_time(point["seconds"])] if timed else []
            rows.append([f"{point['nodes']:,}", f"{point['ranks']:,}", f"{cpu * 1e3:.0f} ms", *each])
        power = f"CPU time is proportional to the number of {unit} to the power of {curve['power']:.2f}."
        further = _further_rank(*curves[:2]) if curve is curves[1] else ""
        tables.append(f"{curve['title'].capitalize()}:\n\n{_table(rows)}\n\n{power}{further}")
    return SCALE.format(tables="\n\n".join(tables)) if tables else ""


def _further_rank(one_each: dict[str, Any], ten_each: dict[str, Any]) -> str:
    """Return the cost of one more rank on an existing node: that of nodes with ten ranks, less that of nodes with one."""
    many = ten_each["points"][-1]
    alone = next((point for point in one_each["points"] if point["nodes"] == many["nodes"]), None)
    if alone is None or many["ranks"] == alone["ranks"]:
        return ""
    more = many["ranks"] - alone["ranks"]
    cpu, size = (many[name] - alone[name] for name in ("cpu", "bytes"))
    return f" One more rank on an existing node takes {cpu / more * 1e3:.2f} ms and {size / more / 1e3:.1f} kB."


def _peers(results: Mapping[str, Any]) -> list[str]:
    return [name for name in results["versions"] if name != "mpilaunch"]


def _table(rows: list[list[str]]) -> str:
    head, *body = rows
    rule = ["---"] * len(head)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *body))


def _ratio(ratio: Mapping[str, float] | None) -> str:
    return f"**{ratio['median']:.2f}** ({_spread(ratio)})" if ratio else "-"


def _spread(ratio: Mapping[str, float]) -> str:
    return f"{ratio['least']:.2f} to {ratio['most']:.2f}"


def _median(row: Mapping[str, Any], name: str) -> str:
    taken = row["launchers"].get(name)
    if taken is None or taken["median"] is None:
        return "-"
    rate = f", {row['megabytes'] / taken['median']:.0f} MB/s" if "megabytes" in row else ""
    return _time(taken["median"]) + rate


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def _notes(taken: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Return the faults of a launcher in a row."""
    counts = Counter(fault.partition(":")[0] for fault in taken["faults"])
    notes = [f"{fault} in {count} of {row['rounds']} rounds, which are excluded" for fault, count in counts.items()]
    if taken["broken"]:
        notes.append(f"broke up to {taken['broken']:,} lines in a round")
    return notes


# The picture

WIDTH, LEFT, RIGHT = 760, 150, 590
"""Of the picture, and where the scale begins and ends, in pixels."""
TITLE_HEIGHT, LINE_HEIGHT, TOP = 30, 20, 56
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 } .quiet { fill: #59636e; font-size: 12px }
.page { fill: #ffffff } .grid { stroke: #d1d9e0 } .even { stroke: #59636e; stroke-dasharray: 4 3 }
.less { stroke: #1a7f37; fill: #1a7f37 } .more { stroke: #bc4c00; fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .quiet { fill: #9198a1 } .page { fill: #0d1117 } .grid { stroke: #3d444d } .even { stroke: #9198a1 }
.less { stroke: #3fb950; fill: #3fb950 } .more { stroke: #db8a4a; fill: #db8a4a } }
"""


def picture(results: Mapping[str, Any]) -> str:
    """Return an SVG with each ratio as a dot on a logarithmic scale, and its spread as a line."""
    rows = [row for row in results["rows"] if row["ratios"]]
    ends = [ratio[end] for row in rows for ratio in row["ratios"].values() for end in ("least", "most")]
    low, high = math.log2(min(0.5, *ends)), math.log2(max(2.0, *ends))

    def across(ratio: float) -> float:
        return LEFT + (math.log2(ratio) - low) / (high - low) * (RIGHT - LEFT)

    parts: list[str] = []
    y = TOP
    for row in rows:
        y += TITLE_HEIGHT
        parts.append(_text(12, y - 8, row["title"].replace("`", ""), "title"))
        for peer, ratio in row["ratios"].items():
            y += LINE_HEIGHT
            kind = "less" if ratio["median"] <= 1 else "more"
            begin, end, middle = (across(ratio[name]) for name in ("least", "most", "median"))
            parts.append(_text(24, y - 5, f"to {peer}", ""))
            parts.append(f'<line class="{kind}" x1="{begin:.1f}" x2="{end:.1f}" y1="{y - 9}" y2="{y - 9}" stroke-width="3"/>')
            parts.append(f'<circle class="{kind}" cx="{middle:.1f}" cy="{y - 9}" r="5"/>')
            parts.append(_text(RIGHT + 16, y - 5, f"{ratio['median']:.2f} ({_spread(ratio)})", ""))
    scale = []
    for power in range(math.ceil(low), math.floor(high) + 1):
        x, kind = across(2.0**power), "even" if power == 0 else "grid"
        scale.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{y + 6}"/>')
        scale.append(_text(x, TOP - 6, "even" if power == 0 else f"{2.0**power:g}", "quiet", 'text-anchor="middle"'))
    heading = _text(12, 24, "mpilaunch's time divided by the peer's: left of the dashed line mpilaunch is faster", "title")
    size = f'width="{WIDTH}" height="{y + 18}" viewBox="0 0 {WIDTH} {y + 18}"'
    page = f'<rect class="page" width="{WIDTH}" height="{y + 18}" rx="8"/>'
    body = "\n".join([page, heading, *scale, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<style>{STYLE}</style>\n{body}\n</svg>\n'


def _text(x: float, y: float, words: str, kind: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y}" class="{kind}" {more}>{escape(words)}</text>'
