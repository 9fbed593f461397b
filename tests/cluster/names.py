"""The cluster's name server: it answers for headless Services and their pods, from the API server's Endpoints, by UDP.

    names.py ADDRESS KUBECTL [ WORD... ]

As CoreDNS does it, SERVICE.NAMESPACE.svc.cluster.local is the addresses of all its pods that are ready, and
HOSTNAME.SERVICE.NAMESPACE.svc.cluster.local that of one pod. Answers are not to be kept (their time to live is 0), and what is
not there is so without an SOA record, by which resolvers would keep that. It runs until it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

import dns.exception
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

DOMAIN = "svc.cluster.local"
AGAIN_SECONDS = 0.5
"""Between a watch that has ended, as when the API server goes, and the next."""

Addresses = dict[str, list[str]]


def names_of(endpoints: dict[str, Any]) -> Addresses:
    """Return the names of a Service and its pods, in small letters, and their addresses."""
    about = endpoints["metadata"]
    service = f"{about['name']}.{about['namespace']}.{DOMAIN}"
    found: Addresses = {service: []}
    for address in (one for subset in endpoints.get("subsets") or () for one in subset.get("addresses") or ()):
        found[service].append(address["ip"])
        if "hostname" in address:
            found.setdefault(f"{address['hostname']}.{service}".lower(), []).append(address["ip"])
    return found


class Names(asyncio.DatagramProtocol):
    """The server; `services` has the names of each Service."""

    def __init__(self) -> None:
        self.services: dict[tuple[str, str], Addresses] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the socket."""
        self._transport: asyncio.DatagramTransport = transport  # type: ignore[assignment]  # a selector's is of another class

    def datagram_received(self, data: bytes, address: tuple[str | Any, int]) -> None:
        """Answer a question; what is none gets no answer."""
        with contextlib.suppress(dns.exception.DNSException):
            self._transport.sendto(self._answer(dns.message.from_wire(data)).to_wire(), address)

    def _answer(self, asked: dns.message.Message) -> dns.message.Message:
        reply, (question, *_) = dns.message.make_response(asked), asked.question
        name = question.name.to_text(omit_final_dot=True).lower()
        found = next((one[name] for one in self.services.values() if name in one), None)
        if found is None:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        elif found and question.rdtype == dns.rdatatype.A:
            reply.answer.append(dns.rrset.from_text(question.name, 0, "IN", "A", *found))
        return reply

    def take(self, event: dict[str, Any]) -> None:
        """Take what a watch tells of a Service."""
        about = event["object"]["metadata"]
        key = about["namespace"], about["name"]
        if event["type"] == "DELETED":
            self.services.pop(key, None)
        else:
            self.services[key] = names_of(event["object"])


async def watch(names: Names, kubectl: list[str]) -> None:
    """Follow the Endpoints of all namespaces to the end of one watch; with its events, kubectl prints a line for each."""
    words = ["get", "endpoints", "--all-namespaces", "--watch", "--output-watch-events", "--output=json"]
    process = await asyncio.create_subprocess_exec(*kubectl, *words, stdout=asyncio.subprocess.PIPE, limit=1 << 20)
    assert process.stdout is not None
    async for line in process.stdout:
        names.take(json.loads(line))
    await process.wait()


async def serve(address: str, kubectl: list[str]) -> None:
    """Answer, and follow the API server, which comes later than this and may go in between."""
    names = Names()
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: names, (address, 53))
    while True:
        await watch(names, kubectl)
        await asyncio.sleep(AGAIN_SECONDS)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2:]))
