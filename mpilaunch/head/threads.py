"""Threads for what the system can do by waiting only, above all asking name servers: the end of a launch waits for none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

MOST_THREADS = 64
"""As many as there are nodes contacted at a time, by default."""


class Threads(ThreadPoolExecutor):
    """An executor whose shutdown never waits: a name server that does not answer would keep mpilaunch for minutes."""

    def __init__(self) -> None:
        super().__init__(MOST_THREADS, "wait")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads go."""
        super().shutdown(wait=False, cancel_futures=True)
