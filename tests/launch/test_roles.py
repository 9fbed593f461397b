"""Roles in real launches: worlds of their own, servers that others wait for, and arguments filled in for each rank."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from tests.support.hosts import Hosts
from tests.support.launching import (
    QUICK_HEARTBEAT,
    finish,
    guard_and_daemon,
    kill_hard,
    launch,
    launching,
    script,
    sh,
    wait_for_files,
    wait_gone,
    wait_until,
)
from tests.support.paths import ROOT
from tests.support.torches import torch_on, torch_python

ALLREDUCE = ROOT / "tests" / "programs" / "torch_allreduce.py"

SERVER = """#!/usr/bin/env python3
import os, socket, sys, time
open("server-pid", "w").write(str(os.getpid()))
time.sleep(0.5)  # as if it loaded a model
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("", int(sys.argv[1])))
server.listen()
while True:
    client, _ = server.accept()
    client.sendall(" ".join(os.environ[name] for name in ("ROLE_NAME", "RANK", "WORLD_SIZE")).encode())
    client.close()
"""
CLIENT = """#!/usr/bin/env python3
import os, socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as server:
    said = server.recv(100).decode()
print(said + " to " + " ".join(os.environ[name] for name in ("ROLE_NAME", "RANK", "WORLD_SIZE")))
"""
"""A client that comes too early is refused, and fails."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a directory with a server and its client."""
    monkeypatch.chdir(tmp_path)
    write_programs(tmp_path)
    return tmp_path


def write_programs(folder: Path) -> None:
    script(folder / "server.py", SERVER)
    script(folder / "client.py", CLIENT)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def served(port: int, *worker: str, ranks: int = 2) -> list[str]:
    """Return the words of a job of a server and of workers."""
    server = ["--role", "server", "-np", "1", "./server.py", str(port)]
    return [*server, ":", "--role", "worker", "--after", f"server:{port}", "-np", str(ranks), *worker]


# Servers


def test_workers_start_when_the_server_listens_and_it_ends_with_them(here: Path, port: int) -> None:
    done = launch("--template", *served(port, "./client.py", "{server.master_addr}", str(port), ranks=3))
    assert (done.code, done.err) == (0, b"")
    assert done.lines == [f"server 0 1 to worker {rank} 3" for rank in range(3)]


def test_the_exit_code_is_that_of_the_workers(here: Path, port: int) -> None:
    stubborn = SERVER.replace("import os", "import signal, os", 1).replace(
        "time.sleep(0.5)", "signal.signal(signal.SIGTERM, lambda *_: os._exit(9)); time.sleep(0.1)"
    )
    script(here / "server.py", stubborn)
    assert launch(*served(port, "true")).code == 0
    # Rank 1 of the workers fails once the daemon has seen the end of rank 0, so that only the server is left to be stopped.
    after_the_first = "while [ ! -s first ] || kill -0 $(cat first) 2>/dev/null; do sleep 0.01; done; exit 3"
    failed = launch(*served(port, *sh(f"if [ $RANK = 0 ]; then echo $$ >first; else {after_the_first}; fi")))
    assert failed.code == 3
    assert "error[rank-failed]: rank 2 on localhost exited with code 3" in failed.words and "rank 0 stopped" in failed.words


def test_roles_start_one_after_the_other(here: Path, port: int) -> None:
    """Each role asks the one before; one that serves another may end earlier than that."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        second = other.getsockname()[1]
    chain = sh(f"./client.py 127.0.0.1 {port} && exec ./server.py {second}")
    store = ["--role", "store", "-np", "1", "./server.py", str(port), ":"]
    done = launch(
        *("--role", "last", "--after", f"middle:{second}", "--after", f"store:{port}", "-np", "2"),
        *("./client.py", "127.0.0.1", str(second), ":"),
        *(*store, "--role", "middle", "--after", f"store:{port}", "-np", "1", *chain),
    )
    assert (done.code, done.err) == (0, b"")
    assert done.lines == ["middle 0 1 to last 0 2", "middle 0 1 to last 1 2", "store 0 1 to middle 0 1"]


def test_stdin_reaches_a_rank_that_starts_later(here: Path, port: int) -> None:
    done = launch("--stdin", "1", *served(port, "cat", ranks=1), stdin=b"of the head\n")
    assert (done.code, done.out, done.err) == (0, b"of the head\n", b"")


@pytest.mark.parametrize(("status", "code"), [(0, 1), (7, 7)])
def test_a_server_that_dies_before_it_listens_ends_the_job(here: Path, port: int, status: int, code: int) -> None:
    script(here / "server.py", f"#!/bin/sh\necho no model >&2\nexit {status}\n")
    done = launch(*served(port, "touch", "started"))
    assert done.code == code and not (here / "started").exists()
    assert "no model" in done.words and "ranks 1-2 stopped" in done.words
    early = f"error[role-not-ready]: rank 0 of the role 'server' on localhost ended before it listened on port {port}"
    assert (early if status == 0 else f"error[rank-failed]: rank 0 on localhost exited with code {status}") in done.words


def test_a_server_that_never_listens_ends_the_job_at_the_limit(here: Path, port: int) -> None:
    script(here / "server.py", "#!/bin/sh\nexec sleep 1000\n")
    done = launch("--start-timeout", "1", *served(port, "touch", "started"))
    assert done.code == 124 and not (here / "started").exists()
    late = f"[role-not-ready]: rank 0 of the role 'server' on localhost does not listen on port {port} 1 s after its start"
    assert late in done.words and "hint: --start-timeout TIME waits longer; 'ss -ltnp' on localhost" in done.words


def test_a_port_that_another_job_holds_is_not_the_servers(here: Path, port: int) -> None:
    """The stranger's answers would be taken for those of the server, which cannot bind its port and tries again for ever."""
    script(here / "server.py", f"#!/bin/sh\nuntil python3 -c '{NEVER}' $1; do sleep 0.1; done\n")
    with socket.create_server(("", port)):
        done = launch("--start-timeout", "2", *served(port, "touch", "started"))
    assert done.code == 124 and not (here / "started").exists()
    assert f"does not listen on port {port}" in done.words


NEVER = 'import socket, sys; socket.create_server(("", int(sys.argv[1])))'


def test_a_missing_program_of_a_later_role_starts_nothing(here: Path, port: int) -> None:
    done = launch(*served(port, "no-such-program"))
    assert done.code == 1 and "program not found: no-such-program" in done.words
    assert not (here / "server-pid").exists()


@pytest.mark.parametrize("ready", [False, True], ids=["waiting", "running"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_job_that_is_ended(here: Path, port: int, number: int, ready: bool) -> None:
    if not ready:
        script(here / "server.py", SERVER.replace("server.listen()", "time.sleep(1000)"))
    with launching(*served(port, *sh("echo $$ > worker-$RANK; exec sleep 1000")), cwd=here) as process:
        files = [here / "server-pid", *((here / "worker-0", here / "worker-1") if ready else ())]
        ranks = [int(text) for text in wait_for_files(*files)]
        guard, daemon = guard_and_daemon(process.pid)
        if number == signal.SIGKILL:
            kill_hard(process.pid)
        else:
            process.send_signal(number)
            done = finish(process)
            assert done.code == 128 + number and "internal" not in done.words
        wait_gone(guard, daemon, *ranks)
    assert ready or not (here / "worker-0").exists()


def test_a_job_whose_server_fails_is_started_again(here: Path, port: int) -> None:
    first = "import os, sys\nif not os.path.exists('again'): sys.exit(4)\nimport os"
    script(here / "server.py", SERVER.replace("import os", first, 1))
    with launching("--max-restarts", "2", *served(port, "echo", "done", ranks=1), cwd=here) as process:
        assert process.stderr is not None
        errors = process.stderr.fileno()
        wait_until(lambda: b"attempt 1" in os.read(errors, 65536), "the first attempt fails")
        (here / "again").touch()
        done = finish(process)
    assert (done.code, done.out) == (0, b"done\n")


# Worlds


@pytest.mark.needs("torch")
def test_two_torch_roles_reduce_in_worlds_of_their_own() -> None:
    reduce = (torch_python(), str(ALLREDUCE))
    done = launch("--role", "a", "-np", "2", *reduce, ":", "--role", "b", "-np", "3", *reduce, limit=300)
    assert (done.code, done.lines) == (0, ["2 ranks agree", "3 ranks agree"]), done.words


def test_nobody_waits_for_roles_without_after(here: Path) -> None:
    later = ["--role", "b", "-np", "2", *sh("echo $RANK")]
    done = launch("--tag", "rank", "--role", "a", "-np", "1", *sh("sleep 0.2; echo $RANK"), ":", *later)
    assert (done.code, done.lines) == (0, ["[0] 0", "[1] 0", "[2] 1"])


def test_the_ranks_of_all_roles_are_bound_side_by_side(here: Path) -> None:
    """Two roles on one machine do not get the same core."""
    show = (sys.executable, "-c", "import os; print(*sorted(os.sched_getaffinity(0)))")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.fail("this test needs two CPUs")
    roles = ["--role", "a", "-np", "1", *show, ":", "--role", "b", "-np", "1", *show]
    done = launch("--bind-to", "hwthread", "--use-hwthread-cpus", *roles)
    assert done.code == 0 and len(set(done.lines)) == 2, done


# Hosts


def test_a_server_on_one_host_and_workers_on_two(hosts: Hosts, shared: Path) -> None:
    write_programs(shared)
    worker = ["--role", "worker", "--after", "server:7000", "-np", "4", "-host", "node01:2,node02:2", "./client.py"]
    line = ["--template", "--role", "server", "-np", "1", "-host", "node01:1", "./server.py", "7000", ":", *worker]
    done = hosts.launch("-H", "node01:3,node02:2", *line, "{server.master_addr}", "7000")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [f"server 0 1 to worker {rank} 4" for rank in range(4)]


def test_a_host_on_which_all_ranks_wait_is_ended_with_the_others(hosts: Hosts, shared: Path) -> None:
    script(shared / "server.py", "#!/bin/sh\nexec sleep 1000\n")
    server = ["--role", "server", "-np", "1", "-host", "node01", "./server.py", ":"]
    began = time.monotonic()
    worker = ["--role", "w", "--after", "server:7001", "-np", "1", "-host", "node02", "true"]
    done = hosts.launch("--start-timeout", "4", *server, *worker)
    assert done.returncode == 124 and "rank 0 of the role 'server' on node01 does not listen on port 7001" in done.stderr
    assert time.monotonic() - began < 20


def test_a_lost_host_of_a_role_that_waits_ends_the_job(hosts: Hosts, shared: Path) -> None:
    write_programs(shared)
    script(shared / "server.py", SERVER.replace("server.listen()", "time.sleep(1000)"))
    server = ["--role", "server", "-np", "1", "-host", "node01", "./server.py", "7002", ":"]
    line = [*QUICK_HEARTBEAT, *server, "--role", "w", "--after", "server:7002", "-np", "1", "-host", "node02", "true"]
    with hosts.popen([sys.executable, "-m", "mpilaunch", *line]) as process:
        wait_for_files(shared / "server-pid")
        for pid, _ in hosts.processes("node02"):
            with contextlib.suppress(ProcessLookupError):
                kill_hard(pid)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 125 and "node02: lost" in errors


@pytest.mark.needs("torch")
def test_torch_roles_on_two_hosts(hosts: Hosts, shared: Path) -> None:
    (shared / "reduce.py").write_text(ALLREDUCE.read_text(encoding="utf-8"), encoding="utf-8")
    with torch_on(hosts, ("node01", "node02")) as options:
        path = options[options.index("-x") + 1]
        roles = ["--role", "a", "-np", "2", "reduce.py", ":", "--role", "b", "-np", "2", "-x", path, "reduce.py"]
        done = hosts.launch(*options, "--map-by", "node", "-H", "node01:2,node02:2", *roles, timeout=300)
    assert (done.returncode, done.stdout) == (0, 2 * "2 ranks agree\n"), done.stderr


VLLM = """
import os, socket, sys
rank, size = int(sys.argv[sys.argv.index("--node-rank") + 1]), int(sys.argv[sys.argv.index("--nnodes") + 1])
address = sys.argv[sys.argv.index("--master-addr") + 1]
assert ("--headless" in sys.argv) == (rank > 0), sys.argv
own = os.environ["VLLM_HOST_IP"]
assert (address == own) == (rank == 0), (address, own)
with socket.socket() as there:  # an address of this host
    there.bind((own, 0))
print(socket.gethostname(), rank, size, sys.argv[2:4])
"""
SGLANG = """
import socket, sys, time
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
host, _, port = words["--dist-init-addr"].rpartition(":")
if words["--node-rank"] == "0":
    with socket.create_server((host, int(port))) as server:
        server.accept()[0].recv(1)
else:
    for _ in range(500):
        try:
            socket.create_connection((host, int(port)), 5).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    else:
        sys.exit("nobody is there")
print(words["--node-rank"], "of", words["--nnodes"], "met at port", port)
"""


def test_vllms_line_on_two_hosts(hosts: Hosts, shared: Path) -> None:
    (shared / "vllm.py").write_text(VLLM, encoding="utf-8")
    words = "serve M --tensor-parallel-size 8 --pipeline-parallel-size 2 --nnodes 2"
    program = ["python3", "vllm.py", *words.split(), "--node-rank", "{node_rank}", "--master-addr", "{master_addr}"]
    head = ["-np", "1", "-host", "node01", *program, ":"]
    done = hosts.launch("--template", *head, "-np", "1", "-host", "node02", *program, "--headless")
    assert (done.returncode, done.stderr) == (0, "")
    said = "['M', '--tensor-parallel-size']"
    assert sorted(done.stdout.splitlines()) == [f"node01 0 2 {said}", f"node02 1 2 {said}"]


def test_sglangs_line_on_two_hosts(hosts: Hosts, shared: Path) -> None:
    (shared / "sglang.py").write_text(SGLANG, encoding="utf-8")
    words = "--tp 16 --dist-init-addr {master_addr}:20000 --nnodes {nnodes} --node-rank {node_rank}"
    done = hosts.launch("--template", "-H", "node01,node02", "-N", "1", "python3", "sglang.py", *words.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["0 of 2 met at port 20000", "1 of 2 met at port 20000"]
