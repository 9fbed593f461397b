"""The worlds of ranks on this node: prepared as far as can be checked before a rank runs, then started."""

from __future__ import annotations

import os
import time

from mpilaunch.daemon.ranks import spawn
from mpilaunch.wire.environment import decode, node_layer
from mpilaunch.wire.frames import STDIN, stream_channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpilaunch.daemon.mpi.wireup import WireUp
    from mpilaunch.daemon.poller import Poller, Timers
    from mpilaunch.daemon.ranks.processes import Processes
    from mpilaunch.daemon.ranks.streams import Forwarder
    from mpilaunch.daemon.rendezvous import Rendezvous
    from mpilaunch.wire.session import Session


class Worlds:
    """The worlds of one node, by their number in the job.

    Attributes:
        count: how many were prepared, and not refused afterwards.
        drain: seconds from the end of the last rank to the end of what holds its output open.

    Args:
        refused: called when a world is refused after it was prepared.
    """

    def __init__(
        self,
        session: Session,
        forwarder: Forwarder,
        processes: Processes,
        wireup: WireUp,
        poller: Poller,
        timers: Timers,
        refused: Callable[[], None],
    ) -> None:
        self.count, self.drain = 0, 0.0
        self._session, self._forwarder, self._processes, self._wireup = session, forwarder, processes, wireup
        self._poller, self._timers, self._refused = poller, timers, refused
        self._prepared: dict[int, tuple[dict[str, Any], dict[int, spawn.App]]] = {}
        self._rendezvous: Rendezvous | None = None

    @property
    def waiting(self) -> bool:
        """Whether a world was prepared and has not started."""
        return bool(self._prepared)

    def prepare(self, plan: dict[str, Any]) -> bool:
        """Check the programs of a world and make what they need, as `prepare` says; return False when it is refused."""
        self.drain = plan["drain"]
        apps: dict[int, spawn.App] = {}
        environment = node_layer(plan, own_environment())
        problems = []
        for number in sorted({spec["app"] for spec in plan["ranks"]}):
            try:
                spawn.check_file_limit(plan, bool(self._processes.ranks))
                apps[number] = spawn.prepare_app(plan["apps"][number], environment, plan["python"], plan["stdout"])
            except spawn.Problem as problem:
                problems.append({"cause": problem.cause, "detail": problem.detail})
        if plan["rendezvous"] is not None:
            try:
                self._serve_rendezvous(plan["rendezvous"])
            except OSError as error:
                problems.append({"cause": "rendezvous-failed", "detail": str(error)})
        if problems:
            self._session.send({"type": "refused", "problems": problems})
            return False
        for spec in plan["ranks"]:
            if spec["stdin"]:
                self._session.open_receiving(stream_channel(spec["rank"], STDIN), plan["window"])
        self._prepared[plan["number"]] = plan, apps
        self.count += 1
        return True

    def offer_mpi(self, number: int) -> None:
        """Make the MPI services of a world that was prepared, then report that it is ready, or refused."""
        plan, apps = self._prepared[number]
        if plan["mpi"] is None:
            self._ready(number, "")
        else:
            description = {**plan["mpi"], "node": plan["node"]}
            self._wireup.open_world(description, plan["ranks"])
            self._wireup.offer_pmix(description, list(apps.values()), lambda reason: self._ready(number, reason))

    def _ready(self, number: int, reason: str) -> None:
        """Report that the ranks of a world are ready, or refused for a reason; ignored after a stop."""
        if number not in self._prepared:
            return
        if reason:
            self._session.send({"type": "refused", "problems": [{"cause": "pmix-missing", "detail": reason}]})
            self.count -= 1
            self.drop(number)
            self._refused()
            return
        apps = self._prepared[number][1].values()
        notes = [app.note for app in apps if app.note]
        self._session.send({"type": "ready", "programs": [decode(app.path) for app in apps], "notes": notes})

    def _serve_rendezvous(self, member: dict[str, Any]) -> None:
        from mpilaunch.daemon.rendezvous import Rendezvous  # only for Horovod

        self._rendezvous = Rendezvous(member["address"], member["port"], member["secret"], self._poller, self._timers.set)

    def start(self, number: int) -> None:
        """Start the ranks of a world that was prepared, and report them; raises KeyError for another."""
        plan, apps = self._prepared.pop(number)
        started, failed = [], []
        for spec in plan["ranks"]:
            rank = spec["rank"]
            descriptors = self._forwarder.open_rank(
                rank, spec["stdin"], plan["merge_stderr"], plan["window"], apps[spec["app"]].terminal
            )
            if plan["mpi"] is not None and plan["mpi"]["descriptor"] is not None:
                descriptors[plan["mpi"]["descriptor"]] = self._wireup.open_rank(rank, plan["mpi"]["descriptor"])
            wired = self._wireup.environment(rank, apps[spec["app"]])
            may_yield = "PMIX_RANK" in wired  # as Open MPI's ranks do
            try:
                environment = {**spec["environment"], **wired}
                pid = spawn.start(apps[spec["app"]], spec, environment, descriptors, own_session=not may_yield)
            except OSError as error:
                failed.append([rank, error.errno, time.monotonic()])
                self._forwarder.close_input(rank)
                self._wireup.close_rank(rank, by_itself=False)
            else:
                started.append([rank, pid, time.monotonic()])
                self._processes.started(pid, rank)
            finally:
                for descriptor in descriptors.values():
                    os.close(descriptor)
        self._session.send({"type": "started", "ranks": started, "failed": failed})
        app_of = {spec["rank"]: spec["app"] for spec in plan["ranks"]}
        for app_number, app in apps.items():
            self._wireup.watch({rank: pid for rank, pid, _ in started if app_of[rank] == app_number}, app.path)

    def drop(self, number: int) -> None:
        """Drop the ranks of a world, if it was prepared."""
        self._prepared.pop(number, None)

    def drop_all(self) -> None:
        self._prepared.clear()

    def close(self) -> None:
        """Close what served the ranks, since the last one has ended."""
        if self._rendezvous is not None:
            self._rendezvous.close()


def own_environment() -> dict[bytes, bytes]:
    """Return this process's environment, without the LC_CTYPE that Python sets for itself in the C locale (PEP 538)."""
    own = dict(os.environb)
    if b"LC_CTYPE" in own:
        with open("/proc/self/environ", "rb") as file:  # as it was at the start of this process
            if not any(item.startswith(b"LC_CTYPE=") for item in file.read().split(b"\0")):
                del own[b"LC_CTYPE"]
    return own
