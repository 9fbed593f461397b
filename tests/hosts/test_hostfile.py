"""Every dialect of hostfile reads into the same entries, prints back, and is refused where it is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import UsageError
from mpilaunch.hosts.hostfile import MOST_MISTAKES, HostEntry, parse_host_list, parse_hostfile
from mpilaunch.hosts.nodeset import fold_numbers
from mpilaunch.hosts.remote_names import is_login_name


def read(text: str) -> list[HostEntry]:
    return [entry._replace(origin="") for entry in parse_hostfile(text, "hosts.txt")]


DIALECTS = {
    "Open MPI": ("node01 slots=4 max_slots=8", [HostEntry("node01", 4, 8)]),
    "Open MPI, blanks round =": ("node01  slots = 4 max-slots =8", [HostEntry("node01", 4, 8)]),
    "Open MPI, cpu": ("node01 cpu=4 max_cpu=8", [HostEntry("node01", 4, 8)]),
    "Open MPI, count": ("node01 count=4 count-max=8", [HostEntry("node01", 4, 8)]),
    "Open MPI, maxslots": ("node01 maxslots=8", [HostEntry("node01", None, 8)]),
    "Open MPI, user@host": ("bob@node01 port=2222", [HostEntry("node01", user="bob", port=2222)]),
    "Open MPI, user keys": (
        "a user=bob\nb username=bob\nc user-name=bob\nd user_name=\"bob\"",
        [HostEntry(name, user="bob") for name in "abcd"],
    ),
    "Open MPI, quoted count": ('node01 slots="4"', [HostEntry("node01", 4)]),
    "Open MPI, topology": ("node01 boards=1 sockets=2 sockets_per_board=2 cores=8 slots=4", [HostEntry("node01", 4)]),
    "Open MPI, comments": (
        "# all\n// all\n\na # rest\nb//rest\n/* several\n lines */ c /* inside */ slots=2\n",
        [HostEntry("a"), HostEntry("b"), HostEntry("c", 2)],
    ),
    "Open MPI, numbers as names": ("12 slots=2", [HostEntry("12", 2)]),
    "Hydra": ("node01:4 binding=user:0+2 user=bob", [HostEntry("node01", 4, user="bob")]),
    "DeepSpeed": ("worker-1 slots=8\nworker-2 slots=8\n", [HostEntry("worker-1", 8), HostEntry("worker-2", 8)]),
    "Horovod": ("h1.example:2", [HostEntry("h1.example", 2)]),
    "MPIJob": ("pi-worker-0.pi.default.svc slots=1", [HostEntry("pi-worker-0.pi.default.svc", 1)]),
    "PBS": ("n1\nn1\nn2\n", [HostEntry("n1"), HostEntry("n1"), HostEntry("n2")]),
    "pdsh": ("node[01-02]", [HostEntry("node01"), HostEntry("node02")]),
    "pdsh, a list": ("a,n[1,3]:2", [HostEntry("a"), HostEntry("n1", 2), HostEntry("n3", 2)]),
    "ranges with keys": ("n[1-2]:4 port=22", [HostEntry("n1", 4, port=22), HostEntry("n2", 4, port=22)]),
    "pssh": ("bob@node01", [HostEntry("node01", user="bob")]),
    "CRLF": ("a\r\n\r\nb slots=2\r\n", [HostEntry("a"), HostEntry("b", 2)]),
    "CR": ("a\rb", [HostEntry("a"), HostEntry("b")]),
    "byte order mark": ("\ufeffa", [HostEntry("a")]),
    "tabs": ("\ta\tslots=2\t", [HostEntry("a", 2)]),
    "IPv4": ("10.0.0.7:2", [HostEntry("10.0.0.7", 2)]),
    "IPv6": ("fe80::1", [HostEntry("fe80::1")]),
    "IPv6, looks like a count": ("2001:db8::1:4 slots=2", [HostEntry("2001:db8::1:4", 2)]),
    "IPv6, zone": ("fe80::1%eth0", [HostEntry("fe80::1%eth0")]),
    "IPv6, slots": ("[fe80::1]:4", [HostEntry("fe80::1", 4)]),
    "IPv6, brackets and key": ("[2001:db8::1] slots=2", [HostEntry("2001:db8::1", 2)]),
    "IPv6, user": ("bob@[fe80::1]:4", [HostEntry("fe80::1", 4, user="bob")]),
    "agent": ("a agent=openssh", [HostEntry("a", agent="openssh")]),
    "agent, template": ('a agent="tsh ssh {host} # //x"', [HostEntry("a", agent="tsh ssh {host} # //x")]),
    "agent, single quotes": ("a agent='say \"x\"' slots=1", [HostEntry("a", 1, agent='say "x"')]),
    "agent, doubled quote": ('a agent="say ""x"""', [HostEntry("a", agent='say "x"')]),
    "gpus": ("a gpus=0-3", [HostEntry("a", gpus=("0", "1", "2", "3"))]),
    "gpus in order": ("a gpus=3,0", [HostEntry("a", gpus=("3", "0"))]),
    "gpus, UUIDs": ("a gpus=GPU-8a1b,MIG-1c/2/0", [HostEntry("a", gpus=("GPU-8a1b", "MIG-1c/2/0"))]),
    "gpus=none": ("a gpus=none", [HostEntry("a", gpus=())]),
    "cpus": ("a cpus=0-2,8", [HostEntry("a", cpus=(0, 1, 2, 8))]),
    "no slots": ("a slots=0", [HostEntry("a", 0)]),
    "by place": ("+n0:2\n+N3 slots=4\n+e,+e:2", [HostEntry("+n0", 2), HostEntry("+n3", 4), HostEntry("+e"), HostEntry("+e:2")]),
    "local": ("local:2\nlocal:2", [HostEntry("local", 2), HostEntry("local", 2)]),
    "apostrophe in a comment": ("a # don't\nb # don't", [HostEntry("a"), HostEntry("b")]),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialect(dialect: str) -> None:
    text, entries = DIALECTS[dialect]
    assert read(text) == entries


def test_origin_is_source_and_line() -> None:
    assert [entry.origin for entry in parse_hostfile("\na\n/*\n*/ n[1-2]", "hosts.txt")] == [
        "hosts.txt:2",
        "hosts.txt:4",
        "hosts.txt:4",
    ]


REFUSED = [
    # text, reference, column, what the message tells, what the hint tells
    ("", "hostfile-empty", 1, "no hosts", "one host per line"),
    ("# only\n\n", "hostfile-empty", 1, "no hosts", "one host per line"),
    ("a slots=two", "hostfile-slots", 9, "'two' is not a number of slots", "whole number"),
    ("a slots=-1", "hostfile-slots", 9, "'-1' is not a number of slots", "whole number"),
    ("a slots=", "hostfile-syntax", 3, "'slots=' has no value", "key=value"),
    ('a slots=""', "hostfile-slots", 9, "the number of slots is missing", "whole number"),
    ("a slots=65537", "hostfile-slots", 9, "more than the 65,536", None),
    ("a slots=3 max_slots=2", "hostfile-slots", 21, "max_slots=2 is less than slots=3", "--oversubscribe"),
    ("a max_slots=0", "hostfile-slots", 13, "max_slots is 0", "slots=0"),
    ("a slots=2 count=2", "hostfile-slots", 11, "slots is given twice", "once"),
    ("a:2 slots=2", "hostfile-slots", 11, "slots is given twice: 'a:2' gives it too", "once"),
    ("bob@a user=bob", "hostfile-key", 12, "user is given twice", "once"),
    ("a port=1 port=1", "hostfile-key", 10, "port is given twice", "once"),
    ("a port=0", "hostfile-port", 8, "'0' is not a port", "1 to 65535"),
    ("a port=65536", "hostfile-port", 8, "'65536' is not a port", "1 to 65535"),
    ("a port=ssh", "hostfile-port", 8, "'ssh' is not a port", "1 to 65535"),
    ("a slot=2", "hostfile-key", 3, "unknown key 'slot'", "did you mean slots=?"),
    ("a gpu=0", "hostfile-key", 3, "unknown key 'gpu'", "did you mean gpus=?"),
    ("a colour=red", "hostfile-key", 3, "unknown key 'colour'", "slots, max_slots, user, port, agent, gpus, cpus"),
    ("a 4", "hostfile-syntax", 3, "'4' is not 'key=value'", "node01 slots=4"),
    ("a b", "hostfile-syntax", 3, "'b' is not 'key=value'", "one host per line"),
    ("slots=4", "hostfile-syntax", 1, "stands where a host name belongs", "node01 slots=4"),
    ('a agent="x', "hostfile-syntax", 9, "this quote is never closed", "two words"),
    ('a agent=""', "hostfile-key", 9, "agent= is empty", "agent=ssh"),
    ("a /* b", "hostfile-syntax", 3, "never closed", "*/"),
    ("a:x", "hostfile-slots", 3, "'x' is not a number of slots", "whole number"),
    ("a:", "hostfile-slots", 3, "the number of slots is missing", "whole number"),
    ("a:-1", "hostfile-slots", 3, "'-1'", "whole number"),
    (":4", "hostfile-name", 1, "a host name is missing", None),
    ("a,,b", "hostfile-name", 3, "a host name is missing", None),
    ("@a", "hostfile-name", 1, "groups of hosts are not known here", "name the hosts"),
    ("-oProxyCommand=x@a", "hostfile-syntax", 1, "stands where a host name belongs", None),
    ("a user=$(id)", "hostfile-user", 8, "'$(id)' is not a login name", "user@host"),
    ("a user=a;id", "hostfile-user", 8, "'a;id' is not a login name", "user@host"),
    ("-l@a", "hostfile-user", 1, "'-l' is not a login name", "user@host"),
    ("-v", "hostfile-name", 1, "'-v' is not a host name", "letter or digit"),
    ("a;b", "hostfile-name", 1, "'a;b' is not a host name", "letters, digits"),
    ("^a", "hostfile-exclude", 1, "'^a' excludes a host", "--host"),
    ("+2", "host-relative", 1, "'+2' names no node by its place", "+n0 for the first node"),
    ("+e0", "host-relative", 1, "'+e0' names no node by its place", "+e:2 for two"),
    ("a,+n0:x", "hostfile-slots", 7, "'x' is not a number of slots", "whole number"),
    ("a:1:2", "hostfile-name", 1, "'a:1:2' is not an IPv6 address", "one colon"),
    ("[fe80::x]:2", "hostfile-name", 2, "'fe80::x' is not an IPv6 address", "fe80::1"),
    ("[fe80::1]x", "hostfile-name", 10, "'x' behind an address", "[fe80::1]:4"),
    ("n[1-2", "nodeset-syntax", 2, "'[' is never closed", "brackets"),
    ("n[2-1]", "nodeset-syntax", 3, "reversed", "1-2"),
    ("a gpus=two", "hostfile-gpus", 8, "'two' is not a GPU", "indices like 0-3"),
    ("a gpus=0,,1", "hostfile-gpus", 10, "'' is not a GPU", "indices like 0-3"),
    ("a gpus=0-1,1", "hostfile-gpus", 8, "GPU 1 is named twice", "once"),
    ("a gpus=3-0", "nodeset-syntax", 8, "reversed", "0-3"),
    ("a cpus=x", "nodeset-syntax", 8, "'x' is not a number", "0-3,8"),
    ("a cpus=1,1", "hostfile-cpus", 8, "CPU 1 is named twice", "once"),
]


@pytest.mark.parametrize(("text", "reference", "column", "told", "hint"), REFUSED, ids=[case[0] for case in REFUSED])
def test_refused(text: str, reference: str, column: int, told: str, hint: str | None) -> None:
    source = "\n\n" + text if reference != "hostfile-empty" else text
    line = 3 if reference != "hostfile-empty" else 1
    with pytest.raises(UsageError) as caught:
        parse_hostfile(source, "hosts.txt")
    error = caught.value
    assert error.message.startswith(f"hosts.txt:{line}:{column}: ")
    assert told in error.message
    assert error.reference == reference
    assert hint is None or hint in (error.hint or "")
    if reference != "hostfile-empty":
        shown, caret = error.context
        assert shown == text
        assert caret.index("^") == column - 1


def test_the_whole_error() -> None:
    with pytest.raises(UsageError) as caught:
        parse_hostfile("node01 slots=4\nnode02 slots=two # later\n", "hosts.txt")
    error = caught.value
    assert error.message == "hosts.txt:2:14: 'two' is not a number of slots"
    assert error.context == ("node02 slots=two # later", "             ^^^")
    assert error.hint == "write a whole number, 0 or more, like slots=4 or node01:4"


def test_host_list() -> None:
    assert parse_host_list("a:2, b,node[01-02]:4,bob@h,[fe80::1]:3") == [
        HostEntry("a", 2, origin="--host"),
        HostEntry("b", origin="--host"),
        HostEntry("node01", 4, origin="--host"),
        HostEntry("node02", 4, origin="--host"),
        HostEntry("h", user="bob", origin="--host"),
        HostEntry("fe80::1", 3, origin="--host"),
    ]


@pytest.mark.parametrize(
    ("text", "reference", "column"),
    [
        ("", "hostfile-name", 1),
        ("a,", "hostfile-name", 3),
        ("a,b:x", "hostfile-slots", 5),
        ("a slots=2", "hostfile-name", 1),
        ("a,+e2", "host-relative", 3),
        ("+n", "host-relative", 1),
        ("^a", "hostfile-exclude", 1),
    ],
)
def test_host_list_refuses(text: str, reference: str, column: int) -> None:
    with pytest.raises(UsageError) as caught:
        parse_host_list(text)
    assert caught.value.reference == reference
    assert caught.value.message.startswith(f"--host:1:{column}: ")


FIELDS = ("slots", "max_slots", "user", "port", "agent", "gpus", "cpus")


def format_hostfile(entries: Sequence[HostEntry]) -> str:
    """Return a hostfile that `parse_hostfile` reads as the same entries, but for their origin."""
    return "".join(" ".join((format_name(entry), *format_keys(entry))) + "\n" for entry in entries)


def format_name(entry: HostEntry) -> str:
    """Return the name, with `:*` where the host has a slot for each core."""
    return (f"[{entry.name}]:*" if ":" in entry.name else f"{entry.name}:*") if entry.by_cores else entry.name


def format_keys(entry: HostEntry) -> Iterator[str]:
    """Return `key=value` for all that the entry says."""
    for field in FIELDS:
        value = getattr(entry, field)
        if value is None:
            continue
        if field == "gpus":
            value = ",".join(value) or "none"
        elif field == "cpus":
            value = fold_numbers(value) if list(value) == sorted(value) else ",".join(map(str, value))
        yield f"{field}={quoted(str(value))}"


def quoted(text: str) -> str:
    plain = text and not re.search(r"""[\s"'#]|//|/\*""", text)
    return text if plain else '"' + text.replace('"', '""') + '"'


def test_format_hostfile() -> None:
    entries = [
        HostEntry("a", 4, 8, "bob", 22, "tsh ssh {host}", ("0", "1"), (0, 1, 2, 8)),
        HostEntry("fe80::1"),
        HostEntry("b", gpus=(), cpus=(3, 1)),
        HostEntry("c", by_cores=True),
    ]
    assert format_hostfile(entries) == (
        'a slots=4 max_slots=8 user=bob port=22 agent="tsh ssh {host}" gpus=0,1 cpus=0-2,8\nfe80::1\nb gpus=none cpus=3,1\n'
        'c:*\n'
    )


def optional(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | strategy


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=8)
ENTRIES = st.builds(
    HostEntry,
    name=st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True) | st.ip_addresses().map(str),
    slots=optional(st.integers(0, 8)),
    max_slots=optional(st.integers(8, 20)),
    user=optional(WORDS.filter(is_login_name)),
    port=optional(st.integers(1, 65535)),
    agent=optional(st.lists(WORDS, min_size=1, max_size=3).map(" ".join)),
    gpus=optional(st.lists(st.integers(0, 20).map(str) | st.just("GPU-8a1b"), unique=True).map(tuple)),
    cpus=optional(st.lists(st.integers(0, 40), unique=True, min_size=1).map(tuple)),
    origin=st.just(""),
    namespace=st.none(),
    container=st.none(),
    by_cores=st.booleans(),
)


@given(st.lists(ENTRIES, min_size=1, max_size=5))
def test_what_is_printed_reads_back_the_same(entries: list[HostEntry]) -> None:
    assert read(format_hostfile(entries)) == entries


@given(st.text(max_size=40) | st.text("ab:@[]0-9,=slots gpu#/*\"'\n\r^+", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        entries = parse_hostfile(text, "fuzz")
    except UsageError as error:
        assert error.message.startswith("fuzz:")
    else:
        assert read(format_hostfile(entries)) == [entry._replace(origin="") for entry in entries]


def test_every_line_with_a_mistake_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        parse_hostfile("a slots=x\nb\nc:y\nd user=\n", "hosts.txt")
    error = caught.value
    assert error.message == "hosts.txt:1:9: 'x' is not a number of slots"
    assert error.context[0] == "a slots=x"
    assert [line.partition(": ")[0] for line in error.context[2:]] == ["hosts.txt:3:3", "hosts.txt:4:3"]


def test_a_file_of_mistakes_has_a_short_error() -> None:
    with pytest.raises(UsageError) as caught:
        parse_hostfile("a slots=x\n" * 10_000, "hosts.txt")
    assert len(caught.value.context) == 2 + MOST_MISTAKES - 1 + 1
    assert caught.value.context[-1] == "only the first 10 lines with a mistake are shown"
