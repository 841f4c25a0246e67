"""From float weights to the graphs that are served: ONNX = torch, int8 close to it, and nothing that clips."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from bpr import model as models
from bpr.disk import Disk
from bpr.encoder import Encoder, Tokens
from bpr.errors import InvalidInput, StorageError
from bpr.training import bertgraph, export
from bpr.training.encode import TorchEncoder
from bpr.training.export import export_onnx, sample_texts
from bpr.training.onnxgraph import MICROSOFT, Graph
from bpr.training.rounding import fed_back, signed_bytes
from bpr.training.tower import Tower, load_tower
from tiny_models import BITS, HIDDEN, WORDS, make_model

TEXTS = [("iliad", "homer wrote the greek epic poem"), ("", "paris is the capital of france"), ("moon", ""), ("", "")]
VARIANTS = {
    "plain": {},
    "shared": {"shared": True},
    "segments": {"token_types": True},
    "first token": {"pooling": "cls"},
    "length one": {"normalize": True},
    "no projection": {"projected": False, "bits": HIDDEN},
    "one plane": {"planes": 1},
    "another architecture": {"kind": "distilbert", "normalize": True},
    "another architecture, shared": {"kind": "distilbert", "shared": True},
}


PRODUCTS = {  # of a layer in the graph: torch's layers in it
    "qkv": [f"attention.self.{part}" for part in ("query", "key", "value")],
    "attention": ["attention.output.dense"],
    "inner": ["intermediate.dense"],
    "outer": ["output.dense"],
}


def many_texts(count: int = 80, seed: int = 0) -> list[tuple[str, str]]:
    """A few words come often, as in a language: what a layer is given is then correlated."""
    dice = np.random.default_rng(seed)
    often = 1 / np.arange(1, len(WORDS) + 1)
    return [("moon", " ".join(dice.choice(WORDS, 30, p=often / often.sum()))) for _ in range(count)]


def both_sides(encoder: Encoder | TorchEncoder) -> np.ndarray:
    return np.concatenate([encoder.passages(TEXTS), encoder.questions([text for _, text in TEXTS])])


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_in_onnx_is_float32_in_torch(tmp_path: Path, variant: str) -> None:
    make_model(tmp_path, int8=False, **VARIANTS[variant])
    expected = both_sides(TorchEncoder.open(tmp_path, "cpu"))
    np.testing.assert_allclose(both_sides(Encoder.open(tmp_path)), expected, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_int8_is_close(tmp_path: Path, variant: str) -> None:
    make_model(tmp_path, int8=True, **VARIANTS[variant])
    expected, found = both_sides(TorchEncoder.open(tmp_path, "cpu")), both_sides(Encoder.open(tmp_path))
    assert ((found > 0) == (expected > 0)).mean() > 0.95
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.99
    assert not np.allclose(found, expected, rtol=1e-4, atol=1e-4)  # it is int8


def test_the_graph_keeps_the_contract(tiny_model: Path) -> None:
    for side in ("question", "passage"):
        session = onnxruntime.InferenceSession(tiny_model / f"{side}.onnx", providers=["CPUExecutionProvider"])
        ((given,), (found,)) = session.get_inputs(), session.get_outputs()
        assert (given.name, given.type, given.shape) == ("input_ids", "tensor(int64)", [1, "n"])
        assert (found.name, found.type, found.shape) == ("vector", "tensor(float)", [1, BITS])
        graph = onnx.load(tiny_model / f"{side}.onnx").graph
        kinds = [node.op_type for node in graph.node]
        assert kinds.count("DynamicQuantizeMatMul") == 4 * 2  # of two layers: query+key+value, output, two dense
        assert kinds.count("MultiHeadAttention") == 2
        large = [each for each in graph.initializer if np.prod(each.dims) > BITS * HIDDEN]
        # All that is large is bytes, but for the position table.
        assert [each.data_type for each in large].count(onnx.TensorProto.INT8) >= len(large) - 1


def test_the_words_are_stored_as_bytes_with_a_scale_each() -> None:
    graph = Graph(int8=True)
    table = np.random.default_rng(1).standard_normal((50, 16)).astype(np.float32) * np.logspace(-3, 3, 50)[:, None]
    table[7] = 0
    graph.op(
        "ReduceSum", [graph.rows(table.astype(np.float32), "ids"), graph.const(np.array([1]))], output="v", keepdims=0
    )
    session = onnxruntime.InferenceSession(graph.model(["ids"], ["v"], 16).SerializeToString())
    for row in (0, 7, 49):
        (found,) = session.run(None, {"ids": np.array([[row]])})
        np.testing.assert_allclose(found[0], table[row], atol=np.abs(table[row]).max() / 250)


# ── weights that no processor clips ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("width", [1, 2, 7, 64])
def test_no_pair_of_products_overflows_16_bits(seed: int, width: int) -> None:
    random = np.random.default_rng(seed)
    weight = random.standard_normal((200, width)).astype(np.float32) ** (1 + 2 * (seed % 2))
    weight[3] = 0
    weight[4] = 1  # the worst case: all equal
    weight[5] = -1
    for products in (None, correlated(width, seed)):
        whole, scales = signed_bytes(weight, products)
        assert whole.dtype == np.int8 and scales.dtype == np.float32 and (scales > 0).all()
        assert whole.min() >= -127
        pairs = np.pad(whole.astype(int), ((0, 0), (0, width % 2))).reshape(200, -1, 2)
        for sign in (1, -1):
            assert (255 * np.maximum(sign * pairs, 0).sum(axis=2) < 2**15).all()
        if products is None:
            np.testing.assert_allclose(whole * scales[:, None], weight, atol=scales.max() * 0.51)


def correlated(width: int, seed: int = 0) -> np.ndarray:
    """XᵀX of inputs that a quarter as many hidden values explain, nearly."""
    dice = np.random.default_rng(seed)
    hidden = dice.standard_normal((1000, max(width // 4, 1)))
    x = hidden @ dice.standard_normal((hidden.shape[1], width)) + 0.1 * dice.standard_normal((1000, width))
    return x.T @ x


def missed(whole: np.ndarray, scales: np.ndarray, weight: np.ndarray, products: np.ndarray) -> float:
    """The squared error of a layer's outputs, over the inputs that the products are of."""
    errors = whole * scales[:, None].astype(float) - weight
    return float(((errors @ products) * errors).sum())


def test_inputs_that_are_independent_leave_the_nearest_bytes() -> None:
    weight = np.random.default_rng(6).standard_normal((50, 33)).astype(np.float32)
    nearest, scales = signed_bytes(weight)
    for size in (0, 1, 1e6):
        whole, same_scales = signed_bytes(weight, np.eye(33) * size)
        assert (whole == nearest).all() and (same_scales == scales).all()


@pytest.mark.parametrize("width", [2, 33, 128])
def test_error_feedback_comes_closer_where_inputs_are_correlated(width: int) -> None:
    weight = np.random.default_rng(7).standard_normal((50, width)).astype(np.float32)
    products = correlated(width)
    (nearest, scales), (whole, same_scales) = signed_bytes(weight), signed_bytes(weight, products)
    assert (scales == same_scales).all()
    assert missed(whole, scales, weight, products) < 0.5 * missed(nearest, scales, weight, products)


def test_error_feedback_is_the_step_by_step_update_by_the_inverse() -> None:
    """As it is derived: when a column is rounded, the best answer of all columns that are left is taken at once."""
    width = 12
    products = correlated(width, 8)
    damped = products + np.eye(width) * 0.01 * np.trace(products) / width
    wanted = np.random.default_rng(8).uniform(-50, 50, (20, width))
    left, found = wanted.copy(), np.zeros_like(wanted)
    rest = list(np.argsort(-np.diag(products), kind="stable"))
    while rest:
        inverse = np.linalg.inv(damped[np.ix_(rest, rest)])
        found[:, rest[0]] = np.rint(left[:, rest[0]])
        error = left[:, rest[0]] - found[:, rest[0]]
        left[:, rest] -= np.outer(error, inverse[0] / inverse[0, 0])
        rest = rest[1:]
    assert (fed_back(wanted, products) == found).all()


def test_most_of_the_eighth_bit_is_kept() -> None:
    weight = np.random.default_rng(2).standard_normal((300, 384)).astype(np.float32)
    whole, scales = signed_bytes(weight)
    ours = np.square(whole * scales[:, None] - weight).mean()
    seven = np.abs(weight).max(axis=1, keepdims=True) / 64
    eight = np.abs(weight).max(axis=1, keepdims=True) / 127
    errors = [np.square(np.rint(weight / scale) * scale - weight).mean() for scale in (seven, eight)]
    assert ours < 0.6 * errors[0]
    assert ours < 2.2 * errors[1]


def takes_floats(graph: Graph, given: str, found: str) -> onnxruntime.InferenceSession:
    model = graph.model([given], [found], 8)
    for each in (model.graph.input[0], model.graph.output[0]):
        each.CopyFrom(onnx.helper.make_tensor_value_info(each.name, onnx.TensorProto.FLOAT, [None, None, None]))
    return onnxruntime.InferenceSession(model.SerializeToString())


def test_products_are_exact_on_this_processor_at_the_worst_activations() -> None:
    """255 times the largest weights, where saturating kernels would clip."""
    random = np.random.default_rng(3)
    weight = random.choice([-1.0, 1.0], (64, 128)).astype(np.float32) * random.uniform(0.9, 1, (64, 128))
    weight[:8] = 1
    whole, scales = signed_bytes(weight.astype(np.float32))
    graph = Graph(int8=True)
    product = graph.dense("x", weight.astype(np.float32))
    graph.op("Identity", [product], output="v")
    session = takes_floats(graph, "x", "v")
    x = np.ones((1, 5, 128), np.float32)
    x[0, 1] = random.uniform(0, 1, 128)
    x[0, 1, 0] = 1.0  # so that the scale is 1/255
    (found,) = session.run(None, {"x": x})
    steps = np.rint(x[0] * 255).astype(np.int64) @ whole.T.astype(np.int64)
    np.testing.assert_allclose(found[0], steps / 255 * scales, rtol=1e-5)


def test_smoothing_leaves_the_product_and_evens_out_the_channels() -> None:
    random = np.random.default_rng(4)
    weight = random.standard_normal((20, 16)).astype(np.float32)
    sizes = np.logspace(-1, 2, 16).astype(np.float32)
    factors = bertgraph.smoothing(weight, sizes)
    x = random.uniform(-1, 1, 16).astype(np.float32) * sizes
    np.testing.assert_allclose((weight * factors) @ (x / factors), weight @ x, rtol=1e-3, atol=1e-4)
    assert (sizes / factors).max() / (sizes / factors).min() < sizes.max() / sizes.min() / 10
    assert (bertgraph.smoothing(weight, None) == 1).all()
    assert np.isfinite(bertgraph.smoothing(weight * 0, sizes * 0)).all()


def test_rows_are_scaled_one_by_one() -> None:
    """One large token must not cost the others their precision."""
    random = np.random.default_rng(5)
    weight = random.standard_normal((8, 32)).astype(np.float32)
    x = np.maximum(random.standard_normal((1, 6, 32)), 0).astype(np.float32)
    x[0, 2] *= 1000
    errors = []
    for by_row in (True, False):
        graph = Graph(int8=True)
        product = graph.dense_by_row("x", weight, 0.5) if by_row else graph.dense("x", weight)
        graph.op("Identity", [product], output="v")
        (found,) = takes_floats(graph, "x", "v").run(None, {"x": x})
        errors.append(np.abs(found[0] - x[0] @ weight.T)[[0, 1, 3, 4, 5]].max())
    assert errors[0] < 0.1 < errors[1]


def test_channel_sizes_are_what_the_layers_are_given(tiny_model: Path) -> None:
    backbone = load_tower(tiny_model, "passage").backbone
    ids = np.array([[2, 50, 60, 3]])
    sizes = bertgraph.channel_sizes(backbone, [ids, ids[:, :3]])
    assert set(sizes) == {name for name, part in backbone.named_modules() if isinstance(part, torch.nn.Linear)}
    assert all((size >= 0).all() and size.any() for size in sizes.values())
    assert not any(part._forward_pre_hooks for _, part in backbone.named_modules())


@pytest.mark.parametrize("token_types", [False, True])
def test_the_products_are_of_what_the_layers_are_given(tmp_path: Path, token_types: bool) -> None:
    make_model(tmp_path, token_types=token_types, onnx=False)
    backbone, tokens, told = load_tower(tmp_path, "passage").backbone, Tokens(tmp_path), []
    texts = tokens.passages(many_texts(3))
    products = bertgraph.input_products(backbone, texts, told.append)
    assert told == [1, 2, 3]
    names = {name for name, part in backbone.named_modules() if isinstance(part, torch.nn.Linear)}
    assert set(products) == {name for name in names if not name.endswith((".key", ".value"))}
    expected = 0
    for ids, segments in texts:
        assert segments.any() == token_types
        with torch.inference_mode():
            rows = backbone.embeddings(torch.from_numpy(ids[None]), torch.from_numpy(segments[None]))[0].double()
        expected = expected + (rows.T @ rows).numpy()
    np.testing.assert_allclose(products["encoder.layer.0.attention.self.query"], expected, rtol=1e-4, atol=1e-3)


def test_error_feedback_brings_every_layer_of_a_bert_closer(tiny_model: Path) -> None:
    """Measured on the bytes in the file, and on texts that it has not seen."""
    tower, tokens = load_tower(tiny_model, "passage"), Tokens(tiny_model)
    ids = [each.ids[None] for each in tokens.passages(many_texts(8))]
    given = bertgraph.input_products(tower.backbone, tokens.passages(many_texts(40, seed=9)))
    values = {name: tensor.numpy() for name, tensor in tower.backbone.state_dict().items()}
    sizes = bertgraph.channel_sizes(tower.backbone, ids)
    errors: list[dict[str, float]] = []
    for texts in ([], tokens.passages(many_texts(80))):
        graph = bertgraph.bert(tower, ids, texts).graph
        constants = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
        errors.append({})
        for layer in range(2):
            for short, parts in PRODUCTS.items():
                names = [f"encoder.layer.{layer}.{part}" for part in parts]
                weight = np.concatenate([values[f"{name}.weight"] for name in names])
                smooth = short in ("qkv", "inner")
                factors = bertgraph.smoothing(weight, sizes[names[0]] if smooth else None)
                whole, scales = (constants[f"layer{layer}.{short}.{part}"] for part in ("weight", "scales"))
                inputs = given[names[0]] / np.outer(factors, factors)
                errors[-1][f"{layer}.{short}"] = missed(whole.T, scales, weight * factors, inputs)
    assert len(errors[0]) == 8
    for layer, nearest in errors[0].items():
        assert errors[1][layer] < 0.9 * nearest, layer


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_description_lists_what_was_made(tmp_path: Path) -> None:
    model = make_model(tmp_path, onnx=False)
    (tmp_path / "README.md").write_text("# a card")
    made = export_onnx(str(tmp_path))
    after, files = models.load(tmp_path)
    assert after == model  # the same weights, so the same fingerprint
    assert {"question.onnx", "passage.onnx", "tokenizer.json", "passage_encoder/model.safetensors"} <= set(files)
    assert made.folder == tmp_path
    assert made.bytes == {side: (tmp_path / f"{side}.onnx").stat().st_size for side in ("question", "passage")}
    assert all(0.95 < share <= 1 for share in made.agreement.values())
    assert not list(tmp_path.glob("*.new"))


def test_another_folder_gets_all_but_the_float_weights(tmp_path: Path) -> None:
    model = make_model(tmp_path / "float", onnx=False)
    (tmp_path / "float" / "README.md").write_text("# a card")
    export_onnx(tmp_path / "float", tmp_path / "out" / "served")
    names = {each.name for each in (tmp_path / "out" / "served").iterdir()}
    assert names == {"question.onnx", "passage.onnx", "tokenizer.json", "README.md", "bpr.json"}
    assert Encoder.open(tmp_path / "out" / "served").fingerprint == model.fingerprint
    assert "passage.onnx" not in models.load(tmp_path / "float")[1]


def test_an_export_is_reproducible(tiny_model: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        export_onnx(tiny_model, tmp_path / name)
    for side in ("question", "passage"):
        assert (tmp_path / "one" / f"{side}.onnx").read_bytes() == (tmp_path / "two" / f"{side}.onnx").read_bytes()


@pytest.mark.parametrize("variant", ["plain", "shared", "segments", "no projection"])
def test_texts_bring_the_vectors_closer(tmp_path: Path, variant: str) -> None:
    make_model(tmp_path / "m", **VARIANTS[variant])
    said: list[tuple[str, int, int | None]] = []
    made = export_onnx(tmp_path / "m", tmp_path / "own", texts=many_texts(), progress=lambda *step: said.append(step))
    assert all(0.95 < share <= 1 for share in made.agreement.values())
    texts = 64 * (2 if variant == "shared" else 1)  # 16 of 80 are kept apart; a shared tower reads questions too
    assert ("passages: reading", texts, texts) in said and ("passages: layers", 1, 2) in said
    expected = TorchEncoder.open(tmp_path / "m", "cpu").passages(many_texts(50, seed=5))
    nearest, found = (Encoder.open(tmp_path / name).passages(many_texts(50, seed=5)) for name in ("m", "own"))
    assert np.square(found - expected).mean() < np.square(nearest - expected).mean()


def test_what_texts_change_is_bytes_alone(tiny_model: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        export_onnx(tiny_model, tmp_path / name, texts=many_texts())
    export_onnx(tiny_model, tmp_path / "asked", texts=many_texts(), questions=["who wrote the iliad"] * 60)
    for side in ("question", "passage"):
        one, two, asked = ((tmp_path / name / f"{side}.onnx").read_bytes() for name in ("one", "two", "asked"))
        assert one == two  # the same every time
        assert (one == asked) == (side == "passage")
        before, after = onnx.load(tiny_model / f"{side}.onnx"), onnx.load_from_string(one)
        assert before.graph.node == after.graph.node and before.metadata_props == after.metadata_props
        shapes = [[(each.name, each.data_type, each.dims) for each in it.graph.initializer] for it in (before, after)]
        assert shapes[0] == shapes[1]


def test_too_few_texts_and_networks_that_texts_do_not_help(tiny_model: Path, tmp_path: Path) -> None:
    few = rf"^too few passages to round weights by \(0\): give {export.LEAST_TEXTS} or more .* or export without texts"
    with pytest.raises(InvalidInput, match=few):
        export_onnx(tiny_model, tmp_path / "out", texts=[])
    with pytest.raises(InvalidInput, match=r"^too few passages .*\(47\)"):
        export_onnx(tiny_model, tmp_path / "out", texts=many_texts(export.LEAST_TEXTS - 1))
    with pytest.raises(InvalidInput, match=r"^too few questions .*\(1\)"):
        export_onnx(tiny_model, tmp_path / "out", texts=many_texts(), questions=["who?"])
    assert not (tmp_path / "out").exists()
    make_model(tmp_path / "other", kind="distilbert", onnx=False)
    with pytest.raises(InvalidInput, match="only the weights of a BERT can be rounded by texts"):
        export_onnx(tmp_path / "other", texts=many_texts())


def test_texts_are_drawn_from_the_whole_pile_and_the_same_every_time() -> None:
    found = export.drawn(range(100_000), 500)
    assert found == export.drawn(iter(range(100_000)), 500)
    assert len(set(found)) == 500 and 45_000 < np.mean(found) < 55_000
    assert sorted(export.drawn(range(7), 500)) == list(range(7))


def test_the_sample_is_the_same_every_time(tiny_model: Path) -> None:
    tokens = Tokens(tiny_model)
    assert sample_texts(tokens) == sample_texts(tokens)
    assert len(set(sample_texts(tokens))) == export.SAMPLE_TEXTS


def test_a_broken_export_is_not_passed_off_as_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path, onnx=False)
    real = export.graph_of

    def wrong(tower: Tower, *rest: object) -> onnx.ModelProto:
        with torch.no_grad():
            tower.head.projection.weight.neg_()
        return real(tower, *rest)

    monkeypatch.setattr(export, "graph_of", wrong)
    with pytest.raises(InvalidInput, match=r"sign bits survived the export"):
        export_onnx(tmp_path)


def test_folders_without_float_weights_or_that_cannot_be_written(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_onnx(tiny_model, tmp_path / "served")
    with pytest.raises(InvalidInput, match=r"has no question_encoder/config\.json"):
        export_onnx(tmp_path / "served")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        export_onnx(tiny_model, tmp_path / "file")

    def full(disk: Disk, verb: str, path: Path, function: object, *arguments: object) -> object:
        if verb == "write":
            raise OSError(errno.ENOSPC, "")
        return real(disk, verb, path, function, *arguments)

    real = Disk.system_call
    monkeypatch.setattr(Disk, "system_call", full)
    with pytest.raises(StorageError, match=r"cannot write .*question\.onnx.*No space left"):
        export_onnx(tiny_model, tmp_path / "full")
    assert [each.name for each in (tmp_path / "full").iterdir()] == ["tokenizer.json"]


def test_other_architectures_leave_logging_as_it_was(tmp_path: Path) -> None:
    before = logging.root.manager.disable, list(logging.root.handlers)
    make_model(tmp_path, kind="distilbert")
    assert (logging.root.manager.disable, list(logging.root.handlers)) == before
    kinds = {node.domain for node in onnx.load(tmp_path / "passage.onnx").graph.node}
    assert MICROSOFT in kinds  # fused now, because it will not be later


def test_only_plain_bert_is_written_by_hand(tiny_model: Path) -> None:
    tower = load_tower(tiny_model, "passage")
    assert bertgraph.fits(tower)
    tower.backbone.config.hidden_act = "relu"
    assert not bertgraph.fits(tower)
