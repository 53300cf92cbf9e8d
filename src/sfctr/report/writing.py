"""Pages to files. A file is written beside, by a name that no other process has, and renamed: a reader never finds half
of one, and where it cannot be written nothing is left."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sfctr.spec.errors import writing
from sfctr.train.run_dir import REPORT_FILE

from .comparison_page import comparison_page
from .record import read_record
from .run_page import run_page
from .tensorboard import write_events


def write_report(run_dir: Path) -> Path:
    """Write the report of a run into its directory, over an earlier one. Raises ConfigError where there is no run, and
    CapacityError where it cannot be written."""
    return _write(run_dir / REPORT_FILE, run_page(read_record(run_dir)))


def write_comparison(run_dirs: Sequence[Path], out: Path) -> Path:
    """Write one page on several runs. Raises as write_report()."""
    return _write(out, comparison_page([read_record(each) for each in run_dirs]))


def write_tensorboard(run_dirs: Sequence[Path], out_dir: Path) -> list[Path]:
    """Write event files of each run, into a folder of its own. Raises ConfigError where tensorboard is missing, too."""
    return write_events([read_record(each) for each in run_dirs], out_dir)


def _write(path: Path, text: str) -> Path:
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(path)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise
    return path
