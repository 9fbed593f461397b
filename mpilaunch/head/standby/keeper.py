"""`mpilaunch up`: a background process that keeps a standby daemon on every node and hands it to the next launch.

Each daemon serves one job; its parent process forks the next one, and a lost daemon is started again. The keeper knows nothing
of jobs: it relays bytes. It ends on request, or after some time without a launch. Standby daemons end with it; daemons in use
serve their launch to its end, unless the keeper is killed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from mpilaunch.agent import Channel
from mpilaunch.asyncio_timeouts import wait_at_most
from mpilaunch.errors import LaunchError, UsageError
from mpilaunch.head.nodes.agents import Agents
from mpilaunch.head.nodes.daemons import ENDING, Daemons
from mpilaunch.head.nodes.link import NodeLink
from mpilaunch.head.nodes.survey import IgnoreEvents
from mpilaunch.head.os_limits import fork, raise_file_limit
from mpilaunch.head.standby.client import DOWN, LIST, NO, NONCE, PROOF, TAKE, YES, common_request, request_for, take_down
from mpilaunch.head.standby.pool import StandbyLink
from mpilaunch.head.standby.record import new_record, one_at_a_time, remove_record, write_record
from mpilaunch.head.tasks import cancel_all, run
from mpilaunch.head.threads import use_daemon_threads
from mpilaunch.hosts.allocation import Node
from mpilaunch.job.spec import JobSpec
from mpilaunch.relay import MAX_DATA, STDIN, FrameProtocol
from mpilaunch.wire.challenge import ANSWER_SIZE, Listener
from mpilaunch.wire.frames import STANDBY

if TYPE_CHECKING:
    from typing import IO

KEEP_PAUSE = 30.0
"""Seconds between two signs of life for standby daemons, which wait four times as long for one."""
RENEWAL_PATIENCE = 3.0
"""Seconds that a client waits for a daemon that is being replaced."""
RENEWAL_PAUSE = 30.0
"""Seconds until a node whose daemon was lost or does not start is tried again."""
PROOF_SECONDS = 5.0
"""Seconds in which a client must prove that it knows the keeper's secret."""
MOST_UNPROVED = 32
"""Connections that may be in the middle of their proof."""
READY = "ready"


def up(job: JobSpec, idle: float) -> tuple[int, list[str]]:
    """Start a keeper for the nodes of a job in the background, replacing an old one.

    Return the number of nodes, and the names of the old keeper's nodes that are not among them. Raises LaunchError when a node
    does not start; then no daemon is left.
    """
    nodes = [node for node in job.allocation.nodes if node.slots and not node.here]
    if not nodes:
        message = "mpilaunch up: there is no node but this machine, where a daemon starts at once"
        raise UsageError("no-nodes", message, hint="name some with --hostfile or --host")
    raise_file_limit(job, nodes)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(one_at_a_time())
        except OSError as error:
            message = f"mpilaunch up: no place for its socket: {error}"
            raise UsageError("standby-place", message, hint="set XDG_RUNTIME_DIR") from error
        names = {node.name for node in nodes}
        dropped = [name for name in take_down() or () if name not in names]
        read_end, write_end = os.pipe()
        try:
            pid = fork()
        except LaunchError:
            os.close(read_end)
            os.close(write_end)
            raise
        if pid == 0:
            _run_keeper(job, nodes, idle, folder, write_end)
        os.close(write_end)
        try:
            with open(read_end, "rb") as file:
                result = json.loads(file.read() or b"null")
        except BaseException:
            os.kill(pid, signal.SIGTERM)
            raise
    if result is None:
        raise LaunchError("standby-failed", "mpilaunch up: the process that was to keep the daemons has died")
    if result != READY:
        reference, message, context, hint, code = result
        raise LaunchError(reference, message, context=context, hint=hint, exit_code=code)
    return len(nodes), dropped


def _run_keeper(job: JobSpec, nodes: Sequence[Node], idle: float, folder: str, result: int) -> None:
    """Run a keeper in the forked process, in a new session, and write the result of its start to a pipe; never return."""
    gc.freeze()  # an inherited object that is collected would close a descriptor whose number is used again
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    # Close inherited descriptors: another process may wait for the end of a pipe or the release of a lock.
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor != result:
            with suppress(OSError):  # listdir's own descriptor is closed already
                os.close(descriptor)
    with open(result, "wb", buffering=0) as pipe:
        try:
            run(_keep(job, nodes, idle, folder, pipe))
        except BaseException as error:
            failure = error if isinstance(error, LaunchError) else LaunchError("standby-failed", f"mpilaunch up: {error!r}")
            if not pipe.closed:  # it is closed once READY was written
                fields = failure.reference, failure.message, failure.context, failure.hint, failure.exit_code
                pipe.write(json.dumps(fields).encode())
        finally:
            os._exit(0)


async def _keep(job: JobSpec, nodes: Sequence[Node], idle: float, folder: str, result: IO[bytes]) -> None:
    agents = Agents(job, [node.index for node in nodes])
    try:
        await Keeper(job, nodes, agents, idle).run(folder, result)
    finally:
        await agents.close()


class Keeper(Daemons, IgnoreEvents):
    """The keeper: starts the standby daemons, serves clients, and ends. It is the `StandbyEvents` of its links.

    Attributes:
        secret: what clients must prove to know.
        unproved: the clients that have not, oldest first.
    """

    def __init__(self, job: JobSpec, nodes: Sequence[Node], agents: Agents, idle: float) -> None:
        super().__init__(job, agents)
        self._nodes, self._idle = nodes, idle
        self.secret = b""
        self.unproved: list[StandbyConnection] = []
        self._requests: dict[bytes, list[int]] = {}
        self._soon: set[int] = set()
        self._renewals: dict[int, asyncio.Task[None]] = {}
        self._renewed, self._stopping = asyncio.Event(), asyncio.Event()
        self._stop_requests: list[StandbyConnection] = []
        self._finished, self._used = False, 0.0
        self.add(nodes, self, standby=False)

    async def run(self, folder: str, result: IO[bytes]) -> None:
        """Start the daemons, write the record to `folder` and READY to `result`, serve, end; raises LaunchError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        use_daemon_threads()
        try:
            if not await self._started():
                return
            common = common_request(self._job.agent, *self.boot())
            for node in self._nodes:
                self._requests.setdefault(request_for(node, common), []).append(node.index)
            record = new_record(folder)
            self.secret = record.secret
            mask = os.umask(0o077)
            try:
                server = await loop.create_unix_server(lambda: StandbyConnection(self), record.socket)
            finally:
                os.umask(mask)
            write_record(record)
            result.write(json.dumps(READY).encode())
            result.close()
            try:
                await self._serve(loop)
            finally:
                remove_record(record)
                server.close()
            await self._finish()
        finally:
            await self.end()

    async def _started(self) -> bool:
        """Start all daemons; return False when a stop was requested meanwhile."""
        starting = asyncio.ensure_future(self.start(self._job.deadlines.start, lambda *state: None))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if starting.done():
            starting.result()
            return True
        await cancel_all([starting])
        return False

    async def _finish(self) -> None:
        """End the idle daemons, answer the clients that asked for it, and serve the running launches to their end."""
        self._stopping.set()
        await cancel_all(self._renewals.values())
        if idle := self._release_idle():
            await asyncio.wait([link.channel.ended for link in idle], timeout=ENDING)
        serving = [link.channel.ended for link in self._links() if link.channel.client is not None and link.channel.living]
        self._finished = True
        for client in self._stop_requests:
            self._grant_stop(client)
            if serving:
                client.transport.close()  # otherwise the end of this process does it
        if serving:
            await asyncio.wait(serving)

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until a stop is requested or the idle time has passed."""
        self._used = loop.time()
        while not self._stopping.is_set():
            if any(link.channel.client is not None for link in self._links()):
                self._used = loop.time()
            left = self._used + self._idle - loop.time()
            if left <= 0:
                return
            await wait_at_most(min(left, max(1.0, self._idle / 10)), self._stopping.wait())

    def stop(self, client: StandbyConnection) -> None:
        """Stop the keeper; the client is answered when the idle daemons have ended."""
        if self._finished:
            self._grant_stop(client)
            client.transport.close()
        self._stop_requests.append(client)
        self._stopping.set()

    def tell(self, client: StandbyConnection) -> None:
        """Tell a client which nodes have a daemon, and which of these are in use."""
        living = [link for link in self._links() if link.stands_by and link.channel.living]
        busy = [link.node.name for link in living if link.channel.client is not None]
        idle = [link.node.name for link in living if link.channel.client is None]
        client.send_frame(YES, json.dumps([idle, busy, self._idle]).encode())

    def _grant_stop(self, client: StandbyConnection) -> None:
        client.send_frame(YES, json.dumps([node.name for node in self._nodes]).encode())

    async def hand_out(self, request: bytes, client: StandbyConnection) -> StandbyLink | None:
        """Return an idle daemon that fits the request, waiting a moment for one that is about to be; None without one."""
        loop = asyncio.get_running_loop()
        indexes = self._requests.get(request, [])
        self._used = loop.time()
        until = self._used + RENEWAL_PATIENCE
        while not self._stopping.is_set():
            fitting = self._links(indexes)
            for link in fitting:
                if link.free:
                    link.channel.client, link.channel.banner = client, b""
                    return link
            soon = any(link.leaving for link in fitting) or not self._soon.isdisjoint(indexes)
            if not soon or loop.time() >= until:
                break
            self._renewed.clear()
            await wait_at_most(until - loop.time(), self._renewed.wait())
        return None

    def _links(self, indexes: Sequence[int] | None = None) -> list[StandbyLink]:
        """Return the links of these nodes, or of all nodes."""
        selected = map(self.links.get, self.links if indexes is None else indexes)
        return [link for link in selected if isinstance(link, StandbyLink)]

    def _release_idle(self) -> list[StandbyLink]:
        idle = [link for link in self._links() if link.channel.client is None and link.channel.living]
        for link in idle:
            link.release()
        return idle

    def make_link(self, node: Node) -> NodeLink:
        return StandbyLink(node, self)

    def greet(self, link: NodeLink) -> None:
        """Send nothing: the client sends the first message."""

    async def beat(self) -> None:
        """Send signs of life to idle daemons; does not return."""
        while True:
            await asyncio.sleep(KEEP_PAUSE)
            for link in self._links():
                link.keep_waiting()

    async def open(self, link: NodeLink) -> tuple[Channel, bytes]:
        """Start the standby daemon of a node; raises AgentFailure."""
        command, payload = self.boot()
        return await self._agents[link.node.agent].open(link.node, [*command, STANDBY], link.channel), payload

    # Events of the links

    def released(self) -> None:
        """Wake the clients that wait for a daemon; while stopping, end the idle daemons."""
        self._renewed.set()
        if self._stopping.is_set():
            self._release_idle()

    def gone(self, link: NodeLink, reason: str) -> None:
        """Start another daemon in place of a lost one."""
        assert isinstance(link, StandbyLink)
        if link.stands_by and not self._stopping.is_set():
            if link.channel.client is not None or link.leaving:
                self._soon.add(link.node.index)
            self._renewals[link.node.index] = asyncio.ensure_future(self._renew(link.node))

    async def _renew(self, node: Node) -> None:
        while True:
            if node.index not in self._soon:
                await asyncio.sleep(RENEWAL_PAUSE)
            self.links.pop(node.index, None)
            try:
                await self.join([node], self._job.deadlines.start)
                return
            except LaunchError:
                pass
            finally:
                self._soon.discard(node.index)
                self._renewed.set()


class StandbyConnection(FrameProtocol):
    """The keeper's side of a client's connection."""

    def __init__(self, keeper: Keeper) -> None:
        super().__init__()
        self._keeper = keeper
        self._link: StandbyLink | None = None
        self._asking: asyncio.Task[None] | None = None
        self._listener: Listener | None = Listener(keeper.secret)
        self._deadline: asyncio.TimerHandle | None = None
        self.max_data = ANSWER_SIZE

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask the client to prove that it knows the secret."""
        super().connection_made(transport)
        _, user, _ = self.peer_credentials
        if self._listener is None or user != os.geteuid():
            self.transport.abort()
            return
        self._deadline = asyncio.get_running_loop().call_later(PROOF_SECONDS, self.transport.abort)
        self._keeper.unproved.append(self)
        if len(self._keeper.unproved) > MOST_UNPROVED:
            self._keeper.unproved.pop(0).transport.abort()
        self.send_frame(NONCE, self._listener.nonce)

    def _decided(self) -> None:
        with suppress(ValueError):
            self._keeper.unproved.remove(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def frame_received(self, kind: int, data: bytes) -> None:
        """Handle the proof, then the request; after that, all frames are for the daemon."""
        if self._listener is not None:
            proof = self._listener.check(data) if kind == PROOF else b""
            if not proof:
                self._refuse()
                return
            self._listener = None
            self.max_data = MAX_DATA
            self._decided()
            self.send_frame(PROOF, proof)
        elif self._link is not None and kind == STDIN:
            if self._link.channel.client is self:
                self._link.hand(data)
        elif kind == DOWN:
            self._keeper.stop(self)
        elif kind == LIST:
            self._keeper.tell(self)
        elif kind == TAKE and self._asking is None:
            self._asking = asyncio.ensure_future(self._take(data))
        else:
            self._refuse()

    async def _take(self, request: bytes) -> None:
        self._link = await self._keeper.hand_out(request, self)
        if self._link is None:
            self._refuse()
        elif self.transport.is_closing():  # `wait_for` may have swallowed the cancellation: see `cancel_all`
            self._link.give_up("the launch has gone")
        else:
            self.send_frame(YES)

    def _refuse(self) -> None:
        self.send_frame(NO)
        self.transport.close()

    def pause_writing(self) -> None:
        """Let the daemon wait until the client has read more."""
        if self._link is not None and self._link.channel.client is self:
            self._link.channel.read(False)

    def resume_writing(self) -> None:
        if self._link is not None and self._link.channel.client is self:
            self._link.channel.read(True)

    def connection_lost(self, error: Exception | None) -> None:
        """End the daemon of a client that has gone."""
        self._decided()
        if self._asking is not None:
            self._asking.cancel()
        if self._link is not None and self._link.channel.client is self and self._link.channel.living:
            self._link.give_up("the launch has gone")
