"""A session in a notebook: a frame, a fit that is interrupted, a fit that is not, scores; and nothing left over."""

import nbformat
import pytest
from nbclient import NotebookClient

SETUP = """
import gc, os, pathlib, signal, threading, time
import numpy as np, pandas as pd
import sfctr

draw = np.random.default_rng(0)
frame = pd.DataFrame({"item": draw.integers(0, 50, 4000), "price": draw.random(4000)})
frame["click"] = (draw.random(4000) < 0.1 + 0.8 * (frame["item"] % 2)).astype(int)
schema = sfctr.Schema(label="click", features=[sfctr.Categorical("item"), sfctr.Dense("price")])


def held():
    "Threads of Python, threads of the process, and files below this directory that are open."
    gc.collect()
    links = [pathlib.Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    files = sorted(os.readlink(link) for link in links if link.is_symlink())
    here = [file for file in files if file.startswith(os.getcwd())]
    return sorted(t.name for t in threading.enumerate()), len(os.listdir("/proc/self/task")), here


sfctr.fit(frame, schema, run_dir="warm-up", max_steps=5, batch_size=256, quiet=True).close()
before = held()
"""

INTERRUPTED = """
def stop_button():
    while not pathlib.Path("first/run.toml").exists():
        time.sleep(0.01)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)


finger = threading.Thread(target=stop_button)
finger.start()
sfctr.fit(frame, schema, run_dir="first", valid_fraction=0.2, epochs=100_000, batch_size=256, quiet=True)
"""

AGAIN = """
finger.join()
run = sfctr.fit(frame, schema, run_dir="second", valid_fraction=0.2, epochs=4, batch_size=256, quiet=True)
scores = run.predict(frame.drop(columns="click"))
assert scores["row"].to_pylist() == list(range(4000))
odd = scores["score"].to_numpy()[frame["item"] % 2 == 1].mean()
even = scores["score"].to_numpy()[frame["item"] % 2 == 0].mean()
assert odd > even + 0.2, (odd, even)
run.evaluate(frame)["auc"]
"""

AFTER_THE_INTERRUPT = """
with sfctr.Run.load("first", "last") as kept:
    assert kept.facts["step"] > 0
    kept.predict(frame)
"""

NOTHING_LEFT = """
run.close()
assert held() == before, (held(), before)
"""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.filterwarnings("default")  # of the notebook's own machinery, in this process
def test_an_interrupted_fit_can_be_run_again_and_leaves_nothing_behind(tmp_path):
    cells = [nbformat.v4.new_code_cell(c) for c in (SETUP, INTERRUPTED, AGAIN, AFTER_THE_INTERRUPT, NOTHING_LEFT)]
    cells[1].metadata["tags"] = ["raises-exception"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [output["ename"] for output in notebook.cells[1].outputs if output.output_type == "error"] == [
        "KeyboardInterrupt"
    ]
    (shown,) = (output for output in notebook.cells[2].outputs if output.output_type == "execute_result")
    assert 0.7 < float(shown["data"]["text/plain"]) < 1
