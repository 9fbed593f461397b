"""`mpilaunch --up`: a process of the user's that keeps a daemon standing by on every node, and hands it to the next launch.

A daemon serves one job, as ever; the process that has forked it forks the next, and where that has gone another is started. The
keeper knows nothing of jobs: it hands bytes on. It goes when it is told to, or when nobody has launched for a while. Daemons
that stand by go with it, whatever its end is; those that serve a launch have that launch's time, unless the keeper is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from mpilaunch.errors import LaunchError, UsageError
from mpilaunch.head.limits import raise_file_limit
from mpilaunch.head.nodes import bundle
from mpilaunch.head.nodes.agents import Agents
from mpilaunch.head.nodes.daemons import ENDING
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.nodes.survey import IgnoreEvents
from mpilaunch.head.standby.client import YES, Requests, take_down
from mpilaunch.head.standby.pool import StandbyClient, StandbyDaemons, StandbyLink
from mpilaunch.head.standby.record import new_record, one_at_a_time, remove_record, write_record
from mpilaunch.head.tasks import cancel_all
from mpilaunch.hosts.allocation import Node
from mpilaunch.job.spec import JobSpec

if TYPE_CHECKING:
    from typing import IO

RENEWAL_PATIENCE = 3.0
"""Seconds that a launch waits for a daemon that takes the place of another."""
RENEWAL_PAUSE = 30.0
"""Seconds until a node whose daemon was lost, or does not start, is tried again."""
MOST_UNPROVED = 32
"""Connections that may be about to prove themselves."""
READY = "ready"


def up(job: JobSpec, idle: float) -> int:
    """Start a keeper for the nodes of a job, in the background; return how many nodes stand by.

    A keeper that is there goes first. Raises LaunchError when a node does not start: then nothing is kept.
    """
    nodes = [node for node in job.allocation.nodes if node.slots and node.agent != bundle.LOCAL]
    if not nodes:
        hint = "name some with --hostfile or --host"
        raise UsageError("no-nodes", "--up: there is no node but this machine, where a daemon starts at once", hint=hint)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(one_at_a_time())
        except OSError as error:
            raise UsageError("standby-place", f"--up: no place for its socket: {error}", hint="set XDG_RUNTIME_DIR") from error
        take_down()
        news, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_keeper(job, nodes, idle, folder, told)
        os.close(told)
        try:
            with open(news, "rb") as file:
                said = json.loads(file.read() or b"null")
        except BaseException:
            os.kill(pid, signal.SIGTERM)
            raise
    if said is None:
        raise LaunchError("standby-failed", "--up: the process that was to keep the daemons has died")
    if said != READY:
        reference, message, context, hint, code = said
        raise LaunchError(reference, message, context=context, hint=hint, exit_code=code)
    return len(nodes)


def _be_keeper(job: JobSpec, nodes: Sequence[Node], idle: float, folder: str, told: int) -> None:
    """Keep daemons in a session of our own; never return."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    # Whatever else is open is somebody's who may wait for its end: a lock, a pipe.
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor != told:
            with suppress(OSError):  # the one that the list was read by
                os.close(descriptor)
    with open(told, "wb", buffering=0) as telling:
        try:
            asyncio.run(Keeper(job, nodes, idle, folder).run(telling))
        except BaseException as error:
            said = error if isinstance(error, LaunchError) else LaunchError("standby-failed", f"--up: {error!r}")
            if not telling.closed:  # otherwise it was told before that all is well
                telling.write(json.dumps([said.reference, said.message, said.context, said.hint, said.exit_code]).encode())
        finally:
            os._exit(0)


class Keeper(IgnoreEvents):
    """What is kept, until it is time to go.

    Args:
        job: says how the nodes are reached.
        nodes: where a daemon is to stand by.
        idle: seconds without a launch after which the keeper goes.
        folder: where launches look for the record of a keeper.
    """

    def __init__(self, job: JobSpec, nodes: Sequence[Node], idle: float, folder: str) -> None:
        self._folder = folder
        self.secret = b""
        self._unproved: list[StandbyClient] = []
        self._job, self._nodes, self._idle = job, nodes, idle
        self._daemons: StandbyDaemons
        self._agents = Agents(job, [node.index for node in nodes])
        self._requests: dict[bytes, list[int]] = {}
        self._soon: set[int] = set()
        self._renewals: dict[int, asyncio.Task[None]] = {}
        self._renewed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._all_told = False
        self._told: list[StandbyClient] = []
        self._used = 0.0

    async def run(self, telling: IO[bytes]) -> None:
        """Start all, say so to `telling` and close it, serve, end all; raises LaunchError when a node does not start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        raise_file_limit(self._job, self._nodes)
        self._daemons = StandbyDaemons(self._job, self._nodes, self._agents, self)
        try:
            if not await self._started():
                return
            requests = Requests(self._job.agent, *self._daemons.boot())
            for node in self._nodes:
                self._requests.setdefault(requests.of(node), []).append(node.index)
            record = new_record(self._folder)
            self.secret = record.secret
            mask = os.umask(0o077)
            try:
                server = await loop.create_unix_server(lambda: StandbyClient(self), record.socket)
            finally:
                os.umask(mask)
            write_record(record)
            telling.write(json.dumps(READY).encode())
            telling.close()
            try:
                await self._serve(loop)
            finally:
                remove_record(record)
                server.close()
            await self._finish()
        finally:
            await self._daemons.end()
            await self._agents.close()

    async def _started(self) -> bool:
        """Start all; False when somebody does not want it any more."""
        starting = asyncio.ensure_future(self._daemons.start(self._job.deadlines.start, lambda waiting: None))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            return False
        starting.result()
        return True

    async def _finish(self) -> None:
        """Let the daemons that stand by go, say so to who asked for it, and serve the launches under way to their end."""
        self._stopping.set()
        await cancel_all(self._renewals.values())
        standing = [link for link in self._links() if link.client is None and link.living]
        for link in standing:
            link.release()
        if standing:
            await asyncio.wait([link.ended for link in standing], timeout=ENDING)
        serving = [link.ended for link in self._links() if link.client is not None and link.living]
        self._all_told = True
        for client in self._told:
            client.send_frame(YES)
            if serving:
                client.transport.close()  # otherwise the end of this process does it
        if serving:
            await asyncio.wait(serving)

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until it is time to go."""
        self._used = loop.time()
        while not self._stopping.is_set():
            if any(link.client is not None for link in self._links()):
                self._used = loop.time()
            left = self._used + self._idle - loop.time()
            if left <= 0:
                return
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), min(left, max(1.0, self._idle / 10)))

    def connected(self, client: StandbyClient) -> None:
        """A connection has come, which must prove itself; of too many that have not, the oldest goes."""
        self._unproved.append(client)
        if len(self._unproved) > MOST_UNPROVED:
            self._unproved[0].transport.abort()

    def decided(self, client: StandbyClient) -> None:
        """It has proved itself, or has gone."""
        if client in self._unproved:
            self._unproved.remove(client)

    def stop(self, client: StandbyClient) -> None:
        """A user says that it is enough; told when all has gone."""
        if self._all_told:
            client.send_frame(YES)
            client.transport.close()
        self._told.append(client)
        self._stopping.set()

    async def hand_out(self, request: bytes, client: StandbyClient) -> StandbyLink | None:
        """Return a daemon that stands by and is what was asked for, or will in a moment; None when there is none."""
        loop = asyncio.get_running_loop()
        indexes = self._requests.get(request, [])
        self._used = loop.time()
        until = self._used + RENEWAL_PATIENCE
        while not self._stopping.is_set():
            asked = self._links(indexes)
            for link in asked:
                if link.free:
                    link.client, link.banner = client, b""
                    return link
            soon = any(link.leaving for link in asked) or not self._soon.isdisjoint(indexes)
            if not soon or loop.time() >= until:
                break
            self._renewed.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._renewed.wait(), until - loop.time())
        return None

    def _links(self, indexes: Sequence[int] | None = None) -> list[StandbyLink]:
        """Return the links of these nodes, or of all."""
        links = self._daemons.links
        found = map(links.get, links if indexes is None else indexes)
        return [link for link in found if isinstance(link, StandbyLink)]

    # What the links tell

    def released(self) -> None:
        """A daemon stands by again, perhaps."""
        self._renewed.set()
        if self._stopping.is_set():
            for link in self._links():
                if link.client is None and link.living:
                    link.release()

    def gone(self, link: NodeLink, reason: str) -> None:
        """A daemon was lost: another takes its place."""
        assert isinstance(link, StandbyLink)
        if link.stands_by and not self._stopping.is_set():
            if link.client is not None or link.leaving:
                self._soon.add(link.node.index)
            self._renewals[link.node.index] = asyncio.ensure_future(self._renew(link.node))

    async def _renew(self, node: Node) -> None:
        while True:
            if node.index not in self._soon:
                await asyncio.sleep(RENEWAL_PAUSE)
            self._daemons.links.pop(node.index, None)
            try:
                await self._daemons.join([node], self._job.deadlines.start)
                return
            except LaunchError:
                pass
            finally:
                self._soon.discard(node.index)
                self._renewed.set()
