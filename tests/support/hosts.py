"""The testbed: hosts made of namespaces on this machine, each with the real sshd, and a head that knows their keys.

A host has its own network, host name, processes, System V memory, mounts, empty /tmp, /run and /dev/shm, a boot id (by which
MPI libraries tell machines apart), and no sight of this project's checkout: all that it runs came to it over ssh. The hosts and
the head sit on one bridge without a route out. No namespace is bound to a name: each lives as long as its first process, which
ends when its stdin does, so that even a killed test run leaves nothing. What a host and the head share, like NFS, is the rest
of the file system, `Hosts.shared` above all.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from tests.support.requirements import require

CHECKOUT = ROOT
HEAD = "head"
START_SECONDS = 30.0
STOP_SECONDS = 10.0
PROGRAMS = {
    "/usr/sbin/sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "bash": "bash",
}
"""What the testbed needs, and the Debian package it is in."""

HEAD_SCRIPT = r"""
hostname head
mount --bind "$STATE/hosts" /etc/hosts
mount --bind "$STATE/ssh" ~/.ssh
echo ready
read -r _
"""

LISTENS = "until grep -q ':%04X .* 0A ' /proc/net/tcp; do sleep 0.01; done"
"""Shell that waits for a listening port without a connection, which would count as a login under way."""

HOST_SCRIPT = r"""
hostname "$NAME"
mount --bind "$STATE/hosts" /etc/hosts
mount -t tmpfs tmpfs /run
mkdir /run/sshd
cat /proc/sys/kernel/random/uuid >/run/boot_id
mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
[ -z "$VISIBLE" ] || { mkdir /run/visible; mount --bind "$VISIBLE" /run/visible; }
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
[ -d "$CHECKOUT" ] && mount -t tmpfs tmpfs "$CHECKOUT"
[ -z "$VISIBLE" ] || { mkdir -p "$VISIBLE"; mount --move /run/visible "$VISIBLE"; }
[ -z "$VISIBLE" ] || mount -o remount,bind,ro "$VISIBLE"
[ -f ~/.bashrc ] && mount --bind /dev/null ~/.bashrc
echo ready
read -r _
ip addr add "$ADDRESS/16" dev eth0
ip link set eth0 up
ip link set lo up
/usr/sbin/sshd -f "$STATE/sshd_config" -E "$STATE/sshd.log"
LISTENS
echo up
read -r _
""".replace("LISTENS", LISTENS % 22)

SSHD_CONFIG = """\
HostKey {state}/host_key
AuthorizedKeysFile {state}/ssh/id_ed25519.pub
PermitRootLogin yes
StrictModes no
UsePAM no
PasswordAuthentication no
MaxStartups {maxstartups}
PidFile /run/sshd.pid
SetEnv PATH=/usr/local/bin:/usr/bin:/bin
"""

SSH_CONFIG = """\
Host *
  IdentityFile {state}/ssh/id_ed25519
  UserKnownHostsFile {state}/ssh/known_hosts
  BatchMode yes
"""


def _address(index: int) -> str:
    return f"10.88.{index // 250}.{index % 250 + 1}"


class Hosts:
    """Hosts node01, node02, ... and a head, from `with` to its end.

    Args:
        count: how many hosts.
        maxstartups: sshd's limit on logins under way, "10:30:60" being what it ships with.
        visible: a directory of the checkout that the hosts can read all the same, at its place.

    Attributes:
        names: of the hosts.
        shared: a directory that the head and all hosts see.
        ssh: the head's ~/.ssh.
    """

    head_script = HEAD_SCRIPT
    host_script = HOST_SCRIPT

    def __init__(self, count: int, maxstartups: str = "100:30:200", visible: Path | None = None) -> None:
        self.names = [f"node{number:02}" for number in range(1, count + 1)]
        self._maxstartups = maxstartups
        self._visible = visible
        self._first: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Hosts:
        require("testbed", PROGRAMS)
        # Not below /tmp: each host has its own.
        self._state = Path(tempfile.mkdtemp(prefix="mpilaunch-hosts-", dir="/var/tmp"))
        self.shared = self._state / "shared"
        self.ssh = self._state / "ssh"
        self._home = Path(pwd.getpwuid(0).pw_dir)
        try:
            # The head's is mounted on it. It stays: another run's head may be using it.
            (self._home / ".ssh").mkdir(mode=0o700, exist_ok=True)
            self._write_files()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._first.values():
            assert process.stdin
            process.stdin.close()
        for name, process in self._first.items():
            for pid in self._inside(name):
                # A stopped process would not see that its end has come.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(STOP_SECONDS)
            assert process.stdout
            process.stdout.close()
        shutil.rmtree(self._state, ignore_errors=True)

    # Commands on the head

    def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        timeout: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the head to its end; on a timeout its session is killed."""
        process = self.popen(
            argv, env=env, stdin=subprocess.DEVNULL if input is None else subprocess.PIPE, start_new_session=True
        )
        try:
            output, errors = process.communicate(input, timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        return subprocess.CompletedProcess(list(argv), process.returncode, output, errors)

    def popen(
        self, argv: Sequence[str | os.PathLike[str]], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a command on the head, in our directory, with our environment, the checkout's modules and `env`."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
        environment["PYTHONPATH"] = os.pathsep.join((str(CHECKOUT), str(CHECKOUT / "agents")))
        environment.update(env or {})
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        enter = ["nsenter", f"--target={self._first[HEAD].pid}", "--net", "--uts", "--mount", f"--wd={os.getcwd()}", "--"]
        return subprocess.Popen([*enter, *argv], env=environment, **options)

    def launch(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run mpilaunch on the head; `options` are those of `run`."""
        return self.run([sys.executable, "-m", "mpilaunch", *arguments], **options)

    def run_mpi(
        self, argv: Sequence[str | os.PathLike[str]], lines: int, patience: float = 3.0, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of MPICH 4.0.2 on several hosts; the arguments are those of `popen`.

        Over UCX's TCP its MPI_Finalize sometimes hangs, under any launcher (docs/mpi.md). A run that has printed all of its
        `lines` and has not ended `patience` seconds later is repeated.
        """
        for _ in range(6):
            process = self.popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, **options)
            try:
                return self._end_of_mpi(process, lines, patience / 3)
            except subprocess.TimeoutExpired:
                deadline = time.monotonic() + 10
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate()
            while any(map(self.processes, self.names)) and time.monotonic() < deadline:
                time.sleep(0.05)
        raise AssertionError("MPI_Finalize hung each time")

    def _end_of_mpi(self, process: subprocess.Popen[str], lines: int, pause: float) -> subprocess.CompletedProcess[str]:
        """Return the result of a process; raises TimeoutExpired when it hangs for three pauses after its last line."""
        deadline, complete = time.monotonic() + 60, 0
        while True:
            try:
                output, errors = process.communicate(timeout=pause)
                return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
            except subprocess.TimeoutExpired as error:
                complete += (error.output or b"").count(b"\n") == lines
                assert complete or time.monotonic() < deadline, f"it hangs before its end: {error.output!r}"
                if complete > 3:
                    raise

    # The hosts

    def on(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command inside a host, without ssh."""
        return subprocess.run(self.inside(host, argv), capture_output=True, text=True, timeout=60, **options)

    def inside(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the argument list that runs a command inside a host, without ssh."""
        pid = str(self._pid_one(host))
        path = "PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
        return ["nsenter", "--target", pid, "--net", "--uts", "--ipc", "--mount", "--pid", "--", "env", path, *argv]

    def address(self, host: str) -> str:
        """Return the host's IP address."""
        return _address(self.names.index(host) + 1)

    @property
    def head_address(self) -> str:
        """The head's IP address."""
        return _address(0)

    def processes(self, host: str) -> list[tuple[int, list[str]]]:
        """Return the processes that run in a host, less sshd's and the first, as (our process id, argument list)."""
        found = []
        for pid in self._inside(host):
            with contextlib.suppress(OSError):
                argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
                # A process that is ending, a zombie above all, has no command line any more.
                if argv != [""] and not argv[0].startswith(("sshd", "/usr/sbin/sshd")) and pid != self._pid_one(host):
                    found.append((pid, argv))
        return found

    def received(self, host: str) -> int:
        """Return the bytes that have come to a host by its network so far."""
        lines = self.on(host, ["cat", "/proc/net/dev"]).stdout.splitlines()
        return int(next(line for line in lines if "eth0:" in line).partition(":")[2].split()[0])

    def stop_sshd(self, host: str) -> None:
        """Let a host refuse new connections; those that stand go on."""
        self.on(host, ["bash", "-c", "kill $(</run/sshd.pid); while [ -e /run/sshd.pid ]; do sleep 0.01; done"])

    def start_sshd(self, host: str) -> None:
        """Undo `stop_sshd`."""
        self.listen(host, 22)

    def listen(self, host: str, port: int, *settings: str) -> None:
        """Start sshd on a port, with settings of its own, and return once it listens; it is gone with the host."""
        self.on(host, ["bash", "-c", f"{self.sshd(port, *settings)}; {LISTENS % port}"])

    def sshd(self, port: int = 22, *settings: str) -> str:
        """Return the command that starts sshd in a host."""
        config, log = self._state / "sshd_config", self._state / "sshd.log"
        words = [*settings, *([] if port == 22 else ["PidFile=none"])]
        return f"/usr/sbin/sshd -f {config} -E {log} -p {port} {' '.join(f'-o {word}' for word in words)}"

    @contextlib.contextmanager
    def sshd_with(self, host: str, *settings: str) -> Iterator[None]:
        """Let a host's sshd have settings of its own."""
        self.stop_sshd(host)
        self.listen(host, 22, *settings)
        try:
            yield
        finally:
            self.stop_sshd(host)
            self.start_sshd(host)

    def link(self, host: str, *, up: bool) -> None:
        """Pull a host's network cable, or plug it in."""
        self.ip_on_head([f"link set {host} {'up' if up else 'down'}"])

    @contextlib.contextmanager
    def pause(self, host: str) -> Iterator[None]:
        """Freeze everything in a host."""
        pids = self._inside(host)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def set_login_shell(self, host: str, shell: str) -> None:
        """Give the login user another shell in one host; nothing outside of it changes."""
        edit = f"sed 's,^\\(root:.*:\\)[^:]*$,\\1{shell},' /etc/passwd >/run/passwd; mount --bind /run/passwd /etc/passwd"
        self.on(host, ["sh", "-ec", edit]).check_returncode()

    @contextlib.contextmanager
    def login_script(self, host: str, text: str) -> Iterator[None]:
        """Let logins on one host run a script in place of a shell, as what a profile may do."""
        script = self.shared / f"login-script-{host}"
        script.write_text(text, encoding="utf-8")
        script.chmod(0o755)
        self.set_login_shell(host, str(script))
        try:
            yield
        finally:
            self.on(host, ["umount", "/etc/passwd"]).check_returncode()

    # Making them

    def _write_files(self) -> None:
        self.shared.mkdir()
        self.ssh.mkdir(mode=0o700)
        for key in (self.ssh / "id_ed25519", self._state / "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key], check=True)
        host_key = (self._state / "host_key.pub").read_text().strip()
        lines = [(name, self.address(name)) for name in self.names]
        (self.ssh / "known_hosts").write_text("".join(f"{name},{address} {host_key}\n" for name, address in lines))
        (self.ssh / "config").write_text(SSH_CONFIG.format(state=self._state))
        (self._state / "sshd_config").write_text(SSHD_CONFIG.format(state=self._state, maxstartups=self._maxstartups))
        lines = [("localhost", "127.0.0.1"), (HEAD, _address(0)), *lines]
        (self._state / "hosts").write_text("".join(f"{address} {name}\n" for name, address in lines))

    def _start(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        private = ["unshare", "--net", "--uts", "--mount"]
        self._first[HEAD] = self._start_first([*private, "bash", "-ec", self.head_script])
        for name in self.names:
            script = ["--ipc", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", self.host_script]
            self._first[name] = self._start_first([*private, *script], NAME=name, ADDRESS=self.address(name))
        for name, process in self._first.items():
            self._expect(name, process, "ready", deadline)
        wires = [f"link add {name} type veth peer name eth0 netns {self._first[name].pid}" for name in self.names]
        plugs = [f"link set {name} master br0 up" for name in self.names]
        bridge = ["link set lo up", "link add br0 type bridge", f"addr add {_address(0)}/16 dev br0", "link set br0 up"]
        self.ip_on_head([*bridge, *wires, *plugs])
        for name in self.names:
            stdin = self._first[name].stdin
            assert stdin is not None
            stdin.write("go\n")
            stdin.flush()
        for name in self.names:
            self._expect(name, self._first[name], "up", deadline)

    def _start_first(self, argv: list[str], **variables: str) -> subprocess.Popen[str]:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environment = {"PATH": path, "HOME": str(self._home), "STATE": str(self._state)}
        environment.update(variables, CHECKOUT=str(CHECKOUT), VISIBLE=str(self._visible or ""))
        with (self._state / "start.log").open("a") as log:
            return subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True
            )

    def _expect(self, name: str, process: subprocess.Popen[str], word: str, deadline: float) -> None:
        assert process.stdout is not None
        said = _read_line(process.stdout.fileno(), deadline)
        if said != word:
            logs = [log.read_text() for log in (self._state / "start.log", self._state / "sshd.log") if log.exists()]
            raise RuntimeError(f"testbed: {name} did not get as far as '{word}': {said!r}\n" + "\n".join(logs))

    def ip_on_head(self, lines: Sequence[str]) -> None:
        """Run commands of ip on the head."""
        enter = ["nsenter", f"--target={self._first[HEAD].pid}", "--net", "--", "ip", "-batch", "-"]
        subprocess.run(enter, input="\n".join(lines) + "\n", text=True, check=True)

    def _pid_one(self, host: str) -> int:
        pid = self._first[host].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0])

    def _inside(self, name: str) -> list[int]:
        """Return the process ids of all that runs in a host; nothing for the head, which has no processes of its own."""
        with contextlib.suppress(OSError, IndexError):
            if name != HEAD:
                space = os.readlink(f"/proc/{self._pid_one(name)}/ns/pid")
                return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _in_space(entry, space)]
        return []


@contextlib.contextmanager
def in_directory(path: Path) -> Iterator[None]:
    """Be there for a while: it is where the ranks run, too."""
    before = os.getcwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


def _in_space(pid: str, space: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == space
    except OSError:
        return False


def _read_line(descriptor: int, deadline: float) -> str:
    """Return one line without its end, what there is of it at the deadline."""
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        data = os.read(descriptor, 1) if ready else b""
        if not data:
            break
        line += data
    return line.decode().strip()
