"""`foresee`: a node begins with what takes long before it is asked for it, and nothing depends on whether it was right."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpilaunch.head import bundle
from mpilaunch.head.preparation import foresight
from mpilaunch.wire.messages import HEAD_SAYS, check
from tests.launching import WireToDaemon, children, living, wait_until
from tests.test_daemon_boot import offer
from tests.test_daemon_loop import ping
from tests.test_prepare import job

LIBPMIX = "libpmix.so.2"
PRINTS = ("sh", "-c", 'echo "${PMIX_RANK-none}"')


@pytest.fixture
def daemon() -> Iterator[WireToDaemon]:
    """Give a daemon that has said hello."""
    with WireToDaemon() as made:
        made.until("hello")
        yield made


def foresee(daemon: WireToDaemon, *program: str, **members: Any) -> None:
    """Tell the daemon what to expect."""
    app = {"program": program, "directory": "/", "directory_required": True, "environment": {}, "edits": []}
    message = {"apps": [app], "python": ["python3"], "environment": {}, "scrub": [], "offer": ["pmix"], "host": "here"}
    daemon.send("foresee", **{**message, "library": LIBPMIX, **members})


def helpers(daemon: WireToDaemon) -> list[int]:
    """Return the daemon's children, which are its helper before any rank runs."""
    return children(children(daemon.process.pid)[0])


def test_a_helper_that_was_foreseen_serves(daemon: WireToDaemon) -> None:
    foresee(daemon, *PRINTS)
    (helper,) = wait_until(lambda: helpers(daemon), "the helper has been started")
    daemon.prepare(*PRINTS, mpi=offer("pmix", library=LIBPMIX), environment={"MASTER_PORT": "29500"})
    daemon.until("ready")
    assert helpers(daemon) == [helper]
    daemon.send("launch")
    daemon.until("finished")
    assert daemon.stdout_of(0) == b"0\n"
    assert not living(helper)


@pytest.mark.parametrize(
    ("program", "members"),
    [
        (PRINTS, {"library": "/no/such/libpmix.so.2"}),
        (PRINTS, {"host": "there"}),
        (PRINTS, {"environment": {"LD_LIBRARY_PATH": "/nowhere"}}),
        (("no-such-program",), {}),
        (("true",), {}),
    ],
    ids=["library", "host", "environment", "missing", "harmless"],
)
def test_what_was_foreseen_wrongly_does_no_harm(
    daemon: WireToDaemon, program: tuple[str, ...], members: dict[str, Any]
) -> None:
    foresee(daemon, *program, **members)
    ping(daemon)
    daemon.run(*PRINTS, mpi=offer("pmix", library=LIBPMIX))
    daemon.until("finished")
    assert daemon.stdout_of(0) == b"0\n"


def test_a_program_that_is_no_program_of_mpi_needs_no_helper(daemon: WireToDaemon) -> None:
    foresee(daemon, "true", offer=["pmi", "pmix"], library=None)
    ping(daemon)
    assert helpers(daemon) == []


def test_nothing_is_left_when_nothing_is_prepared(daemon: WireToDaemon) -> None:
    before = set(Path("/tmp").glob("mpilaunch-*"))
    foresee(daemon, *PRINTS)
    (helper,) = wait_until(lambda: helpers(daemon), "the helper has been started")
    wait_until(lambda: set(Path("/tmp").glob("mpilaunch-*")) - before, "the helper has its directory")
    daemon.close_wire()
    assert daemon.end() == (0, "")
    assert not living(helper) and not set(Path("/tmp").glob("mpilaunch-*")) - before


def test_the_modules_are_asked_for_once() -> None:
    zipped = bundle.first_part()
    with WireToDaemon(sys.executable, zipped) as daemon:
        daemon.write(zipped)
        foresee(daemon, *PRINTS)
        daemon.prepare(*PRINTS, mpi=offer("pmix", library=LIBPMIX))
        assert daemon.until("ask")["what"] == "modules"
        ping(daemon)
        daemon.send("answer", id=1, error="", archive=base64.b64encode(bundle.second_part()).decode())
        daemon.until("ready")
        daemon.send("launch")
        daemon.until("finished")
        assert daemon.stdout_of(0) == b"0\n"
        assert [message["type"] for message in daemon.messages].count("ask") == 1


def test_what_is_foreseen() -> None:
    one = job("-H a:2,b:2 -x COLOUR=red --wdir /tmp ./train.py")
    told = foresight(one)(one.allocation.nodes[1])
    assert told is not None
    check(told, HEAD_SAYS)
    assert told["host"] == "b" and told["environment"]["COLOUR"] == "red"
    assert told["apps"][0]["directory"] == "/tmp" and told["offer"] == ["pmi", "pmix"]
    no_pmix = job("-H a:2,b:2 --mpi pmi1 true")
    assert foresight(no_pmix)(no_pmix.allocation.nodes[0]) is None, "nothing takes long there"
    one_node = job("-H a:2,b:2 -np 2 true")
    assert foresight(one_node)(one_node.allocation.nodes[1]) is None, "no rank runs there"
