"""The fork server: a process that loads the daemon and looks at this machine once, and forks a daemon for each request.

The agent `local` starts it where a job has several nodes that are this machine: starting a Python takes longer than all that
its daemon does. A request is one number over the socket that is descriptor 3, and its answer that number and another. `READY`
comes first, unasked. `FORK`, with what is to become the daemon's stdin, stdout and stderr, is answered by the daemon with its
process id, or by the server with -errno; the process id of a daemon that has exited with its wait status. Until then it stays a
zombie, so that its id is not reused. The server ends with the socket.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct

from mpilaunch.daemon import guard, start
from mpilaunch.daemon.node.probe import probe_hardware

SOCKET = 3
READY, FORK = -1, 0
REQUEST, ANSWER = struct.Struct("i"), struct.Struct("ii")


def serve() -> None:
    """Answer requests until the other end is closed; does not return."""
    start.load()
    guard.ignore_signals()
    hardware = probe_hardware()
    with socket.socket(fileno=SOCKET) as requests:
        descriptors = _serve(requests)
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    start.main(hardware)


def _serve(requests: socket.socket) -> array.array[int]:
    """Answer requests; return in each forked process, the leader of a session, its descriptors."""
    requests.send(ANSWER.pack(READY, 0))
    while True:
        descriptors = array.array("i")
        request, received, _, _ = requests.recvmsg(REQUEST.size, socket.CMSG_SPACE(3 * descriptors.itemsize))
        if len(request) != REQUEST.size:
            os._exit(0)
        for _, _, data in received:
            descriptors.frombytes(data)
        (number,) = REQUEST.unpack(request)
        answer = None
        try:
            if number != FORK:
                answer = os.waitpid(number, os.WNOHANG)[1]
            elif len(descriptors) != 3:
                answer = -errno.EMFILE  # the kernel has left some out
            elif os.fork() == 0:
                return _begin(requests, descriptors)
        except OSError as error:
            answer = -(error.errno or 0)
        for descriptor in descriptors:
            os.close(descriptor)
        if answer is not None:
            requests.send(ANSWER.pack(number, answer))


def _begin(requests: socket.socket, descriptors: array.array[int]) -> array.array[int]:
    """Lead a session, and answer; a process that nobody waits for any more ends here, and serves no requests."""
    try:
        os.setsid()
        requests.send(ANSWER.pack(FORK, os.getpid()))
    except BaseException:
        os._exit(1)
    return descriptors
