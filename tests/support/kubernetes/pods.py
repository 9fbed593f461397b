"""The testbed's pods: hosts without sshd whose first process reaps nothing, and a launcher pod in which kubectl works.

The head is the launcher: it has a service account's files and the API server's address, and the server, which is podserver.py
beside this file, listens in its network. A pod's `cat` as first process stands for the `sleep 365d` of mpi-operator's workers.
"""

from __future__ import annotations

import ctypes
import datetime
import ipaddress
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.hosts import HEAD, HEAD_SCRIPT, HOST_SCRIPT, Hosts
from tests.support.kubernetes.podserver import Pod, PodServer

NAMESPACE = "training"
PORT = 6443
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEWNET = 0x40000000

_SSHD = HOST_SCRIPT.index("/usr/sbin/sshd")
POD_SCRIPT = HOST_SCRIPT[:_SSHD].replace("$STATE/hosts", "$STATE/pod-hosts") + "echo up\nexec cat\n"

LAUNCHER_SCRIPT = f"""
mount -t tmpfs tmpfs /run
mkdir -p {SERVICE_ACCOUNT}
mount --bind "$STATE/service-account" {SERVICE_ACCOUNT}
{HEAD_SCRIPT}"""


class Pods(Hosts):
    """Pods job-worker-0, job-worker-1, ... in the namespace `training`, and the launcher.

    Attributes:
        server: the API server; `reset` it after a test.
        kubectl: the unmodified binary.
    """

    head_script = LAUNCHER_SCRIPT
    host_script = POD_SCRIPT

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.names = [f"job-worker-{number}" for number in range(count)]
        found = os.environ.get("MPILAUNCH_TEST_KUBECTL") or shutil.which("kubectl")
        assert found, "testbed: kubectl is missing: apt-get install kubernetes-client"
        self.kubectl = found

    def __enter__(self) -> Pods:
        super().__enter__()
        try:
            certificate = self._state / "server.pem"
            self.server = PodServer(self._listener(), str(certificate), self._entering).__enter__()
        except BaseException:
            super().__exit__()
            raise
        for name in self.names:
            self.server.pods[NAMESPACE, name] = Pod(name, NAMESPACE)
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "server"):
            self.server.__exit__()
        super().__exit__()

    def popen(
        self, argv: Sequence[str | os.PathLike[str]], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a command in the launcher pod."""
        return super().popen(argv, env={**self.environment, **(env or {})}, **options)

    @property
    def environment(self) -> dict[str, str]:
        """What Kubernetes sets in the launcher pod, a home for kubectl's cache in which nobody has a kubeconfig."""
        return {
            "KUBERNETES_SERVICE_HOST": self.head_address,
            "KUBERNETES_SERVICE_PORT": str(PORT),
            "MPILAUNCH_KUBECTL": self.kubectl,
            "KUBECONFIG": "",
            "HOME": str(self._state / "home"),
        }

    def pid_of_first(self, name: str) -> int:
        """Return a process id in whose namespaces the launcher is."""
        return self._first[name].pid

    def service_name(self, pod: str) -> str:
        """Return the name that mpi-operator's hostfile has for a pod."""
        return f"{pod}.job.{NAMESPACE}.svc"

    def zombies(self, pod: str) -> list[str]:
        """Return what has died in a pod and was not reaped."""
        listed = self.on(pod, ["ps", "-e", "-o", "stat=,comm="]).stdout.splitlines()
        return [line for line in listed if line.startswith("Z")]

    def _entering(self, pod: Pod, path: str, command: Sequence[str]) -> list[str]:
        pid = str(self._pid_one(pod.host or pod.name))
        target = ["nsenter", "--target", pid, "--net", "--uts", "--mount", "--pid", "--wd=/", "--"]
        return [*target, "env", "-i", f"PATH={path}", f"HOSTNAME={pod.name}", "HOME=/root", *command]

    def _write_files(self) -> None:
        super()._write_files()
        hosts = self._state / "hosts"
        lines = hosts.read_text().splitlines()
        for name in self.names:
            lines.append(f"{self.address(name)} {self.service_name(name)}.cluster.local {self.service_name(name)}")
        hosts.write_text("\n".join(lines) + "\n")
        # Pods have no name for a launcher without a Service.
        known = [line for line in lines if line.split()[1] != HEAD]
        (self._state / "pod-hosts").write_text("\n".join(known) + "\n")
        (self._state / "home").mkdir()
        account = self._state / "service-account"
        account.mkdir()
        certificate, key = _certificate(self.head_address)
        (account / "ca.crt").write_bytes(certificate)
        (account / "namespace").write_text(NAMESPACE)
        (account / "token").write_text("of-the-launcher")
        (self._state / "server.pem").write_bytes(certificate + key)

    def _listener(self) -> socket.socket:
        """Return a socket that listens in the launcher's network: a socket stays in the one where it was made."""
        made: list[socket.socket] = []

        def make() -> None:
            network = os.open(f"/proc/{self._first[HEAD].pid}/ns/net", os.O_RDONLY)
            # Only this thread moves.
            assert ctypes.CDLL(None, use_errno=True).setns(network, NEWNET) == 0, os.strerror(ctypes.get_errno())
            os.close(network)
            made.append(socket.create_server((self.head_address, PORT), backlog=128))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[0]


def _certificate(address: str) -> tuple[bytes, bytes]:
    """Return a certificate for a server at an address, and its key, both as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver of the tests")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), now, now + datetime.timedelta(days=1)
        )
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return certificate.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
