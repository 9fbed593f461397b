"""Evidence for the cause of a rank's death that its exit status does not show: memory ran out, or /dev/shm is full.

It is collected only for ranks that SIGKILL or SIGBUS killed, and never raises on an unusual machine. The head writes the
message.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""Process ids in the kernel's log are of this namespace (PROC_PID_INIT_INO in include/linux/proc_ns.h)."""
MOST_RECORDS = 5000
"""Records of the kernel's log that are read at most, since the start of the ranks."""


class Evidence:
    """The state of the node before the ranks start, and what has changed when one has ended."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._counters = list(self._find_counters())
        self._kills = self._count_kills()
        self._log = self._open_log()
        self._kill_records: dict[str, str] = {}

    def of(self, pid: int, code: int | None, number: int | None) -> dict[str, object]:
        """Return the evidence for the end of a process, as docs/wire.md lists it; empty for most.

        A shell exits with 128 + N when signal N killed its child.
        """
        killer = number if number is not None else (code or 0) - 128
        if killer == signal.SIGKILL:
            return {"out_of_memory": self._kernel_record(pid), "memory_kills": self._count_kills() - self._kills}
        if killer == signal.SIGBUS:
            try:
                shm = os.statvfs(os.path.join(self._root, "dev/shm"))
            except OSError:
                return {}
            return {"shm_free": shm.f_bavail * shm.f_frsize, "shm_size": shm.f_blocks * shm.f_frsize}
        return {}

    def _kernel_record(self, pid: int) -> str:
        """Return the kernel's log record about killing this process, "" if there is none or the log cannot be read."""
        for _ in range(MOST_RECORDS if self._log >= 0 else 0):
            try:
                record = os.read(self._log, 8192)
            except BlockingIOError:
                break
            except OSError:
                continue  # overwritten meanwhile: the next read continues after the gap
            # "level,sequence,time,flags;text", Documentation/ABI/testing/dev-kmsg
            text = record.partition(b";")[2].split(b"\n")[0].decode("utf-8", "replace")
            number = text.partition("Killed process ")[2].partition(" ")[0]
            if number:
                self._kill_records[number] = text
        return self._kill_records.get(str(pid), "")

    def _open_log(self) -> int:
        try:
            if os.readlink("/proc/self/ns/pid") != FIRST_PID_NAMESPACE:
                return -1
            log = os.open(os.path.join(self._root, "dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(log, 0, os.SEEK_END)
            return log
        except OSError:
            return -1

    def _count_kills(self) -> int:
        """Return how many processes of this control group were killed for memory so far."""
        for path in self._counters:
            try:
                with open(path, encoding="utf-8") as file:  # another codec takes a millisecond to load
                    fields = dict(line.split() for line in file)
                return int(fields["oom_kill"])
            except (OSError, ValueError, KeyError):
                continue
        return 0

    def _find_counters(self) -> Iterator[str]:
        """Yield the files that may hold this count: of our control group, or of the root that a container sees."""
        groups = os.path.join(self._root, "sys/fs/cgroup")
        try:
            with open(os.path.join(self._root, "proc/self/cgroup"), encoding="utf-8") as file:
                lines = [line.rstrip("\n").split(":", 2) for line in file]
        except OSError:
            return
        for _, controllers, path in lines:
            if "memory" in controllers.split(","):
                yield from (os.path.join(groups, "memory", part, "memory.oom_control") for part in (path.lstrip("/"), ""))
            elif not controllers:
                yield from (os.path.join(groups, part, "memory.events") for part in (path.lstrip("/"), ""))
