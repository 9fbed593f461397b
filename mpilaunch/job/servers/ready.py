"""The URL of `--ready`: where a server answers once it serves. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

_URL = re.compile(r"http://(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]*)):([0-9]{1,5})(/[!-~]*)?")


class ReadyUrl(NamedTuple):
    """A URL of HTTP; host "" is that of rank 0, path begins with "/"."""

    host: str
    port: int
    path: str

    def at(self, host: str) -> str:
        """Return the URL with this host."""
        return f"http://{_bracketed(host)}:{self.port}{self.path}"

    def request(self, host: str) -> bytes:
        """Return the request of HTTP/1.1 for it (RFC 9112)."""
        lines = (f"GET {self.path} HTTP/1.1", f"Host: {_bracketed(host)}:{self.port}", "Connection: close", "", "")
        return "\r\n".join(lines).encode("ascii")


def parse_ready_url(text: str) -> ReadyUrl:
    """Return the URL of a text; raises ValueError."""
    found = _URL.fullmatch(text)
    if found is None or not 1 <= int(found[3]) <= 65_535:
        raise ValueError(f"'{text}' is not http://[HOST]:PORT[/PATH]")
    return ReadyUrl(found[1] or found[2] or "", int(found[3]), found[4] or "/")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
