"""Tells what happened and how long it took, without ever blocking. Imports nothing of ours.

  notice("...")           one line for the user, said once
  with span("fetch", step=7): ... adds its seconds, and one to its count, to the current recorder
  current().count("rows", 4096)
  with Recorder() as recorder: ...; recorder.seconds(); recorder.counts()
  with ChromeTrace("trace.json") as trace, Recorder(trace): ...     every span, as a file to look at

The current recorder belongs to the context (`contextvars`): a new thread begins with the process's own recorder, and
records into its parent's when it is started through `contextvars.copy_context().run`.
"""

from .chrome import ChromeTrace
from .recorder import Recorder, current, notice, span

__all__ = ["ChromeTrace", "Recorder", "current", "notice", "span"]
