"""Imports point down: a folder knows only the folders in rows below its own, and some things only some may know."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "sfctr"

ROWS = (
    {"cli"},
    {"elastic", "verify", "report"},
    {"train"},
    {"lookahead", "checkpoint", "export", "trace"},
    {"data", "store", "models", "parallel", "planner"},
    {"spec", "telemetry"},
)
ROW = {folder: row for row, folders in enumerate(ROWS) for folder in folders}

# What only some folders may import or read. `None` as folder stands for the package's own top-level modules.
RESERVED: dict[str, set[str]] = {
    "sfctr._native": {"data", "store", "parallel", "lookahead", "trace"},
    "torch.distributed": {"parallel", "checkpoint", "elastic"},
    "pyarrow.parquet": {"data", "checkpoint", "export"},  # the latter two for files of our own
    **{f"pyarrow.{reader}": {"data"} for reader in ("csv", "dataset", "feather", "ipc", "json", "orc")},
    "sys.argv": {"cli"},
    "os.environ": {"cli", "elastic"},
    "os.environb": {"cli", "elastic"},
    "os.getenv": {"cli", "elastic"},
}
ONLY: dict[str, set[str]] = {
    "verify/reference": {"spec", "data", "models", "verify.outcome", "verify.reference"},
    "export/reader": {"spec", "data", "export.files", "export.keys", "export.scores"},
    "export/files": {"spec", "data"},
    "export/keys": {"spec"},
    "export/scores": {"spec"},
}
"""Files, by how their path begins, that may know less of sfctr than their folder's row allows, and what that is."""

# The package itself re-exports, and `python -m sfctr` starts the command line.
TOP_LEVEL = {"__init__.py", "__main__.py"}


def names_used(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything imported anywhere in a module of `package`, and of `a.b.c` read in it
    where `a` was imported under that name or another."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                known[name.asname or name.name.split(".")[0]] = name.name if name.asname else name.name.split(".")[0]
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            base = base if node.level else (node.module or "")
            for name in node.names:
                known[name.asname or name.name] = f"{base}.{name.name}"
                yield node.lineno, f"{base}.{name.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts: list[str] = []
            inner: ast.expr = node
            while isinstance(inner, ast.Attribute):
                parts.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in known:
                yield node.lineno, ".".join([known[inner.id], *reversed(parts)])


def violations(source: Path) -> list[str]:
    """One line for each arrow that does not point down, and each use of what another folder alone may know."""
    found: list[str] = []
    for path in sorted(source.rglob("*.py")):
        inside = path.relative_to(source)
        folder = inside.parts[0] if len(inside.parts) > 1 else None
        if folder is None and inside.name in TOP_LEVEL:
            continue
        if folder not in ROW:
            found.append(f"{inside}: folder {folder!r} is in no row")
            continue
        package = ("sfctr", *inside.parts[:-1])
        for line, name in sorted(set(names_used(ast.parse(path.read_text()), package))):
            problem = problem_with(name, folder, only_of(inside.as_posix()))
            if problem:
                found.append(f"{inside}:{line}: {problem}")
    return found


def only_of(file: str) -> set[str] | None:
    """What alone the file may know of sfctr, where that is less than its folder's row allows."""
    return next((known for front, known in ONLY.items() if file.startswith(front)), None)


def problem_with(name: str, folder: str, only: set[str] | None) -> str | None:
    """What is wrong with a module of `folder` using `name`, or None."""
    for reserved, folders in RESERVED.items():
        if folder not in folders and (name + ".").startswith(reserved + "."):
            return f"{reserved} belongs to {', '.join(sorted(folders))}"
    root, *inner = name.split(".")
    if root == "sfctr" and only is not None and not name.removeprefix("sfctr.").startswith(tuple(only)):
        return f"the reference may not know {name}"
    if root != "sfctr" or (inner and inner[0] in (folder, "_native", "__version__")):
        return None
    if not inner or inner[0] not in ROW:
        return f"imports {name}, which is in no row"
    if ROW[inner[0]] <= ROW[folder]:
        return f"{folder} may not know {inner[0]}"
    return None


def test_imports_point_down():
    assert violations(SOURCE) == []


def test_every_folder_of_the_package_was_walked():
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert (
        {"cli", "data", "lookahead", "models", "report", "spec", "store", "telemetry", "train", "verify"}
        <= folders
        <= set(ROW)
    )


@pytest.mark.parametrize(
    ("file", "code", "expected"),
    [
        ("store/a.py", "from sfctr.lookahead import Lookahead", "store may not know lookahead"),
        ("store/a.py", "from ..lookahead import Lookahead", "store may not know lookahead"),
        ("store/a.py", "from .. import train", "store may not know train"),
        ("store/a.py", "import sfctr.data.source", "store may not know data"),
        ("store/a.py", "def f():\n    from ..models import FM", "store may not know models"),
        ("spec/a.py", "from ..telemetry import notice", "spec may not know telemetry"),
        (
            "spec/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..store import Store",
            "spec may not know store",
        ),
        ("data/deep/a.py", "from ...store import Store", "data may not know store"),
        ("train/a.py", "import sfctr", "imports sfctr, which is in no row"),
        ("train/a.py", "from sfctr import Schema", "imports sfctr.Schema, which is in no row"),
        ("train/a.py", "from .. import _native", "sfctr._native belongs to"),
        ("models/a.py", "import torch.distributed as dist", "torch.distributed belongs to"),
        ("models/a.py", "import torch\n\nx = torch.distributed.get_rank()", "torch.distributed belongs to"),
        ("train/a.py", "from torch.distributed import all_reduce", "torch.distributed belongs to"),
        ("train/a.py", "import pyarrow.parquet as pq", "pyarrow.parquet belongs to"),
        ("export/a.py", "from pyarrow import csv", "pyarrow.csv belongs to data"),
        ("train/a.py", "import sys\n\nx = sys.argv[1:]", "sys.argv belongs to cli"),
        ("data/a.py", "from os import environ", "os.environ belongs to cli"),
        ("data/a.py", "import os as system\n\nx = system.getenv('X')", "os.getenv belongs to cli"),
        ("verify/reference.py", "from ..store import Store", "reference may not know sfctr.store"),
        ("verify/reference_rows.py", "from .. import _native", "sfctr._native belongs to"),
        ("verify/reference_rows.py", "from .engine import verify_run", "reference may not know sfctr.verify.engine"),
        ("utils/a.py", "", "folder 'utils' is in no row"),
        ("helpers.py", "", "folder None is in no row"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, file, code, expected):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(code)
    found = violations(tmp_path)
    assert found and all(expected in line for line in found)


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("store/a.py", "from ..spec.tables import Table\nfrom ..telemetry import span\nfrom .. import _native"),
        (
            "store/a.py",
            "from . import b\nfrom .b import c\nimport torch, os, sys\n\nx = os.getpid(), sys.stderr",
        ),
        ("train/a.py", "from ..lookahead import Lookahead\nfrom ..data import open_source\nimport pyarrow as pa"),
        ("export/a.py", "import pyarrow.parquet"),
        ("cli/a.py", "import sys, os\nfrom ..train.fit import fit\n\nx = sys.argv, os.environ"),
        ("verify/reference.py", "from ..spec import schema\nfrom ..data import open_source"),
        ("verify/reference.py", "from .reference_rows import mix\nfrom .outcome import Outcome"),
        ("verify/engine.py", "from sfctr.train.run import open_store"),
        ("__init__.py", "from .train import fit"),
    ],
)
def test_what_is_allowed_passes(tmp_path, file, code):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(code)
    assert violations(tmp_path) == []
