"""Program of the process that watches the environments of its parent.

It runs beside a process that steps environments, and sees what that process cannot see or say: a
step that never returns and holds the interpreter's lock, the second SIGTERM amid such a step, and
the end of the process by a signal or by `os._exit`. It imports nothing but the standard library,
reads memory that its parent writes, and ends with its parent.

The memory has the numbers of HEADER, then slots of four numbers (`pearl_devices`, `envs.asked`),
all float64, and from TEXT on the entries of the slots in use as JSON. `watchdog` starts the
program and writes the memory.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import sys
import time
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any

SIZE = 1 << 16
"""Bytes of the memory."""

SEQUENCE, LENGTH = 0, 1
"""Places in the header: a number that changes with the entries; the bytes of their text."""

HEADER, SLOT, SLOTS = 8, 4, 250
"""Numbers of the header and of a slot; number of slots."""

TEXT = 1 << 13
"""Byte at which the entries begin."""

CHECK_S = 0.25
"""Longest time between two looks at the memory."""

PATIENCE_S = 2.0
"""Seconds after the first signal that ends a run until a wait for an environment is named."""

LAST_S = 3.0
"""Seconds that a process has to end by itself after the second signal (assumed)."""

STANDS = "A checkpoint in the run's folder stays valid"


class Watch:
    """The parent as this process sees it.

    entries: of the slots in use: `slot`, `what` (the environment in words), `named_s` and `end_s`
        (seconds without an answer after which it is named, and the parent ended), `then` (what
        happens next, in words), `failed` (how timing it failed, or "") and `stands` (what the end
        of the process leaves, a sentence or "").
    """

    def __init__(self, system: Any, parent: int, memory: int, signals: int, report: int) -> None:
        self.system = system
        self.parent, self.signals, self.report = parent, signals, report
        mapped = mmap.mmap(memory, SIZE)
        self.cells = memoryview(mapped).cast("d")
        self.text = memoryview(mapped)[TEXT:]
        self.sequence, self.entries = -1.0, list[dict[str, Any]]()
        self.named = dict[int, float]()
        self.awake_s = self.checked_s = time.monotonic()
        self.heard: list[int] = []
        self.first_s = 0.0

    def read_entries(self) -> None:
        """Read the entries if they have changed."""
        if self.cells[SEQUENCE] != self.sequence:
            self.sequence = self.cells[SEQUENCE]
            length = int(self.cells[LENGTH])
            try:
                self.entries = json.loads(bytes(self.text[:length]) or b"[]")
            except ValueError:  # it is being written; the next look reads it
                self.sequence = -1.0

    def asked(self) -> list[tuple[dict[str, Any], float]]:
        """The environments that are asked something, each with the seconds since then."""
        now, found = time.monotonic(), []
        for entry in self.entries:
            since_s = self.cells[HEADER + SLOT * entry["slot"]]
            if since_s:
                found.append((entry, now - max(since_s, self.awake_s)))
        return found

    def place(self, entry: dict[str, Any]) -> str:
        """Name an environment with its number, its episode and its step, if it has an episode."""
        first = HEADER + SLOT * entry["slot"]
        _, number, step, episode = (int(n) for n in self.cells[first : first + SLOT])
        if episode < 0:
            return str(entry["what"])
        which = f", number {number}" if number >= 0 else ""
        return f"{entry['what']}{which}, episode {episode}, step {step},"

    def check_sleep(self) -> None:
        """Note times in which the parent was stopped: they count for nothing."""
        now = time.monotonic()
        late = now - self.checked_s > 4 * CHECK_S + 1.0
        asked = any(seconds > 4 * CHECK_S for _, seconds in self.asked())
        if late or (asked and self.system.is_stopped(self.parent)):  # a look takes milliseconds
            self.awake_s = now
        self.checked_s = now

    def check_waits(self) -> None:
        """Name environments that have not answered for long, and end a parent that waits too
        long."""
        for entry, seconds in self.asked():
            slot = entry["slot"]
            since_s = self.cells[HEADER + SLOT * slot]
            if seconds > entry["end_s"]:
                self.end(f"{self.place(entry)} has not answered for {entry['end_s']:g} s")
            if seconds > entry["named_s"] and self.named.get(slot) != since_s:
                self.named[slot] = since_s
                say(f"{self.place(entry)} has not answered for {seconds:.0f} s; {entry['then']}")

    def hear(self) -> None:
        """Note the signals that the parent has got; 0 means that no run listens any more."""
        for number in os.read(self.signals, 4096):
            if number == 0:
                self.heard.clear()
            elif number in self.system.ENDING:
                if not self.heard:
                    self.first_s = time.monotonic()
                self.heard.append(number)
                if len(self.heard) == 2:
                    self.first_s = time.monotonic()

    def check_signals(self) -> None:
        """After the first signal, say what the run waits for; after the second, end it."""
        if not self.heard:
            return
        waited_s = time.monotonic() - self.first_s
        name = signal.Signals(self.heard[-1]).name
        waits = [self.place(entry) for entry, seconds in self.asked() if seconds > PATIENCE_S / 2]
        if len(self.heard) > 1:
            if waited_s > LAST_S:
                why = f"{waits[0]} has not answered" if waits else "the run has not ended"
                self.end(f"the second signal was {name}, and {why}")
        elif waited_s > PATIENCE_S and waits and -1 not in self.named:
            self.named[-1] = self.first_s
            say(
                f"{name}: the run ends once {waits[0]} has answered; a second SIGTERM or SIGHUP "
                f"ends the process within {LAST_S:g} s. {STANDS}"
            )

    def end(self, why: str) -> None:
        """End the parent, and this process."""
        stands = self.entries[0]["stands"] if self.entries else ""
        say(f"{why}; it cannot be interrupted, so the process ends now. {stands}".rstrip())
        self.system.kill(self.parent)
        os._exit(0)

    def tell_death(self) -> None:
        """The parent has ended. If a run was under way, say how and where."""
        self.read_entries()
        if not self.entries:
            return
        how, where = self.cause()
        asked = self.asked()
        if asked:
            entry = asked[0][0]
            failed = f" Timing it had failed too: {entry['failed']}." if entry["failed"] else ""
            where += f".{failed}"
            text = f"the process ended with {how} while {self.place(entry)} ran{where}"
            say(f"{text} {entry['stands']}".rstrip())
        elif how and self.entries[0]["stands"]:
            say(f"the process ended with {how} amid a run{where}. {self.entries[0]['stands']}")

    def cause(self) -> tuple[str, str]:
        """How the parent has ended, and where its code was, in words."""
        ended = self.system.read_wait_status(self.parent)
        status = -1 if ended is None else ended
        text = os.pread(self.report, 1 << 16, 0).decode(errors="replace")
        first, _, rest = text.partition("\n")
        rest = rest.partition("Current thread")[2]  # other threads are told of before and after
        line = next((line for line in rest.splitlines() if line.startswith("  File ")), "")
        where = f" ({line.strip()})" if line else ""
        if status > 0 and status & 127:
            return describe_signal(status & 127), where
        if status >= 0:
            return f"exit status {status >> 8} (os._exit)", where
        for number in (4, 6, 7, 8, 11):
            if (signal.strsignal(number) or "?").lower() in first.lower():
                return describe_signal(number), where
        return "signal 9 (killed), or by os._exit,", where


def describe_signal(number: int) -> str:
    return f"signal {number} ({(signal.strsignal(number) or 'unknown').lower()})"


def say(text: str) -> None:
    """Write a line to standard error."""
    with suppress(OSError):
        os.write(2, f"pearl: {text}\n".encode(errors="replace"))


def main(room: str, parent: int, memory: int, signals: int, report: int) -> None:
    """Watch until the parent has ended. room: the folder of `pearl_devices`."""
    # The package as a name alone: its own imports would take half a second.
    sys.modules["pearl_devices"] = package = ModuleType("pearl_devices")
    package.__path__ = [room]
    system = import_module("pearl_devices.system").host_system
    for number in (signal.SIGINT, *system.ENDING):
        signal.signal(number, signal.SIG_IGN)
    watch = Watch(system, parent, memory, signals, report)
    try:
        process = system.watch_end(parent)
    except ProcessLookupError:  # it has ended while this process began
        watch.tell_death()
        return
    ready = select.poll()
    if process is not None:
        ready.register(process, select.POLLIN)
    ready.register(signals, select.POLLIN)
    while True:
        for handle, events in ready.poll(CHECK_S * 1000):
            if handle == process:
                watch.tell_death()
                return
            if events & select.POLLIN:
                watch.hear()
            else:  # the parent has closed it
                ready.unregister(signals)
        if os.getppid() != parent:
            watch.tell_death()
            return
        watch.read_entries()
        watch.check_sleep()
        watch.check_waits()
        watch.check_signals()


if __name__ == "__main__":
    main(sys.argv[1], *(int(given) for given in sys.argv[2:]))
