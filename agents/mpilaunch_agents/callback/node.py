"""The node's side of a connection back to the head: connects, starts the daemon, and relays its pipes until it ends.

`callback.wrapper` sends this text, and `python_command` runs it: it imports only the standard library, runs on Python 3.8
and later, and reads only a secret from its own stdin. Arguments: the head's endpoints (ADDRESS:PORT,...), its certificate's
fingerprint, the secret or `-` for stdin (`own_secret`), and the arguments with which this Python runs the daemon. The frames
on the connection are those of `mpilaunch.relay`. Hundreds of nodes may run this on shared files, so it imports little: neither
`subprocess` nor `threading`.
"""

from __future__ import annotations

import hashlib
import os
import select
import signal
import socket
import ssl
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STDOUT, STDERR, CLOSED = 13, 14, 15
SECRET = 16
"""Kinds of frames: those of `mpilaunch.relay`, and the secret, which is sent first."""
CANNOT_CONNECT = 98
"""Exit code when no endpoint of the head can be reached."""
IGNORED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGTERM", "SIGTSTP", "SIGXCPU")
"""Signals that a batch system may send to every process of a job: the daemon handles them, and this process ends after it."""
CONNECT_SECONDS = 5
FLUSH_SECONDS = 5.0
"""Time that the head has to read the last frames."""
STRAY_SECONDS = 0.5
"""Time for which output is still read after the daemon has exited: see STRAY_GRACE in `process`."""
HIGH_WATER = 1 << 20
"""Unwritten bytes for the daemon above which no more are read from the head."""


def connect(endpoints: str, fingerprint: str) -> ssl.SSLSocket:
    """Return a connection to the head; exits with the reasons when no endpoint can be reached."""
    launcher = os.environ.get("SLURM_LAUNCH_NODE_IPADDR")  # the address of the head that Slurm knows is tried first
    if launcher:
        endpoints = f"[{launcher}]:{endpoints.rpartition(':')[2]},{endpoints}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    errors = []
    for endpoint in endpoints.split(","):
        host, _, port = endpoint.rpartition(":")
        try:
            plain = socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the daemon waits for answers to small messages
            wire = context.wrap_socket(plain)
            if hashlib.sha256(wire.getpeercert(True) or b"").hexdigest() == fingerprint:
                wire.setblocking(False)
                return wire
            errors.append(endpoint + ": the certificate is not the head's")
        except OSError as error:
            errors.append(f"{endpoint}: {error}")
    sys.stderr.write(f"mpilaunch: cannot call back: {'; '.join(errors)}\n")
    sys.exit(CANNOT_CONNECT)


def own_secret() -> str:
    """Return the secret from stdin: the first line, or where the lines of several nodes come, the one with this node's name."""
    for line in sys.stdin:
        name, _, secret = line.strip().rpartition(" ")
        if name in ("", os.environ.get("SLURMD_NODENAME")):
            return secret
    return ""


class Relay:
    """Relays between the connection and the daemon.

    `wire` and `stdin` are None once they are closed, `code` is None until the daemon has ended.
    """

    def __init__(self, wire: ssl.SSLSocket, arguments: list[str]) -> None:
        self.wire: ssl.SSLSocket | None = wire
        self.code: int | None = None
        self.woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        (stdin, write_end), (out, stdout), (err, stderr) = [os.pipe() for _ in range(3)]
        files = [(os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate((stdin, stdout, stderr))]
        argv, python_ignores = [sys.executable, *arguments], [signal.SIGPIPE, signal.SIGXFSZ]
        self.pid = os.posix_spawn(sys.executable, argv, os.environ, file_actions=files, setsigdef=python_ignores)
        for end in (stdin, stdout, stderr):
            os.close(end)
        self.kinds = {out: STDOUT, err: STDERR}
        self.stdin: int | None = write_end
        os.set_blocking(write_end, False)
        self.received, self.unwritten, self.eof = bytearray(), bytearray(), False

    def run(self, secret: str) -> None:
        """Relay until the daemon has ended, and send its exit code."""
        self.send(SECRET, secret.encode())
        exited_at = 0.0
        while self.kinds and (not exited_at or time.monotonic() < exited_at + STRAY_SECONDS):
            wire = self.wire if len(self.unwritten) < HIGH_WATER else None
            if wire is not None and wire.pending():
                self.read(wire)  # data that TLS has already read does not make the socket readable
                continue
            sources: list[Any] = [*self.kinds, *([] if wire is None else [wire])]
            writes = [self.stdin] if self.stdin and self.unwritten else []
            if not exited_at:
                sources.append(self.woken)
            ready, writable, _ = select.select(sources, writes, [], STRAY_SECONDS if exited_at else None)
            if self.woken in ready and self.has_ended():
                exited_at = time.monotonic()
            if writable:
                self.write()
            for source in ready:
                if source is wire:
                    self.read(wire)
                elif source in self.kinds:
                    data = os.read(source, 65536)
                    if data:
                        self.send(self.kinds[source], data)
                    else:
                        del self.kinds[source]
        while not self.has_ended():
            select.select([self.woken], [], [])
        self.send(CLOSED, f'[{self.code}, "", ""]'.encode())
        self.finish()

    def has_ended(self) -> bool:
        """Return whether the daemon has ended; SIGCHLD comes also where it was stopped."""
        if self.code is None:
            if select.select([self.woken], [], [], 0)[0]:
                os.read(self.woken, 4096)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        return self.code is not None

    def send(self, kind: int, data: bytes) -> None:
        data = struct.pack(">BI", kind, len(data)) + data
        try:
            while data and self.wire is not None:
                try:
                    data = data[self.wire.send(data) :]
                except ssl.SSLWantWriteError:
                    self.wait_for([], [self.wire])
                except ssl.SSLWantReadError:
                    self.wait_for([self.wire], [])
        except OSError:
            self.disconnected()

    def wait_for(self, reads: list[Any], writes: list[Any]) -> None:
        """Wait for the connection until the daemon has exited, and then FLUSH_SECONDS; raises OSError.

        The daemon itself gives up a head that does not respond.
        """
        ready, writable, _ = select.select([*reads, self.woken], writes, [], 0.0 if self.has_ended() else None)
        ended = self.has_ended() and not (set(ready) - {self.woken} or writable)
        if ended and not any(select.select(reads, writes, [], FLUSH_SECONDS)):
            raise OSError("the head takes no more")

    def read(self, wire: ssl.SSLSocket) -> None:
        """Read frames from the head; they all carry bytes for the daemon's stdin."""
        try:
            data = wire.recv(65536)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            data = b""
        if not data:
            self.disconnected()
            return
        self.received += data
        while len(self.received) >= 5:
            end = 5 + struct.unpack(">I", self.received[1:5])[0]
            if len(self.received) < end:
                return
            self.unwritten += self.received[5:end]
            self.eof = self.eof or end == 5
            del self.received[:end]
            self.write()

    def write(self) -> None:
        """Write to the daemon's stdin without blocking; close it after the last byte."""
        try:
            if self.unwritten and self.stdin is not None:
                del self.unwritten[: os.write(self.stdin, self.unwritten)]
        except BlockingIOError:
            return
        except OSError:
            self.eof, self.unwritten = True, bytearray()
        if self.eof and not self.unwritten and self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def finish(self) -> None:
        """Read until the head disconnects: closing a socket with unread data would discard data that was sent."""
        if self.wire is None:
            return
        deadline = time.monotonic() + FLUSH_SECONDS
        try:
            self.wire.shutdown(socket.SHUT_WR)
            while select.select([self.wire], [], [], max(0.0, deadline - time.monotonic()))[0] and self.wire.recv(65536):
                pass
        except OSError:
            pass

    def disconnected(self) -> None:
        """Close the daemon's stdin after the loss of the head; the daemon then ends its ranks."""
        self.wire, self.unwritten, self.eof = None, bytearray(), True
        self.write()


if __name__ == "__main__":
    for name in IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    secret = sys.argv[3] if sys.argv[3] != "-" else own_secret()
    Relay(connect(*sys.argv[1:3]), sys.argv[4:]).run(secret)
