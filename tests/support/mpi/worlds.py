"""The world that the head offers to the ranks of a node, as a test sends it to a daemon."""

from __future__ import annotations

from typing import Any


def offer(*kinds: str, **members: Any) -> dict[str, Any]:
    """Return the member `mpi` of `prepare` for a world of one rank; `kinds` are the protocols that it may use."""
    sizes = {"first": 0, "size": 1, "universe_size": 1, "pmi_universe_size": 0, "app_sizes": [1], "blocks": [[0, 1, 1]]}
    names = {"world": "0123456789abcdef", "namespace": "fedcba9876543210", "hosts": ["here"], "parent": "", "pairs": {}}
    means: dict[str, Any] = {"library": None, "pmix_defaults": {}, "descriptor": None, "port": False, "notice_after": 5.0}
    return {**sizes, **names, **means, "offer": kinds, **members}
