"""The ranks of this node that use PMIx: their states, and the helper that serves them.

The helper starts with the first world that may need it, and again for a later world after its end. Every world of the job is
registered with it, also those without ranks here: a rank may ask for any of them.
"""

from __future__ import annotations

from mpilaunch.daemon.mpi.pmi import ABORTED, CONNECTED, FINALIZED
from mpilaunch.daemon.pmix.helper_process import HelperProcess
from mpilaunch.daemon.pmix.requests import PmixRequests
from mpilaunch.daemon.pmix.worlds import PmixWorlds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpilaunch.daemon.mpi.pmi import Ask, Collective
    from mpilaunch.daemon.pmix.helper_process import Handlers
    from mpilaunch.daemon.pmix.search import Libpmix
    from mpilaunch.daemon.poller import Poller
    from mpilaunch.daemon.private_directory import PrivateDirectory

START_SECONDS = 10.0
"""Limit for loading libpmix and registering a world; then the ranks start without it."""


class PmixRanks:
    """The `events` of the helper.

    Attributes:
        requests: what the ranks ask of other nodes, and those of them.
        states: PMI states of the ranks that have connected, by (world, number in it).
        reason: why there is no PMIx here, "" when there is.

    Args:
        broken: called with the reason when connected ranks have lost the helper.
    """

    def __init__(
        self,
        poller: Poller,
        set_timer: Callable[[str, float, Callable[[], None]], None],
        directory: PrivateDirectory,
        collective: Collective,
        ask: Ask,
        send: Callable[[dict[str, Any]], None],
        abort: Callable[[str, int, int], None],
        connected: Callable[[str], None],
        broken: Callable[[str], None],
    ) -> None:
        self._poller, self._set_timer, self._directory = poller, set_timer, directory
        self._abort, self._connected, self._broken = abort, connected, broken
        self.states: dict[tuple[str, int], str] = {}
        self.reason = ""
        self._helper: HelperProcess | None = None
        self._worlds = PmixWorlds()
        self.requests = PmixRequests(self._worlds, lambda: self._helper, collective, ask, send)
        self._environments: dict[str, dict[int, dict[str, str]]] = {}
        self._ready: dict[str, Callable[[], None]] = {}

    # From the wire-up

    def know(self, description: dict[str, Any]) -> None:
        """Register a world, the `mpi` member of `prepare`, with or without ranks here."""
        world = self._worlds.add(description)
        if self._helper is not None:
            self._helper.register(world)

    def start(self, world: str, libpmix: Libpmix, hostname: str, ready: Callable[[], None]) -> None:
        """Call `ready` when the ranks of a registered world can start, with PMIx or, for a `reason`, without."""
        self._ready[world] = ready
        if self._helper is None:
            self.reason = ""
            try:
                self._helper = HelperProcess(self._poller, self._handlers(), libpmix, hostname, self._directory)
            except OSError as error:
                self.reason = "no process or directory for PMIx: %s" % error
                self._all_ready()
                return
            for known in self._worlds.known.values():
                self._helper.register(known)
        self._set_timer("pmix", START_SECONDS, self._start_timed_out)

    def environment(self, world: str, rank: int) -> dict[str, str]:
        """Return the variables by which a rank finds its server; empty without a server."""
        return self._environments.get(world, {}).get(rank, {})

    def child_ended(self, pid: int, status: int) -> None:
        """Handle the end of a child of the daemon that is no rank."""
        if self._helper is not None:
            self._helper.child_ended(pid, status)

    def close(self) -> None:
        """End the helper after the last rank; it removes the shared memory that ranks left."""
        server, self._helper = self._helper, None
        if server is not None:
            server.close()

    # The messages of the helper (`channel.HELPER_SENDS`); the handlers raise WireError

    def _handlers(self) -> Handlers:
        requests = self.requests
        return {
            "registered": self.registered, "connected": self.connected, "finalized": self.finalized, "abort": self.abort,
            "failed": self.failed, "collective": requests.collective, "modex": requests.modex,
            "modex_ready": requests.modex_ready, "publish": requests.publish, "lookup": requests.lookup,
            "unpublish": requests.unpublish, "spawn": requests.spawn,
        }  # fmt: skip

    def registered(self, world: str, environments: dict[int, dict[str, str]]) -> None:
        for rank in environments:
            self._worlds.check_rank(world, rank)
        self._environments[world] = environments
        ready = self._ready.pop(world, None)
        if ready is not None:
            ready()

    def connected(self, world: str, rank: int) -> None:
        self._worlds.check_rank(world, rank)
        first = (world, rank) not in self.states
        self.states[world, rank] = CONNECTED
        if first:
            self._connected(world)

    def finalized(self, world: str, rank: int) -> None:
        self._worlds.check_rank(world, rank)
        self.states[world, rank] = FINALIZED

    def abort(self, world: str, rank: int, code: int) -> None:
        self._worlds.check_rank(world, rank)
        self.states[world, rank] = ABORTED
        self._abort(world, rank, code & 255)

    def failed(self, reason: str) -> None:
        self._helper = None
        self.reason = reason
        self.requests.helper_failed()
        if CONNECTED in self.states.values():
            self._broken(reason)
        self._all_ready()

    def _start_timed_out(self) -> None:
        if self._ready:
            self.reason = "libpmix was not ready within %g s" % START_SECONDS
            self._all_ready()

    def _all_ready(self) -> None:
        waiting, self._ready = self._ready, {}
        for ready in waiting.values():
            ready()
