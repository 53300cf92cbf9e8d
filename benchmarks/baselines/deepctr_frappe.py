"""DeepFM of deepctr-torch 0.3.0 on the Frappe split, under the settings of one of our own run files.

Runs in an environment of its own. The library's own loop trains one epoch a call; around it is what our trainer does:
the validation AUC after each epoch, the learning rate lowered where it does not rise, the test rows scored by the best
epoch. Where the library's defaults differ from ours the settings decide:

- first weights: Xavier-normal layers, vectors N(0, init_std), first-order weights zero (its own are N(0, 1e-4));
- it sums the loss over the batch where we take the mean, so l2 is multiplied by half the batch size and Adam's eps by
  the batch size. (The last batch of an epoch is shorter; its penalty weighs more here by that ratio.)
- one table serves all columns, as their ids do not overlap.

Prints one line of JSON: valid_auc, auc, logloss (of the test rows), epochs, seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pandas as pd
import torch
from deepctr_torch.inputs import SparseFeat
from deepctr_torch.models import DeepFM
from sklearn.metrics import log_loss, roc_auc_score

COLUMNS = [
    *("user", "item", "daytime", "weekday", "isweekend"),
    *("homework", "cost", "weather", "country", "city"),
]

Part = tuple[dict[str, np.ndarray], np.ndarray]


def load(path: Path) -> Part:
    frame = pd.read_parquet(path)
    return {name: frame[name].to_numpy(np.int64) for name in COLUMNS}, frame["label"].to_numpy(np.float32)


def make_model(settings: dict[str, Any], seed: int) -> DeepFM:
    table = [
        SparseFeat(name, settings["num_rows"], embedding_dim=settings["dim"], embedding_name="ids") for name in COLUMNS
    ]
    half_batch = settings["batch_size"] / 2
    model = DeepFM(
        table,
        table,
        dnn_hidden_units=settings["hidden"],
        dnn_dropout=settings["dropout"],
        dnn_use_bn=settings["batch_norm"],
        l2_reg_embedding=settings["l2"] * half_batch,
        l2_reg_linear=settings["linear_l2"] * half_batch,
        l2_reg_dnn=0,
        seed=seed,
        device="cpu",
    )
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.xavier_normal_(module.weight)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
    torch.nn.init.normal_(model.embedding_dict["ids"].weight, std=settings["init_std"])
    torch.nn.init.zeros_(model.linear_model.embedding_dict["ids"].weight)
    adam = torch.optim.Adam(model.parameters(), lr=settings["lr"], eps=1e-8 * settings["batch_size"])
    model.compile(adam, "binary_crossentropy")
    return model


def scores(model: DeepFM, part: Part) -> np.ndarray:
    return model.predict(dict(part[0]), batch_size=8192).ravel()


def train(model: DeepFM, settings: dict[str, Any], parts: dict[str, Part]) -> dict[str, float]:
    """The best epoch's figures. The rate falls, and training ends, by the rules of our `plateau` and `stop_after`."""
    best = {"valid_auc": -math.inf}
    without = 0
    for epoch in range(1, settings["epochs"] + 1):
        model.fit(*parts["train"], batch_size=settings["batch_size"], epochs=1, verbose=0, shuffle=True)
        valid_auc = float(roc_auc_score(parts["valid"][1], scores(model, parts["valid"])))
        print(f"epoch {epoch}: validation AUC {valid_auc:.5f}", flush=True)
        if valid_auc - best["valid_auc"] > settings["min_delta"]:
            best, without = {"valid_auc": valid_auc, **tested(model, parts["test"]), "epochs": epoch}, 0
            continue
        without += 1
        for group in model.optim.param_groups:
            floor = settings["lr"] * settings["plateau_min_factor"]
            group["lr"] = max(group["lr"] * settings["plateau_factor"], floor)
        if without >= settings["stop_after"]:
            break
    return best


def tested(model: DeepFM, test: Part) -> dict[str, float]:
    found = scores(model, test)
    return {"auc": float(roc_auc_score(test[1], found)), "logloss": float(log_loss(test[1], found))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("train", "valid", "test"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--settings", type=json.loads, required=True, help="JSON object")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_flush_denormal(True)
    began = monotonic()
    parts = {name: load(getattr(args, name)) for name in ("train", "valid", "test")}
    with contextlib.redirect_stdout(sys.stderr):  # the library prints as it goes
        torch.manual_seed(args.seed)
        best = train(make_model(args.settings, args.seed), args.settings, parts)
    print(json.dumps({**best, "seconds": round(monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
