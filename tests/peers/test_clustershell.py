"""ClusterShell's own tests of its worker `pdsh`, over a link to mpilaunch and over the real pdsh: each ends alike.

They come with its source on PyPI, which `make test-peers` fetches; nothing of them is kept here. They reach the host whose name
the machine has, so they run on the head under the name of a host.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.hosts import CHECKOUT, Hosts
from tests.support.launching import wait_until
from tests.support.processes import everything, ours

pytestmark = pytest.mark.testbed

(TESTS,) = CHECKOUT.glob(".peers/ClusterShell-*/tests")
RUNNER = """if True:
    import json, sys, unittest
    result = unittest.TestResult()
    tests = unittest.defaultTestLoader.loadTestsFromName("TaskDistantPdshTest")
    tests.run(result)
    failed = {test.id(): text for test, text in (*result.failures, *result.errors)}
    with open(sys.argv[1], "w") as file:
        json.dump([result.testsRun, failed], file)
"""
COPYING = "copy", "Copy"
"""In the names of tests of pdcp, and of rpdcp, which mpilaunch does not have. The real ones fail here: they look for copied
files in the head's /tmp, and the host has its own. Our pdcp passes, since it reaches this machine's names without ssh."""
LONGEST = 60.0
"""Seconds that the commands of the tests take at most."""
LEAST = 87
"""The tests there are, in ClusterShell 1.9.3."""


@pytest.mark.timeout(600)
def test_the_worker_pdsh_ends_its_tests_alike_over_both(hosts: Hosts, links: Path) -> None:
    ends: list[dict[str, str]] = []
    before = everything()
    for path in (os.environ["PATH"], f"{links}:{os.environ['PATH']}"):
        report = hosts.shared / "report.json"
        modules = os.pathsep.join(map(str, (TESTS.parent / "lib", TESTS, CHECKOUT, CHECKOUT / "agents")))
        script = f"hostname node01; cd '{TESTS}'; exec '{sys.executable}' -c \"$0\" '{report}'"
        environ = {"PATH": path, "PYTHONPATH": modules, "PDSH_RCMD_TYPE": "ssh"}
        done = hosts.run(["unshare", "--uts", "sh", "-c", script, RUNNER], env=environ, timeout=280)
        assert done.returncode == 0, done.stderr
        run, failed = json.loads(report.read_text())
        assert run >= LEAST
        ends.append(failed)
    # Some tests kill pdsh, whose commands then run to their ends.
    wait_until(lambda: not ours(before) and not any(map(hosts.processes, hosts.names)), "all commands have ended", LONGEST)
    real, own = ends
    assert not [name for name in real if not any(word in name for word in COPYING)], "the real one passes all but these"
    assert own.keys() <= real.keys(), "\n".join(own[name] for name in own.keys() - real.keys())
    assert own == {}, own
