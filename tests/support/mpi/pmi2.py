"""A node whose ranks speak PMI-2, without a daemon around it."""

from __future__ import annotations

from tests.support.mpi.pmi import Node

INIT_2 = b"cmd=init pmi_version=2 pmi_subversion=0\n"


def message(text: str) -> bytes:
    """Return a message with its length before it."""
    return b"%6d" % len(text) + text.encode("latin-1")


def say(node: Node, rank: int, text: str) -> str:
    """Let a rank say a message; return the answer, "" for none yet."""
    before = len(node.heard.get(rank, ()))
    node.receive(rank, message(text))
    return last(node, rank) if len(node.heard.get(rank, ())) > before else ""


def last(node: Node, rank: int) -> str:
    """Return the last message that a rank has heard."""
    text = node.heard[rank][-1]
    assert int(text[:6]) == len(text) - 6
    return text[6:]


def begun(**members: object) -> Node:
    """Return a node whose ranks have begun."""
    node = Node(**members)  # type: ignore[arg-type]
    for rank in node.ranks:
        node.receive(rank, INIT_2)
        assert node.heard[rank] == ["cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n"]
        answer = say(node, rank, f"cmd=fullinit;pmijobid=job;pmirank={rank};threaded=FALSE;")
        said = f"rc=0;pmi-version=2;pmi-subversion=0;rank={rank};size={node.size};appnum=0;"
        assert answer.startswith(f"cmd=fullinit-response;{said}")
    return node
