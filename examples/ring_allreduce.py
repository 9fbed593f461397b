"""Sum an array over all ranks with a ring all-reduce, as NCCL and gloo do, in the standard library alone (Python 3.8+).

    mpilaunch -np 4 ring_allreduce.py
    mpilaunch -H node01:2,node02:2 ring_allreduce.py 4194304

The argument is the number of 8-byte integers (262144 without it). Each rank prints a line; the exit code is 0 only when every
sum is exactly right.

How it works: the ranks meet at rank 0 (MASTER_ADDR, MASTER_PORT), where each leaves the address on which it listens; then
each connects to the next one, and the last to rank 0. The array is cut into as many chunks as there are ranks. In each step
every rank sends one chunk to the right while it receives another from the left: N - 1 steps in which the received chunk is
added (reduce-scatter: after them each rank owns one finished chunk), and N - 1 steps in which it is kept (all-gather).
"""

import json
import operator
import os
import select
import socket
import sys
import time
from array import array
from contextlib import ExitStack

PATIENCE = 60.0  # seconds that any one wait may take
BYTES_PER_NUMBER = 8


def connect(host, port):
    """Connect to a rank, which may not listen yet."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((host, port), timeout=PATIENCE)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def listen(host="", port=0):
    """Listen on one address, or on every one: IPv4 and, where there is such a thing, IPv6."""
    every_family = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if every_family or ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=every_family)
    listener.settimeout(PATIENCE)
    return listener


def accept(listener):
    connection, _ = listener.accept()
    connection.settimeout(PATIENCE)
    return connection


def send_message(connection, message):
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive_message(connection):
    """Return the one message that the other side sends."""
    with connection.makefile("rb") as lines:
        line = lines.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError("a rank has gone before all had met")
    return json.loads(line)


def meet_as_master(size, master, port, listener_port):
    """Collect the (host, port) on which each rank listens, and tell them all."""
    addresses = {0: (master, listener_port)}
    with ExitStack() as connections:
        door = connections.enter_context(listen(port=port))
        ranks = [connections.enter_context(accept(door)) for _ in range(size - 1)]
        for connection in ranks:
            rank, host, rank_port = receive_message(connection)
            addresses[rank] = (host, rank_port)
        table = [addresses[rank] for rank in range(size)]
        for connection in ranks:
            send_message(connection, table)
    return table


def join_ring(rank, size):
    """Return connections to the rank on the left and to the rank on the right."""
    master, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        listener = listen()
        table = meet_as_master(size, master, port, listener.getsockname()[1])
    else:
        with connect(master, port) as to_master:
            my_host = to_master.getsockname()[0]  # the others reach this rank where it reached rank 0
            listener = listen(my_host)
            send_message(to_master, (rank, my_host, listener.getsockname()[1]))
            table = receive_message(to_master)
    with listener:
        right = connect(*table[(rank + 1) % size])
        left = accept(listener)
    for connection in (left, right):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
    return left, right


def exchange(left, right, outgoing, count):
    """Send numbers to the right and receive `count` numbers from the left, both at once: one after the other, a ring in which
    everybody sends and nobody receives would stand still as soon as the buffers are full."""
    incoming = bytearray(count * BYTES_PER_NUMBER)
    to_send, to_fill = memoryview(outgoing).cast("B"), memoryview(incoming)
    while to_send or to_fill:
        readable, writable, _ = select.select([left] if to_fill else [], [right] if to_send else [], [], PATIENCE)
        if not readable and not writable:
            raise TimeoutError(f"nothing moved in the ring for {PATIENCE:.0f} s")
        if readable:
            received = left.recv_into(to_fill)
            if received == 0:
                raise ConnectionError("the rank on the left has gone")
            to_fill = to_fill[received:]
        if writable:
            to_send = to_send[right.send(to_send) :]
    return array("q", bytes(incoming))


def ring_allreduce(numbers, rank, size, left, right):
    """Add up the arrays of all ranks, in place."""
    bounds = [len(numbers) * chunk // size for chunk in range(size + 1)]

    def place(chunk):
        return slice(bounds[chunk % size], bounds[chunk % size + 1])

    for step in range(size - 1):
        mine, theirs = place(rank - step), place(rank - step - 1)
        received = exchange(left, right, numbers[mine], theirs.stop - theirs.start)
        numbers[theirs] = array("q", map(operator.add, numbers[theirs], received))
    for step in range(size - 1):
        mine, theirs = place(rank - step + 1), place(rank - step)
        numbers[theirs] = exchange(left, right, numbers[mine], theirs.stop - theirs.start)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 262144
    rank = int(os.environ.get("RANK", "0"))
    size = int(os.environ.get("WORLD_SIZE", "1"))
    numbers = array("q", ((rank + 1) * (place % 1000) for place in range(count)))
    expected = array("q", (size * (size + 1) // 2 * (place % 1000) for place in range(count)))

    speed = "nothing to send"
    if size > 1:
        left, right = join_ring(rank, size)
        with left, right:
            begin = time.monotonic()
            ring_allreduce(numbers, rank, size, left, right)
            seconds = time.monotonic() - begin
        megabytes = 2 * (size - 1) / size * count * BYTES_PER_NUMBER / 1e6
        speed = f"{megabytes / seconds:.1f} MB/s in {seconds:.3f} s"

    me = f"rank {rank} of {size} on {socket.gethostname()}"
    if numbers != expected:
        sys.exit(f"{me}: the sum of {count} numbers is WRONG")
    print(f"{me}: the sum of {count} numbers is right, {speed}")


if __name__ == "__main__":
    main()
