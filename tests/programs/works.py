"""The programs of this folder with mpi4py, for libraries without a compiler, too: `works.py ring 4` does what `ring 4` does.

They print the same lines and have the same exit codes; the sources in C say what each one is.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from array import array

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
SERVICE = "works.py"


def equal(what: str, got: object, wanted: object) -> None:
    """End the job with 9 when something is wrong."""
    if got != wanted:
        print(f"{what}: {got} instead of {wanted}", file=sys.stderr, flush=True)
        WORLD.Abort(9)


def world_of(wanted: str) -> None:
    """End this rank with 9 when the world has another size."""
    if int(wanted) != SIZE:
        sys.stderr.write(f"a world of {SIZE} instead of {wanted}\n")
        raise SystemExit(9)


def say(line: str) -> None:
    """Print a line in one write: ranks that share a pipe do not mix."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def ring(wanted: str) -> None:
    """Add up, and hand a megabyte round."""
    world_of(wanted)
    equal("sum", WORLD.allreduce(RANK), SIZE * (SIZE - 1) // 2)
    left, right, length = (RANK - 1) % SIZE, (RANK + 1) % SIZE, 1 << 20
    got = bytearray(length)
    WORLD.Sendrecv(bytes([RANK + 1]) * length, right, 0, got, left, 0)
    equal("what came from the left", got == bytes([left + 1]) * length, True)
    node = WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    say(f"{RANK} of {SIZE}, {node.Get_rank()} of {node.Get_size()} on {MPI.Get_processor_name()}")
    node.Free()


def allreduce(wanted: str) -> None:
    """Add up a vector."""
    world_of(wanted)
    numbers, sums = array("d", (RANK + i for i in range(1000))), array("d", bytes(8000))
    WORLD.Allreduce(numbers, sums)
    equal("sums", list(sums), [SIZE * (SIZE - 1) / 2 + SIZE * i for i in range(1000)])
    if RANK == 0:
        say(f"{SIZE} ranks agree")


def appnum(wanted: str, app: str) -> None:
    """Say which program of the job this is."""
    world_of(wanted)
    equal("number of the program", WORLD.Get_attr(MPI.APPNUM), int(app))
    say(f"{RANK} of {SIZE} is of program {app}")


def spawn(how: str, parents: str, children: str, universe: str) -> None:
    """Start others, together."""
    equal("parent of the first world", MPI.Comm.Get_parent() == MPI.COMM_NULL, True)
    if int(universe):
        size = WORLD.Get_attr(MPI.UNIVERSE_SIZE)
        equal("size of the universe", -1 if size is None else size, int(universe))
    words = [__file__, "child", parents, children]
    if how == "multiple":
        programs, arguments = [sys.executable] * 2, [[*words, "0"], [*words, "1"]]
        others = WORLD.Spawn_multiple(programs, arguments, [int(children) - 1, 1])
    else:
        others = WORLD.Spawn(sys.executable, [*words, "0"], int(children))
    _meet(others, False, int(parents), int(children))
    say(f"parent {RANK} of {parents}, with {children} children")


def child(parents: str, children: str, app: str) -> None:
    """Be started by others."""
    parent = MPI.Comm.Get_parent()
    equal("a child's parent is missing", parent == MPI.COMM_NULL, False)
    if app == "1":
        equal("rank of the second program", RANK, int(children) - 1)
    equal("number of the program", WORLD.Get_attr(MPI.APPNUM), int(app))
    _meet(parent, True, int(parents), int(children))
    say(f"child {RANK} of {children}, of program {app}")


def _meet(others: MPI.Intercomm, is_child: bool, parents: int, children: int) -> None:
    equal("size of the own world", SIZE, children if is_child else parents)
    equal("size of the other world", others.Get_remote_size(), parents if is_child else children)
    both = others.Merge(is_child)
    equal("rank in the merged world", both.Get_rank(), parents + RANK if is_child else RANK)
    total = parents + children
    equal("sum in the merged world", both.allreduce(both.Get_rank()), total * (total - 1) // 2)
    if RANK == 0 and is_child:
        both.send(both.recv(source=0, tag=1) * 2, 0, 2)
    elif RANK == 0:
        both.send(21, parents, 1)
        equal("the number that came back", both.recv(source=parents, tag=2), 42)
    both.Free()
    others.Disconnect()


def publish(wanted: str) -> None:
    """Meet by a published name."""
    world_of(wanted)
    is_server = SIZE // 2 > RANK
    leader = RANK in (0, SIZE // 2)
    half = WORLD.Split(is_server, RANK)
    port = ""
    if RANK == 0:
        _unknown("a name that nobody published was found")
        port = MPI.Open_port()
        MPI.Publish_name(SERVICE, port)
    WORLD.Barrier()
    if leader and not is_server:
        port = MPI.Lookup_name(SERVICE)
    others = half.Accept(port) if is_server else half.Connect(port)
    equal("size of the other half", others.Get_remote_size(), SIZE - SIZE // 2 if is_server else SIZE // 2)
    ranks = range(SIZE // 2, SIZE) if is_server else range(SIZE // 2)
    equal("sum of the other half", others.allreduce(RANK), sum(ranks))
    others.Disconnect()
    if RANK == 0:
        MPI.Unpublish_name(SERVICE, port)
        MPI.Close_port(port)
    WORLD.Barrier()
    if leader:
        _unknown("a name that was withdrawn was found")
    say(f"{RANK} of {SIZE}, of the {'servers' if is_server else 'clients'}")
    half.Free()


def _unknown(what: str) -> None:
    try:
        MPI.Lookup_name(SERVICE)
    except MPI.Exception:
        return
    equal(what, True, False)


def ends(how: str, code: str = "0") -> None:
    """Let rank 1 end as `how` says; the others live until somebody ends them."""
    WORLD.Barrier()
    if RANK == 1 and how == "abort":
        WORLD.Abort(int(code))
    if RANK == 1 and how == "no-finalize":
        os._exit(0)
    while True:
        time.sleep(1)


WORKS = (ring, allreduce, appnum, spawn, child, publish, ends)

if __name__ == "__main__":
    try:
        {work.__name__: work for work in WORKS}[sys.argv[1]](*sys.argv[2:])
    except Exception:
        # As mpi4py's manual says: Python would end here by MPI_Finalize, which waits for ranks that wait for this one.
        traceback.print_exc()
        WORLD.Abort(1)
