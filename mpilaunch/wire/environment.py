"""The environment of a rank, joined from the layers of a `prepare` message. Travels to every node; no I/O.

Only this module joins the layers: the daemon starts ranks with the result, and `--show-env` prints it. Each layer overrides
those before it: the node's own variables without the scrubbed ones, defaults for unset variables, the variables of the job
and the node, those of the program, its edits, and those of the rank. What the user removes is removed from all of them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Environment = dict[bytes, bytes]


def encode(text: str) -> bytes:
    """Return the bytes of a text that came over the wire, exactly as they were on the head."""
    return text.encode("utf-8", "surrogateescape")


def decode(data: bytes) -> str:
    """Reverse `encode`."""
    return data.decode("utf-8", "surrogateescape")


def node_layer(prepare: Mapping[str, Any], own: Mapping[bytes, bytes]) -> Environment:
    """Return the environment that all ranks of a node share.

    Args:
        prepare: the message. Its "scrub" lists names, and prefixes written `PREFIX*`, to drop from the node's own variables;
            its "defaults" are set only where neither the node nor the job sets them.
        own: the node's own variables.
    """
    exact = {encode(name) for name in prepare["scrub"] if not name.endswith("*")}
    prefixes = tuple(encode(name[:-1]) for name in prepare["scrub"] if name.endswith("*"))
    environment = {name: value for name, value in own.items() if name not in exact and not name.startswith(prefixes)}
    for name, value in prepare["defaults"].items():
        environment.setdefault(encode(name), encode(value))
    environment.update(_encoded(prepare["environment"]))
    return environment


def app_layer(app: Mapping[str, Any], node: Environment) -> Environment:
    """Return the environment that all ranks of a program share: the node's layer, the program's variables, its edits."""
    environment = {**node, **_encoded(app["environment"])}
    edit(environment, app["edits"])
    return environment


def rank_layer(unset: list[str], variables: Mapping[str, str], app: Environment, edits: list[list[str]]) -> Environment:
    """Return the environment of a rank: its program's layer without `unset`, with `variables`, less what `edits` remove."""
    removed = {encode(name) for name in unset}
    environment = {name: value for name, value in app.items() if name not in removed}
    environment.update(_encoded(variables))
    edit(environment, [item for item in edits if item[0] == "unset"])
    return environment


def rank_environment(
    prepare: Mapping[str, Any], rank: int, own: Mapping[bytes, bytes], of_node: Mapping[str, str]
) -> Environment:
    """Return the environment of one rank of a `prepare` message.

    Args:
        own: the node's own variables.
        of_node: variables of the rank that only its node knows (PMIx, ports).
    """
    spec = next(spec for spec in prepare["ranks"] if spec["rank"] == rank)
    app = prepare["apps"][spec["app"]]
    variables = {**spec["environment"], **of_node}
    return rank_layer(spec["unset"], variables, app_layer(app, node_layer(prepare, own)), app["edits"])


def edit(environment: Environment, edits: list[list[str]]) -> None:
    """Apply the user's edits, [verb, name, value, separator]: remove variables, or put a text before or after their values.

    The name of "unset" may be a prefix, written `PREFIX*`.
    """
    for verb, name, value, separator in edits:
        if verb == "unset":
            pattern = encode(name)
            for known in [known for known in environment if pattern in (known, known[: len(pattern) - 1] + b"*")]:
                del environment[known]
        else:
            earlier = environment.get(encode(name), b"")
            parts = [encode(value), earlier] if verb == "prepend" else [earlier, encode(value)]
            environment[encode(name)] = encode(separator).join(part for part in parts if part)


def _encoded(variables: Mapping[str, str]) -> Environment:
    return {encode(name): encode(value) for name, value in variables.items()}
