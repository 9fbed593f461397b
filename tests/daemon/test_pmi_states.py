"""PMI in every state: what ranks that end, hostile ranks and hostile nodes may do, one by one and in seeded conversations."""

from __future__ import annotations

import json
import os

import pytest

from mpilaunch.daemon.mpi.key_values import MAX_PAIRS
from mpilaunch.daemon.mpi.pmi import MAX_PENDING, ProtocolError
from tests.support.mpi.fuzz import run_apart
from tests.support.mpi.pmi import Node
from tests.support.mpi.pmi2 import begun, message, say

MANY, MANY_OF_PMIX = (7_000, 3_000) if os.environ.get("TABLE") == "all" else (1_500, 500)
SHARE = 500
"""Seeded conversations, and how many of them are one test: processes of a test run share them."""
OUT = "cmd=barrier_out rc=0"
SPAWN = "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=1\nargcnt=0\nendcmd"


def test_conversations_in_any_state() -> None:
    count, _, ends = run_apart("pmi_fuzz", 0, 120, 120).partition(" conversations: ")
    assert count == "120"
    assert set(json.loads(ends)) >= {"absent", "connected", "finalized"}


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("seed", range(1_000, 1_000 + MANY, SHARE))
def test_many_conversations_in_any_state(seed: int) -> None:
    assert run_apart("pmi_fuzz", seed, SHARE, 600).startswith(f"{SHARE} conversations: ")


def test_conversations_of_pmix_helpers() -> None:
    count, _, ends = run_apart("pmix_fuzz", 0, 80, 120).partition(" conversations: ")
    assert count == "80"
    assert set(json.loads(ends)) >= {"aborted", "connected", "finalized"}


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("seed", range(1_000, 1_000 + MANY_OF_PMIX, SHARE))
def test_many_conversations_of_pmix_helpers(seed: int) -> None:
    assert run_apart("pmix_fuzz", seed, SHARE, 600).startswith(f"{SHARE} conversations: ")


# Ranks that end


@pytest.mark.parametrize("group", ["NODE", "0,1", "NODE:4", "WORLD"])
@pytest.mark.parametrize("last", ["", "cmd=finalize"])
def test_a_barrier_that_waits_for_a_rank_that_has_ended_is_the_heads(group: str, last: str) -> None:
    node = Node().init()
    assert node.say(0, f"cmd=barrier_in group={group}") == []
    if last:
        node.say(1, last)
    node.ended(1)
    members = [["job", -1]] if group == "WORLD" else [["job", 0], ["job", 1]]
    assert node.collectives == [(members, 1, {})]
    node.ended(0)
    assert len(node.collectives) == 1


def test_a_barrier_of_the_node_after_a_rank_has_ended_is_the_heads() -> None:
    node = Node((0, 1, 2), size=6).init()
    node.ended(2)
    node.say(0, "cmd=put kvsname=job key=k value=v", "cmd=barrier_in group=NODE")
    assert node.collectives == []
    node.say(1, "cmd=barrier_in group=NODE")
    # What the ranks put goes with the barriers that other nodes take part in.
    assert node.collectives == [([["job", 0], ["job", 1], ["job", 2]], 2, {})]


def test_the_order_of_its_numbers_makes_no_other_group() -> None:
    node = Node().init()
    assert node.say(0, "cmd=barrier_in group=0,1") == []
    assert node.say(1, "cmd=barrier_in group=1,0,1") == [OUT]


# Hostile nodes: the head passes on what they say


@pytest.mark.parametrize(
    "pairs", [None, 7, "text", [], {"k": 1}, {"k": "a\nb"}, {"k": "a\0b"}, {"k": "\u1234"}, {"k" * 65: "v"}, {"k": "v" * 1025}]
)
def test_pairs_that_no_rank_could_have_put_are_left_out(pairs: object) -> None:
    node = Node(size=4).init()
    for rank in (0, 1):
        node.say(rank, "cmd=barrier_in")
    node.collective_done.pop()({"parts": [pairs, {"good": "1"}]})
    assert node.lines(0)[-1] == OUT
    assert node.say(0, "cmd=get kvsname=job key=k")[0].startswith("cmd=get_result rc=-1")
    assert node.say(0, "cmd=get kvsname=job key=good") == ["cmd=get_result rc=0 msg=success value=1"]
    assert Node(pairs=pairs).init().say(0, "cmd=get kvsname=job key=k")[0].startswith(  # type: ignore[arg-type]
        "cmd=get_result rc=-1"
    )


@pytest.mark.parametrize("answer", [{"error": "too much"}, {"values": None}, {"values": {"s": 7}}, {"values": {"s": "a\nb"}}])
def test_a_port_that_no_rank_could_have_published_is_not_found(answer: dict[str, object]) -> None:
    node = Node().init()
    node.say(0, "cmd=lookup_name service=s")
    node.ask_done.pop()(answer)
    assert node.lines(0)[-1] == "cmd=lookup_result rc=1 msg=no_such_name"


# Bounds


def test_the_number_of_puts_is_bounded() -> None:
    node = Node().init()
    answers = node.say(0, *(f"cmd=put kvsname=job key={number} value=" for number in range(MAX_PAIRS + 1)))
    assert answers[-2:] == ["cmd=put_result rc=0 msg=success", "cmd=put_result rc=-1 msg=too_much"]


@pytest.mark.parametrize(
    "line", ["cmd=lookup_name service=s", "cmd=publish_name service=s port=p", "cmd=unpublish_name service=s", SPAWN]
)
def test_the_number_of_requests_without_an_answer_is_bounded(line: str) -> None:
    node = Node().init()
    for _ in range(MAX_PENDING):
        node.say(0, line)
    node.ask_done.pop()({"error": "no", "values": {}})
    node.say(0, line)
    with pytest.raises(ProtocolError, match="more than 64 requests that are not answered yet"):
        node.say(0, line)
    node.say(1, line)


def test_the_number_of_open_barriers_is_bounded() -> None:
    node = Node().init()
    with pytest.raises(ProtocolError, match="more than 64 requests"):
        node.say(0, *(f"cmd=barrier_in group=NODE:{number}" for number in range(100)))
    node = begun()
    with pytest.raises(ProtocolError, match="more than 64 requests"):
        node.receive(0, message("cmd=kvs-fence;") * 100)
    node = begun()
    with pytest.raises(ProtocolError, match="more than 64 requests"):
        node.receive(0, message("cmd=info-getnodeattr;key=never;wait=TRUE;") * 100)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cmd=put key=a value=\0", "a NUL byte in a line"),
        ("mcmd=spawn\n" + f"a={'v' * 4000}\n" * 300, "a spawn of more than 1048576 bytes"),
        (SPAWN.replace("nprocs=1", "nprocs=-1"), "a spawn that does not fit: ValueError"),
        (SPAWN.replace("nprocs=1", "nprocs=1048577"), "a spawn that does not fit: ValueError"),
        (SPAWN.replace("argcnt=0", "argcnt=" + "9" * 4000), "a spawn that does not fit: ValueError"),
        (f"cmd=lookup_name service={'s' * 2049}", "lookup of a name and port of more than 2048 bytes"),
    ],
)
def test_what_does_not_fit_is_named(line: str, words: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        Node().init().say(0, line)
    assert words in str(raised.value) and len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cmd=kvs-put;key=a;value=\0;", "a NUL byte in a message"),
        (f"cmd=job-getid;thrid={'t' * 65};", "a thrid of more than 64 bytes"),
        (f"cmd=spawn;subcmd=x;maxprocs=1;argc={'9' * 100_000};", "spawn does not fit: ValueError"),
        ("cmd=name-publish;name=a\nb;port=p;", "with a newline"),
    ],
)
def test_what_does_not_fit_pmi_2_is_named(text: str, words: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        begun().receive(0, message(text))
    assert words in str(raised.value) and len(str(raised.value)) < 200


def test_a_value_with_a_newline_cannot_become_a_line_of_pmi_1() -> None:
    node = begun()
    assert say(node, 0, "cmd=kvs-put;key=k;value=a\ncmd=abort;") == (
        "cmd=kvs-put-response;rc=1;errmsg=key_or_value_with_newline;"
    )


def test_the_key_value_space_of_another_world_is_not_here() -> None:
    node = Node().init()
    assert node.say(0, "cmd=put kvsname=other key=k value=v") == ["cmd=put_result rc=-1 msg=no_such_kvs"]
    assert node.say(0, "cmd=put kvsname=job key=k value=v") == ["cmd=put_result rc=0 msg=success"]
    assert node.say(0, "cmd=get kvsname=other key=k") == ["cmd=get_result rc=-1 msg=no_such_kvs value=unknown"]
    node = begun()
    assert say(node, 0, "cmd=kvs-put;key=k;value=v;").endswith("rc=0;")
    assert say(node, 0, "cmd=kvs-get;jobid=other;key=k;") == "cmd=kvs-get-response;rc=0;found=FALSE;"
    assert say(node, 0, "cmd=kvs-get;jobid=;key=k;").endswith("value=v;")
