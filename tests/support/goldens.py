"""Golden files: what was said before is what is said now. MPILAUNCH_UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import os

from tests.support.paths import GOLDEN

UPDATE = bool(os.environ.get("MPILAUNCH_UPDATE_GOLDEN"))


def check(name: str, text: str) -> None:
    """Hold `text` to the file tests/golden/NAME."""
    path = GOLDEN / name
    if UPDATE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
