"""Parts of what operators make: the definition of a kind, pods, variables, mounts, keys of ssh, Services. Pure.

Left out is what nothing in the pods sees: owners, labels of resources, scheduling.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.cluster.cluster import Manifest

Template = dict[str, Any]
"""Of pods."""


def definition(api_versions: Sequence[str], kind: str) -> Manifest:
    """Return the definition of a kind, whose schema takes any fields; its first `GROUP/VERSION` is stored."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    versions = [
        {
            "name": api.partition("/")[2],
            "served": True,
            "storage": api == api_versions[0],
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything}}},
        }
        for api in api_versions
    ]
    group, plural = api_versions[0].partition("/")[0], f"{kind.lower()}s"
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": versions}
    about = {"name": f"{plural}.{group}"}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": about, "spec": spec}


def pod_of(name: str, template: Template) -> Manifest:
    """Return the pod of a template."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": name}, "spec": template["spec"]}


def add_labels(template: Template, labels: Mapping[str, str]) -> None:
    """Add labels to those of a template."""
    template.setdefault("metadata", {}).setdefault("labels", {}).update(labels)


def add_variables(container: dict[str, Any], variables: Mapping[str, str]) -> None:
    """Add variables behind a container's own."""
    container.setdefault("env", []).extend({"name": name, "value": value} for name, value in variables.items())


def mount(spec: dict[str, Any], name: str, source: Mapping[str, Any], where: str, **fields: str) -> None:
    """Add a volume to a pod, and mount it in its first container."""
    spec.setdefault("volumes", []).append({"name": name, **source})
    spec["containers"][0].setdefault("volumeMounts", []).append({"name": name, "mountPath": where, **fields})


def items(paths: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return which keys of a Secret are which files."""
    return [{"key": key, "path": path} for key, names in paths.items() for path in names]


def config_map(name: str, data: Mapping[str, str]) -> Manifest:
    """Return a ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(data)}


def service(name: str, selector: Mapping[str, str], *, not_ready_too: bool) -> Manifest:
    """Return a headless Service; `not_ready_too` gives pods their names before they are ready."""
    spec = {"clusterIP": "None", "selector": dict(selector), "publishNotReadyAddresses": not_ready_too}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def secret(name: str, data: Mapping[str, bytes], kind: str = "Opaque") -> Manifest:
    """Return a Secret."""
    coded = {word: base64.b64encode(value).decode() for word, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": {"name": name}, "data": coded}


def key_pair(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> tuple[bytes, bytes]:
    """Return a key as OpenSSL writes it, and as a line of authorized_keys."""
    formats = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, *formats)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + b"\n"


def ssh_secret(name: str) -> Manifest:
    """Return the Secret by which every pod of a job may enter every other, as Kubeflow's operators make it."""
    private, public = key_pair(ec.generate_private_key(ec.SECP521R1()))
    return secret(name, {"ssh-privatekey": private, "ssh-publickey": public}, "kubernetes.io/ssh-auth")


SSH_FILES = items({"ssh-privatekey": ("id_rsa",), "ssh-publickey": ("id_rsa.pub", "authorized_keys")})
"""The files of that Secret."""
