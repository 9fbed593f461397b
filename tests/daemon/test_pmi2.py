"""PMI-2: dialogues as libpmi2 holds them, over the same world as PMI-1, and bytes from an enemy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.daemon.mpi import pmi2
from mpilaunch.daemon.mpi.pmi import FINALIZED, ProtocolError
from tests.support.mpi.pmi import INIT, Node
from tests.support.mpi.pmi2 import INIT_2, begun, last, message, say


def test_a_dialogue_of_two_ranks() -> None:
    node = begun()
    assert say(node, 0, "cmd=job-getid;") == "cmd=job-getid-response;rc=0;jobid=job;"
    mapping = "cmd=info-getjobattr-response;rc=0;found=TRUE;value=(vector,(0,2,2));"
    assert say(node, 0, "cmd=info-getjobattr;key=PMI_process_mapping;") == mapping
    assert say(node, 1, "cmd=info-getjobattr;key=universeSize;").endswith("value=16;")
    node.world.universe_size = 0
    assert say(node, 1, "cmd=info-getjobattr;key=universeSize;") == "cmd=info-getjobattr-response;rc=0;found=FALSE;"
    assert say(node, 1, "cmd=info-getjobattr;key=other;") == "cmd=info-getjobattr-response;rc=0;found=FALSE;"
    # A semicolon is doubled, and the thread that asks is named in the answer.
    assert say(node, 0, "cmd=kvs-put;thrid=7;key=k;value=a;;b=c;") == "cmd=kvs-put-response;thrid=7;rc=0;"
    assert say(node, 0, "cmd=kvs-fence;") == ""
    assert say(node, 1, "cmd=kvs-fence;") == "cmd=kvs-fence-response;rc=0;"
    assert last(node, 0) == "cmd=kvs-fence-response;rc=0;"
    assert say(node, 1, "cmd=kvs-get;jobid=job;srcid=-1;key=k;") == "cmd=kvs-get-response;rc=0;found=TRUE;value=a;;b=c;"
    assert say(node, 1, "cmd=kvs-get;jobid=job;srcid=-1;key=x;") == "cmd=kvs-get-response;rc=0;found=FALSE;"
    for rank in (0, 1):
        assert say(node, rank, "cmd=finalize;") == "cmd=finalize-response;rc=0;"
        assert node.ended(rank) == FINALIZED
    assert node.collectives == []


def test_attributes_of_the_node_and_who_waits_for_them() -> None:
    node = begun()
    assert say(node, 0, "cmd=info-getnodeattr;key=a;wait=FALSE;") == "cmd=info-getnodeattr-response;rc=0;found=FALSE;"
    assert say(node, 0, "cmd=info-getnodeattr;key=a;wait=TRUE;") == ""
    assert say(node, 1, "cmd=info-putnodeattr;key=a;value=1;") == "cmd=info-putnodeattr-response;rc=0;"
    assert last(node, 0) == "cmd=info-getnodeattr-response;rc=0;found=TRUE;value=1;"
    too_long = f"cmd=info-putnodeattr;key=a;value={'v' * 2000};"
    assert say(node, 1, too_long) == "cmd=info-putnodeattr-response;rc=1;errmsg=key_or_value_too_long;"


def test_two_nodes_and_a_rank_of_pmi_1_share_a_world() -> None:
    node = Node((0, 1), size=4)
    node.say(0, INIT, "cmd=put kvsname=job key=a value=1", "cmd=barrier_in")
    node.receive(1, INIT_2 + message("cmd=fullinit;") + message("cmd=kvs-put;key=b;value=2;") + message("cmd=kvs-fence;"))
    assert node.fences == [(2, {"a": "1", "b": "2"})]
    node.collective_done.pop()({"parts": [{"c": "3"}]})
    assert last(node, 1) == "cmd=kvs-fence-response;rc=0;" and node.heard[0][-1] == "cmd=barrier_out rc=0\n"
    assert say(node, 1, "cmd=kvs-get;key=c;").endswith("value=3;")


def test_names_and_spawn() -> None:
    node = begun()
    conversation: list[tuple[str, dict[str, Any], str]] = [
        ("cmd=name-publish;name=s;port=p;infokeycount=0;", {"error": ""}, "cmd=name-publish-response;rc=0;"),
        ("cmd=name-publish;name=s;port=p;infokeycount=0;", {"error": "no"}, "cmd=name-publish-response;rc=1;"),
        ("cmd=name-unpublish;name=s;", {"error": ""}, "cmd=name-unpublish-response;rc=0;"),
        ("cmd=name-lookup;name=s;", {"values": {"s": "p"}}, "cmd=name-lookup-response;rc=0;port=p;value=p;"),
        ("cmd=name-lookup;name=s;", {"values": {}}, "cmd=name-lookup-response;rc=1;"),
        ("cmd=spawn;ncmds=1;preputcount=0;subcmd=x;maxprocs=1;argc=0;", {"error": "no"}, "cmd=spawn-response;rc=1;"),
    ]
    for text, answer, said in conversation:
        assert say(node, 0, text) == ""
        node.ask_done.pop()(answer)
        assert last(node, 0).startswith(said)
    spawn = "cmd=spawn;ncmds=1;preputcount=1;ppkey0=k;ppval0=v;subcmd=./x;maxprocs=2;argc=1;argv0=a b;infokeycount=0;"
    assert say(node, 0, spawn) == ""
    app = {"program": ["./x", "a b"], "count": 2, "environment": {}, "info": {}}
    assert node.asked[-1] == ("spawn", {"world": "job", "rank": 0, "apps": [app], "pairs": {"k": "v"}})
    node.ask_done.pop()({"error": "", "world": "job.1", "counts": [2]})
    assert last(node, 0) == "cmd=spawn-response;rc=0;jobid=job.1;nerrs=0;"


def test_words_of_a_spawn_are_those_of_the_rank() -> None:
    node = begun()
    word = "\u00e4\u65e5".encode().decode("latin-1")  # as the connection takes bytes
    program = f"subcmd={word};maxprocs=1;argc=1;argv0=\xff;infokeycount=0;"
    say(node, 0, f"cmd=spawn;ncmds=1;preputcount=1;ppkey0=k;ppval0={word};{program}")
    (_, request) = node.asked[-1]
    assert request["apps"][0]["program"] == ["\u00e4\u65e5", "\udcff"]
    assert request["pairs"] == {"k": word}, "which the spawned ranks read in the same encoding"


def test_a_spawned_world_knows_its_parent() -> None:
    node = Node(parent="job0")
    node.receive(0, INIT_2)
    assert "spawner-jobid=job0;" in say(node, 0, "cmd=fullinit;")


def test_abort() -> None:
    node = begun()
    assert say(node, 1, "cmd=abort;isworld=TRUE;msg=help;") == ""
    assert node.aborts == [(1, 1)]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"   abcx", "'   abc' is not the length of a message"),
        (b"999999", "'999999' is not the length of a message"),
        (message("cmd=dance;"), "unknown command 'dance'"),
        (message("hello;"), "'hello' is not key=value"),
        (message("cmd=kvs-get;"), "kvs-get does not fit: KeyError('key')"),
        (message("cmd=fullinit;"), "fullinit from a rank that is connected"),
        (message("cmd=spawn;preputcount=x;"), "spawn does not fit: ValueError"),
    ],
)
def test_what_is_not_the_protocol_is_named(data: bytes, words: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        begun().receive(0, data)
    assert words in str(raised.value) and len(str(raised.value)) < 200


def test_nothing_comes_before_fullinit_nor_after_the_end() -> None:
    node = Node()
    node.receive(0, INIT_2)
    with pytest.raises(ProtocolError, match="job-getid from a rank that is not initialized"):
        say(node, 0, "cmd=job-getid;")
    node = begun()
    say(node, 0, "cmd=finalize;")
    with pytest.raises(ProtocolError, match="from a rank that is finalized"):
        say(node, 0, "cmd=job-getid;")


WORDS = st.sampled_from([f"cmd={name};key=k;value=v;wait=TRUE;name=n;port=p;" for name in pmi2._COMMANDS]).map(message)


@given(st.lists(st.one_of(WORDS, st.binary(max_size=20)), max_size=20).map(b"".join), st.integers(1, 50))
def test_any_bytes_are_answered_or_refused(data: bytes, size: int) -> None:
    node = begun()
    try:
        for start in range(0, len(data), size):
            node.receive(0, data[start : start + size])
    except ProtocolError as error:
        assert len(str(error)) < 300
    for text in node.heard[0][1:]:
        assert int(text[:6]) == len(text) - 6
