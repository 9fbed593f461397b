"""PMI-1: whole dialogues as MPICH holds them, every command, every order, and bytes from an enemy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.daemon import pmi1
from mpilaunch.daemon.pmi1 import ABORTED, ABSENT, CONNECTED, FINALIZED, MAX_KEY, MAX_PUTS, MAX_VALUE, Pmi1Server, ProtocolError

INIT = "cmd=init pmi_version=1 pmi_subversion=1"
BARRIER = "cmd=barrier_in"
OUT = "cmd=barrier_out rc=0"
MAPPING = "(vector,(0,2,2))"
NOT_FOUND = "cmd=get_result rc=-1 msg=key_not_found value=unknown"

START = [
    (INIT, "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1"),
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


@dataclass
class Node:
    """One node's server, with all that it says."""

    ranks: Sequence[int] = (0, 1)
    size: int = 2
    mapping: str = MAPPING
    heard: dict[int, list[str]] = field(default_factory=dict)
    fences: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    aborts: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = Pmi1Server(
            "job",
            self.size,
            16,
            list(self.ranks),
            self.mapping,
            lambda rank, data: self.heard.setdefault(rank, []).append(data.decode("latin-1")),
            lambda ranks, pairs: self.fences.append((ranks, dict(pairs))),
            lambda rank, code: self.aborts.append((rank, code)),
        )

    def say(self, rank: int, *lines: str) -> list[str]:
        """Let a rank say lines; return the lines that it hears for it."""
        before = len(self.heard.get(rank, ()))
        self.server.receive(rank, "".join(f"{line}\n" for line in lines).encode("latin-1"))
        answers = self.heard.get(rank, [])[before:]
        assert all(answer.endswith("\n") and answer.count("\n") == 1 for answer in answers)
        return [answer[:-1] for answer in answers]

    def init(self) -> Node:
        """Let all ranks begin."""
        for rank in self.ranks:
            self.say(rank, INIT)
        return self

    def waiting(self) -> Node:
        """Let all ranks begin and come to the barrier, but for the last."""
        self.init()
        for rank in self.ranks[:-1]:
            assert self.say(rank, BARRIER) == []
        return self


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
    assert node.heard[0][-1] == f"{OUT}\n"
    for rank in (0, 1):
        card = f"cmd=get_result rc=0 msg=success value=description#host{1 - rank}$port#4{1 - rank}$"
        assert node.say(rank, f"cmd=get kvsname=job key=P{1 - rank}-businesscard") == [card]
        assert node.say(rank, "cmd=finalize") == ["cmd=finalize_ack rc=0"]
        assert node.server.ended(rank) == FINALIZED
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
        node.server.release(pairs)
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
        node.server.receive(0, lines[start : start + size])
    assert node.heard[0] == [f"{answer}\n" for _, answer in START]


# Commands


def test_the_rest_of_the_commands() -> None:
    node = Node().init()
    assert node.say(0, "cmd=get_universe_size") == ["cmd=universe_size rc=0 size=16"]
    assert node.say(0, "cmd=publish_name service=s port=p") == ["cmd=publish_result rc=-1 msg=not_supported"]
    assert node.say(0, "cmd=unpublish_name service=s") == ["cmd=unpublish_result rc=-1 msg=not_supported"]
    assert node.say(0, "cmd=lookup_name service=s") == ["cmd=lookup_result rc=-1 msg=not_supported"]


def test_every_command_is_tested_here() -> None:
    assert {f"cmd={name}" for name in pmi1._COMMANDS} == {line.split()[0] for line in (INIT, *COMMANDS)}


def test_without_a_mapping_the_ranks_compare_host_names() -> None:
    assert Node(mapping="").init().say(0, "cmd=get kvsname=job key=PMI_process_mapping") == [NOT_FOUND]


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
    node = Node().waiting()
    assert node.say(0, f"cmd=abort{words}") == []
    assert node.aborts == [(0, code)]
    assert node.server.ended(0) == ABORTED


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
        Node().waiting().say(0, line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cmd=dance", "unknown command 'cmd=dance'"),
        ("mcmd=spawn", "unknown command 'mcmd=spawn'"),
        ("", "unknown command ''"),
        ("hello", "'hello' is not key=value"),
        ("cmd=put kvsname=job key=k", "put without 'value'"),
        ("cmd=get kvsname=job", "get without 'key'"),
        ("x" * 5000, "is not key=value"),
    ],
)
def test_what_is_not_the_protocol_is_named(line: str, words: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        Node().init().say(0, line)
    assert words in str(raised.value)
    assert len(str(raised.value)) < 200


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    node = Node()
    node.server.receive(0, b"x" * pmi1.LONGEST_LINE)
    with pytest.raises(ProtocolError, match="a line of more than 4096 bytes"):
        node.server.receive(0, b"x")


# Ranks that end


def test_a_rank_that_never_began_is_not_waited_for_but_told_of() -> None:
    node = Node().waiting()
    assert node.server.ended(1) == CONNECTED
    assert node.fences == [(1, {})]
    node = Node()
    assert node.server.ended(1) == ABSENT
    node.say(0, INIT, BARRIER)
    # One rank of two: the head sees that the other will never come. Nobody goes on.
    assert node.fences == [(1, {})]
    assert OUT not in "".join(node.heard[0])


def test_a_node_tells_a_fence_once_whoever_ends_meanwhile() -> None:
    node = Node((0, 1), size=4).waiting()
    node.say(1, BARRIER)
    node.server.ended(0)
    assert node.fences == [(2, {})]
    node.server.ended(1)
    assert node.fences == [(2, {})]


def test_nobody_waits_where_all_have_ended() -> None:
    node = Node().init()
    for rank in (0, 1):
        assert node.server.ended(rank) == CONNECTED
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
                node.server.receive(rank, data)
            except ProtocolError:
                cut_off.add(rank)
    for answers in node.heard.values():
        assert all(answer.startswith("cmd=") and answer.endswith("\n") and answer.count("\n") == 1 for answer in answers)
    for rank in (0, 1):
        assert node.server.ended(rank) in (ABSENT, CONNECTED, FINALIZED, ABORTED)
