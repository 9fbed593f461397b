"""The PMIx helper: a process that runs libpmix and a loop, so that a crash of libpmix does not end the daemon.

The daemon forks it, and it never returns from `run`. It closes the daemon's other descriptors, and keeps all files of libpmix
and of the MPI libraries in one private directory. When the daemon has died, the guard kills helper and ranks together: a rank
whose server is gone exits by itself, before the guard has seen which shared memory it leaves.
"""

from __future__ import annotations

import collections
import ctypes
import os
import signal
import socket
import time
from ctypes import byref, c_int, c_size_t, c_uint32, c_void_p

from mpilaunch.daemon.guard import IGNORED
from mpilaunch.daemon.pmix import library as pmix
from mpilaunch.daemon.pmix.channel import DAEMON_SENDS, Channel
from mpilaunch.daemon.pmix.port import LOOK_SECONDS, Port
from mpilaunch.daemon.pmix.upcalls import Upcalls, World
from mpilaunch.daemon.poller import Poller
from mpilaunch.wire.messages import check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mpilaunch.daemon.pmix.search import Libpmix
    from mpilaunch.daemon.pmix.upcalls import Answer

GUARD_SECONDS = 5.0
"""How long the helper outlives a dead daemon at most, if no guard kills it."""
MOST_WAITING = 1 << 16
"""Upcalls that may wait for an answer; more are refused."""
LONGEST_REQUEST = 1 << 20
"""Bytes of JSON that one upcall of a rank may become."""
STATUSES = {
    "": pmix.SUCCESS,
    "not-found": pmix.NOT_FOUND,
    "exists": pmix.DUPLICATE_KEY,
    "not-supported": pmix.NOT_SUPPORTED,
    "not-started": pmix.FAILED_TO_LAUNCH,
    "timeout": pmix.TIMEOUT,
}
"""Errors that the daemon answers with, and their PMIx statuses; any other is PMIX_ERROR."""


def run(
    connection: socket.socket, output: int, libpmix: Libpmix, hostname: str, folder: str, locks: tuple[int, ...]
) -> None:
    """Run the helper until the daemon ends it.

    Args:
        output: the descriptor for this process's stdout and stderr.
        libpmix: the libraries to try; settings in the environment win over `libpmix.settings`.
        folder: for the files of libpmix and the MPI libraries; the daemon removes it.
        locks: descriptors that stay open, so that the private directory stays locked while this process lives.
    """
    _leave_daemon([connection.fileno(), *locks], output)
    for name, value in libpmix.settings.items():
        os.environ.setdefault(name, value)
    folders = [folder for folder in libpmix.library_path.split(":") if os.path.isabs(folder)]
    Helper(connection, Poller(), folder).run(libpmix.libraries, folders, hostname)


def _leave_daemon(keep: list[int], output: int) -> None:
    """Close all descriptors but `keep`, and reset signals."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        # A write to a rank that has gone must fail, and not end this process.
        # A batch system may send the others to every process: the ranks end, and then the daemon ends the helper.
        ignored = number in (*IGNORED, signal.SIGTERM, signal.SIGPIPE)
        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((null, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, standard)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in keep:
            try:
                os.close(descriptor)
            except OSError:
                pass  # the descriptor of the listing itself
    # A surrounding job's PMIx is not ours; libpmix's own settings (PMIX_MCA_*) stay.
    for name in [name for name in os.environ if name.startswith("PMIX_") and not name.startswith("PMIX_MCA_")]:
        del os.environ[name]


class Posts:
    """Calls from libpmix's thread, made in the loop.

    Args:
        waiting: returns how many calls of libpmix wait for an answer, which count too.
    """

    def __init__(self, poller: Poller, waiting: Callable[[], int]) -> None:
        self._waiting = waiting
        self._posted: collections.deque[tuple[Callable[..., None], tuple[Any, ...]]] = collections.deque()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        poller.watch(self._woken, self._run)

    def post(self, function: Callable[..., None], *arguments: Any) -> bool:
        """Have the loop call a function; return False when too many calls wait already."""
        if len(self._posted) + self._waiting() >= MOST_WAITING:
            return False
        self._posted.append((function, arguments))
        try:
            os.write(self._wake, b".")
        except BlockingIOError:
            pass  # the pipe is full: the loop will wake
        return True

    def _run(self) -> None:
        os.read(self._woken, 4096)
        while self._posted:
            function, arguments = self._posted.popleft()
            function(*arguments)


class Helper:
    """The loop between the daemon's channel and libpmix."""

    def __init__(self, connection: socket.socket, poller: Poller, directory: str) -> None:
        self._poller = poller
        self._directory = directory
        self._running = self._daemon_lives = True
        self._channel = Channel(connection, poller, self._receive, self._daemon_gone)
        self._handlers: dict[str, Callable[[dict[str, Any], bytes], None]] = {
            "register": self._register, "answer": self._answer, "modex_request": self._request_modex, "end": self._end
        }  # fmt: skip
        self._waiting: dict[int, tuple[Answer, float]] = {}
        self._modex_tokens: dict[int, int] = {}
        self._count = 0
        self._posts = Posts(poller, lambda: len(self._waiting))
        self._upcalls = Upcalls(self._posts.post, self._channel.send, self._ask)
        self._modex_ready = pmix.ModexReady(self._modex_done)
        self._library: Any = None

    def run(self, libraries: list[str], folders: list[str], hostname: str) -> None:
        """Serve until the daemon ends it, or has died."""
        self._start(libraries, folders, hostname)
        look = time.monotonic() + LOOK_SECONDS
        while self._running:
            until = min((deadline for _, deadline in self._waiting.values()), default=look)
            self._poller.run(max(0.0, min(until, look) - time.monotonic()))
            now = time.monotonic()
            self._time_out(now)
            if now >= look:
                self._port.drop_silent()
                look = now + LOOK_SECONDS
        if not self._daemon_lives:
            time.sleep(GUARD_SECONDS)
        self._forget_worlds()

    def _start(self, libraries: list[str], folders: list[str], hostname: str) -> None:
        """Load the first library that can be used and start its server; tell the daemon when there is none."""
        settings = [
            ("pmix.srvr.tmpdir", pmix.STRING, self._directory),
            ("pmix.sys.tmpdir", pmix.STRING, self._directory),
            ("pmix.srv.nspace", pmix.STRING, "server-" + os.urandom(16).hex()),
            ("pmix.srv.rank", pmix.PROC_RANK, 0),
            ("pmix.hname", pmix.STRING, hostname),
        ]
        infos, tried = pmix.Infos(settings), []
        for name in libraries:
            try:
                self._library = pmix.load(name, folders)
            except pmix.UnusableLibrary as error:
                tried.append("%s: %s" % (name, error))
                continue
            status = self._library.PMIx_server_init(byref(self._upcalls.module), infos.array, c_size_t(infos.count))
            if status == pmix.SUCCESS:
                self._port = Port()
                open_to = self._port.open_to()
                if not open_to:
                    return
                tried.append("%s: it listens on %s, where other machines can connect" % (name, open_to))
            else:
                tried.append("%s: its server does not start: %s" % (name, self._describe(status)))
            break  # no other library can be loaded beside one that is partly started
        self._channel.send({"type": "failed", "reason": "; ".join(tried)})
        self._running = False

    def _describe(self, status: int) -> str:
        self._library.PMIx_Error_string.restype = ctypes.c_char_p
        return "%s (%d)" % (pmix.text(self._library.PMIx_Error_string(c_int(status))), status)

    def _forget_worlds(self) -> None:
        """Have libpmix remove the shared memory and files of ranks that died before MPI_Finalize."""
        for world in self._upcalls.worlds.values():
            for rank in world.local:
                self._library.PMIx_server_deregister_client(byref(pmix.Proc(world.namespace, rank)), None, None)
            self._library.PMIx_server_deregister_nspace(byref(pmix.Proc(world.namespace, 0)), None, None)

    # To the daemon, and its answers

    def _ask(self, message: dict[str, Any], data: bytes, answer: Answer, timeout: float) -> None:
        self._count += 1
        if self._channel.send({**message, "token": self._count}, data, LONGEST_REQUEST):
            self._waiting[self._count] = (answer, time.monotonic() + timeout if timeout else float("inf"))
        else:
            answer(pmix.OUT_OF_RESOURCE, {}, b"")

    def _time_out(self, now: float) -> None:
        for token, (answer, deadline) in list(self._waiting.items()):
            if deadline <= now:
                del self._waiting[token]
                answer(pmix.TIMEOUT, {}, b"")

    def _daemon_gone(self, reason: str) -> None:
        self._running = self._daemon_lives = False

    def _end(self, message: dict[str, Any], data: bytes) -> None:
        self._running = False
        self._channel.close()

    def _receive(self, message: dict[str, Any], data: bytes) -> None:
        check(message, DAEMON_SENDS)
        self._handlers[message["type"]](message, data)

    def _answer(self, message: dict[str, Any], data: bytes) -> None:
        waiting = self._waiting.pop(message["token"], None)
        if waiting is not None:  # else it timed out
            waiting[0](STATUSES.get(message["error"], pmix.ERROR), message, data)

    def _request_modex(self, message: dict[str, Any], data: bytes) -> None:
        """Ask libpmix for the data of a rank of this node, for a rank of another one."""
        self._count += 1
        self._modex_tokens[self._count] = message["token"]
        rank = message["rank"] if message["rank"] >= 0 else pmix.WILDCARD
        proc = pmix.Proc(self._upcalls.worlds[message["world"]].namespace, rank)
        status = self._library.PMIx_server_dmodex_request(byref(proc), self._modex_ready, c_void_p(self._count))
        if status != pmix.SUCCESS:
            self._send_modex(self._count, status, b"")

    def _modex_done(self, status: int, data: int, size: int, number: int) -> None:
        self._posts.post(self._send_modex, number, status, ctypes.string_at(data, size) if size else b"")

    def _send_modex(self, number: int, status: int, data: bytes) -> None:
        token = self._modex_tokens.pop(number)
        self._channel.send({"type": "modex_ready", "token": token, "found": status == pmix.SUCCESS}, data)

    # Worlds

    def _register(self, message: dict[str, Any], data: bytes) -> None:
        """Register a world with libpmix; send the variables that its ranks on this node need."""
        world: dict[str, Any] = message["world"]
        local = world["ranks_by_node"][world["node"]] if world["node"] is not None else []
        directory = os.path.join(self._directory, str(len(self._upcalls.worlds)))
        for path in [directory, *(os.path.join(directory, str(rank)) for rank in local)]:
            os.mkdir(path, 0o700)
        registered = World(world["namespace"], world["size"], local)
        self._upcalls.add_world(world["name"], registered)
        infos = pmix.Infos(_job_infos(world, local, self._directory, directory))
        proc = pmix.Proc(registered.namespace, 0)  # serves as pmix_nspace_t too: the name is its first member
        count = c_size_t(infos.count)
        self._call(self._library.PMIx_server_register_nspace, proc, c_int(len(local)), infos.array, count, None, None)
        owner = c_uint32(os.getuid()), c_uint32(os.getgid())
        environments = []
        for rank in local:
            proc.rank = rank
            self._call(self._library.PMIx_server_register_client, proc, *owner, None, None, None)
            variables = pmix.environment_for(lambda array: self._call(self._library.PMIx_server_setup_fork, proc, array))
            environments.append((rank, variables))
        self._channel.send({"type": "registered", "world": world["name"], "environments": environments})

    def _call(self, function: Any, proc: pmix.Proc, *arguments: Any) -> None:
        """Call a function of libpmix; an error ends the helper."""
        status = function(byref(proc), *arguments)
        if status not in (pmix.SUCCESS, pmix.OPERATION_SUCCEEDED):
            raise SystemExit("%s: %s" % (function.__name__, self._describe(status)))


def _job_infos(world: dict[str, Any], local: list[int], tmpdir: str, directory: str) -> list[tuple[str, Any, Any]]:
    """Return the job information of a world (see `HelperProcess.register`); the keys are those of pmix_common.h.

    `local` are its ranks on this node, `tmpdir` and `directory` hold files of all worlds and of this one.
    """
    apps = sorted(set(world["appnums"]))
    members = {app: [rank for rank, other in enumerate(world["appnums"]) if other == app] for app in apps}
    places = {rank: (place, number) for ranks in members.values() for place, rank in enumerate(ranks) for number in [ranks[0]]}
    facts: list[tuple[str, Any, Any]]
    infos: list[tuple[str, Any, Any]] = [
        ("pmix.jobid", pmix.STRING, world["name"]),
        ("pmix.job.size", pmix.UINT32, world["size"]),
        ("pmix.univ.size", pmix.UINT32, world["universe_size"]),
        ("pmix.max.size", pmix.UINT32, max(world["size"], world["universe_size"])),
        ("pmix.job.napps", pmix.UINT32, len(apps)),
        ("pmix.num.nodes", pmix.UINT32, len(world["hosts"])),
        # From these two libpmix derives which ranks share a node.
        ("pmix.nmap", pmix.STRING, "raw:" + ",".join(world["hosts"])),
        ("pmix.pmap", pmix.STRING, "raw:" + ";".join(",".join(map(str, ranks)) for ranks in world["ranks_by_node"])),
        ("pmix.local.size", pmix.UINT32, len(local)),
        ("pmix.node.size", pmix.UINT32, len(local)),
        ("pmix.offset", pmix.PROC_RANK, 0),
        ("pmix.tmpdir", pmix.STRING, tmpdir),
        ("pmix.nsdir", pmix.STRING, directory),
        ("pmix.tdir.rmclean", pmix.BOOL, True),  # the daemon removes them
    ]
    if local:
        infos.append(("pmix.lpeers", pmix.STRING, ",".join(map(str, local))))
        infos.append(("pmix.lldr", pmix.PROC_RANK, local[0]))
    if world["spawned"]:
        infos.append(("pmix.spawned", pmix.BOOL, True))
    for app, ranks in members.items():
        facts = [
            ("pmix.appnum", pmix.UINT32, app),
            ("pmix.app.size", pmix.UINT32, len(ranks)),
            ("pmix.aldr", pmix.PROC_RANK, ranks[0]),
        ]
        infos.append(("pmix.app.arr", pmix.DATA_ARRAY, facts))
    for node, (host, ranks) in enumerate(zip(world["hosts"], world["ranks_by_node"])):
        for local_rank, rank in enumerate(ranks):
            facts = [
                ("pmix.rank", pmix.PROC_RANK, rank),
                ("pmix.grank", pmix.PROC_RANK, rank),
                ("pmix.apprank", pmix.PROC_RANK, places[rank][0]),
                ("pmix.aldr", pmix.PROC_RANK, places[rank][1]),
                ("pmix.appnum", pmix.UINT32, world["appnums"][rank]),
                ("pmix.lrank", pmix.UINT16, local_rank),
                ("pmix.nrank", pmix.UINT16, local_rank),
                ("pmix.nodeid", pmix.UINT32, node),
                ("pmix.hname", pmix.STRING, host),
            ]
            if node == world["node"]:
                facts.append(("pmix.pdir", pmix.STRING, os.path.join(directory, str(rank))))
            infos.append(("pmix.pdata", pmix.DATA_ARRAY, facts))
    return infos
