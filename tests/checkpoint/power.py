"""What may be on a disk after the power went, at any moment of a recorded save.

A file's bytes are there for good once it was synced, and a name once its directory was; of what was not, a disk may
keep any part, in any order. The model tries the ends of that: unsynced bytes gone, cut in half, zeros, or all there;
unsynced names gone, there, or only the first or the last of them done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from recording import Operation

BYTES = ("gone", "half", "zeros", "there")
NAMES = ("gone", "there", "only the last", "all but the first")

Tree = dict[str, "bytes | Tree"]
"""Names of a directory, with a file's bytes or what is in a directory."""


@dataclass(eq=False)
class File:
    data: bytes = b""
    num_synced: int = 0

    def left(self, how: str) -> bytes:
        unsynced = len(self.data) - self.num_synced
        kept = {"gone": 0, "half": unsynced // 2, "zeros": 0, "there": unsynced}[how]
        return self.data[: self.num_synced + kept] + bytes(unsynced if how == "zeros" else 0)


@dataclass(eq=False)
class Folder:
    """now: names as the process sees them. synced: those that are there for good."""

    now: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """Of one folder's names, done as a whole or not at all."""

    folder: Folder
    without: str | None = None
    name: str | None = None
    node: File | Folder | None = None

    def apply(self, names: dict[str, File | Folder]) -> None:
        if self.without is not None:
            names.pop(self.without, None)
        if self.name is not None:
            names[self.name] = self.node


class Machine:
    """The files below `root`, all of them synced, and then one operation after another."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = self._read(root, {})
        self.unsynced: list[Change] = []

    def _read(self, path: Path, seen: dict[int, File]) -> Folder:
        folder = Folder()
        for each in path.iterdir():
            if each.is_dir():
                folder.now[each.name] = self._read(each, seen)
            else:
                data = each.read_bytes()
                folder.now[each.name] = seen.setdefault(each.stat().st_ino, File(data, len(data)))
        folder.synced = dict(folder.now)
        return folder

    def do(self, operation: Operation) -> None:
        path, target = operation.path, operation.target
        match operation.name:
            case "create":
                self._change(path, Change(self._folder(path), None, path.name, File()))
            case "write":
                self._node(path).data += operation.data
            case "sync":
                file = self._node(path)
                file.num_synced = len(file.data)
            case "make_directory":
                self._change(path, Change(self._folder(path), None, path.name, Folder()))
            case "link":
                self._change(target, Change(self._folder(target), None, target.name, self._node(path)))
            case "rename":
                assert path.parent == target.parent, "a change of two folders is not atomic in this model"
                self._change(path, Change(self._folder(path), path.name, target.name, self._node(path)))
            case "remove" | "remove_directory":
                self._change(path, Change(self._folder(path), path.name))
            case "sync_directory":
                folder = self._node(path)
                folder.synced = dict(folder.now)
                self.unsynced = [change for change in self.unsynced if change.folder is not folder]

    def _change(self, path: Path, change: Change) -> None:
        change.apply(change.folder.now)
        self.unsynced.append(change)

    def _folder(self, path: Path) -> Folder:
        return self._node(path.parent)

    def _node(self, path: Path):
        node = self.top
        for part in path.relative_to(self.root).parts:
            node = node.now[part]
        return node

    def left(self, names: str, data: str) -> Tree:
        """What the disk has after the power went."""
        done = {
            "gone": [],
            "there": self.unsynced,
            "only the last": self.unsynced[-1:],
            "all but the first": self.unsynced[1:],
        }[names]
        return self._left(self.top, done, data)

    def _left(self, folder: Folder, done: Sequence[Change], data: str) -> Tree:
        left = dict(folder.synced)
        for change in done:
            if change.folder is folder:
                change.apply(left)
        return {
            name: self._left(node, done, data) if isinstance(node, Folder) else node.left(data)
            for name, node in left.items()
        }


def crashes(root: Path, operations: Sequence[Operation]) -> Iterator[tuple[int, Tree]]:
    """For every prefix of what was done below `root`, from the state it had before: its length, and what is left for
    each way in which the power may go. What was left after a shorter prefix, too, is not told again."""
    machine, told = Machine(root), set()
    for length in range(len(operations) + 1):
        if length:
            machine.do(operations[length - 1])
        for names, data in product(NAMES, BYTES):
            tree = machine.left(names, data)
            if length == len(operations) or repr(tree) not in told:
                told.add(repr(tree))
                yield length, tree


def write_tree(tree: Tree, where: Path) -> Path:
    where.mkdir()
    for name, inside in tree.items():
        if isinstance(inside, dict):
            write_tree(inside, where / name)
        else:
            (where / name).write_bytes(inside)
    return where
