"""Make the pictures of the README from what mpilaunch really prints: `make pictures`, as root.

The jobs run over ssh on the hosts of the tests, which are network namespaces of this machine. A picture is a terminal in plain
SVG: it fetches nothing, and it has a background of its own, so that it is legible on light and on dark pages.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
sys.path.insert(0, str(CHECKOUT))

from tests.support.hosts import Hosts  # noqa: E402  (the checkout must be on the path first)

RUN = ["-H", "node01:2,node02:2", "--display-map", "--tag", "[{rank} {host}] ", "examples/ring_allreduce.py"]
FAILURE = ["-H", "node[01-04]:2", "--tag", "rank", "train.py"]
HANG = ["-H", "node[01-04]:2", "--hang-timeout", "3", "hang.py"]
MISSING_SHARD = 5
LATE = 5, 2
"""A rank, and the step for which it gets no data."""

WIDTH, LINE, MARGIN = 8.4, 20, 20
"""Of a character, of a line and around the text, in pixels at a font size of 14."""
BACKGROUND, BAR, PLAIN, PROMPT = "#0d1117", "#21262d", "#c9d1d9", "#7ee787"
COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "34": "#79c0ff", "36": "#76e3ea"}
"""Of a terminal's escape sequences; rich needs no others for what mpilaunch says."""
ESCAPE = re.compile(r"\x1b\[([0-9;]*)m")


def main() -> None:
    """Run the jobs and write their pictures."""
    with Hosts(4) as hosts:
        shutil.copytree(CHECKOUT / "examples", hosts.shared / "examples")
        for program in ("train.py", "hang.py"):
            shutil.copy(HERE / program, hosts.shared)
        (hosts.shared / "arrived").mkdir()
        (hosts.shared / "data").mkdir()
        for rank in set(range(8)) - {MISSING_SHARD}:
            (hosts.shared / "data" / f"shard-{rank}").write_text("sample " * 100)
        for rank, step in product(range(8), range(3)):
            if (rank, step) == LATE:
                os.mkfifo(hosts.shared / "data" / f"{step}-{rank}")  # which nobody writes
            else:
                (hosts.shared / "data" / f"{step}-{rank}").write_text("sample")
        os.chdir(hosts.shared)
        try:
            for name, arguments in (("run", RUN), ("failure", FAILURE), ("hang", HANG)):
                (HERE / f"{name}.svg").write_text(picture(session(hosts, arguments)), encoding="utf-8")
        finally:
            os.chdir(CHECKOUT)


def session(hosts: Hosts, arguments: list[str]) -> list[str]:
    """Return what a terminal would show: the command, its output, its exit code."""
    shown = " ".join(f"'{word}'" if re.search(r"[\[{ ]", word) else word for word in arguments)
    # One pipe for both streams, so that the lines stand in the order in which they were written.
    command = ["bash", "-c", 'exec "$@" 2>&1', "bash", sys.executable, "-m", "mpilaunch", *arguments]
    done = hosts.run(command, env={"FORCE_COLOR": "1"})
    lines = done.stdout.replace(f"{os.getcwd()}/", "").splitlines()
    return [f"$ mpilaunch {shown}", *lines, "$ echo $?", str(done.returncode)]


def picture(lines: list[str]) -> str:
    """Return lines with terminal colours as an SVG of a terminal."""
    columns = max(len(ESCAPE.sub("", line)) for line in lines)
    width, height = columns * WIDTH + 2 * MARGIN, len(lines) * LINE + 3 * MARGIN
    label = "A terminal: " + ESCAPE.sub("", lines[0].removeprefix("$ "))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" role="img" '
        f'aria-label="{escape(label, {chr(34): "&quot;"})}">',
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}" stroke="{BAR}"/>',
        *(f'<circle cx="{MARGIN + 18 * place}" cy="{MARGIN}" r="5" fill="#484f58"/>' for place in range(3)),
        f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14" fill="{PLAIN}" '
        'xml:space="preserve">',
    ]
    for number, line in enumerate(lines):
        column = 0
        for text, style in pieces(line):
            # The length is said, so that columns stay columns in whatever monospaced font there is.
            place = f'x="{MARGIN + column * WIDTH:.1f}" y="{2.4 * MARGIN + LINE * (number + 0.7):.1f}"'
            length = f'textLength="{len(text) * WIDTH:.1f}" lengthAdjust="spacingAndGlyphs"'
            parts.append(f"<text {place} {length}{style}>{escape(text)}</text>")
            column += len(text)
    return "\n".join([*parts, "</g>", "</svg>", ""])


def pieces(line: str) -> Iterator[tuple[str, str]]:
    """Yield the stretches of one style in a line, with their SVG attributes."""
    if line.startswith("$ "):
        yield "$ ", f' fill="{PROMPT}"'
        yield line[2:], ' font-weight="bold"'
        return
    style = ""
    for place, text in enumerate(ESCAPE.split(line)):
        if place % 2:
            codes = text.split(";")
            colour = next((COLOURS[code] for code in codes if code in COLOURS), "")
            style = (f' fill="{colour}"' if colour else "") + (' font-weight="bold"' if "1" in codes else "")
        elif text:
            yield text, style


if __name__ == "__main__":
    main()
