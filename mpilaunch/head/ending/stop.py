"""Stops a job, for a failure, a lost node, a signal or `--timeout`: signals every rank, and cuts nodes that do not end in
time.

A job is stopped once, whatever the reason. A stop always ends: a node that has not finished OVERDUE seconds after the grace
time is cut. One exception: where the reader of mpilaunch's own output is slow, a node with output left is not cut until the
user or a scheduler asks for the end.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial

from mpilaunch.head.ending.time_limit import TimeLimit
from mpilaunch.head.nodes.daemons import Daemons
from mpilaunch.head.observe.looks import Looks
from mpilaunch.head.output.forward import OutputForwarder
from mpilaunch.head.ranks import Ranks
from mpilaunch.job.spec import JobSpec
from mpilaunch.job.state import JobState
from mpilaunch.job.verdict import Verdict, first_failure

OVERDUE = 5.0
"""Seconds after the grace time in which a node must finish; then its link is cut and it counts as lost."""
OVERDUE_REASON = "its daemon did not end the ranks in time"
SHARED_SECONDS = 1.0
"""Seconds between a rank's death by SIGTERM and a SIGTERM to mpilaunch or a daemon that were sent together."""
LEFT_IN_PIPES = 2 << 20
"""Bytes of output that an ended rank may have left: two pipes of the largest size that an unprivileged process can set."""


class Stop:
    """The stop of one job, if there is one.

    Attributes:
        begun: the ranks have been signalled to end.
        outcome: the verdict when the ranks' own ends do not decide it; the first one counts.
        leaving: the ranks have ended, and only output may be left.
        limit: the time limit.
    """

    def __init__(
        self,
        job: JobSpec,
        daemons: Daemons,
        ranks: Ranks,
        state: JobState,
        output: OutputForwarder,
        looks: Looks,
        on_begin: Callable[[], None],
        node_done: Callable[[int], bool],
    ) -> None:
        self.begun = self.leaving = self._asked = self._expected = False
        self.outcome: Verdict | None = None
        self._job = job
        self._daemons, self._ranks, self._state, self._output = daemons, ranks, state, output
        self._on_begin, self._node_done = on_begin, node_done
        self._overdue: asyncio.TimerHandle | None = None
        self.limit = TimeLimit(job, ranks, state, output, looks, self.ask)
        self._received: dict[int, int] = {}

    def expect(self, outcome: Verdict) -> None:
        """Note that the end was asked for, though it has not begun: what ends ranks or nodes until then changes no verdict."""
        if not self.begun:
            self.outcome, self._expected = outcome, True

    def begin(self, outcome: Verdict | None, signals: Sequence[int] = (signal.SIGTERM,), *, shared: bool = False) -> None:
        """End every rank: send the signals in order, with the grace time divided among them, then SIGKILL."""
        if not self.begun:
            self.begun = True
            self.outcome = self.outcome if self._expected else outcome or self.outcome
            self._on_begin()
            if outcome is None and self._job.stack_on_failure:
                self.limit.look_first(partial(self._send_unless_sent, signals, shared))
            else:
                self._send(signals, shared)

    def _send_unless_sent(self, signals: Sequence[int], shared: bool) -> None:
        """End the ranks after a look at them, unless the user has asked for it meanwhile."""
        if self._overdue is None:
            self._send(signals, shared)

    def ask(
        self, outcome: Verdict, signals: Sequence[int] = (signal.SIGTERM,), *, again: bool = False, shared: bool = False
    ) -> None:
        """Begin on request of the user, a scheduler or the time limit.

        Args:
            again: replace the signals of a stop that is under way by these.
            shared: the sender of the first signal may have sent it to the ranks too.
        """
        self._asked = True
        if shared and self.begun and self.outcome is None and self._was_first():
            self.outcome = outcome
        if self.leaving:
            if not self.begun:
                self.outcome = outcome
            self._output.abandon()
        elif not self.begun:
            self._expected = False
            self.begin(outcome, signals, shared=shared)
        elif again:
            self._send(signals, shared)

    def _was_first(self) -> bool:
        """Return whether the job ends because SIGTERM, which all of its processes get, has ended a rank a moment ago."""
        first = first_failure(self._state)
        return first is not None and first.signal == signal.SIGTERM and time.monotonic() - first.clock < SHARED_SECONDS

    def quit(self, outcome: Verdict) -> None:
        """Stop at once: cut every node that has not finished."""
        self.ask(outcome, [])
        self._cut(list(self._daemons.links), "the end was asked for again and again")

    def close(self) -> None:
        self.limit.close()
        if self._overdue is not None:
            self._overdue.cancel()

    def _send(self, signals: Sequence[int], shared: bool) -> None:
        wait = self._job.deadlines.grace / max(1, len(signals))
        if self.limit.reached:
            self._output.expect_dumps(self.limit.stacks)
            self._output.say(self.limit.nccl)
        for link in self._daemons.links.values():
            steps = [[int(number), wait] for number in signals]
            link.send({"type": "stop", "steps": steps, "shared": shared, "stacks": self.limit.reached})
        if self._overdue is not None:
            self._overdue.cancel()
        self._received.clear()
        self._give_up_after((self._job.deadlines.grace if signals else 0.0) + OVERDUE)

    def _give_up_after(self, seconds: float) -> None:
        self._overdue = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        """Cut the nodes that have not finished, except those whose output waits for the reader of mpilaunch's output."""
        if self._asked:
            self._output.abandon()
        self._cut([index for index in self._daemons.links if not self._may_go_on(index)], OVERDUE_REASON)
        if not all(map(self._node_done, self._daemons.links)):
            self._give_up_after(OVERDUE)

    def _may_go_on(self, index: int) -> bool:
        """Return whether a node waits only for our reader: its ranks have ended and it still has some of their output."""
        ranks, received = self._ranks.of_node(index), self._daemons.links[index].session.received
        if self._asked or any(map(self._state.is_alive, ranks)) or not self._output.held_up:
            return False
        return received - self._received.setdefault(index, received) <= LEFT_IN_PIPES * len(ranks)

    def _cut(self, indexes: Sequence[int], reason: str) -> None:
        for index in indexes:
            link = self._daemons.links.get(index)
            if link is not None and not self._node_done(index):
                link.give_up(reason)
