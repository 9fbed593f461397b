"""Parser for --map-by, --rank-by, --bind-to and related options, in the syntax of Open MPI 4, 5 and Hydra.

Pure: the values of these options in, the two policies out, or an error with the right form.

    --map-by   [ policy ] { ":" modifier }    policy := slot | node | OBJECT | ppr:N:node | ppr:N:OBJECT | seq | rankfile
                                                        | pe-list=LIST
    --rank-by  slot | node | fill | span | OBJECT [ ":span" ]
    --bind-to  none | default | OBJECT [ ":" N ] | cpu-list | rr | user:LIST  { ":" modifier }

An OBJECT is one of `topology.OBJECTS`, or `package`, which is a socket. Case does not matter; Open MPI 4 also separates
modifiers by commas. Ranks are bound only by --bind-to, or by an object or PE=N in --map-by.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mpilaunch.errors import UsageError
from mpilaunch.hosts.nodeset import Span, parse_numbers
from mpilaunch.placement.cpu_binding import CpuPolicy
from mpilaunch.placement.mapping import MappingPolicy
from mpilaunch.placement.topology import OBJECTS
from mpilaunch.text import closest, did_you_mean, is_whole_number

_HINTS = {
    "map-by": "--map-by is slot, node, an object like core, numa or socket, ppr:N:OBJECT, seq or rankfile; see docs/mapping.md",
    "bind-to": "--bind-to is none, default, an object like core or numa, cpu-list, rr or user:LIST; see docs/mapping.md",
    "rank-by": "--rank-by is slot, node, fill, span or an object like core or socket, also with :span; see docs/mapping.md",
}

_ALIASES = {"package": "socket", "l1": "l1cache", "l2": "l2cache", "l3": "l3cache"}
_INSTEAD = {
    "board": "Open MPI 5 has no boards either: write socket or node",
    **dict.fromkeys(("dist", "mindist"), "to be near a GPU use --bind-to numa: a rank is bound to the NUMA node of its GPU"),
    **dict.fromkeys(("pci", "gpu", "ib", "eth", "hfi"), "use numa: a rank is bound to the NUMA node of its GPU"),
    **dict.fromkeys(("l4cache", "l5cache"), "use l3cache or numa"),
}
"""Unsupported policies of other launchers, with the hint to each."""

_COUNT = re.compile("[1-9][0-9]{0,5}", re.ASCII)


class PlacementOptions(NamedTuple):
    """The values of the options that map and bind ranks; None if not given; `cpu_set_source` is for errors."""

    np: int | None = None
    npernode: int | None = None
    npersocket: int | None = None
    map_by: str | None = None
    rank_by: str | None = None
    bind_to: str | None = None
    bind_order: str = "block"
    rankfile: str | None = None
    oversubscribe: bool = False
    cycle: bool = False
    nolocal: bool = False
    cpu_set: str | None = None
    cpu_set_source: str = "--cpu-set"
    use_hwthread_cpus: bool = False
    cpus_per_rank: int = 1


class _MapBy:
    """The parsed value of --map-by."""

    policy: str = "slot"
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


class _BindTo:
    """The parsed value of --bind-to."""

    unit: str = "none"
    each: int | None = None
    overload: bool = False
    if_supported: bool = False
    ordered: bool = False
    lists: tuple[tuple[int, ...], ...] = ()


def placement_policies(options: PlacementOptions) -> tuple[MappingPolicy, CpuPolicy]:
    """Return the policies that the options ask for together; raises UsageError.

    The reader of `MappingPolicy.file` has to fill in `MappingPolicy.listed` and `CpuPolicy.chosen`.
    """
    map_by = _read_map_by(options.map_by or "slot")
    _add_options(map_by, options)
    rank_by, rank_span = _read_rank_by(options.rank_by, map_by)
    policy = MappingPolicy(
        ranks=options.np,
        map_by=map_by.policy,
        per_node=map_by.per_node,
        rank_by=rank_by,
        oversubscribe=options.oversubscribe if map_by.oversubscribe is None else map_by.oversubscribe,
        cycle=options.cycle,
        per_object=map_by.per_object,
        span=map_by.span,
        rank_span=rank_span,
        nolocal=map_by.nolocal,
        file=map_by.file,
    )
    bind = _read_bind_to(options.bind_to or "none")
    hwthreads = map_by.hwthreads or options.use_hwthread_cpus
    cpus = options.cpus_per_rank if map_by.cpus is None else map_by.cpus
    if options.bind_to is None or bind.unit == "default":
        bind.unit = _default_unit(map_by, cpus, "hwthread" if hwthreads else "core")
        if bind.unit == map_by.policy:
            # Mapping more ranks to cores than there are implies sharing, as with mpirun.
            bind.overload = True
        if bind.unit == "none" and options.bind_to is not None:
            bind.unit, bind.overload, bind.if_supported = "default", True, True
    elif bind.unit == "cpu-list" and not map_by.cpu_list:
        raise UsageError("bind-to", "--bind-to cpu-list: there is no list", hint="add --cpu-set LIST, like --cpu-set 0-3")
    elif bind.unit == "none" and map_by.cpu_list:
        bind.unit = "cpu-list"  # the list limits the CPUs even of ranks that are not bound
    in_order = options.bind_to is not None and bind.unit == "user" and not bind.lists  # --bind-to rr
    if cpus > 1 and bind.unit not in ("none", "core", "hwthread") and not in_order:
        message = f"{cpus} CPUs for each rank do not go with --bind-to {options.bind_to}"
        raise UsageError("option-conflict", message, hint="use --bind-to core or hwthread, or neither PE=N nor --cpus-per-rank")
    free = options.bind_order == "numa" and options.map_by is None and map_by.policy == "slot" and map_by.per_node is None
    return policy, CpuPolicy(
        bind_to=bind.unit,
        cpus_per_rank=bind.each or cpus,
        map_by=map_by.policy if map_by.policy in OBJECTS else "default" if free else "slot",
        per_object=map_by.per_object,
        rank_by=rank_by if rank_by in OBJECTS or rank_by == "fill" else None,
        hwthreads=hwthreads,
        in_turn=options.bind_order != "block",
        overload=bind.overload or options.bind_order == "cyclic",
        if_supported=bind.if_supported,
        cpu_list=map_by.cpu_list,
        ordered=map_by.ordered or bind.ordered,
        lists=bind.lists,
    )


def cpus_of(map_by: str) -> int | None:
    """Return the CPUs of each rank in a value of --map-by, PE=n; None without it."""
    return _read_map_by(map_by).cpus


def span_of(map_by: str) -> str | None:
    """Return the kind of object that a value of --map-by deals to in turn over all nodes, with `span`; None without it."""
    read = _read_map_by(map_by)
    return read.policy if read.span else None


def _default_unit(map_by: _MapBy, cpus: int, unit: str) -> str:
    """Return what ranks are bound to without --bind-to: nothing, unless another option implies it."""
    if map_by.policy == "rankfile":
        return "user"
    if map_by.cpu_list:
        return "cpu-list"
    if cpus > 1 or map_by.cpus is not None:
        return unit
    return map_by.policy if map_by.policy in OBJECTS else "none"


def _add_options(map_by: _MapBy, options: PlacementOptions) -> None:
    """Add the other options for the same settings to those of --map-by; raises UsageError if they conflict."""
    text = options.map_by or "slot"
    given = map_by.policy != "slot"
    if (count := options.npernode) is not None:
        if map_by.per_node not in (None, count):
            raise _conflict(f"-N {count}", text)
        map_by.per_node = count
    if (count := options.npersocket) is not None:
        if given and (map_by.policy, map_by.per_object) not in (("socket", None), ("socket", count)):
            raise _conflict(f"--npersocket {count}", text)
        map_by.policy, map_by.per_object = "socket", count
    if (file := options.rankfile) is not None:
        if given and map_by.policy != "rankfile":
            raise _conflict("--rankfile", text)
        map_by.policy, map_by.file = "rankfile", file
    if map_by.policy == "rankfile" and map_by.file is None:
        raise UsageError("map-by", f"--map-by: '{text}' names no file", hint="like --map-by rankfile:file=ranks.txt")
    if options.cpu_set is not None:
        map_by.cpu_list = parse_numbers(Span.of(options.cpu_set, options.cpu_set_source))
    map_by.nolocal |= options.nolocal
    if (cpus := map_by.cpus or options.cpus_per_rank) > 1 and map_by.policy in ("core", "hwthread"):
        hint = "map by slot, node or a larger object like socket"
        raise UsageError("map-by", f"--map-by: a {map_by.policy} does not have {cpus} CPUs for a rank", hint=hint)


def _conflict(option: str, text: str) -> UsageError:
    return UsageError("option-conflict", f"{option} and --map-by {text} contradict each other", hint="give only one of the two")


# --map-by


def _read_map_by(text: str) -> _MapBy:
    words = text.split(":")
    map_by = _MapBy()
    first = words.pop(0)
    if first.lower().startswith("pe-list="):
        map_by.cpu_list = parse_numbers(Span.of(first.partition("=")[2], "--map-by"))
        first = "slot"
    policy = first.lower() or "slot"
    if policy == "ppr":
        _read_ppr(text, words, map_by)
    elif policy in ("slot", "node", "seq", "rankfile"):
        map_by.policy = policy
    else:
        map_by.policy = _object(policy, "map-by", text)
    while words:
        _read_modifier(words.pop(0), text, map_by)
    if map_by.span and map_by.policy not in OBJECTS:
        # Taking the slots of all nodes in turn is mapping by node.
        map_by.span, map_by.policy = False, "node" if map_by.policy == "slot" else map_by.policy
    return map_by


def _read_ppr(text: str, words: list[str], map_by: _MapBy) -> None:
    """Read N and the resource, and remove them from the words after "ppr"."""
    if len(words) < 2 or not _COUNT.fullmatch(words[0]):
        raise UsageError("map-by", f"--map-by: '{text}' is not ppr:N:OBJECT", hint="like --map-by ppr:2:node, or ppr:1:socket")
    count, resource = int(words.pop(0)), words.pop(0)
    # Open MPI 4 separates modifiers by commas.
    resource, comma, rest = resource.partition(",")
    if comma:
        words.insert(0, rest)
    if resource.lower() == "node":
        map_by.per_node = count
    else:
        map_by.policy, map_by.per_object = _object(resource.lower(), "map-by", text), count


def _read_modifier(word: str, text: str, map_by: _MapBy) -> None:
    key, _, value = word.partition("=")
    name = key.lower()
    if name == "file" and value:
        map_by.file = value
    elif name == "pe" and _COUNT.fullmatch(value):
        map_by.cpus = int(value)
    elif name in ("oversubscribe", "nooversubscribe"):
        map_by.oversubscribe = name == "oversubscribe"
    elif name in ("hwtcpus", "corecpus"):
        map_by.hwthreads = name == "hwtcpus"
    elif name in ("span", "nolocal", "ordered"):
        setattr(map_by, name, True)
    elif "," in word:
        for part in word.split(","):
            _read_modifier(part, text, map_by)
    elif _COUNT.fullmatch(word):
        raise UsageError("map-by", f"--map-by: '{text}' deals to {word} objects at once", hint="name a larger object")
    elif name not in ("inherit", "noinherit"):  # they concern spawned ranks, which never inherit here
        guess = did_you_mean(name, ("oversubscribe", "nooversubscribe", "span", "nolocal", "hwtcpus", "corecpus", "ordered"))
        hint = "the modifiers are PE=N, SPAN, OVERSUBSCRIBE, NOOVERSUBSCRIBE, NOLOCAL, HWTCPUS, CORECPUS, ORDERED and FILE=PATH"
        raise UsageError("map-by", f"--map-by: unknown modifier '{word}' in '{text}'{guess}", hint=hint)


# --rank-by


def _read_rank_by(text: str | None, map_by: _MapBy) -> tuple[str | None, bool]:
    """Return the ranking policy, and whether the objects of all nodes give numbers in turn."""
    if text is None:
        return (map_by.policy, True) if map_by.span else (None, False)
    word, colon, modifier = text.lower().partition(":")
    if colon and modifier not in ("span", "fill"):
        raise UsageError("rank-by", f"--rank-by: unknown modifier '{modifier}' in '{text}'", hint=_HINTS["rank-by"])
    if word == "span":
        return (map_by.policy, True) if map_by.policy in OBJECTS else ("slot", False)
    if word == "fill" or modifier == "fill":
        return "fill", False
    if word in ("slot", "node"):
        return word, False
    return _object(word, "rank-by", text), modifier == "span"


# --bind-to


_UNITS = {"rr": "user", "none": "none", "default": "default", "cpu-list": "cpu-list", "cpulist": "cpu-list"}


def _read_bind_to(text: str) -> _BindTo:
    word, *words = text.lower().split(":")
    result = _BindTo()
    if word == "user":
        result.unit, result.lists = "user", _read_lists(text)
        return result
    result.unit = _UNITS.get(word) or _object(word, "bind-to", text)
    for modifier in ",".join(words).split(",") if words else ():
        if _COUNT.fullmatch(modifier) and result.unit in OBJECTS:
            result.each = int(modifier)
        elif modifier in ("overload-allowed", "overload"):
            result.overload = True
        elif modifier in ("if-supported", "ordered"):
            setattr(result, modifier.replace("-", "_"), True)
        elif modifier not in ("no-overload", "report"):
            hint = "the modifiers are overload-allowed, no-overload, if-supported, ordered and report"
            raise UsageError("bind-to", f"--bind-to: unknown modifier '{modifier}' in '{text}'", hint=hint)
    return result


def _read_lists(text: str) -> tuple[tuple[int, ...], ...]:
    """Return the CPU numbers of each rank of `user:0+2,1+4,3`."""
    whole = Span.of(text, "--bind-to").part(len("user:"))

    def number(part: Span) -> int:
        if not is_whole_number(part.text, 5):
            wrong = part if part.text else whole
            raise wrong.error("bind-to", f"'{part.text}' is not a CPU number", "like user:0+2,1+4,3,2")
        return int(part.text)

    return tuple(tuple(number(part) for part in item.split("+")) for item in whole.split())


def _object(word: str, option: str, text: str) -> str:
    """Return the kind of object of a word in an option; raises UsageError for an unknown one."""
    word = _ALIASES.get(word, word)
    if word in OBJECTS and (word != "machine" or option == "bind-to"):
        return word
    if word in _INSTEAD:
        raise UsageError(option, f"--{option}: '{word}' is not supported", hint=_INSTEAD[word])
    guess = closest(word, (*OBJECTS, *(("none", "default", "cpu-list", "user") if option == "bind-to" else ("slot", "node"))))
    end = f"; did you mean {text.replace(word, guess)}?" if guess else ""
    raise UsageError(option, f"--{option}: unknown policy '{text}'{end}", hint=_HINTS[option])
