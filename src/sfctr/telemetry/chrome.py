"""ChromeTrace: spans as a file that chrome://tracing and https://ui.perfetto.dev draw, a row for each thread.

It is the trace event format's JSON array of complete events ("ph": "X"; times in microseconds), written as spans end,
so that memory does not grow with the run. close() makes it valid JSON; the viewers also read what a killed run leaves.
A disk that refuses ends the trace, not the run: `error` then says why.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self


class ChromeTrace:
    """Any thread may write beside any other. Raises OSError where the file cannot be made."""

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115  closed by close()
        self._lock = threading.Lock()
        self._began, self._pid = perf_counter(), os.getpid()
        self._threads: dict[tuple[int, str], int] = {}  # by name too: the identity of one that ended comes again
        self._is_first = True
        self.error: OSError | None = None

    def write(self, name: str, began: float, ended: float, args: Mapping[str, int]) -> None:
        """A span of this thread; times are perf_counter's."""
        event = {
            "name": name,
            "ph": "X",
            "ts": round((began - self._began) * 1e6, 3),
            "dur": round((ended - began) * 1e6, 3),
            "args": args,
        }
        thread = threading.get_ident(), threading.current_thread().name
        with self._lock:
            if thread not in self._threads:
                self._threads[thread] = len(self._threads) + 1
                self._append({"name": "thread_name", "ph": "M", "args": {"name": thread[1]}}, self._threads[thread])
            self._append(event, self._threads[thread])

    def _append(self, event: Mapping[str, object], row: int) -> None:
        if self.error is not None or self._file.closed:
            return
        line = json.dumps({**event, "pid": self._pid, "tid": row})
        try:
            self._file.write(("[\n" if self._is_first else ",\n") + line)
            self._is_first = False
        except OSError as error:
            self.error = error

    def close(self) -> None:
        """End the file. Calling it again does nothing."""
        with self._lock:
            if self._file.closed:
                return
            try:
                self._file.write("[]\n" if self._is_first else "\n]\n")
                self._file.close()
            except OSError as error:
                self.error = self.error or error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
