"""What the cluster's programs are told: argument lists, settings, certificates and tokens, each written once into its state.

Who calls the API server is told by a static token; what a user may do is RBAC's, as on any cluster. The kubelet believes the
API server without asking back. Pods ask the cluster's name server (`names`), which knows headless Services.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from tests.cluster.build import BIN, DEBIAN
from tests.cluster.machine import NODE, NODE_ADDRESS, SERVICE_ADDRESS

PAUSE_IMAGE = "docker.io/library/pause:cluster"
SOCKET = "/run/containerd/containerd.sock"
SERVER = f"https://{NODE_ADDRESS}"

USERS = {
    "admin": "admin,admin,admin,system:masters",
    "kubelet": f"kubelet,system:node:{NODE},node,system:nodes",
    "kube-controller-manager": "kube-controller-manager,system:kube-controller-manager,manager",
    "kube-scheduler": "kube-scheduler,system:kube-scheduler,scheduler",
}
"""A line of the file of tokens for each: token, user, its id, groups."""

CONTAINERD = """\
version = 2
root = "{state}/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{state}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{debian}/usr/lib/cni"
    conf_dir = "{state}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{debian}/usr/sbin/runc"
"""


def write_all(state: Path, group: str) -> None:
    """Write every file; `group` is the control group for the pods."""
    ca = _write_certificates(state)
    (state / "tokens.csv").write_text("".join(f"{line}\n" for line in USERS.values()))
    for user in USERS:
        _write(state / f"{user}.kubeconfig", _kubeconfig(user, ca))
    (state / "containerd.toml").write_text(CONTAINERD.format(state=state, socket=SOCKET, pause=PAUSE_IMAGE, debian=DEBIAN))
    (state / "cni").mkdir()
    _write(state / "cni/10-bridge.conflist", _network(state))
    (state / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    _write(state / "kubelet.yaml", _kubelet(state, group))


def services(state: Path) -> dict[str, list[str | Path]]:
    """Return the argument list of each service, in the order in which they start."""
    usr = DEBIAN / "usr"
    return {
        "etcd": [
            usr / "bin/etcd",
            f"--data-dir={state}/etcd",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
        ],
        "names": [
            sys.executable,
            Path(__file__).with_name("names.py"),
            NODE_ADDRESS,
            usr / "bin/kubectl",
            f"--kubeconfig={state}/admin.kubeconfig",
        ],
        "containerd": [usr / "bin/containerd", f"--config={state}/containerd.toml"],
        "kube-apiserver": [
            BIN / "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            "--secure-port=443",
            f"--advertise-address={NODE_ADDRESS}",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--cert-dir={state}",
            f"--tls-cert-file={state}/server.crt",
            f"--tls-private-key-file={state}/server.key",
            f"--token-auth-file={state}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={state}/accounts.key",
            f"--service-account-signing-key-file={state}/accounts.key",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
        ],
        "kube-controller-manager": [
            BIN / "kube-controller-manager",
            f"--kubeconfig={state}/kube-controller-manager.kubeconfig",
            f"--service-account-private-key-file={state}/accounts.key",
            f"--root-ca-file={state}/ca.crt",
            f"--cert-dir={state}/manager",
            "--use-service-account-credentials",
            "--leader-elect=false",
        ],
        "kube-scheduler": [
            BIN / "kube-scheduler",
            f"--kubeconfig={state}/kube-scheduler.kubeconfig",
            f"--cert-dir={state}/scheduler",
            "--leader-elect=false",
        ],
        "kubelet": [
            BIN / "kubelet",
            f"--config={state}/kubelet.yaml",
            f"--kubeconfig={state}/kubelet.kubeconfig",
            f"--root-dir={state}/kubelet",
            f"--cert-dir={state}/kubelet-certificates",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{SOCKET}",
            f"--hostname-override={NODE}",
            f"--node-ip={NODE_ADDRESS}",
        ],
    }


def _write(path: Path, content: object) -> None:
    """Write what both YAML and JSON readers understand."""
    path.write_text(json.dumps(content, indent=2))


def _kubeconfig(user: str, ca: bytes) -> dict[str, object]:
    name = "cluster"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": SERVER, "certificate-authority-data": _base64(ca)}}],
        "users": [{"name": user, "user": {"token": user}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }


def _network(state: Path) -> dict[str, object]:
    ranges = [[{"subnet": "10.89.0.0/16", "gateway": NODE_ADDRESS, "rangeStart": "10.89.1.1"}]]
    kept = {"type": "host-local", "dataDir": f"{state}/addresses"}
    addresses = {**kept, "routes": [{"dst": "0.0.0.0/0"}], "ranges": ranges}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "bridge", "plugins": [bridge]}


def _kubelet(state: Path, group: str) -> Mapping[str, object]:
    never = ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available")
    return {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "clusterDNS": [NODE_ADDRESS],
        "clusterDomain": "cluster.local",
        "cgroupRoot": f"/{group}",
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "evictionHard": dict.fromkeys(never, "0%"),
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        "resolvConf": f"{state}/resolv.conf",
        "volumePluginDir": f"{state}/volume-plugins",
    }


def _write_certificates(state: Path) -> bytes:
    """Write the authority, the API server's certificate, and the key that signs the tokens of service accounts."""
    now = datetime.datetime.now(datetime.timezone.utc)
    keys = {name: rsa.generate_private_key(65537, 2048) for name in ("ca", "server", "accounts")}
    names = {name: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} of the tests")]) for name in keys}
    addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in (NODE_ADDRESS, SERVICE_ADDRESS, "127.0.0.1")]
    alternatives = x509.SubjectAlternativeName([*addresses, x509.DNSName("kubernetes.default.svc")])
    certificates = {}
    for name, extension in (("ca", x509.BasicConstraints(True, None)), ("server", alternatives)):
        built = x509.CertificateBuilder(names["ca"], names[name], keys[name].public_key(), x509.random_serial_number())
        built = built.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + datetime.timedelta(days=1))
        signed = built.add_extension(extension, critical=name == "ca").sign(keys["ca"], hashes.SHA256())
        certificates[name] = signed.public_bytes(serialization.Encoding.PEM)
        (state / f"{name}.crt").write_bytes(certificates[name])
    pem, traditional = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    for name, key in keys.items():
        (state / f"{name}.key").write_bytes(key.private_bytes(pem, traditional, serialization.NoEncryption()))
    return certificates["ca"]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
