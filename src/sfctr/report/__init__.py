"""Shows a person what happened in a run.

  write_report(run_dir)                  RUN/report.html: one run, in one file that needs nothing beside it
  write_comparison([run, ...], out)      one page on several runs
  write_tensorboard([run, ...], out_dir) the same numbers as event files, for TensorBoard

It reads what a run leaves in its directory and nothing else, so it works during a run, after one, and on one of an
older version; what such a run did not keep is said to be unknown. matplotlib and tensorboard are imported when used.
"""

from .writing import write_comparison, write_report, write_tensorboard

__all__ = ["write_comparison", "write_report", "write_tensorboard"]
