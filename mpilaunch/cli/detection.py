"""Which launcher a command line is written for: its command name, --dialect, and the options so far tell.

A pure decision. It loads the table of other launchers' options only when a command line may be another launcher's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mpilaunch.cli import dialects

if TYPE_CHECKING:
    from mpilaunch.cli.dialects.rows import Dialect

AMBIGUOUS = frozenset({"mpirun", "mpiexec"})
"""Command names that every MPI implementation uses."""


class Detection:
    """What is known of the launcher that a command line is written for.

    Attributes:
        names: the dialects that it may still be in.
        named: the user has named one, so options of others are errors.
        separate: the separate launcher whose options count now, or None.
    """

    def __init__(self, command: str) -> None:
        self.names = dialects.DETECTED
        self.named = False
        self.separate: Dialect | None = None
        self._ambiguous = command in AMBIGUOUS
        self._skipped = False
        if command != "mpilaunch" and not self._ambiguous:
            from mpilaunch.cli.dialects.table import of_command

            if (dialect := of_command(command)) is not None:
                self._choose(dialect)

    @property
    def separates_programs(self) -> bool:
        """Whether ':' separates programs, and options may apply to one of them."""
        return self.separate is None or self.separate.colon

    def has(self, flag: str) -> bool:
        """Return whether a flag is the separate launcher's, whatever it means to us."""
        return self.separate is not None and self.separate.has(flag)

    def name(self, value: str) -> None:
        """Take the value of --dialect; a wrong one is click's error."""
        if value in dialects.NAMES:
            self.named = True
            self._choose(value)
        elif value == dialects.ANY_MPI:
            self._ambiguous, self.separate = True, None
            self.names = self.names & dialects.DETECTED or dialects.DETECTED

    def narrow(self, names: Iterable[str]) -> None:
        """Exclude all dialects but these, which have an option that was used; ignored if none would remain."""
        self.names = self.names & frozenset(names) or self.names

    def narrow_by_mark(self, flag: str) -> None:
        """Under a name of every MPI's launcher, exclude the dialects whose users do not write this option of ours."""
        if self._ambiguous:
            from mpilaunch.cli.dialects.table import of_mark

            self.narrow(of_mark(flag))

    def split_joined(self, word: str) -> list[str]:
        """Return the words of short options that the separate launcher lets its users join."""
        if self.separate is None or not self.separate.getopt:
            return [word]
        from mpilaunch.cli.dialects.table import split_joined

        return split_joined(self.separate, word)

    def start_words(self, words: list[str]) -> int:
        """Return the number of words that start the separate launcher, which come once: `run` or `python -m MODULE`."""
        if self.separate is None or self._skipped:
            return 0
        from mpilaunch.cli.dialects.table import skip

        count = skip(self.separate, words)
        self._skipped = count > 0
        return count

    def defaults(self) -> dict[str, tuple[str, str]]:
        """Return the defaults that differ for the users of the launcher, by option: value and source."""
        if not self._ambiguous and self.names == dialects.DETECTED:
            return {}
        from mpilaunch.cli.dialects.table import defaults

        return defaults(self.names)

    def _choose(self, name: str) -> None:
        self.names = frozenset({name})
        self.separate = None
        if name in dialects.SEPARATE:
            from mpilaunch.cli.dialects.table import of_name

            self.separate = of_name(name)
