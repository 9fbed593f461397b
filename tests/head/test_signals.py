"""Signals to mpilaunch: which end a job, which are passed on, and which are left as they are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from subprocess import PIPE
from typing import Any

import pytest

from mpilaunch.errors import LaunchError
from mpilaunch.head import signals
from mpilaunch.head.signals import ENDING, FORWARDED, SignalRelay
from tests.support.launching import environment


class Told:
    """A receiver that records its calls."""

    def __init__(self) -> None:
        self.told: list[tuple[str | int, ...]] = []
        self.counts = True
        self.news = asyncio.Event()

    def interrupt(self, number: int, times: int) -> bool:
        self.told.append(("interrupt", number, times))
        self.news.set()
        return self.counts

    def stop(self, detail: str, *, now: bool) -> None:
        self.told.append((detail, now))

    def forward(self, number: int) -> None:
        self.told.append(("forward", number, 0))
        self.news.set()


def with_relay(body: Callable[[SignalRelay, Told], Coroutine[Any, Any, None]]) -> Told:
    async def main() -> Told:
        told = Told()
        with SignalRelay(asyncio.get_running_loop(), told) as relay:
            await asyncio.wait_for(body(relay, told), 20)
        return told

    return asyncio.run(main())


async def raise_and_wait(told: Told, number: int) -> None:
    told.news.clear()
    os.kill(os.getpid(), number)
    await told.news.wait()


def test_a_signal_that_only_asks_for_the_state_does_not_count() -> None:
    async def body(relay: SignalRelay, told: Told) -> None:
        told.counts = False
        for _ in range(3):
            await raise_and_wait(told, signal.SIGINT)
        told.counts = True
        await raise_and_wait(told, signal.SIGINT)

    assert [times for _, _, times in with_relay(body).told] == [1, 1, 1, 1]


def test_one_that_comes_as_the_start_is_done_is_reported_and_not_lost() -> None:
    async def starts() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    async def body(relay: SignalRelay, told: Told) -> None:
        await relay.until_interrupted(starts())
        assert told.told == [("interrupt", signal.SIGINT, 1)]

    with_relay(body)


def test_one_whose_cancellation_was_swallowed_is_reported() -> None:
    async def starts() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(20)

    async def body(relay: SignalRelay, told: Told) -> None:
        await relay.until_interrupted(starts())
        relay.stop("a request", now=True)

    assert with_relay(body).told == [("interrupt", signal.SIGTERM, 1), ("a request", True)]


def test_one_that_comes_before_it_is_handled_is_not_taken_for_the_second() -> None:
    async def body(relay: SignalRelay, told: Told) -> None:
        told.counts = False
        os.kill(os.getpid(), signal.SIGQUIT)
        os.kill(os.getpid(), signal.SIGQUIT)
        while len(told.told) < 2:
            await asyncio.sleep(0.01)

    assert [times for _, _, times in with_relay(body).told] == [1, 1]


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
def test_a_signal_that_ends_is_counted(number: signal.Signals) -> None:
    async def body(relay: SignalRelay, told: Told) -> None:
        await raise_and_wait(told, number)
        await raise_and_wait(told, signal.SIGTERM)

    assert with_relay(body).told == [("interrupt", number, 1), ("interrupt", signal.SIGTERM, 2)]


def test_every_forwarded_signal_reaches_the_ranks_and_a_stop_stops_us_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    real_kill = os.kill

    async def body(relay: SignalRelay, told: Told) -> None:
        for number in FORWARDED:
            told.news.clear()
            real_kill(os.getpid(), number)
            await told.news.wait()
            assert told.told[-1] == ("forward", FORWARDED[number], 0)

    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    with_relay(body)
    assert sent == [(os.getpid(), signal.SIGSTOP)]


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:

        async def body(relay: SignalRelay, told: Told) -> None:
            os.kill(os.getpid(), signal.SIGHUP)
            await raise_and_wait(told, signal.SIGUSR1)

        assert with_relay(body).told == [("forward", signal.SIGUSR1, 0)]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


HELD = """
import asyncio, os, signal, sys, time
from mpilaunch.head import signals

class Receiver:
    def interrupt(self, number, times):
        print("taken", flush=True)

async def main():
    with signals.SignalRelay(asyncio.get_running_loop(), Receiver()):
        print("held", flush=True)
        while True:
            time.sleep(0.01)

signals.HELD_SECONDS = 0.3
asyncio.run(main())
"""


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
def test_the_third_signal_ends_a_process_whose_loop_is_held(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", HELD], env=environment(), stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        for _ in range(2):
            process.send_signal(number)
            time.sleep(0.5)  # two signals at once would be one
            assert process.poll() is None
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (128 + number, "")
    assert f"{number.name}: ended at once" in err


def test_the_third_signal_is_the_receivers_where_the_loop_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "HELD_SECONDS", 0.2)

    async def body(relay: SignalRelay, told: Told) -> None:
        for _ in range(4):
            await raise_and_wait(told, signal.SIGINT)
        await asyncio.sleep(0.4)

    assert [times for _, _, times in with_relay(body).told] == [1, 2, 3, 4]


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
def test_a_signal_during_the_start_cancels_it(number: signal.Signals) -> None:
    ended: list[str] = []

    async def start() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.sleep(20)
        finally:
            ended.append("cleaned up")

    async def body(relay: SignalRelay, told: Told) -> None:
        with pytest.raises(LaunchError) as caught:
            await relay.until_interrupted(start())
        cause = "preempted" if number == signal.SIGTERM else "interrupted"
        assert (caught.value.reference, caught.value.exit_code) == (cause, 128 + number)
        assert number.name in caught.value.message

    assert with_relay(body).told == []
    assert ended == ["cleaned up"]


def test_nothing_is_forwarded_before_ranks_run() -> None:
    async def body(relay: SignalRelay, told: Told) -> None:
        async def start() -> None:
            os.kill(os.getpid(), signal.SIGUSR1)
            for _ in range(5):
                await asyncio.sleep(0)

        await relay.until_interrupted(start())
        await raise_and_wait(told, signal.SIGUSR2)

    assert with_relay(body).told == [("forward", signal.SIGUSR2, 0)]


def test_errors_and_cancellations_of_the_start_pass() -> None:
    async def body(relay: SignalRelay, told: Told) -> None:
        async def fail() -> None:
            raise LaunchError("start-timeout", "late")

        with pytest.raises(LaunchError, match="late"):
            await relay.until_interrupted(fail())

        task = asyncio.ensure_future(relay.until_interrupted(asyncio.sleep(20)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with_relay(body)


def test_after_the_block_the_signals_are_as_before() -> None:
    async def body(relay: SignalRelay, told: Told) -> None:
        pass

    with_relay(body)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGTSTP):
        assert signal.getsignal(number) is signal.SIG_DFL
