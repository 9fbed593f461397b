"""What is hidden of secrets in variables, command lines and texts, and what stays visible."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpilaunch.job.output.masking import (
    MASKED,
    is_secret_name,
    mask_argv,
    mask_command,
    mask_message,
    mask_pair,
    mask_text,
    mask_variables,
)
from tests.support.cpu_time import cpu_seconds

SECRET_NAMES = [
    *("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "DB_PASSWORD", "my_secret", "API_KEYS"),
    *("GOOGLE_CREDENTIALS", "SECRET_FILE", "APIKEY", "PGPASS", "PGPASSWORD", "MYSQL_PWD", "DB_PASS", "REGISTRY_AUTH", "AUTH"),
    *("COOKIE", "SESSION_COOKIES", "apiKey", "accessToken", "HFToken", "wandb.api_key", "client-secret", "BEARER", "JWT", "pw"),
    *("--auth", "--pass", "--pw", "SSH_PRIVATE_KEY", "SSHPASS", "TOKEN_1", "authToken"),
]
OPEN_NAMES = [
    *("MONKEY", "DONKEY", "PASSAGE", "AUTHOR", "AUTHORS", "KEYBOARD", "KEYBOARD_LAYOUT", "TOKENIZERS_PARALLELISM", "PATH"),
    *("PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY", "COMPASS", "BYPASS", "PASS_THROUGH", "AUTH_METHOD", "HOTKEY"),
    *("COOKIE_DOMAIN", "SECRETARY", "", "_", "--port", "-p", "PYTHONPATH", "passenger", "POWER", "KEYSTONE", "LR", "TOKENIZER"),
    *("PasswordAuthentication", "NumberOfPasswordPrompts"),
]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)
    assert mask_variables({name: "v"}) == {name: MASKED}
    assert mask_pair(f"{name}=v") == f"{name}={MASKED}"


@pytest.mark.parametrize("name", OPEN_NAMES)
def test_names_that_only_look_like_them(name: str) -> None:
    assert not is_secret_name(name)
    assert mask_variables({name: "some-value"}) == {name: "some-value"}


ARGUMENTS = [
    # Options of any program
    ("train.py --lr 0.1 --tokenizer gpt2-large", None),
    ("train.py --max-tokens 512 --num-keys 8 --token --verbose", None),
    ("train.py --token s3cretvalue --epochs 3", "train.py --token <masked> --epochs 3"),
    ("train.py --api-key=s3cretvalue", "train.py --api-key=<masked>"),
    ("train.py wandb.api_key=s3cretvalue data=big", "train.py wandb.api_key=<masked> data=big"),
    ("train.py --password hunter2hunter2", "train.py --password <masked>"),
    ("train.py --password=hunter2 --db-password pw", "train.py --password=<masked> --db-password <masked>"),
    ("x --auth hunter2 --pass hunter2 --pw hunter2", "x --auth <masked> --pass <masked> --pw <masked>"),
    ("x --auth=hunter2 --pass=hunter2 --pw=hunter2", "x --auth=<masked> --pass=<masked> --pw=<masked>"),
    (
        "x --cookie a=b --author me --passage 3 --monkey banana-split",
        "x --cookie <masked> --author me --passage 3 --monkey banana-split",
    ),
    ("ffmpeg -i a --pass 2 --auth basic --auth", None),
    ("env DB_PASS=x PGPASS=y sh", "env DB_PASS=<masked> PGPASS=<masked> sh"),
    ("run --env=DB_PASSWORD=x", "run --env=DB_PASSWORD=<masked>"),
    # Known tokens and URLs
    ("train.py hf_AbCdEfGhIjKlMnOpQrSt", "train.py <masked>"),
    ("train.py --hub ghp_AbCdEfGhIjKlMnOpQrSt", "train.py --hub <masked>"),
    ("train.py --db postgres://me:pw@db/x", "train.py --db <masked>"),
    ("curl http://proxy:3128/a@b http://me@host/", None),
    # -p and its like: a password for these programs only
    ("sshpass -p hunter2 ssh -p 22 node01", "sshpass -p <masked> ssh -p 22 node01"),
    ("/usr/bin/sshpass -phunter2 ssh -p 22 n", "/usr/bin/sshpass -p<masked> ssh -p 22 n"),
    ("sshpass -e ssh -p 22 n", None),
    ("mysql -u me -phunter2 -P 3306 db", "mysql -u me -p<masked> -P 3306 db"),
    ("mysql -p db", None),
    ("sh -c 'cd /; /usr/bin/mysql -phunter2 db'", "sh -c 'cd /; /usr/bin/mysql -p<masked> db'"),
    ("'docker  login -p hunter2'", "'docker  login -p <masked>'"),
    ("'mysql is down' 'pgmysql -pX' 'docker run -p 80:80'", None),
    ("redis-cli -a hunter2 get k", "redis-cli -a <masked> get k"),
    ("mongosh -p hunter2", "mongosh -p <masked>"),
    ("docker login -u me -p hunter2 reg", "docker login -u me -p <masked> reg"),
    ("docker run -p 8080:80 image", None),
    ("curl -u me:hunter2 http://a/b", "curl -u <masked> http://a/b"),
    ("ssh -p 22 node01", None),
    ("mkdir -p a/b", None),
    ("python train.py -p X -a Y", None),
    ("psql -p 5432 db", None),
    ("rsh_agent -p 22 mkdir -p /tmp/x", None),
    # Headers
    ("x -H 'Authorization: Bearer abc.def-123'", "x -H 'Authorization: <masked>'"),
    ("x -H 'Cookie: id=7; b=8'", "x -H 'Cookie: <masked>'"),
    ("x -H 'X-Auth-Token: abc'", "x -H 'X-Auth-Token: <masked>'"),
    ("x 'Bearer abcdef123'", "x 'Bearer <masked>'"),
    ("x Bearer abcdef123", "x Bearer <masked>"),
    ("x 'the bearer of news' 'basic training'", None),
    ("x -H 'Accept: text/plain'", None),
    # Structures
    ("""x '{"token": "abcdefgh", "n": 1}'""", """x '{"token": "<masked>", "n": 1}'"""),
    ("""x '{"password":"a\\"b","user":"me"}'""", """x '{"password":"<masked>","user":"me"}'"""),
    ("""x '{"auths":{"r":{"auth":"Zm9v"}}}'""", """x '{"auths":{"r":{"auth":"<masked>"}}}'"""),
    ("""x '{"max_tokens": 512, "author": "me", "keyboard": "us"}'""", None),
    ("sh -c 'export HF_TOKEN=abcdefgh; train.py --lr=1'", "sh -c 'export HF_TOKEN=<masked>; train.py --lr=1'"),
    ("x 'host=db user=me password=pw'", "x 'host=db user=me password=<masked>'"),
    ("x 'http://a/b?token=abcdefgh&n=1'", "x 'http://a/b?token=<masked>&n=1'"),
]


@pytest.mark.parametrize(("line", "shown"), ARGUMENTS)
def test_command_lines(line: str, shown: str | None) -> None:
    assert " ".join(mask_argv(shlex.split(line))) == " ".join(shlex.split(shown or line))


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("sshpass -p hunter2 ssh -p 22 {host} {command}", "sshpass -p <masked> ssh -p 22 {host} {command}"),
        ("sshpass -p 'hunt er2'  ssh {host}", "sshpass -p <masked>  ssh {host}"),
        ("env SSHPASS=x sshpass -e ssh {host} {command}", "env SSHPASS=<masked> sshpass -e ssh {host} {command}"),
        ("ssh -p 2222 -o 'User me' {host} {command}", "ssh -p 2222 -o 'User me' {host} {command}"),
        ("tsh ssh --token=abcdefgh {host}", "tsh ssh --token=<masked> {host}"),
        ("an unbalanced ' quote", "an unbalanced ' quote"),
        ("local", "local"),
    ],
)
def test_an_agents_template(template: str, shown: str) -> None:
    assert mask_command(template) == shown


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("template 'sshpass -p X ssh {host}': no {foo}", f"template 'sshpass -p {MASKED} ssh {{host}}': no {{foo}}"),
        ("template 'sh -c 'exit 9' --password X': no", f"template 'sh -c 'exit 9' --password {MASKED}': no"),
        ("template 'sshpass -p 'X {host}': no end", f"template 'sshpass -p {MASKED} {{host}}': no end"),
        ("unknown agent 'ssh://u:X@h'", f"unknown agent '{MASKED}'"),
        ("by hand: mpilaunch -x TOKEN=XYZXYZXYZ env", f"by hand: mpilaunch -x TOKEN={MASKED} env"),
        (f"by hand: sh -c 'sshpass -p '{MASKED}' x'", f"by hand: sh -c 'sshpass -p '{MASKED}' x'"),
        ("program not found: mysql -phunter2 db: not found", f"program not found: mysql -p{MASKED} db: not found"),
        ("the node's word: remove them: mpilaunch mysql -pX", f"the node's word: remove them: mpilaunch mysql -p{MASKED}"),
        ("unknown option --password; did you mean --host?", None),
        ("it's the user's token that node 'a' asks for", None),
        ("--stdin: there is no rank 2: the job has ranks 0 to 1", None),
    ],
)
def test_messages(message: str, shown: str | None) -> None:
    assert mask_message(message) == (message if shown is None else shown)


def test_a_private_key_is_hidden_whole() -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\nbnNz\n-----END OPENSSH PRIVATE KEY-----"
    assert mask_variables({"A": f"x {key} y"}) == {"A": f"x {MASKED} y"}


def test_values_of_open_names_are_looked_at_too() -> None:
    variables = {
        "DATABASE": "postgres://me:pw@db/x",
        "HTTP_PROXY": "http://proxy:3128",
        "HEADERS": "Authorization: Bearer abc",
        "CONFIG": '{"password": "x"}',
    }
    shown = ["<masked>", "http://proxy:3128", "Authorization: <masked>", '{"password": "<masked>"}']
    assert list(mask_variables(variables).values()) == shown


@settings(max_examples=60)
@given(st.text(alphabet="aA-_=:;'\"{}/@ \\pkey\n", max_size=200))
def test_any_text_is_masked_in_a_moment_and_once_is_enough(text: str) -> None:
    shown = mask_text(text)
    assert mask_text(shown) == shown
    words = text.split()
    assert len(mask_argv(words)) == len(words)
    assert isinstance(mask_command(text), str)


@pytest.mark.parametrize("piece", ["a", "://", "a:", '"a":', "x=", "bearer ", "'", "TOKEN=", "mysql -pX ", "'mysql \""])
def test_long_texts_take_no_long_time(piece: str) -> None:
    assert cpu_seconds(mask_text, piece * 3_000) < 2
