"""A model, a DataLoader and a loop of one's own, before and after its embeddings move into a store.

    python examples/swap.py

First with all rows in RAM: the weights after 200 steps are those of torch.optim.SparseAdam to 1e-6. Then with rows that
take ten times the RAM they are given, the rest on disk: the same weights, bit for bit. It asserts both.
"""

import tempfile

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import sfctr

STEPS, BATCH, LR = 200, 64, 1e-3
NUM_ITEMS, NUM_TAGS, DIM = 20_000, 500, 16


class Clicks(Dataset):
    """Clicks on items, few of which are popular; an item has three tags."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        size = STEPS * BATCH
        popularity = torch.rand(size, generator=generator) ** 3
        self.item = (popularity * NUM_ITEMS).long()
        self.tags = torch.randint(NUM_TAGS, (size, 3), generator=generator)
        self.click = (torch.rand(size, generator=generator) < 0.2 + 0.5 * popularity).float()

    def __len__(self) -> int:
        return len(self.click)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"item": self.item[row], "tags": self.tags[row], "click": self.click[row]}


class TwoTables(nn.Module):
    """An ordinary torch model; it knows nothing of sfctr."""

    def __init__(self) -> None:
        super().__init__()
        self.item_embedding = nn.Embedding(NUM_ITEMS, DIM, sparse=True)
        self.tag_embedding = nn.EmbeddingBag(NUM_TAGS, DIM, mode="mean", sparse=True)
        self.mlp = nn.Sequential(nn.Linear(2 * DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, item: Tensor, tags: Tensor) -> Tensor:
        vectors = torch.cat([self.item_embedding(item), self.tag_embedding(tags)], dim=1)
        return self.mlp(vectors).squeeze(1)


def make_model() -> TwoTables:
    torch.manual_seed(7)
    return TwoTables()


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(batch["item"], batch["tags"])
    return nn.functional.binary_cross_entropy_with_logits(logits, batch["click"])


def train_in_torch(loader: DataLoader) -> tuple[dict[str, Tensor], list[float]]:
    """The loop as it was: the weights of both tables, and the losses."""
    model = make_model()
    tables = {"item_embedding": model.item_embedding.weight, "tag_embedding": model.tag_embedding.weight}
    sparse, dense = (
        torch.optim.SparseAdam(list(tables.values()), lr=LR),
        torch.optim.Adam(model.mlp.parameters(), lr=LR),
    )
    losses = []
    for batch in loader:
        loss = loss_of(model, batch)
        loss.backward()
        sparse.step(), dense.step()
        sparse.zero_grad(), dense.zero_grad()
        losses.append(float(loss.detach()))
    return {name: weight.detach() for name, weight in tables.items()}, losses


def train_in_store(loader: DataLoader, tiers: sfctr.Tiers) -> tuple[dict[str, Tensor], list[float], dict[str, int]]:
    """The same model, embedded: its rows are in a store, within `tiers`. Also what has moved."""
    tables = [
        sfctr.Table("item_embedding", dim=DIM, optimizer=sfctr.Adam(lr=LR)),
        sfctr.Table("tag_embedding", dim=DIM, optimizer=sfctr.Adam(lr=LR)),
    ]
    with sfctr.Store(tables, tiers=tiers) as store:
        model = sfctr.embed(make_model(), store)
        dense = torch.optim.Adam(model.parameters(), lr=LR)  # rows are no parameters any more
        losses = []
        ids = {"item": model.item_embedding, "tags": model.tag_embedding}
        for ready in sfctr.Lookahead(loader, store, ids=ids, window=8):
            loss = loss_of(model, ready.batch)
            loss.backward()
            ready.step(dense)
            losses.append(float(loss.detach()))
        weights = {table.name: rows_of(store, table.name) for table in tables}
        return weights, losses, store.counters()


def rows_of(store: sfctr.Store, table: str) -> Tensor:
    """float32 [rows, DIM] of a table, in the order of its keys."""
    blocks = list(store.rows(table))
    keys = torch.cat([torch.from_numpy(block.keys.astype("int64")) for block in blocks])
    return torch.cat([torch.from_numpy(block.vectors) for block in blocks])[keys.argsort()]


def largest_difference(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    return max(float((some[name] - others[name]).abs().max()) for name in some)


def main() -> None:
    loader = DataLoader(Clicks(), batch_size=BATCH)
    in_torch, torch_losses = train_in_torch(loader)
    in_ram, losses, moved = train_in_store(loader, sfctr.Tiers(disk=False))
    difference = largest_difference(in_ram, in_torch)
    assert difference <= 1e-6, difference
    assert moved["evicted"] == moved["fetched"] == 0
    print(f"loss {sum(losses[:20]) / 20:.4f} at first, {sum(losses[-20:]) / 20:.4f} after {STEPS} steps")
    print(f"after {STEPS} steps rows differ from torch.optim.SparseAdam's by at most {difference:.1e}")
    assert max(abs(a - b) for a, b in zip(losses, torch_losses, strict=True)) <= 1e-6

    row_bytes = 3 * DIM * 4  # a vector, and Adam's two averages of it
    rows_bytes = (NUM_ITEMS + NUM_TAGS) * row_bytes
    index_bytes = (NUM_ITEMS + NUM_TAGS) * 24  # which key is where, always in RAM
    with tempfile.TemporaryDirectory() as directory:
        tiers = sfctr.Tiers(ram=rows_bytes // 10 + index_bytes, disk=directory)
        on_disk, disk_losses, moved = train_in_store(loader, tiers)
    assert all(torch.equal(on_disk[name], in_ram[name]) for name in in_ram) and disk_losses == losses
    assert moved["fetched"] > 0
    print(
        f"with room for {rows_bytes // 10:,} of {rows_bytes:,} bytes of rows: {moved['fetched']:,} rows came from disk,"
        " and every weight is the same, bit for bit"
    )


if __name__ == "__main__":
    main()
