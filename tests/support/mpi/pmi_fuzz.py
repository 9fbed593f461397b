"""Seeded conversations of hostile and honest ranks with the PMI of two nodes.

    python -m tests.support.mpi.pmi_fuzz FIRST LAST        runs the conversations with these seeds

Two daemons' WireUps run in one process, with the head's own bookkeeping of collectives and names between them. The ranks speak
PMI-1, PMI-2 or PMI-1 by the port, in any order, cut anywhere, with lines that do not belong, and end or disconnect in any
state; the head answers late and may pass on what a hostile node has sent. Each conversation must leave both daemons alive,
every answer well formed, and an honest world finished. The process limits its own memory and time, and names the seed that
broke it.
"""

from __future__ import annotations

import socket
import sys
from typing import Any, cast

from mpilaunch.daemon.mpi.pmi import FINALIZED
from mpilaunch.daemon.mpi.wireup import WireUp
from mpilaunch.daemon.private_directory import PrivateDirectory
from tests.support.mpi.fuzz import NODES, PER_NODE, SIZE, Head, main


class Rank:
    """One rank: what it still has to send, its end of the connection, and all that it has received."""

    def __init__(self, number: int, by_port: bool, hostile: bool) -> None:
        self.number, self.by_port, self.hostile = number, by_port, hostile
        self.lines: list[bytes] = []
        self.client: socket.socket | None = None
        self.sending = b""
        self.sent = 0
        self.received = b""
        self.end = ""


class Conversation(Head):
    """Two nodes, their ranks and the head; all that is random comes from the seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        by_port = self.random.random() < 0.3
        self.nodes = [self._node(index, by_port) for index in range(NODES)]
        self.ranks = [Rank(number, by_port, self.hostile and self.random.random() < 0.4) for number in range(SIZE)]
        for rank in self.ranks:
            rank.lines = self._script(rank)
            self._connect(rank)

    def _node(self, index: int, by_port: bool) -> WireUp:
        unused = PrivateDirectory("/nonexistent")
        wireup = WireUp(self.poller, lambda message: self.take(index, message), self.abort, self.timers.set, unused)
        description = {
            "world": "job",
            "first": 0,
            "size": SIZE,
            "pmi_universe_size": SIZE,
            "blocks": [[0, NODES, PER_NODE]],
            "parent": "",
            "pairs": {"PARENT": "port"},
            "offer": ["pmi"],
            "port": by_port,
            "notice_after": 30.0,
            "node": index,
        }
        numbers = range(index * PER_NODE, (index + 1) * PER_NODE)
        wireup.open_world(description, [{"rank": number, "app": 0} for number in numbers])
        return wireup

    def _connect(self, rank: Rank) -> None:
        wireup = self.nodes[rank.number // PER_NODE]
        if not rank.by_port:
            rank.client = socket.socket(fileno=wireup.open_rank(rank.number, 60))
        else:
            variables = wireup.environment(rank.number, cast("Any", None))
            host, _, port = variables["PMI_PORT"].partition(":")
            rank.client = socket.create_connection((host, int(port)))
            number = variables["PMI_ID"] if not rank.hostile or self.random.random() < 0.8 else str(self.random.getrandbits(31))
            rank.lines.insert(0, b"cmd=initack pmiid=%s\n" % number.encode())
        rank.client.setblocking(False)

    # What ranks send

    def _script(self, rank: Rank) -> list[bytes]:
        """Return the messages of a rank: what a library would send, and for a hostile one more, less, and other orders."""
        two = self.random.random() < 0.4
        lines = self._of_pmi2(rank) if two else self._of_pmi1(rank)
        if not rank.hostile:
            return lines
        for _ in range(self.random.randrange(8)):
            at = self.random.randrange(len(lines) + 1)
            change = self.random.randrange(6)
            if change == 0:
                lines.insert(at, self.random.choice(self._of_pmi1(rank) + self._of_pmi2(rank)))
            elif change == 1:
                del lines[at : at + 1]
            elif change == 2:
                lines.insert(at, self._odd(two))
            elif change == 3:
                for line in lines[at : at + 1]:
                    lines[at] = line * (self.random.choice((2, 100, 3000)) if len(line) < 500 else 2)
            elif change == 4:
                lines[at : at + 1] = [self._spoiled(line) for line in lines[at : at + 1]]
            else:
                self.random.shuffle(lines)
        return lines

    def _of_pmi1(self, rank: Rank) -> list[bytes]:
        number = rank.number
        lines = [
            *("cmd=init pmi_version=1 pmi_subversion=1", "cmd=get_maxes", "cmd=get_appnum", "cmd=get_my_kvsname"),
            *("cmd=get_universe_size", f"cmd=put kvsname=job key=k{number} value=v{number}", "cmd=barrier_in"),
            f"cmd=get kvsname=job key=k{(number + 1) % SIZE}",
            *(f"cmd=publish_name service=s{number} port=p", f"cmd=lookup_name service=s{number}"),
            *(f"cmd=unpublish_name service=s{number}", "cmd=barrier_in", "cmd=finalize"),
        ]
        if rank.hostile:
            lines[6:6] = self.random.sample(
                [
                    *("cmd=barrier_in group=NODE", f"cmd=barrier_in group={number},{(number + 3) % SIZE}:1"),
                    *("cmd=barrier_in group=0,0,0", "cmd=barrier_in group=WORLD:9", "cmd=abort exitcode=-7"),
                    "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=1\nargcnt=1\narg1=x y\npreput_num=0\nendcmd",
                    "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=2\nargcnt=999999999\nendcmd\nmcmd=spawn\nendcmd",
                    *("cmd=put kvsname=other key=a value=b", "cmd=get kvsname=other key=a", "cmd=put key=\xe9 value=\xff"),
                ],
                self.random.randrange(3),
            )
        return [line.encode("latin-1") + b"\n" for line in lines]

    def _of_pmi2(self, rank: Rank) -> list[bytes]:
        number = rank.number
        texts = [
            f"cmd=fullinit;pmijobid=job;pmirank={number};threaded=FALSE;",
            *("cmd=job-getid;", "cmd=info-getjobattr;key=PMI_process_mapping;", f"cmd=kvs-put;key=k{number};value=v{number};"),
            *("cmd=kvs-fence;thrid=4;", f"cmd=kvs-get;jobid=job;srcid=-1;key=k{(number + 1) % SIZE};"),
            *(f"cmd=info-putnodeattr;key=a{number};value=1;", f"cmd=info-getnodeattr;key=a{number};wait=TRUE;"),
            *(f"cmd=name-publish;name=s{number};port=p;", f"cmd=name-lookup;name=s{number};"),
            f"cmd=name-unpublish;name=s{number};",
            *("cmd=kvs-fence;", "cmd=finalize;"),
        ]
        if rank.hostile:
            texts[4:4] = self.random.sample(
                [
                    *("cmd=abort;", "cmd=info-getnodeattr;key=never;wait=TRUE;", "cmd=kvs-put;key=n;value=a\nb;"),
                    *("cmd=spawn;ncmds=1;preputcount=0;subcmd=x;maxprocs=1;argc=0;", "cmd=spawn;subcmd=x;maxprocs=-1;argc=0;"),
                    *("cmd=spawn;subcmd=x;maxprocs=1;argc=" + "9" * 5000 + ";", "cmd=kvs-get;jobid=else;key=k0;"),
                    *(f"cmd=kvs-put;key={'k' * 65};value=v;", f"cmd=kvs-put;thrid={'t' * 100};key=a;value=b;"),
                ],
                self.random.randrange(3),
            )
        init = b"cmd=init pmi_version=2 pmi_subversion=0\n"
        return [init, *(b"%6d" % len(text) + text.encode("latin-1") for text in texts)]

    def _odd(self, two: bool) -> bytes:
        odd = [b"\n", b"\0\n", b"=\n", b"cmd=\n", b"x" * 5000, bytes(range(256)), b"cmd=put key=a value=" + b"v" * 2000 + b"\n"]
        odd += [b"cmd=barrier_in group=NODE:%d\n" % number for number in range(3)]
        odd += [b"999999", b"    -1", b"     0", b"  3000cmd=kvs-get;key=a;"] if two else []
        many = range(self.random.choice((10, 3000, 9000)))
        odd.append(b"".join(b"cmd=put kvsname=job key=m%d value=\n" % number for number in many))
        odd.append(b"".join(b"cmd=barrier_in group=NODE:t%d\n" % number for number in many))
        odd.append(b"".join(b"cmd=lookup_name service=n%d\n" % number for number in many))
        odd.append(b"mcmd=spawn\n" + b"".join(b"a%d=%s\n" % (number, b"v" * 900) for number in range(1500)))
        return self.random.choice(odd)

    def _spoiled(self, line: bytes) -> bytes:
        spoiled = bytearray(line)
        for _ in range(self.random.randrange(1, 4)):
            if spoiled:
                spoiled[self.random.randrange(len(spoiled))] = self.random.randrange(256)
        return bytes(spoiled)

    # The run

    def run(self) -> None:
        """Let everything happen, in an order that the seed gives; raises AssertionError, or what broke a daemon."""
        while any(not rank.end for rank in self.ranks) or self.due:
            rank = self.random.choice(self.ranks)
            if not rank.end:
                self._step(rank)
            self._turn()
            if self.due and self.random.random() < 0.5:
                self.due.pop(0)()
        for rank in self.ranks:
            frames(rank.received)
        for wireup in self.nodes:
            wireup.close()
        if not self.hostile:
            assert [rank.end for rank in self.ranks] == [FINALIZED] * SIZE

    def _step(self, rank: Rank) -> None:
        """Let a rank send some bytes, or end. An honest one waits for each answer, and ends early only among hostile ones."""
        if self.hostile and self.random.random() < 0.01:
            self._end(rank)
            return
        answers = rank.sent + (3 if rank.by_port and rank.sent else 0)  # `initack` has four lines
        if rank.client is not None and not rank.hostile and len(frames(rank.received)) < answers:
            return
        done = not rank.sending and not rank.lines
        if done or rank.client is None:
            self._end(rank)
            return
        rank.sending = rank.sending or rank.lines.pop(0)
        whole = self.random.random() < 0.8
        data = rank.sending if whole else rank.sending[: self.random.randrange(1, len(rank.sending) + 1)]
        try:
            rank.sending = rank.sending[rank.client.send(data) :]
        except BlockingIOError:
            return
        except ConnectionError:
            rank.client.close()
            rank.client = None
            return
        rank.sent += not rank.sending

    def _end(self, rank: Rank) -> None:
        self._read(rank)
        rank.end = self.nodes[rank.number // PER_NODE].close_rank(rank.number, by_itself=True)
        self._read(rank)
        if rank.client is not None:
            rank.client.close()

    def _turn(self) -> None:
        self.poller.run(0)
        self.timers.run()
        for rank in self.ranks:
            if not rank.end and (not rank.hostile or self.random.random() < 0.9):
                self._read(rank)

    def _read(self, rank: Rank) -> None:
        try:
            while rank.client is not None:
                data = rank.client.recv(1 << 16)
                if not data:
                    break
                rank.received += data
        except (BlockingIOError, ConnectionError):
            pass


def frames(data: bytes) -> list[bytes]:
    """Return the whole messages that a rank has received; raises AssertionError for what is no message."""
    found = []
    two = False
    while data:
        if two:
            assert data[:6].strip().isdigit() or len(data) < 6, data[:80]
            end = 6 + int(data[:6]) if len(data) >= 6 else len(data) + 1
        else:
            assert data.startswith(b"cmd="[: len(data)]), data[:80]
            end = data.find(b"\n") + 1 or len(data) + 1
        if end > len(data):
            break  # the rest is on its way, or the connection was cut off
        found.append(data[:end])
        two = two or data.startswith(b"cmd=response_to_init rc=0 pmi_version=2")
        data = data[end:]
    return found


def hold(seed: int) -> list[str]:
    """Hold one conversation; return the PMI states in which its ranks ended."""
    conversation = Conversation(seed)
    conversation.run()
    return [rank.end for rank in conversation.ranks]


if __name__ == "__main__":
    sys.exit(main("tests.support.mpi.pmi_fuzz", hold))
