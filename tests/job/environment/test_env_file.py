"""Files of variables: quotes, comments, and errors that name the place and never the value."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpilaunch.errors import UsageError
from mpilaunch.job.environment.forwarded import forwarded_environment
from tests.support.variables import NAMES, VALUES, refused


@given(st.dictionaries(NAMES, VALUES))
def test_env_files_give_back_what_was_quoted_into_them(variables: dict[str, str]) -> None:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
    lines = [f'{name}="{"".join(escapes.get(c, c) for c in value)}"' for name, value in variables.items()]
    assert forwarded_environment({}, [], [("job.env", "\n".join(lines))]) == variables


@given(st.text() | st.text("Ab1='\"$\\{}# \t\n\r"))
def test_any_env_file_gives_variables_or_an_error_with_a_place(text: str) -> None:
    try:
        result = forwarded_environment({}, [], [("job.env", text)])
    except UsageError as error:
        assert error.reference == "export-value" or re.match(r"job\.env:\d+:\d+: ", error.message)
    else:
        assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name) for name in result)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("\n  \n# c\n  # c\n", {}),
        ("A=b", {"A": "b"}),
        ("A=b\r\nC=d\r\n", {"A": "b", "C": "d"}),
        ("\ufeffA=b", {"A": "b"}),
        ("  export   A=b", {"A": "b"}),
        ("exported=b", {"exported": "b"}),
        ("A=b # c", {"A": "b"}),
        ("A= # c", {"A": ""}),
        ("A=b#c", {"A": "b#c"}),
        ("A=#c", {"A": "#c"}),
        ("A= b c \t", {"A": "b c"}),
        ("A=b=c", {"A": "b=c"}),
        (r"A=b\n$X", {"A": r"b\n$X"}),
        (r"A='b\n # $X' # c", {"A": r"b\n # $X"}),
        (r'A="a\n\t\r\\\"\$\` # b"  # c', {"A": 'a\n\t\r\\"$` # b'}),
        ('A=b"c"', {"A": 'b"c"'}),
        ("A=''", {"A": ""}),
        ("A=1\nA=2", {"A": "2"}),
        ("A=a\u2028b\x0bc", {"A": "a\u2028b\x0bc"}),
    ],
)
def test_env_file(text: str, expected: dict[str, str]) -> None:
    assert forwarded_environment({}, [], [("job.env", text)]) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=b\n  NAME", "job.env:2:3: a line without '='"),
        ("\n1A=b", "job.env:2:1: '1A' is not a variable's name"),
        ("export A B=c", "job.env:1:8: 'A B' is not a variable's name"),
        ("=b", "job.env:1:1: '' is not a variable's name"),
        ("A='secret", "job.env:1:3: this quote is not closed on its line"),
        ('export A="secret\nB=c"', "job.env:1:10: this quote is not closed on its line"),
        (r'A="secret\d"', r"job.env:1:10: unknown escape '\d' between double quotes"),
        ('A="secret\\', "job.env:1:10: unknown escape '\\' between double quotes"),
        ("A='secret'secret", "job.env:1:11: text after the closing quote"),
    ],
)
def test_env_file_errors_name_the_place_and_never_the_value(text: str, message: str) -> None:
    error = refused([], file=text)
    assert error.message == message
    assert error.hint
    assert "secret" not in repr((error.message, error.context, error.hint))
