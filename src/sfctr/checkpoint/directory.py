"""The checkpoints of a run: a directory for each step, complete or absent.

A checkpoint is written under "<name>.new"; when all in it is on disk for good it is renamed, so that what has a plain
name is whole. One that makes room, because it is old or its step is saved anew, first becomes "<name>.old": whole, or
without its manifest. A killed process leaves such names behind; recover() takes them away, or gives one its name back.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from sfctr.spec.errors import CheckpointError

from .disk import Disk, remove_tree
from .manifest import check_files, is_of_another_version, read_manifest

_STEP = re.compile(r"step-(\d{12})(\.new|\.old)?")


@dataclass(frozen=True, kw_only=True)
class Newest:
    """path: the newest sound checkpoint, if there is one. skipped: for each newer one, why it is not."""

    path: Path | None
    skipped: tuple[str, ...]


class CheckpointDirectory:
    """`path` holds them, and need not be there yet. Every change raises OSError as the system does."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.path, self.disk = path, disk or Disk()
        self._is_named = False  # for good, as far as this process knows

    def of_step(self, step: int) -> Path:
        return self.path / f"step-{step:012}"

    def beside(self, step: int) -> Path:
        """Where it is written."""
        return self._named(step, ".new")

    def steps(self) -> list[int]:
        """Of the checkpoints that have their plain name, oldest first."""
        return sorted(step for step, ending in self._found() if not ending)

    def newest(self) -> Newest:
        """The newest one whose files are all as they were written; reads all of them.

        Raises CheckpointError for one of another version: it may be sound, and newer than all others.
        """
        skipped: list[str] = []
        whole = [(-step, ending) for step, ending in self._found() if ending != ".new"]
        for step, ending in sorted(whole):
            path = self._named(-step, ending)
            try:
                check_files(path, read_manifest(path).files)
            except CheckpointError as error:
                if is_of_another_version(path):
                    raise
                skipped.append(str(error))
            else:
                return Newest(path=path, skipped=tuple(skipped))
        return Newest(path=None, skipped=tuple(skipped))

    def recover(self) -> None:
        """Take away what a killed process left half done. The run must have no other process that saves."""
        found = self._found()
        for step, ending in sorted(found):
            if not ending:
                continue
            path = self._named(step, ending)
            if ending == ".old" and not _is_sound(self.of_step(step)) and _is_sound(path):
                if (step, "") in found:
                    remove_tree(self.disk, self.of_step(step))
                self.disk.rename(path, self.of_step(step))
            else:
                remove_tree(self.disk, path)
        if self.path.is_dir():
            self.disk.sync_directory(self.path)

    def begin(self, step: int) -> Path:
        """An empty directory to write the checkpoint in."""
        if not self.path.is_dir():
            self.disk.make_directory(self.path)
        if not self._is_named:
            self.disk.sync_directory(self.path.parent)
            self._is_named = True
        beside = self.beside(step)
        if beside.exists():
            remove_tree(self.disk, beside)
        self.disk.make_directory(beside)
        return beside

    def complete(self, step: int) -> Path:
        """Give it its name; its files are synced already. One of the same step is set aside, until retain()."""
        beside, path = self.beside(step), self.of_step(step)
        for inside in sorted(each for each in beside.iterdir() if each.is_dir()):
            self.disk.sync_directory(inside)
        self.disk.sync_directory(beside)
        replaces = path.exists()
        if replaces:
            self._set_aside(step)
        try:
            self.disk.rename(beside, path)
        except OSError:
            if replaces:
                self.disk.rename(self._named(step, ".old"), path)
            raise
        self.disk.sync_directory(self.path)
        return path

    def give_up(self, step: int) -> None:
        """Take away what was written of it."""
        if self.beside(step).exists():
            remove_tree(self.disk, self.beside(step))

    def retain(self, newest: int, keep: int, also: Collection[int] = ()) -> None:
        """Of those up to step `newest` keep the last `keep` and the steps in `also`; remove all others, newer ones too:
        they are damaged, or of a course that the run has left."""
        steps = self.steps()
        kept = {*[step for step in steps if step <= newest][-keep:], *(step for step in also if step <= newest)}
        for step in steps:
            if step not in kept:
                self._set_aside(step)
        aside = [step for step, ending in self._found() if ending == ".old"]
        if aside:
            self.disk.sync_directory(self.path)
        for step in sorted(aside):
            remove_tree(self.disk, self._named(step, ".old"))

    def _set_aside(self, step: int) -> None:
        old = self._named(step, ".old")
        if old.exists():
            remove_tree(self.disk, old)
        self.disk.rename(self.of_step(step), old)

    def _named(self, step: int, ending: str) -> Path:
        return self.path / f"step-{step:012}{ending}"

    def _found(self) -> set[tuple[int, str]]:
        """Step and ending of every directory that has the name of a checkpoint."""
        if not self.path.is_dir():
            return set()
        matches = (_STEP.fullmatch(path.name) for path in self.path.iterdir() if path.is_dir())
        return {(int(match[1]), match[2] or "") for match in matches if match}


def _is_sound(path: Path) -> bool:
    try:
        check_files(path, read_manifest(path).files)
    except CheckpointError:
        return False
    return True
