"""Every built-in model: shapes, gradients, kinds of inputs, and values worked out by hand."""

from __future__ import annotations

import inspect
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn

from sfctr.models.dcnv2 import DCNv2
from sfctr.models.deepfm import DeepFM
from sfctr.models.din import DIN
from sfctr.models.dlrm import DLRM
from sfctr.models.fm import FM, second_order
from sfctr.models.layers import MLP, BatchNorm, Dice, masked_mean
from sfctr.models.lr import LR
from sfctr.models.registry import BUILT_IN, build_model
from sfctr.models.widedeep import WideDeep
from sfctr.spec.errors import ModelError
from sfctr.spec.inputs import Input

B, D, L = 6, 4, 5

NUMBER = Input(name="price", kind="dense", width=2)
ITEM = Input(name="item", kind="pooled", dim=D, linear=True, table="item")
TAGS = Input(name="tags", kind="pooled", dim=D, linear=True, table="tag")
HISTORY = Input(name="history", kind="sequence", dim=D, max_length=L, linear=True, target="item", table="item")
SIDE = Input(name="cats", kind="sequence", dim=D, max_length=L, linear=True, aligned_with="history", table="cat")

MIXES = {
    "everything": (NUMBER, ITEM, TAGS, HISTORY, SIDE),
    "keys only": (ITEM, TAGS),
    "one key": (ITEM,),
    "numbers only": (NUMBER,),
    "a history": (ITEM, HISTORY),
}
LENGTHS = (0, 1, 2, 5, 3, 4)


def features_of(inputs: tuple[Input, ...], batch: int = B, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features: dict[str, Tensor] = {}
    mask = torch.arange(L) < torch.tensor(LENGTHS[:batch]).unsqueeze(1)
    for item in inputs:
        if item.kind == "dense":
            features[item.name] = torch.randn(batch, item.width, generator=generator)
            continue
        shape = (batch, item.dim) if item.kind == "pooled" else (batch, L, item.dim)
        features[item.name] = torch.randn(shape, generator=generator)
        if item.kind == "sequence":
            features[f"{item.name}.mask"] = mask
            features[item.name] *= mask.unsqueeze(2)
        if item.linear:
            features[f"{item.name}.linear"] = torch.randn(batch, 1, generator=generator)
    return features


def mixes_of(name: str) -> list[str]:
    return ["everything", "a history"] if name == "din" else list(MIXES)


CASES = [(name, mix) for name in BUILT_IN for mix in mixes_of(name)]


@pytest.mark.parametrize("labels", [1, 2])
@pytest.mark.parametrize(("name", "mix"), CASES)
def test_a_model_gives_one_logit_per_row_and_label_and_a_gradient_to_every_parameter(name, mix, labels):
    inputs = MIXES[mix]
    model = build_model(name, inputs, labels, seed=3)
    features = features_of(inputs)
    for tensor in features.values():
        if tensor.is_floating_point():
            tensor.requires_grad_()
    logits = model(features)
    assert logits.shape == ((B,) if labels == 1 else (B, labels))
    (logits - 1).square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
    used = [n for n, t in features.items() if t.grad is not None]
    ends = [".linear"] if name == "lr" else ["", ".linear"] if model.needs.linear else [""]
    for item in inputs:
        for end in ends if item.kind != "dense" else [""]:
            assert item.name + end in used


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_a_batch_of_one_row_trains_even_under_batch_norm(name):
    inputs = MIXES["everything"]
    args = {"batch_norm": True} if "batch_norm" in inspect.signature(BUILT_IN[name]).parameters else {}
    model = build_model(name, inputs, 1, args)
    assert model(features_of(inputs, batch=1)).shape == (1,)


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_a_model_runs_under_bf16_autocast(name):
    inputs = MIXES["everything"]
    model = build_model(name, inputs, 1)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(features_of(inputs))
    logits.float().sum().backward()
    plain = model(features_of(inputs))
    assert torch.allclose(logits.float(), plain, atol=0.15)


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_a_row_is_scored_alike_in_any_company(name):
    inputs = MIXES["everything"]
    model = build_model(name, inputs, 1, seed=1).eval()
    features = features_of(inputs)
    one = {key: tensor[2:3] for key, tensor in features.items()}
    assert torch.allclose(model(features)[2:3], model(one), atol=1e-6)


def test_lr_adds_bias_key_weights_and_weighted_numbers():
    model = LR((NUMBER, ITEM, HISTORY))
    with torch.no_grad():
        model.first_order.bias.fill_(0.5)
        model.first_order.weights.copy_(torch.tensor([[2.0], [-1.0]]))
    features = {
        "price": torch.tensor([[3.0, 4.0]]),
        "item.linear": torch.tensor([[0.25]]),
        "history.linear": torch.tensor([[1.0]]),
    }
    assert model(features).tolist() == [0.5 + 2 * 3 - 4 + 0.25 + 1.0]


def test_several_labels_share_key_weights_up_to_a_factor_and_have_their_own_bias():
    model = LR((ITEM,), num_labels=2)
    with torch.no_grad():
        model.first_order.bias.copy_(torch.tensor([1.0, 2.0]))
        model.first_order.per_label.factor.copy_(torch.tensor([1.0, -3.0]))
    assert model({"item.linear": torch.tensor([[2.0]])}).tolist() == [[3.0, -4.0]]


def test_the_second_order_term_is_the_double_loop_over_pairs():
    vectors = torch.randn(5, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    slow = sum((vectors[:, i] * vectors[:, j]).sum(1) for i, j in combinations(range(7), 2))
    assert torch.allclose(second_order(vectors).squeeze(1), slow, rtol=1e-12)


def test_fm_multiplies_fields_and_the_vectors_of_numbers_by_their_values():
    model = FM((NUMBER, ITEM, TAGS))
    with torch.no_grad():
        model.fields.number_vectors.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0]]))
    features = {
        "price": torch.tensor([[2.0, 3.0]]),
        "item": torch.tensor([[1.0, 1.0, 0, 5.0]]),
        "tags": torch.tensor([[0, 2.0, 0, 1.0]]),
        "item.linear": torch.tensor([[0.1]]),
        "tags.linear": torch.tensor([[0.2]]),
    }
    # fields: (2,0,0,0) (0,3,0,0) (1,1,0,5) (0,2,0,1); pairs: 0, 2, 0, 3, 6, 2+5
    assert model(features).item() == pytest.approx(0.3 + 2 + 3 + 6 + 7)


def test_deepfm_is_fm_plus_an_mlp_over_the_same_vectors():
    inputs = MIXES["everything"]
    model = DeepFM(inputs, hidden=(8,))
    features = features_of(inputs)
    fm = FM(inputs)
    fm.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("deep.")})
    deep = model.deep(model.fields(features).flatten(1)).squeeze(1)
    assert torch.allclose(model(features), fm(features) + deep, atol=1e-6)


def test_wide_and_deep_is_a_linear_model_plus_an_mlp_over_everything_side_by_side():
    wide_deep = WideDeep((NUMBER, ITEM), hidden=())
    with torch.no_grad():
        wide_deep.wide.bias.fill_(1.0)
        wide_deep.wide.weights.copy_(torch.tensor([[1.0], [2.0]]))
        wide_deep.deep[0].weight.copy_(torch.tensor([[1.0, 1.0, 10.0, 0, 0, 100.0]]))
    features = {
        "price": torch.tensor([[3.0, 4.0]]),
        "item": torch.tensor([[1.0, 9.0, 9.0, 2.0]]),
        "item.linear": torch.tensor([[0.5]]),
    }
    assert wide_deep(features).item() == (1 + 3 + 8 + 0.5) + (3 + 4 + 10 + 200)


def test_a_cross_layer_is_x0_times_wx_plus_b_plus_x():
    model = DCNv2((NUMBER,), cross_layers=2, hidden=())
    weight = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    with torch.no_grad():
        for layer in model.cross:
            layer.weight.weight.copy_(weight)
            layer.weight.bias.copy_(torch.tensor([1.0, -1.0]))
        model.out.weight.copy_(torch.tensor([[1.0, 10.0]]))
    # x0 = (1, 2); x1 = x0 * (1+4+1, 2-1) + x0 = (7, 4); x2 = x0 * (7+8+1, 4-1) + x1 = (23, 10)
    assert model({"price": torch.tensor([[1.0, 2.0]])}).item() == 23 + 100


def test_a_low_rank_cross_layer_equals_the_full_one_with_the_product_of_its_factors():
    inputs = MIXES["everything"]
    low = DCNv2(inputs, cross_layers=1, rank=3, hidden=())
    full = DCNv2(inputs, cross_layers=1, hidden=())
    v, u = low.cross[0].weight
    with torch.no_grad():
        full.cross[0].weight.weight.copy_(u.weight @ v.weight)
        full.cross[0].weight.bias.copy_(u.bias)
        full.out.load_state_dict(low.out.state_dict())
    features = features_of(inputs)
    assert torch.allclose(low(features), full(features), atol=1e-5)
    assert sum(p.numel() for p in low.parameters()) < sum(p.numel() for p in full.parameters())


def test_stacked_feeds_the_mlp_with_the_cross_layers_output():
    inputs = (NUMBER, ITEM)
    model = DCNv2(inputs, structure="stacked", cross_layers=1, hidden=(3,))
    features = features_of(inputs)
    first = model.concat(features)
    assert torch.allclose(model(features), model.out(model.deep(model.cross[0](first, first))).squeeze(1))


def test_dlrm_takes_the_dot_product_of_every_pair_beside_the_bottom_vector():
    model = DLRM((NUMBER, ITEM, TAGS), bottom_hidden=(), hidden=())
    with torch.no_grad():
        model.bottom[0].weight.copy_(torch.tensor([[1.0, 0], [0, 1.0], [-1.0, 0], [0, 0]]))
        model.top[0].weight.copy_(torch.tensor([[1.0, 1.0, 1.0, 1.0, 10.0, 100.0, 1000.0]]))
    features = {
        "price": torch.tensor([[1.0, 2.0]]),
        "item": torch.tensor([[1.0, 1.0, 7.0, 1.0]]),
        "tags": torch.tensor([[2.0, 0.0, 1.0, 0.0]]),
    }
    # bottom = relu(1, 2, -1, 0) = (1, 2, 0, 0); item.bottom = 3; tags.bottom = 2; tags.item = 9
    assert model(features).item() == 3 + 10 * 3 + 100 * 2 + 1000 * 9


def test_dlrm_can_lay_vectors_side_by_side_instead():
    model = DLRM((NUMBER, ITEM, TAGS), interaction="cat", bottom_hidden=(), hidden=())
    assert model.top[0].in_features == 3 * D


class SumWeight(nn.Module):
    """Stands for the attention network: weight = sum over q * k, the last quarter of what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -x.shape[1] // 4 :].sum(1, keepdim=True)


def test_din_sums_the_positions_weighted_against_the_candidate_without_a_softmax():
    item = Input(name="item", kind="pooled", dim=2)
    history = Input(name="history", kind="sequence", dim=2, max_length=3, target="item")
    model = DIN((item, history), hidden=())
    model.attention[0].weigh = SumWeight()
    with torch.no_grad():
        model.mlp[0].weight.copy_(torch.tensor([[0.0, 0.0, 1.0, 10.0]]))
    features = {
        "item": torch.tensor([[1.0, 2.0], [1.0, 1.0]]),
        "history": torch.tensor([[[1.0, 0.0], [3.0, 1.0], [9.0, 9.0]], [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]),
        "history.mask": torch.tensor([[True, True, False], [False, False, False]]),
    }
    # weights 1 and 5: 1 * (1, 0) + 5 * (3, 1) = (16, 5); an empty history pools to zero
    assert model(features).tolist() == [16 + 50, 0]


def test_din_compares_side_sequences_that_have_a_target_and_weighs_those_without_alike():
    brand = Input(name="brand", kind="pooled", dim=3)
    item = Input(name="item", kind="pooled", dim=2)
    history = Input(name="history", kind="sequence", dim=2, max_length=3, target="item")
    brands = Input(name="brands", kind="sequence", dim=3, max_length=3, target="brand", aligned_with="history")
    ages = Input(name="ages", kind="sequence", dim=1, max_length=3, aligned_with="history")
    other = Input(name="other", kind="sequence", dim=1, max_length=3)
    model = DIN((brand, item, history, brands, ages, other))
    assert len(model.histories) == 1
    assert model.histories[0].names == ("history", "brands", "ages")
    assert model.histories[0].targets == ("item", "brand")
    assert model.attention[0].weigh[0].in_features == 4 * (2 + 3)
    assert model.mlp[0].in_features == (3 + 2 + 1) + (2 + 3 + 1)


def test_din_ignores_what_padding_holds():
    inputs = MIXES["a history"]
    model = build_model("din", inputs, 1)
    features = features_of(inputs)
    noisy = dict(features)
    noisy["history"] = torch.where(features["history.mask"].unsqueeze(2), features["history"], 7.0)
    assert torch.equal(model(features), model(noisy))


def test_din_takes_a_batch_of_empty_histories():
    inputs = MIXES["a history"]
    features = features_of(inputs)
    features["history.mask"] = torch.zeros_like(features["history.mask"])
    model = build_model("din", inputs, 1)
    model(features).sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


def test_dice_is_its_equation():
    dice = Dice(1)
    with torch.no_grad():
        dice.alpha.fill_(0.5)
    x = torch.tensor([[1.0], [3.0]])
    p = torch.sigmoid(torch.tensor([-1.0, 1.0]))  # mean 2, variance 1
    expected = p * x[:, 0] + (1 - p) * 0.5 * x[:, 0]
    assert torch.allclose(dice(x)[:, 0], expected, atol=1e-6)


def test_an_mlp_normalises_before_it_activates_and_drops_out_last():
    mlp = MLP(3, (4,), out=1, dropout=0.5, batch_norm=True)
    assert [type(layer) for layer in mlp] == [nn.Linear, BatchNorm, nn.ReLU, nn.Dropout, nn.Linear]


def test_a_masked_mean_counts_true_positions_only_and_is_zero_for_none():
    positions = torch.tensor([[[1.0], [3.0], [100.0]], [[5.0], [5.0], [5.0]]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    assert masked_mean(positions, mask).tolist() == [[2.0], [0.0]]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: MLP(3, (4, 0)), r"hidden sizes are \[4, 0\] and must all be whole numbers of at least 1"),
        (lambda: MLP(3, (4,), dropout=1.0), "dropout is 1.0 and must be at least 0 and below 1"),
        (lambda: MLP(3, (4,), activation="gelu"), "activation is 'gelu' and must be 'relu', 'prelu' or 'dice'"),
        (lambda: DCNv2((NUMBER,), structure="wide"), "structure is 'wide' and must be 'parallel' or 'stacked'"),
        (lambda: DCNv2((NUMBER,), cross_layers=0), "cross_layers is 0 and rank None; both must be at least 1"),
        (lambda: DLRM((NUMBER,), interaction="sum"), "interaction is 'sum' and must be 'dot' or 'cat'"),
    ],
)
def test_a_wrong_argument_is_refused_in_words(build, words):
    with pytest.raises(ModelError, match=words):
        build()


@pytest.mark.parametrize(("name", "mix"), CASES)
def test_a_batch_without_rows_has_no_logits(name, mix):
    model = build_model(name, MIXES[mix], 2, seed=3).eval()
    assert model({key: tensor[:0] for key, tensor in features_of(MIXES[mix]).items()}).shape == (0, 2)
