"""PMI-1: whole dialogues as MPICH holds them, every command, every order, and bytes from an enemy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.daemon.mpi import pmi1
from mpilaunch.daemon.mpi.key_values import MAX_KEY, MAX_PUTS, MAX_VALUE
from mpilaunch.daemon.mpi.pmi import ABORTED, ABSENT, CONNECTED, FINALIZED, ProtocolError
from tests.support.mpi.pmi import INIT, Node

BARRIER = "cmd=barrier_in"
OUT = "cmd=barrier_out rc=0"
MAPPING = "(vector,(0,2,2))"
NOT_FOUND = "cmd=get_result rc=-1 msg=key_not_found value=unknown"

START = [
    (INIT, "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=2"),
    ("cmd=get_maxes", "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024"),
    ("cmd=get_appnum", "cmd=appnum rc=0 appnum=0"),
    ("cmd=get_my_kvsname", "cmd=my_kvsname rc=0 kvsname=job"),
    ("cmd=get kvsname=job key=PMI_process_mapping", f"cmd=get_result rc=0 msg=success value={MAPPING}"),
    ("cmd=get kvsname=job key=PMI_hwloc_xmlfile", NOT_FOUND),
]
"""What every rank of MPICH says first, and what it hears."""

COMMANDS = (
    *("cmd=get_maxes", "cmd=get_appnum", "cmd=get_my_kvsname", "cmd=get_universe_size", "cmd=put kvsname=job key=k value=v"),
    *("cmd=get kvsname=job key=k", BARRIER, "cmd=finalize", "cmd=abort exitcode=3", "cmd=publish_name service=s port=p"),
    *("cmd=unpublish_name service=s", "cmd=lookup_name service=s"),
)
"""Every command but init."""


def waiting(node: Node) -> Node:
    """Let all ranks begin and come to the barrier, but for the last."""
    node.init()
    for rank in node.ranks[:-1]:
        assert node.say(rank, BARRIER) == []
    return node


# Dialogues


def test_the_dialogue_of_mpich_on_one_node() -> None:
    node = Node()
    for rank in (0, 1):
        for line, answer in START:
            assert node.say(rank, line) == [answer]
        put = f"cmd=put kvsname=job key=P{rank}-businesscard value=description#host{rank}$port#4{rank}$"
        assert node.say(rank, put) == ["cmd=put_result rc=0 msg=success"]
    assert node.say(0, BARRIER) == []
    assert node.say(1, BARRIER) == [OUT]
    assert node.lines(0)[-1] == OUT
    for rank in (0, 1):
        card = f"cmd=get_result rc=0 msg=success value=description#host{1 - rank}$port#4{1 - rank}$"
        assert node.say(rank, f"cmd=get kvsname=job key=P{1 - rank}-businesscard") == [card]
        assert node.say(rank, "cmd=finalize") == ["cmd=finalize_ack rc=0"]
        assert node.ended(rank) == FINALIZED
    assert (node.fences, node.aborts) == ([], [])


def test_two_nodes_exchange_what_their_ranks_put_in_one_message_each() -> None:
    nodes = [Node(ranks, size=4).init() for ranks in ((0, 1), (2, 3))]
    for node in nodes:
        for rank in node.ranks:
            node.say(rank, f"cmd=put kvsname=job key=k{rank} value=v{rank}", BARRIER)
    told = [node.fences for node in nodes]
    assert told == [[(2, {"k0": "v0", "k1": "v1"})], [(2, {"k2": "v2", "k3": "v3"})]]
    pairs = {key: value for node in nodes for _, put in node.fences for key, value in put.items()}
    for node in nodes:
        assert not any(OUT in line for rank in node.ranks for line in node.heard[rank])
        node.collective_done.pop()({"parts": [pairs]})
        for rank in node.ranks:
            assert node.heard[rank][-1] == f"{OUT}\n"
            got = node.say(rank, *(f"cmd=get kvsname=job key=k{other}" for other in range(4)))
            assert got == [f"cmd=get_result rc=0 msg=success value=v{other}" for other in range(4)]
    # The next barrier tells only what is new.
    nodes[0].say(0, "cmd=put kvsname=job key=late value=1", BARRIER)
    nodes[0].say(1, BARRIER)
    assert nodes[0].fences[1:] == [(2, {"late": "1"})]


def test_each_barrier_is_one_of_its_own() -> None:
    node = Node().init()
    for _ in range(3):
        assert node.say(1, BARRIER) == []
        assert node.say(0, BARRIER) == [OUT]


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_a_dialogue_does_not_depend_on_how_it_is_cut(size: int) -> None:
    lines = "".join(f"{line}\n" for line, _ in START).encode()
    node = Node()
    for start in range(0, len(lines), size):
        node.receive(0, lines[start : start + size])
    assert node.heard[0] == [f"{answer}\n" for _, answer in START]


# Commands


def test_the_rest_of_the_commands() -> None:
    node = Node().init()
    assert node.say(0, "cmd=get_universe_size") == ["cmd=universe_size rc=0 size=16"]
    node = Node(universe_size=0).init()
    assert node.say(0, "cmd=get_universe_size") == ["cmd=universe_size rc=0 size=-1"], "as from Hydra"


def test_every_command_is_tested_here() -> None:
    assert {f"cmd={name}" for name in pmi1._COMMANDS} == {line.split()[0] for line in (INIT, *COMMANDS)}


def test_without_a_mapping_the_ranks_compare_host_names() -> None:
    # No library could read a longer one.
    node = Node(blocks=[[node, 1, 1] for node in (0, 1) * 70]).init()
    assert node.say(0, "cmd=get kvsname=job key=PMI_process_mapping") == [NOT_FOUND]


def test_keys_and_values_up_to_the_maximum_and_not_beyond() -> None:
    node = Node().init()
    value = "v" * (MAX_VALUE - 1) + "\xff"
    assert node.say(0, f"cmd=put kvsname=job key={'k' * MAX_KEY} value={value}") == ["cmd=put_result rc=0 msg=success"]
    assert node.say(0, f"cmd=get kvsname=job key={'k' * MAX_KEY}") == [f"cmd=get_result rc=0 msg=success value={value}"]
    refused = ["cmd=put_result rc=-1 msg=key_or_value_too_long"]
    assert node.say(0, f"cmd=put kvsname=job key={'k' * (MAX_KEY + 1)} value=v") == refused
    assert node.say(0, f"cmd=put kvsname=job key=k value={'v' * (MAX_VALUE + 1)}") == refused


def test_a_rank_cannot_fill_the_memory_by_its_puts() -> None:
    node = Node().init()
    lines = [f"cmd=put kvsname=job key=k{number} value={'v' * MAX_VALUE}" for number in range(MAX_PUTS // MAX_VALUE)]
    answers = node.say(0, *lines)
    assert answers[0] == "cmd=put_result rc=0 msg=success"
    assert answers[-1] == "cmd=put_result rc=-1 msg=too_much"
    assert node.say(1, lines[0]) == ["cmd=put_result rc=0 msg=success"]


def test_an_equals_sign_belongs_to_the_value() -> None:
    node = Node().init()
    node.say(0, "cmd=put kvsname=job key=k value=a=b==")
    assert node.say(0, "cmd=get kvsname=job key=k") == ["cmd=get_result rc=0 msg=success value=a=b=="]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        *((" exitcode=42", 42), (" exitcode=256", 0), (" exitcode=-1", 255)),
        *(("", 1), (" exitcode=", 1), (" exitcode=--3", 1), (" exitcode=\xb2", 1)),
    ],
)
def test_abort_tells_its_code_also_from_within_the_barrier(words: str, code: int) -> None:
    node = waiting(Node())
    assert node.say(0, f"cmd=abort{words}") == []
    assert node.aborts == [(0, code)]
    assert node.ended(0) == ABORTED


# Groups of version 1.2


def test_a_group_of_the_node_needs_nobody_else() -> None:
    node = Node((0, 1), size=4).init()
    assert node.say(0, "cmd=put kvsname=job key=k value=v", "cmd=barrier_in group=NODE")[1:] == []
    # A tag makes a barrier of its own.
    assert node.say(1, "cmd=barrier_in group=NODE:7") == []
    assert node.say(1, "cmd=barrier_in group=NODE") == [OUT]
    assert node.lines(0)[-1] == OUT and node.collectives == []
    assert node.say(0, "cmd=barrier_in group=NODE:7") == ["cmd=barrier_out rc=0 tag=7"]
    assert node.lines(1)[-1] == "cmd=barrier_out rc=0 tag=7"


def test_a_group_of_some_ranks_is_reported_with_their_numbers_and_all_hear_of_its_pairs_later() -> None:
    node = Node((0, 1), size=4).init()
    node.say(0, "cmd=put kvsname=job key=k value=v", "cmd=barrier_in group=0,2")
    assert node.collectives == [([["job", 0], ["job", 2]], 1, {"k": "v"})]
    node.collective_done.pop()({"parts": [{"k": "v"}, {"far": "1"}]})
    assert node.lines(0)[-1] == OUT
    assert node.say(1, "cmd=get kvsname=job key=far") == ["cmd=get_result rc=0 msg=success value=1"]
    for rank in (0, 1):
        node.say(rank, "cmd=barrier_in group=WORLD")
    assert node.collectives[1:] == [([["job", -1]], 2, {"k": "v"})]


def test_a_quick_rank_may_be_in_the_next_barrier_of_a_group() -> None:
    node = Node((0, 1, 2), size=3, blocks=[[0, 1, 3]]).init()
    for rank in (0, 1):
        node.say(rank, "cmd=barrier_in group=0,1")
    assert [node.lines(rank)[-1] for rank in (0, 1)] == [OUT, OUT]
    assert node.say(0, "cmd=barrier_in group=0,1:5") == []
    assert node.say(1, "cmd=barrier_in group=0,1:5") == ["cmd=barrier_out rc=0 tag=5"]
    assert node.lines(0)[-1] == "cmd=barrier_out rc=0 tag=5"


# Names and new worlds


def test_names_are_the_heads_affair() -> None:
    node = Node().init()
    requests: list[tuple[str, str, dict[str, Any], str, str]] = [
        ("publish_name service=s port=p", "publish", {"values": {"s": "p"}}, "", "publish_result rc=0 msg=success"),
        ("publish_name service=s port=p", "publish", {"values": {"s": "p"}}, "no", "publish_result rc=1 msg=name_is_taken"),
        ("unpublish_name service=s", "unpublish", {"names": ["s"]}, "", "unpublish_result rc=0 msg=success"),
        ("unpublish_name service=s", "unpublish", {"names": ["s"]}, "no", "unpublish_result rc=1 msg=no_such_name"),
    ]
    for line, what, details, answer, said in requests:
        assert node.say(0, f"cmd={line}") == []
        assert node.asked.pop() == (what, {"space": "pmi", **details})
        node.ask_done.pop()({"error": answer})
        assert node.lines(0)[-1] == f"cmd={said}"


@pytest.mark.parametrize(("values", "said"), [({"s": "p"}, "rc=0 msg=success port=p"), ({}, "rc=1 msg=no_such_name")])
def test_a_name_is_looked_up(values: dict[str, str], said: str) -> None:
    node = Node().init()
    assert node.say(0, "cmd=lookup_name service=s") == []
    assert node.asked == [("lookup", {"space": "pmi", "names": ["s"], "wait": False})]
    node.ask_done.pop()({"error": "", "values": values})
    assert node.lines(0)[-1] == f"cmd=lookup_result {said}"


SPAWN = [
    "mcmd=spawn",
    *("nprocs=2", "execname=./child", "totspawns=2", "spawnssofar=1", "arg1=a b", "arg2=c=d", "argcnt=2"),
    *("preput_num=1", "preput_key_0=PARENT_ROOT_PORT_NAME", "preput_val_0=tag#0$", "info_num=1"),
    *("info_key_0=wdir", "info_val_0=/tmp", "endcmd", "mcmd=spawn"),
    *("nprocs=1", "execname=other", "totspawns=2", "spawnssofar=2", "argcnt=0", "endcmd"),
]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"error": "", "world": "job.1", "counts": [2, 1]}, "rc=0 msg=success errcodes=0,0,0"),
        ({"error": "", "world": "job.1", "counts": [1, 1]}, "rc=0 msg=success errcodes=0,1,0"),
        ({"error": "no"}, "rc=-1 msg=could_not_spawn errcodes=1"),
    ],
)
def test_a_spawn_of_two_programs(answer: dict[str, object], said: str) -> None:
    node = Node().init()
    assert node.say(1, *SPAWN) == []
    first = {"program": ["./child", "a b", "c=d"], "count": 2, "environment": {}, "info": {"wdir": "/tmp"}}
    second = {"program": ["other"], "count": 1, "environment": {}, "info": {}}
    pairs = {"PARENT_ROOT_PORT_NAME": "tag#0$"}
    assert node.asked == [("spawn", {"world": "job", "rank": 1, "apps": [first, second], "pairs": pairs})]
    node.ask_done.pop()(answer)
    assert node.lines(1)[-1] == f"cmd=spawn_result {said}"
    # And on it goes.
    assert node.say(1, "cmd=get_universe_size") == ["cmd=universe_size rc=0 size=16"]


def test_a_spawned_world_begins_with_what_its_parent_put() -> None:
    node = Node(parent="job0", pairs={"PARENT_ROOT_PORT_NAME": "tag#0$"}).init()
    found = node.say(0, "cmd=get kvsname=job key=PARENT_ROOT_PORT_NAME")
    assert found == ["cmd=get_result rc=0 msg=success value=tag#0$"]


def test_the_first_that_begins_is_reported_once_each() -> None:
    assert Node((0, 1, 2), size=3).init().connected == [0, 1, 2]


# Order


@pytest.mark.parametrize("line", COMMANDS)
def test_nothing_comes_before_init(line: str) -> None:
    with pytest.raises(ProtocolError, match="from a rank that is absent"):
        Node().say(0, line)


@pytest.mark.parametrize("line", [INIT, *COMMANDS])
@pytest.mark.parametrize("last", ["cmd=finalize", "cmd=abort exitcode=1"])
def test_nothing_comes_after_the_last_word(last: str, line: str) -> None:
    node = Node().init()
    node.say(0, last)
    with pytest.raises(ProtocolError, match=r"from a rank that is (finalized|aborted)"):
        node.say(0, line)


def test_init_comes_once() -> None:
    with pytest.raises(ProtocolError, match="init from a rank that is connected"):
        Node().init().say(0, INIT)


@pytest.mark.parametrize("line", [line for line in COMMANDS if not line.startswith("cmd=abort")])
def test_a_rank_in_the_barrier_waits(line: str) -> None:
    with pytest.raises(ProtocolError, match="from a rank that is in the barrier"):
        waiting(Node()).say(0, line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cmd=dance", "unknown command 'cmd=dance'"),
        ("mcmd=dance", "unknown command 'mcmd=dance'"),
        ("mcmd=spawn\nendcmd", "a spawn that does not fit: KeyError('totspawns')"),
        ("mcmd=spawn\nnprocs=x\nexecname=a\ntotspawns=1\nargcnt=0\nendcmd", "a spawn that does not fit: ValueError"),
        ("mcmd=spawn\n" + "a=b\n" * 10_001, "a spawn of more than 10000 lines"),
        ("cmd=barrier_in group=0,7", "the group '0,7' has ranks that this world of 2 has not"),
        ("cmd=barrier_in group=1", "rank 0 is not in the group '1' of its barrier"),
        ("cmd=barrier_in group=x", "'x' is not a group"),
        ("", "unknown command ''"),
        ("hello", "'hello' is not key=value"),
        ("cmd=put kvsname=job key=k", "put without 'value'"),
        ("cmd=get kvsname=job", "get without 'key'"),
        ("x" * 5000, "a line of more than 4096 bytes"),
    ],
)
def test_what_is_not_the_protocol_is_named(line: str, words: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        Node().init().say(0, line)
    assert words in str(raised.value)
    assert len(str(raised.value)) < 200


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    node = Node()
    node.receive(0, b"x" * pmi1.LONGEST_LINE)
    with pytest.raises(ProtocolError, match="a line of more than 4096 bytes"):
        node.receive(0, b"x")


# Ranks that end


def test_a_rank_that_never_began_is_reported_and_not_waited_for() -> None:
    node = waiting(Node())
    assert node.ended(1) == CONNECTED
    assert node.fences == [(1, {})]
    node = Node()
    assert node.ended(1) == ABSENT
    node.say(0, INIT, BARRIER)
    # One rank of two: the head sees that the other will never come. Nobody goes on.
    assert node.fences == [(1, {})]
    assert OUT not in "".join(node.heard[0])


def test_a_node_tells_a_fence_once_whoever_ends_meanwhile() -> None:
    node = waiting(Node((0, 1), size=4))
    node.say(1, BARRIER)
    node.ended(0)
    assert node.fences == [(2, {})]
    node.ended(1)
    assert node.fences == [(2, {})]


def test_nobody_waits_where_all_have_ended() -> None:
    node = Node().init()
    for rank in (0, 1):
        assert node.ended(rank) == CONNECTED
    assert node.fences == []


# An enemy

WORDS = st.sampled_from([INIT, *COMMANDS, "mcmd=spawn", "cmd=", "=", " ", "cmd=put key=k value=", "\xff"]).map(str.encode)
BYTES = st.lists(st.one_of(WORDS, st.binary(max_size=30), st.just(b"\n")), max_size=40).map(b"".join)


@given(st.lists(st.tuples(st.integers(0, 1), BYTES), max_size=12))
def test_any_bytes_are_answered_or_refused(pieces: list[tuple[int, bytes]]) -> None:
    node = Node()
    cut_off = set()
    for rank, data in pieces:
        if rank not in cut_off:
            try:
                node.receive(rank, data)
            except ProtocolError:
                cut_off.add(rank)
    for answers in node.heard.values():
        assert all(answer.startswith("cmd=") and answer.endswith("\n") and answer.count("\n") == 1 for answer in answers)
    for rank in (0, 1):
        assert node.ended(rank) in (ABSENT, CONNECTED, FINALIZED, ABORTED)
