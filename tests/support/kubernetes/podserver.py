"""The part of a Kubernetes API server that `kubectl exec` needs, for the real kubectl: HTTPS, discovery, pods, pods/exec.

It speaks what kubectl speaks: SPDY/3.1 (all of them), and from kubectl 1.30 on first WebSocket (v5.channel.k8s.io). What it
does when a client goes is what kubelet with containerd was measured to do: end of file on the command's stdin, no signal, and
its output is not drained any more. It refuses, delays, drops and closes on demand. It runs in a thread of the tests, on a
socket that they give it; how a command gets into a pod is the tests' affair as well (`tests/support/kubernetes/pods.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.kubernetes.podsession import Session
from tests.support.kubernetes.podstreams import STATUS, STDERR, STDIN, STDOUT, Spdy, WebSocket

LIMIT = 1 << 20
"""Bytes of a request's head: a command stands in the URL."""


@dataclass
class Pod:
    """A pod as the API shows it; the tests change it while the server runs.

    Attributes:
        phase: "Pending", "Running", "Succeeded" or "Failed".
        containers: name to PATH; a command that no folder of it holds is not found, as in an image that lacks it.
        ready: its containers have been created: a pod is Running a moment before.
        hostname, subdomain: of its host, where they are set.
        host: of the testbed; that of its name where it is not said.
    """

    name: str
    namespace: str
    phase: str = "Running"
    containers: dict[str, str] = field(default_factory=lambda: {"main": "/usr/local/bin:/usr/bin:/bin"})
    ready: bool = True
    hostname: str = ""
    subdomain: str = ""
    host: str = ""


@dataclass
class Refusal:
    """How the next `count` attempts at exec are refused; `reason` None answers with plain text, as a kubelet does."""

    count: int
    code: int = 500
    reason: str | None = "InternalError"
    message: str = "error dialing backend: dial tcp 10.0.0.7:10250: i/o timeout"


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]


class PodServer:
    """The server, from `with` to its end.

    Args:
        listener: a bound socket; it is closed at the end.
        certificate: file with the certificate and its key.
        enter: the argument list that runs a command in a container of a pod.

    Attributes:
        pods: by namespace and name.
        token: what clients must bear.
        verbs: what the Role grants: pairs of verb and resource.
        refusal: of the next attempts at exec, None for none.
        delay: seconds between the handshake and the start of the command.
        drop_after, close_after: seconds after which a session loses its connection, or is closed with `close_code` and without
            a status; None for never.
        requests: "METHOD path" of each.
        sessions, live, most_live: exec sessions so far, now, and the most at once.
    """

    def __init__(self, listener: socket.socket, certificate: str, enter: Callable[[Pod, str, list[str]], list[str]]) -> None:
        self.pods: dict[tuple[str, str], Pod] = {}
        self.reset()
        self._listener = listener
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate)
        self._enter = enter
        self._sessions: set[Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def reset(self) -> None:
        """Take back what a test has asked for."""
        self.verbs = {("get", "pods"), ("create", "pods/exec")}
        self.refusal: Refusal | None = None
        self.delay = 0.0
        self.drop_after: float | None = None
        self.close_after: float | None = None
        self.close_code = 1000
        self.requests: list[str] = []
        self.sessions = self.most_live = 0
        self.token = "of-the-launcher"
        for pod in self.pods.values():
            self.pods[pod.namespace, pod.name] = Pod(pod.name, pod.namespace)

    @property
    def live(self) -> int:
        """Sessions that run now."""
        return len(self._sessions)

    def drop(self) -> None:
        """Cut every session's connection, as a restart of the API server does."""
        self._loop.call_soon_threadsafe(self._drop)

    def _drop(self) -> None:
        for session in list(self._sessions):
            session.drop()

    def __enter__(self) -> PodServer:
        self._thread.start()
        self._server: asyncio.Server = self._call(
            asyncio.start_server(self._connected, sock=self._listener, ssl=self._tls, limit=LIMIT)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def end_sessions(self) -> None:
        """Begin nothing more for a client that has gone or will: a busy server comes late to what it was asked for."""
        self._call(self._end_sessions())

    async def _end_sessions(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _stop(self) -> None:
        self._server.close()
        await self._end_sessions()
        await asyncio.sleep(0.05)  # For the transports to close.

    # Requests

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._answer(await _read_request(reader), reader, writer)
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(f"{request.method} {request.path}")
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        if request.headers.get("authorization") != f"Bearer {self.token}":
            code, body = _failure(401, "Unauthorized", "Unauthorized")
        elif parts[:3] == ["api", "v1", "namespaces"] and len(parts) == 4:
            # kubectl asks for it when a pod is not there; a Role for pods does not say.
            code, body = _failure(403, "Forbidden", f'namespaces "{parts[3]}" is forbidden')
        elif parts[:3] == ["api", "v1", "namespaces"] and parts[4:] == ["pods"]:
            if ("list", "pods") in self.verbs:
                shown = [_shown(pod) for (namespace, _), pod in self.pods.items() if namespace == parts[3]]
                code, body = 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": shown}
            else:
                code, body = _failure(403, "Forbidden", "pods is forbidden")
        elif parts[:3] == ["api", "v1", "namespaces"] and parts[4:5] == ["pods"] and len(parts) in (6, 7):
            pod = self.pods.get((parts[3], parts[5]))
            verb = "get" if request.method == "GET" else "create"
            resource = "/".join(["pods", *parts[6:]])
            if (verb, resource) not in self.verbs:
                user = f'User "system:serviceaccount:{parts[3]}:default" cannot {verb} resource "{resource}" in API group ""'
                told = f'pods "{parts[5]}" is forbidden: {user} in the namespace "{parts[3]}"'
                code, body = _failure(403, "Forbidden", told)
            elif pod is None:
                details = {"name": parts[5], "kind": "pods"}
                code, body = _failure(404, "NotFound", f'pods "{parts[5]}" not found', details=details)
            elif resource == "pods":
                code, body = 200, _shown(pod)
            else:
                refused = self._refused(pod, request)
                if refused is None:
                    await self._exec(pod, request, reader, writer)
                    return
                code, body = refused
        else:
            found = DISCOVERY.get(request.path)
            code, body = _failure(404, "NotFound", "no such path") if found is None else (200, found)
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        kind = "text/plain" if isinstance(body, str) else "application/json"
        head = f"HTTP/1.1 {code} Said\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(), 1)

    def _refused(self, pod: Pod, request: Request) -> tuple[int, Any] | None:
        """Return the answer to an exec that does not come to a start, None when it does."""
        container = request.query.get("container", [""])[0]
        if self.refusal is not None and self.refusal.count > 0:
            # kubectl tries WebSocket and then SPDY: that is one attempt.
            if request.method == "POST":
                self.refusal.count -= 1
            if self.refusal.reason is None:
                return self.refusal.code, self.refusal.message
            return _failure(self.refusal.code, self.refusal.reason, self.refusal.message)
        if pod.phase == "Pending":
            return _failure(400, "BadRequest", f"pod {pod.name} does not have a host assigned")
        if container and container not in pod.containers:
            return _failure(400, "BadRequest", f"container {container} is not valid for pod {pod.name}")
        if not pod.ready:
            return 404, f'container not found ("{container or next(iter(pod.containers))}")'
        return None

    async def _exec(self, pod: Pod, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wants_stdin = request.query.get("stdin") == ["true"]
        streams: WebSocket | Spdy
        if "websocket" in request.headers.get("upgrade", "").lower():
            streams = WebSocket(reader, writer)
            await streams.shake_hands(request.headers["sec-websocket-key"])
        else:
            wanted = [
                STATUS,
                *([STDIN] if wants_stdin else []),
                *(stream for stream, name in ((STDOUT, "stdout"), (STDERR, "stderr")) if request.query.get(name) == ["true"]),
            ]
            streams = Spdy(reader, writer, wanted)
            await streams.shake_hands()
        container = request.query.get("container", [next(iter(pod.containers))])[0]
        session = Session(streams, writer)
        self._sessions.add(session)
        self.sessions += 1
        self.most_live = max(self.most_live, self.live)
        timers = []
        if self.drop_after is not None:
            timers.append(self._loop.call_later(self.drop_after, session.drop))
        if self.close_after is not None:
            timers.append(self._loop.call_later(self.close_after, streams.close, self.close_code))
        try:
            await asyncio.sleep(self.delay)
            command = request.query["command"]
            path = pod.containers[container]
            if shutil.which(command[0], path=path) is None:
                said = f'exec: "{command[0]}": executable file not found in $PATH: unknown'
                told = f"error executing command in container: failed to exec in container: OCI runtime exec failed: {said}"
                await session.refuse({"status": "Failure", "message": told, "reason": "InternalError", "code": 500})
            else:
                await session.run(self._enter(pod, path, command), wants_stdin)
        finally:
            for timer in timers:
                timer.cancel()
            self._sessions.discard(session)


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    fields = [line.partition(":") for line in head[1:] if line]
    url = urlsplit(target)
    # A field that stands several times: the first will do.
    headers = {name.lower(): value.strip() for name, _, value in reversed(fields)}
    return Request(method, url.path, parse_qs(url.query, keep_blank_values=True), headers)


def _failure(code: int, reason: str, message: str, **more: Any) -> tuple[int, dict[str, Any]]:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return code, {**status, "message": message, "reason": reason, "code": code, **more}


def _shown(pod: Pod) -> dict[str, Any]:
    spec = {name: value for name, value in (("hostname", pod.hostname), ("subdomain", pod.subdomain)) if value}
    containers = [{"name": name, "image": "image"} for name in pod.containers]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "spec": {**spec, "containers": containers, "nodeName": "node"},
        "status": {"phase": pod.phase},
    }


_PODS = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "list"]}
_PODS["shortNames"] = ["po"]
_EXEC = {"name": "pods/exec", "singularName": "", "namespaced": True, "kind": "PodExecOptions", "verbs": ["create", "get"]}
DISCOVERY: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [_PODS, _EXEC]},
}
