"""What a node runs first where its daemon calls the head back: connect, start the daemon, hand bytes on until it ends.

Sent as text by `callback` and run by `python3 -I -S -B -c`: it imports nothing of ours, runs on Python 3.8 and later, and reads
nothing from its own stdin but a secret. Its arguments: places (ADDRESS:PORT,...), the fingerprint of the head's certificate,
the secret or `-`, and those with which this same Python is to be run as the daemon. What is said over the connection:
`callback` and `mpilaunch.relay`.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from typing import Any

STDOUT, STDERR, CLOSED = 13, 14, 15
SECRET = 16
"""Kinds of frames: those of `mpilaunch.relay`, and what is said first."""
CANNOT_CALL = 98
"""Exit code when no address of the head's can be reached."""
IGNORED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGTERM", "SIGTSTP", "SIGXCPU")
"""Signals that a batch system may send to every process of a job: the daemon sees to the end of the ranks, and then we end."""
CONNECT_SECONDS = 5
PART_SECONDS = 5.0
STRAY_SECONDS = 0.5
"""How long the head may take to hear all, and how long output is still taken once the daemon has exited: see `process`."""
ENOUGH = 1 << 20
"""Bytes for the daemon that it has not taken yet, above which no more are read."""


def call(places: str, fingerprint: str) -> ssl.SSLSocket:
    """Return a connection to the head; ends this process, with the reasons, where there is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    failed = []
    for place in places.split(","):
        host, _, port = place.rpartition(":")
        try:
            plain = socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS)
            wire = context.wrap_socket(plain)
            if hashlib.sha256(wire.getpeercert(True) or b"").hexdigest() == fingerprint:
                wire.setblocking(False)
                return wire
            failed.append(place + ": somebody else answers")
        except OSError as error:
            failed.append(f"{place}: {error}")
    sys.stderr.write(f"mpilaunch: cannot call back: {'; '.join(failed)}\n")
    sys.exit(CANNOT_CALL)


class Relay:
    """Between the connection and the daemon; each is None once it can be told nothing any more."""

    def __init__(self, wire: ssl.SSLSocket, arguments: list[str]) -> None:
        pipe = subprocess.PIPE
        self.wire: ssl.SSLSocket | None = wire
        self.daemon = subprocess.Popen([sys.executable, *arguments], stdin=pipe, stdout=pipe, stderr=pipe)
        assert self.daemon.stdin and self.daemon.stdout and self.daemon.stderr
        self.kinds = {self.daemon.stdout.fileno(): STDOUT, self.daemon.stderr.fileno(): STDERR}
        self.stdin: int | None = os.dup(self.daemon.stdin.fileno())
        self.daemon.stdin.close()
        os.set_blocking(self.stdin, False)
        self.heard, self.unwritten, self.ends = b"", b"", False
        self.ended, waiting = os.pipe()
        threading.Thread(target=self.wait, args=(waiting,), daemon=True).start()

    def run(self, secret: str) -> None:
        """Hand on until the daemon has ended, and tell how."""
        self.tell(SECRET, secret.encode())
        exited = 0.0
        while self.kinds and (not exited or time.monotonic() < exited + STRAY_SECONDS):
            wire = self.wire if len(self.unwritten) < ENOUGH else None
            if wire is not None and wire.pending():
                self.listen(wire)  # the kernel does not know of what TLS has already read
                continue
            sources: list[Any] = [*self.kinds, *([] if wire is None else [wire])]
            writes = [self.stdin] if self.stdin and self.unwritten else []
            if not exited:
                sources.append(self.ended)
            ready, writable, _ = select.select(sources, writes, [], STRAY_SECONDS if exited else None)
            if self.ended in ready:
                exited = time.monotonic()
            if writable:
                self.give()
            for source in ready:
                if source is wire:
                    self.listen(wire)
                elif source in self.kinds:
                    data = os.read(source, 65536)
                    if data:
                        self.tell(self.kinds[source], data)
                    else:
                        del self.kinds[source]
        code = self.daemon.wait()
        self.tell(CLOSED, json.dumps([code if code >= 0 else 128 - code, "", ""]).encode())
        self.part()

    def wait(self, waiting: int) -> None:
        """Close a descriptor when the daemon has exited."""
        self.daemon.wait()
        os.close(waiting)

    def tell(self, kind: int, data: bytes) -> None:
        """Send a frame."""
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
            self.lose()

    def wait_for(self, reads: list[Any], writes: list[Any]) -> None:
        """Wait for the head while the daemon lives, which gives up a silent head itself, and then a while; raises OSError."""
        ready, writable, _ = select.select([*reads, self.ended], writes, [])
        if ready == [self.ended] and not writable and not any(select.select(reads, writes, [], PART_SECONDS)):
            raise OSError("the head takes no more")

    def listen(self, wire: ssl.SSLSocket) -> None:
        """Take what the head says."""
        try:
            data = wire.recv(65536)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            data = b""
        if not data:
            self.lose()
            return
        self.heard += data
        while len(self.heard) >= 5:
            end = 5 + struct.unpack(">I", self.heard[1:5])[0]
            if len(self.heard) < end:
                return
            self.unwritten += self.heard[5:end]
            self.ends = self.ends or end == 5
            self.heard = self.heard[end:]
            self.give()

    def give(self) -> None:
        """Let the daemon have what it takes now, and the end when it is due."""
        try:
            if self.unwritten and self.stdin is not None:
                self.unwritten = self.unwritten[os.write(self.stdin, self.unwritten) :]
        except BlockingIOError:
            return
        except OSError:
            self.ends, self.unwritten = True, b""
        if self.ends and not self.unwritten and self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def part(self) -> None:
        """Read on until the head has heard all: a connection that is closed with something unread takes back what was sent."""
        if self.wire is None:
            return
        until = time.monotonic() + PART_SECONDS
        try:
            self.wire.shutdown(socket.SHUT_WR)
            while select.select([self.wire], [], [], max(0.0, until - time.monotonic()))[0] and self.wire.recv(65536):
                pass
        except OSError:
            pass

    def lose(self) -> None:
        """The head is gone: the daemon reads the end of its stdin, and ends its ranks."""
        self.wire, self.unwritten, self.ends = None, b"", True
        self.give()


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the daemon's exit code along
    for name in IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    said = sys.argv[3] if sys.argv[3] != "-" else sys.stdin.readline().strip()
    Relay(call(*sys.argv[1:3]), sys.argv[4:]).run(said)
