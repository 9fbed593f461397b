"""Places in the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
GOLDEN = TESTS / "golden"
PROGRAMS = TESTS / "programs"
DOCS = ROOT / "docs"
