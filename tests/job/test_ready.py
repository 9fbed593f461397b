"""The URL of --ready."""

from __future__ import annotations

import pytest

from mpilaunch.job.servers.ready import ReadyUrl, parse_ready_url


@pytest.mark.parametrize(
    ("text", "url", "at"),
    [
        ("http://:8000/health", ReadyUrl("", 8000, "/health"), "http://h:8000/health"),
        ("http://:80", ReadyUrl("", 80, "/"), "http://h:80/"),
        ("http://node01.lan:8000/v1/models?a=b", ReadyUrl("node01.lan", 8000, "/v1/models?a=b"), "http://h:8000/v1/models?a=b"),
        ("http://[fd00::1]:8000/", ReadyUrl("fd00::1", 8000, "/"), "http://h:8000/"),
    ],
)
def test_urls(text: str, url: ReadyUrl, at: str) -> None:
    assert parse_ready_url(text) == url and url.at("h") == at


@pytest.mark.parametrize(
    "text",
    [
        "",
        "health",
        "https://:8000/",
        "http://:0/",
        "http://:65536/",
        "http://h/",
        "http://:80/a b",
        "http://u@h:80/",
        "http://:80x",
    ],
)
def test_what_is_no_url(text: str) -> None:
    with pytest.raises(ValueError, match="is not http://"):
        parse_ready_url(text)


def test_a_request() -> None:
    url = ReadyUrl("", 8000, "/health")
    assert url.request("fd00::1") == b"GET /health HTTP/1.1\r\nHost: [fd00::1]:8000\r\nConnection: close\r\n\r\n"
    assert url.at("fd00::1") == "http://[fd00::1]:8000/health"
