"""Agents are found by name; a wrong name, template or option is told before anything starts."""

from __future__ import annotations

import pytest

from mpilaunch.agent import AgentOptions
from mpilaunch.errors import UsageError
from mpilaunch.hosts.allocation import Node
from mpilaunch_agents.command import CommandAgent, parse
from mpilaunch_agents.fake import BEHAVIOURS, WORKING, Behaviour, FakeAgent
from mpilaunch_agents.openssh import OpensshAgent, classify_ssh_message, explain_ssh
from mpilaunch_agents.registry import load
from mpilaunch_agents.ssh.asyncssh_agent import config_line

NODE = Node(0, "node07", (), "any", user="ann", port=2222)
PLAIN = Node(0, "node07", (), "any")
COMMAND = ["python3", "-c", "print('a b')"]
JOINED = r"""python3 -c 'print('\''a b'\'')'"""


# command


@pytest.mark.parametrize(
    ("template", "argv"),
    [
        ("tsh ssh {host} {command}", ["tsh", "ssh", "node07", JOINED]),
        ("ssh -p {port} {user}@{host}", ["ssh", "-p", "2222", "ann@node07", JOINED]),
        ("rsh -n", ["rsh", "-n", "node07", JOINED]),
        ("kubectl exec {name} -- sh -c {command}", ["kubectl", "exec", "node07", "--", "sh", "-c", JOINED]),
        ("run '--at={host} now' --what={command}", ["run", "--at=node07 now", f"--what={JOINED}"]),
        ("docker exec --format '{{{{.Name}}}}' '' {host}", ["docker", "exec", "--format", "{{.Name}}", "", "node07", JOINED]),
    ],
)
def test_template_is_split_before_it_is_filled(template: str, argv: list[str]) -> None:
    assert CommandAgent(AgentOptions(template=template)).argv(NODE, COMMAND) == argv


def test_template_cannot_be_widened_by_a_name() -> None:
    agent = CommandAgent(AgentOptions(template="reach {host} {command}"))
    assert agent.argv(Node(0, "a; rm -rf {port}", (), "x"), ["true"]) == ["reach", "a; rm -rf {port}", "true"]


def test_template_fills_in_what_the_node_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "bob")
    assert CommandAgent(AgentOptions(template="r {user} {port} {host}")).argv(PLAIN, ["x"]) == ["r", "bob", "22", "node07", "x"]


@pytest.mark.parametrize(
    ("template", "message", "hint"),
    [
        ("ssh {hots}", "unknown field 'hots'", "did you mean {host}?"),
        ("ssh {x}", "unknown field 'x'", "the fields are {host}, {user}, {port}, {command}, {name}"),
        ("ssh {}", "unknown field ''", "the fields are {host}, {user}, {port}, {command}, {name}"),
        ("ssh {host!r}", "unknown field 'host'", "the fields are {host}, {user}, {port}, {command}, {name}"),
        ("ssh 'host", "no closing quotation", "quote it as for a shell; a brace itself is {{ or }}"),
        ("ssh {host", "expected '}' before end of string", "quote it as for a shell; a brace itself is {{ or }}"),
    ],
)
def test_wrong_template_is_an_error(template: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(template)
    assert caught.value.reference == "agent-template"
    assert (caught.value.message, caught.value.hint) == (f"agent template '{template}': {message}", hint)


def test_empty_template_is_an_error() -> None:
    with pytest.raises(UsageError, match="template is empty"):
        load("command", AgentOptions())


# openssh


def test_openssh_call() -> None:
    agent = OpensshAgent(AgentOptions(ssh_options=("Ciphers=aes128-ctr",), connect_timeout=2.5))
    settings = ["Ciphers=aes128-ctr", "BatchMode=yes", "ConnectTimeout=3", "RemoteCommand=none", "ClearAllForwardings=yes"]
    settings += ["ControlMaster=no"]
    expected = ["ssh", "-T", *(word for setting in settings for word in ("-o", setting))]
    assert agent.argv(PLAIN, COMMAND) == [*expected, "--", "node07", JOINED]
    assert agent.argv(NODE, COMMAND) == [*expected, "-p", "2222", "-l", "ann", "--", "node07", JOINED]


def test_openssh_accepts_any_host_key_when_asked_to() -> None:
    argv = OpensshAgent(AgentOptions(insecure_host_keys=True)).argv(PLAIN, COMMAND)
    assert {"StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"} <= set(argv)


CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
Host key for node01 has changed and you have requested strict checking.
Host key verification failed.
"""


def test_a_user_without_a_name_needs_one_only_for_a_template_with_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", no_name)
    node = Node(0, "node07", (), "command")
    assert CommandAgent(AgentOptions(template="reach {host}")).argv(node, ["true"]) == ["reach", "node07", "true"]
    with pytest.raises(UsageError, match="this machine has no name for the user who runs this"):
        CommandAgent(AgentOptions(template="reach {user}@{host}")).argv(node, ["true"])


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("ssh: Could not resolve hostname nope: Name or service not known", "host-unknown"),
        ("ssh: connect to host node01 port 22: Connection refused", "connection-refused"),
        ("ssh: connect to host 10.9.9.9 port 22: Connection timed out", "timeout"),
        ("Connection timed out during banner exchange\nConnection to 10.0.0.2 port 22 timed out", "timeout"),
        ("ssh: connect to host node01 port 22: No route to host", "unreachable"),
        ("No ED25519 host key is known for node01 and you have requested strict checking.\nHost key verification failed.",
         "host-key-unknown"),
        (CHANGED, "host-key-changed"),
        ("root@node01: Permission denied (publickey).", "key-refused"),
        ("-bash: /opt/module.sh: Permission denied\nConnection to a closed by remote host.", "connection-closed"),
        ("Received disconnect from 10.0.0.2 port 22:2: Too many authentication failures\nDisconnected from 10.0.0.2 port 22",
         "key-refused"),
        ("kex_exchange_identification: read: Connection reset by peer\nConnection reset by 10.0.0.2 port 22",
         "connection-closed"),
        ("client_loop: send disconnect: Broken pipe", "connection-closed"),
        ("command-line: line 0: Bad configuration option: foo", "agent-failed"),
        ("Traceback (most recent call last):", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_messages_of_ssh_have_a_cause(message: str, cause: str) -> None:
    assert classify_ssh_message(message) == cause


def test_only_exit_code_255_is_read_as_a_failure_of_ssh() -> None:
    message = "Warning: something\nroot@node01: Permission denied (publickey).\r\n"
    assert explain_ssh(1, message).cause == ""
    end = explain_ssh(255, message)
    assert (end.exit_code, end.cause, end.error) == (255, "key-refused", "root@node01: Permission denied (publickey).")


# ssh


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Port=2222", "Port 2222"),
        ("proxyjump = a,b", "ProxyJump a,b"),
        ("ProxyCommand ssh -W %h:%p a=b", "ProxyCommand ssh -W %h:%p a=b"),
        ("BatchMode=yes", ""),
    ],
)
def test_ssh_option_becomes_a_line_of_configuration(text: str, line: str) -> None:
    assert config_line(text) == line


@pytest.mark.parametrize("text", ["", "Port", "Port=", "=22", "Port=1\nUser x", "Port=\n1"])
def test_ssh_option_without_name_or_value_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="not of the form Name=value"):
        config_line(text)


@pytest.mark.parametrize(
    "text", ["LogLevel=ERROR", "PasswordAuthentication=no", "ConnectionAttempts 3", "checkhostip=no", "UpdateHostKeys=no"]
)
def test_ssh_options_that_change_nothing_here_are_accepted(text: str) -> None:
    assert config_line(text) == ""


def test_ssh_option_that_cannot_be_honoured_names_the_other_agent() -> None:
    with pytest.raises(UsageError) as caught:
        load("ssh", AgentOptions(ssh_options=("PermitLocalCommand=yes",)))
    assert caught.value.message == "--ssh-option 'PermitLocalCommand=yes': the agent ssh cannot honour PermitLocalCommand"
    assert caught.value.hint == "--agent openssh uses the system's ssh, which knows all of its options"
    with pytest.raises(UsageError, match=r"cannot honour ProxyJmp; did you mean ProxyJump\?"):
        config_line("ProxyJmp=a")


# fake


def test_fake_nodes_behave_as_named() -> None:
    agent = FakeAgent(AgentOptions(), {"node3": Behaviour(exit_code=1)})
    assert agent.behaviour("node1") is WORKING
    assert agent.behaviour("node3") == Behaviour(exit_code=1)
    assert agent.behaviour("slow12") is BEHAVIOURS["slow"]
    assert agent.behaviour("connection-refused-2") == Behaviour(failure="connection-refused")
