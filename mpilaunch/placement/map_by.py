"""What --map-by, --rank-by, --bind-to and the options beside them say together, in the words of Open MPI 4, 5 and of Hydra.

Pure: the values of these options in, the two policies out, or an error that says what to write instead.

    --map-by   [ place ] { ":" modifier }     place := slot | node | OBJECT | ppr:N:node | ppr:N:OBJECT | seq | rankfile
                                                       | pe-list=LIST
    --rank-by  slot | node | fill | span | OBJECT [ ":span" ]
    --bind-to  none | OBJECT [ ":" N ] | cpu-list | rr | user:LIST  { ":" modifier }

An OBJECT is a part of a node: `places.OBJECTS`, or `package`, which is a socket. Case does not matter; Open MPI 4 also puts a
comma between modifiers. Nothing is bound unless somebody asks for it: with --bind-to, or with an object or PE=N in --map-by.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from mpilaunch.errors import UsageError
from mpilaunch.hosts.nodeset import Span, parse_numbers
from mpilaunch.placement.cpu_binding import CpuPolicy
from mpilaunch.placement.policy import MappingPolicy
from mpilaunch.placement.topology import OBJECTS
from mpilaunch.text import did_you_mean, is_whole_number

_MAP_HINT = "--map-by is slot, node, an object like core, numa or socket, ppr:N:OBJECT, seq or rankfile; see docs/mapping.md"
_BIND_HINT = "--bind-to is none, an object like core, numa or socket, cpu-list, rr or user:LIST; see docs/mapping.md"
_RANK_HINT = "--rank-by is slot, node, fill, span or an object like core or socket, also with :span; see docs/mapping.md"

_ALIASES = {"package": "socket", "l1": "l1cache", "l2": "l2cache", "l3": "l3cache"}
_INSTEAD = {
    "board": "Open MPI 5 has no boards either: say socket or node",
    "dist": "to be near a GPU say --bind-to numa: a rank is bound to the NUMA node of its GPU",
    "mindist": "to be near a GPU say --bind-to numa: a rank is bound to the NUMA node of its GPU",
    **dict.fromkeys(("pci", "gpu", "ib", "eth", "hfi"), "say numa: a rank is bound to the NUMA node of its GPU"),
    **dict.fromkeys(("l4cache", "l5cache"), "say l3cache or numa"),
}
"""Words of other launchers that are understood and refused, and what helps."""

_COUNT = re.compile("[1-9][0-9]{0,5}", re.ASCII)


@dataclass(frozen=True)
class PlacementOptions:
    """The options that place and bind ranks, by their names; None where nobody gave one.

    Attributes:
        cpu_set_source: where the value of --cpu-set came from, for errors.
    """

    np: int | None = None
    npernode: int | None = None
    npersocket: int | None = None
    map_by: str | None = None
    rank_by: str | None = None
    bind_to: str | None = None
    rankfile: str | None = None
    oversubscribe: bool = False
    nolocal: bool = False
    cpu_set: str | None = None
    cpu_set_source: str = "--cpu-set"
    use_hwthread_cpus: bool = False
    cpus_per_rank: int = 1


@dataclass
class _MapBy:
    """What the words of --map-by say."""

    place: str = "slot"
    per_node: int | None = None
    per_object: int | None = None
    cpus: int | None = None
    span: bool = False
    oversubscribe: bool | None = None
    nolocal: bool = False
    hwthreads: bool = False
    ordered: bool = False
    file: str | None = None
    cpu_list: tuple[int, ...] = ()


@dataclass
class _BindTo:
    """What the words of --bind-to say."""

    unit: str
    each: int | None = None
    flags: set[str] = field(default_factory=set)
    lists: tuple[tuple[int, ...], ...] = ()


def placement_policies(options: PlacementOptions) -> tuple[MappingPolicy, CpuPolicy]:
    """Return what -np, -N, --map-by, --rank-by, --bind-to and their like say together; raises UsageError.

    `MappingPolicy.listed` and `CpuPolicy.chosen` are not filled in: who reads `MappingPolicy.file` does that.
    """
    said = _read_map_by(options.map_by or "slot")
    _add_options(said, options)
    rank_by, rank_span = _read_rank_by(options.rank_by, said)
    policy = MappingPolicy(
        ranks=options.np,
        map_by=said.place,
        per_node=said.per_node,
        rank_by=rank_by,
        oversubscribe=options.oversubscribe if said.oversubscribe is None else said.oversubscribe,
        per_object=said.per_object,
        span=said.span,
        rank_span=rank_span,
        nolocal=said.nolocal,
        file=said.file,
    )
    bind = _read_bind_to(options.bind_to or "none")
    hwthreads = said.hwthreads or options.use_hwthread_cpus
    cpus = options.cpus_per_rank if said.cpus is None else said.cpus
    if options.bind_to is None:
        bind.unit = _unit_asked_for(said, cpus, "hwthread" if hwthreads else "core")
        if bind.unit == said.place:
            # Who deals more ranks to the cores than there are wants them to share, as with mpirun.
            bind.flags.add("overload")
    elif bind.unit == "cpu-list" and not said.cpu_list:
        raise UsageError("bind-to", "--bind-to cpu-list: there is no list", hint="say --cpu-set LIST too, like --cpu-set 0-3")
    elif bind.unit == "none" and said.cpu_list:
        bind.unit = "cpu-list"  # the others are not to be used, whatever a rank is bound to
    if cpus > 1 and bind.unit not in ("none", "core", "hwthread"):
        told = f"{cpus} CPUs for each rank do not go with --bind-to {options.bind_to}"
        raise UsageError("option-conflict", told, hint="say --bind-to core or hwthread, or neither PE=N nor --cpus-per-rank")
    return policy, CpuPolicy(
        bind_to=bind.unit,
        cpus_per_rank=bind.each or cpus,
        map_by=said.place if said.place in OBJECTS else "slot",
        per_object=said.per_object,
        rank_by=rank_by if rank_by in OBJECTS or rank_by == "fill" else None,
        hwthreads=hwthreads,
        overload="overload" in bind.flags,
        if_supported="if-supported" in bind.flags,
        cpu_list=said.cpu_list,
        ordered=said.ordered or "ordered" in bind.flags,
        lists=bind.lists,
    )


def _unit_asked_for(said: _MapBy, cpus: int, unit: str) -> str:
    """Return what ranks are bound to when --bind-to is not said: nothing, unless something else asks for it."""
    if said.place == "rankfile":
        return "user"
    if said.cpu_list:
        return "cpu-list"
    if cpus > 1 or said.cpus is not None:
        return unit
    return said.place if said.place in OBJECTS else "none"


def _add_options(said: _MapBy, options: PlacementOptions) -> None:
    """Lay the options that say the same in other words over what --map-by says."""
    text = options.map_by or "slot"
    given = said.place != "slot"
    if (count := options.npernode) is not None:
        if said.per_node not in (None, count):
            raise _conflict(f"-N {count}", text)
        said.per_node = count
    if (count := options.npersocket) is not None:
        if given and (said.place, said.per_object) not in (("socket", None), ("socket", count)):
            raise _conflict(f"--npersocket {count}", text)
        said.place, said.per_object = "socket", count
    if (file := options.rankfile) is not None:
        if given and said.place != "rankfile":
            raise _conflict("--rankfile", text)
        said.place, said.file = "rankfile", file
    if said.place == "rankfile" and said.file is None:
        raise UsageError("map-by", f"--map-by: '{text}' names no file", hint="like --map-by rankfile:file=ranks.txt")
    if options.cpu_set is not None:
        said.cpu_list = parse_numbers(options.cpu_set, options.cpu_set_source)
    said.nolocal = said.nolocal or options.nolocal
    if (said.cpus or options.cpus_per_rank) > 1 and said.place in ("core", "hwthread"):
        told_cpus = said.cpus or options.cpus_per_rank
        hint = "map by slot, node or a larger object like socket"
        raise UsageError("map-by", f"--map-by: a {said.place} does not have {told_cpus} CPUs for a rank", hint=hint)


def _conflict(option: str, text: str) -> UsageError:
    return UsageError("option-conflict", f"{option} and --map-by {text} say different things", hint="say one of the two")


# --map-by


def _read_map_by(text: str) -> _MapBy:
    words = text.split(":")
    said = _MapBy()
    first = words.pop(0)
    if first.lower().startswith("pe-list="):
        said.cpu_list = parse_numbers(first.partition("=")[2], "--map-by")
        first = "slot"
    place = first.lower() or "slot"
    if place == "ppr":
        _read_ppr(text, words, said)
    elif place in ("slot", "node", "seq", "rankfile"):
        said.place = place
    else:
        said.place = _object(place, "map-by", text, _MAP_HINT)
    while words:
        _read_modifier(words.pop(0), text, said)
    if said.span and said.place not in OBJECTS:
        # The slots of all nodes in turn are the nodes in turn.
        said.span, said.place = False, "node" if said.place == "slot" else said.place
    return said


def _read_ppr(text: str, words: list[str], said: _MapBy) -> None:
    """Take N and the resource off the words after "ppr"."""
    if len(words) < 2 or not _COUNT.fullmatch(words[0]):
        raise UsageError("map-by", f"--map-by: '{text}' is not ppr:N:OBJECT", hint="like --map-by ppr:2:node, or ppr:1:socket")
    count, resource = int(words.pop(0)), words.pop(0)
    # Open MPI 4 puts a comma before its modifiers.
    resource, comma, rest = resource.partition(",")
    if comma:
        words.insert(0, rest)
    if resource.lower() == "node":
        said.per_node = count
    else:
        said.place, said.per_object = _object(resource.lower(), "map-by", text, _MAP_HINT), count


def _read_modifier(word: str, text: str, said: _MapBy) -> None:
    key, _, value = word.partition("=")
    name = key.lower()
    if name == "file" and value:
        said.file = value
    elif name == "pe" and _COUNT.fullmatch(value):
        said.cpus = int(value)
    elif name in ("oversubscribe", "nooversubscribe"):
        said.oversubscribe = name == "oversubscribe"
    elif name in ("hwtcpus", "corecpus"):
        said.hwthreads = name == "hwtcpus"
    elif name in ("span", "nolocal", "ordered"):
        setattr(said, name, True)
    elif "," in word:
        for part in word.split(","):
            _read_modifier(part, text, said)
    elif _COUNT.fullmatch(word):
        raise UsageError("map-by", f"--map-by: '{text}' deals to {word} objects at once", hint="name a larger object")
    elif name not in ("inherit", "noinherit"):  # for jobs that a job starts, which are mapped on their own here
        guess = did_you_mean(name, ("oversubscribe", "nooversubscribe", "span", "nolocal", "hwtcpus", "corecpus", "ordered"))
        hint = "the modifiers are PE=N, SPAN, OVERSUBSCRIBE, NOOVERSUBSCRIBE, NOLOCAL, HWTCPUS, CORECPUS, ORDERED and FILE=PATH"
        raise UsageError("map-by", f"--map-by: unknown modifier '{word}' in '{text}'{guess}", hint=hint)


# --rank-by


def _read_rank_by(text: str | None, said: _MapBy) -> tuple[str | None, bool]:
    """Return what the ranks are numbered by, and whether the objects of all nodes take turns."""
    if text is None:
        return (said.place, True) if said.span else (None, False)
    word, colon, modifier = text.lower().partition(":")
    if colon and modifier not in ("span", "fill"):
        raise UsageError("rank-by", f"--rank-by: unknown modifier '{modifier}' in '{text}'", hint=_RANK_HINT)
    if word == "span":
        return (said.place, True) if said.place in OBJECTS else ("slot", False)
    if word == "fill" or modifier == "fill":
        return "fill", False
    if word in ("slot", "node"):
        return word, False
    return _object(word, "rank-by", text, _RANK_HINT), modifier == "span"


# --bind-to


def _read_bind_to(text: str) -> _BindTo:
    word, *words = text.lower().split(":")
    if word == "user":
        return _BindTo("user", lists=_read_lists(text))
    if word == "rr":
        said = _BindTo("user")
    elif word in ("none", "cpu-list", "cpulist"):
        said = _BindTo("cpu-list" if word.startswith("cpu") else "none")
    else:
        said = _BindTo(_object(word, "bind-to", text, _BIND_HINT, ("none", "cpu-list", "user")))
    for modifier in ",".join(words).split(",") if words else ():
        if _COUNT.fullmatch(modifier) and said.unit in OBJECTS:
            said.each = int(modifier)
        elif modifier in ("overload-allowed", "overload"):
            said.flags.add("overload")
        elif modifier in ("if-supported", "ordered"):
            said.flags.add(modifier)
        elif modifier not in ("no-overload", "report"):
            hint = "the modifiers are overload-allowed, no-overload, if-supported, ordered and report"
            raise UsageError("bind-to", f"--bind-to: unknown modifier '{modifier}' in '{text}'", hint=hint)
    return said


def _read_lists(text: str) -> tuple[tuple[int, ...], ...]:
    """Return the CPU numbers of each rank of `user:0+2,1+4,3`."""
    whole = Span.of(text, "--bind-to").part(len("user:"))
    lists = []
    for one in whole.split():
        numbers = list(one.split("+"))
        for part in numbers:
            if not is_whole_number(part.text, 5):
                wrong = part if part.text else whole
                raise wrong.error("bind-to", f"'{part.text}' is not a CPU number", "like user:0+2,1+4,3,2")
        lists.append(tuple(int(part.text) for part in numbers))
    return tuple(lists)


def _object(word: str, option: str, text: str, hint: str, others: Sequence[str] = ("slot", "node")) -> str:
    """Return the kind of object that a word of an option names."""
    word = _ALIASES.get(word, word)
    if word in OBJECTS and (word != "machine" or option == "bind-to"):
        return word
    if word in _INSTEAD:
        raise UsageError(option, f"--{option}: '{word}' is not supported", hint=_INSTEAD[word])
    near = did_you_mean(word, (*OBJECTS, *others))
    raise UsageError(option, f"--{option}: unknown policy '{text}'{near}", hint=hint)
