"""Ctrl-C and SIGTERM during a run: the current round is finished first; a second signal stops at once."""

import os
import signal
import sys
import threading
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal stopped a run between two rounds.

    A run with a checkpoint has saved all of its rounds: call it again to continue. Without one,
    `run(..., state=stopped.result.state)` continues.

    Attributes:
        signal: number of the signal; a shell expects a process to end with 128 more.
        done: number of rounds that are done.
        result: the `Run` after these rounds, with its history and its state.
    """

    def __init__(self, number: int, done: int, rounds: int, result: Any, saved: bool):
        kept = "all of it is saved" if saved else "no checkpoint: the rounds so far are in `Stopped.result`"
        super().__init__(f"stopped by {signal.Signals(number).name} after round {done} of {rounds}; {kept}")
        self.signal, self.done, self.result = number, done, result


class StopOnSignal:
    """While entered, SIGINT and SIGTERM only set `signal`, for the loop to look at between rounds.

    Python runs a signal handler when the interpreter gets control, which may be a whole round later, and merges two
    signals into one. The C side writes a byte at once; a thread reads it, informs the user, and on the second byte ends
    the process. In a notebook or another interactive session, where that would end everything else as well, the second
    signal raises KeyboardInterrupt as soon as Python gets control.

    Outside the main thread, the only one that may handle signals, nothing happens. Ignored signals stay ignored.

    Args:
        enabled: False for a context that does nothing.
        saves: whether the round will be saved, for the message to the user.

    Attributes:
        signal: number of the first signal, 0 if there was none.
    """

    def __init__(self, enabled: bool = True, saves: bool = True):
        self.signal = 0
        self._first = "finished and saved" if saves else "finished"
        self._enabled = enabled and threading.current_thread() is threading.main_thread()
        self._count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopOnSignal":
        if not self._enabled:
            return self
        taken = [s for s in _SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
        read, self._write = os.pipe()
        if hasattr(os, "set_blocking"):  # Windows has it from Python 3.12 on, and does not ask for it
            os.set_blocking(self._write, False)
        self._fd_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {s: signal.signal(s, self._handle) or signal.SIG_DFL for s in taken}
        self._thread = threading.Thread(target=self._watch, args=(read,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._enabled:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        os.close(self._write)
        self._thread.join()

    def _handle(self, number: int, frame: Any) -> None:
        self.signal = self.signal or number  # in case the thread has not got to it yet
        if self._count > 1:
            raise KeyboardInterrupt

    def _watch(self, read: int) -> None:
        while byte := os.read(read, 1):
            if byte[0] not in self._before:
                continue
            self._count += 1
            self.signal = self.signal or byte[0]
            if self._count == 1:
                print(
                    f"\nStopping after this round, which is {self._first} first. A second signal stops at once.",
                    file=sys.stderr,
                )
            elif not hasattr(sys, "ps1"):
                if os.isatty(1):
                    os.write(1, b"\x1b[?25h\n")  # the progress bar hides the cursor
                os._exit(128 + byte[0])
        os.close(read)
