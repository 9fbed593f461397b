"""The value of an option: a text or a piece of YAML, checked and brought to its type.

Pure. Which values an option takes is in its row of `options`; every error names who said the value.
"""

from __future__ import annotations

import re

from mpilaunch.errors import UsageError
from mpilaunch.options import Option, Value
from mpilaunch.text import did_you_mean, is_whole_number

_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|h|d)?", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FLAG_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def value_from_text(option: Option, text: str, said: str) -> Value:
    """Return one value, as a word of the command line or of the environment gives it; raises UsageError naming `said`."""
    if option.kind == "flag":
        if text.lower() not in _FLAG_WORDS:
            raise _wrong(option, said, f"'{text}' is neither yes nor no")
        return _FLAG_WORDS[text.lower()]
    if option.kind == "number":
        if not is_whole_number(text.removeprefix("-"), 15):
            raise _wrong(option, said, f"'{text}' is not a whole number")
        return int(_in_range(option, int(text), said))
    if option.kind == "seconds":
        match = _TIME.fullmatch(text)
        if match is None:
            raise _wrong(option, said, f"'{text}' is not a time")
        return _in_range(option, float(match[1]) * _SECONDS[match[2] or "s"], said)
    if option.choices and text not in option.choices:
        raise _wrong(option, said, f"'{text}' is not one of {', '.join(option.choices)}{did_you_mean(text, option.choices)}")
    if not text:
        raise _wrong(option, said, "the value is empty")
    if "\0" in text:
        raise _wrong(option, said, "the value has a NUL character in it")
    return text


def value_from_data(option: Option, data: object, said: str) -> Value:
    """Return the value of an option as YAML gives it; raises UsageError naming `said`."""
    if option.repeatable:
        items = data if isinstance(data, list) else [data]
        return tuple(str(value_from_text(option, _scalar_text(option, item, said), said)) for item in items)
    if option.kind == "flag":
        if not isinstance(data, bool):
            raise _wrong(option, said, f"{data!r} is neither true nor false")
        return data
    return value_from_text(option, _scalar_text(option, data, said), said)


def _scalar_text(option: Option, data: object, said: str) -> str:
    # A stray `on` of YAML is a truth value: as text it would be 'True', which nobody wrote.
    if isinstance(data, bool) or not isinstance(data, (str, int, float)):
        raise _wrong(option, said, f"{type(data).__name__} {data!r} where {_wanted(option)} is expected")
    return str(data)


def _in_range(option: Option, number: float, said: str) -> float:
    if number < option.least or (option.most is not None and number > option.most):
        end = f"{option.least:g} to {option.most:g}" if option.most is not None else f"{option.least:g} or more"
        raise _wrong(option, said, f"{number:g} is out of range: {end}")
    return number


def _wanted(option: Option) -> str:
    return {"number": "a whole number", "seconds": "a time"}.get(option.kind, "text")


def _wrong(option: Option, said: str, what: str) -> UsageError:
    hints = {"seconds": "write seconds, or a number with s, m, h or d: 90, 90s, 5m, 1h"}
    return UsageError("option-value", f"{said}: {what}", hint=hints.get(option.kind, f"{option.flag}: {option.help}"))
