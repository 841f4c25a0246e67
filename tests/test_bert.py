"""bpr's own engine: exact products, the same bits at every SIMD level, and close to float32 torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bpr import bert, kernels
from bpr.encoder import Encoder, Tokens
from bpr.errors import InvalidInput
from tiny_models import BITS, KINDS, LENGTH, WORDS, make_model

RANDOM = np.random.default_rng(11)
TEXTS = [" ".join(RANDOM.choice(WORDS, int(RANDOM.integers(1, 60)))) for _ in range(60)]
PAIRS = [("" if row % 2 else "moon", text) for row, text in enumerate(TEXTS)]
at_every_level = pytest.mark.parametrize("level", kernels.simd_levels())


def engine(folder: Path, side: str = "passage") -> bert.Bert:
    found = bert.open_bert(folder / f"{side}.onnx")
    assert found is not None
    return found


# ── products of bytes ────────────────────────────────────────────────────────────────────────────────────────────────


def weights_within(bound: int, shape: tuple[int, int]) -> np.ndarray:
    """Random signed bytes, of which no two neighbours with one sign sum up to more than the bound."""
    weights = RANDOM.integers(-127, 128, shape)
    pairs = weights.reshape(shape[0] // 2, 2, shape[1])
    pairs[:, 1] = np.clip(pairs[:, 1], -bound - np.minimum(pairs[:, 0], 0), bound - np.maximum(pairs[:, 0], 0))
    return weights.astype(np.int8)


@at_every_level
@pytest.mark.parametrize("most", [127, 255])
def test_products_are_exact(level: str, most: int) -> None:
    with kernels.using_simd(level):
        for rows in (1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 25):
            for width, outputs in ((32, 16), (64, 48), (384, 32)):
                weights = weights_within(128, (width, outputs))
                values = RANDOM.integers(0, most + 1, (rows, width)).astype(np.uint8)
                found = kernels.native().multiply(values, weights, most)
                np.testing.assert_array_equal(found, values.astype(np.int64) @ weights.astype(np.int64))


@at_every_level
@pytest.mark.parametrize("most", [127, 255])
@pytest.mark.parametrize("pair", [(64, 64), (127, 1), (-64, -64), (-128, 0), (1, -127), (127, -128)])
def test_products_are_exact_at_the_extremes(level: str, most: int, pair: tuple[int, int]) -> None:
    """The largest activations and weights everywhere, where 16 bits are fullest."""
    weights = np.tile(np.array(pair, np.int8)[:, None], (48, 16))
    values = np.full((5, 96), most, np.uint8)
    values[1, ::2], values[2, 1::2] = 0, 0
    with kernels.using_simd(level):
        found = kernels.native().multiply(values, weights, most)
    np.testing.assert_array_equal(found, values.astype(np.int64) @ weights.astype(np.int64))


@pytest.mark.parametrize(
    ("values", "weights", "most", "says"),
    [
        (np.zeros((2, 32), np.uint8), np.zeros((64, 16), np.int8), 127, "differ in width"),
        (np.zeros((2, 8), np.uint8), np.zeros((8, 16), np.int8), 127, "must be int8"),
        (np.zeros((2, 32), np.uint8), np.zeros((32, 8), np.int8), 127, "must be int8"),
        (np.zeros((2, 32), np.uint8), np.zeros((32, 16), np.int8), 100, "seven or eight bits"),
        (np.full((2, 32), 128, np.uint8), np.zeros((32, 16), np.int8), 127, "too large"),
        (np.zeros((2, 32), np.uint8), np.full((32, 16), 65, np.int8), 127, "do not fit into 16 bits"),
        (np.zeros((2, 32), np.uint8), np.full((32, 16), -65, np.int8), 255, "do not fit into 16 bits"),
    ],
)
def test_products_that_are_refused(values: np.ndarray, weights: np.ndarray, most: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        kernels.native().multiply(values, weights, most)


# ── the whole network ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model folders of every kind that the engine knows."""
    home = tmp_path_factory.mktemp("kinds")
    for name, each in KINDS.items():
        make_model(home / name, **each)
    return {name: home / name for name in KINDS}


def test_vectors_are_those_of_torch(kinds: dict[str, Path]) -> None:
    from bpr.training.encode import TorchEncoder

    for name, folder in kinds.items():
        ours, theirs = Encoder.open(folder, engine="bpr"), TorchEncoder.open(folder, "cpu")
        for found, expected in (
            (ours.passages(PAIRS), theirs.passages(PAIRS)),
            (ours.questions(TEXTS), theirs.questions(TEXTS)),
        ):
            lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
            assert ((found * expected).sum(axis=1) / lengths).mean() > 0.998, name
            assert ((found > 0) == (expected > 0)).mean() > 0.97, name


def test_it_is_about_as_close_to_torch_as_onnx_runtime(kinds: dict[str, Path]) -> None:
    from bpr.training.encode import TorchEncoder

    errors: dict[str, list[float]] = {"bpr": [], "onnxruntime": []}
    for folder in kinds.values():
        expected = TorchEncoder.open(folder, "cpu").passages(PAIRS)
        for which, found in errors.items():
            found.append(float(np.square(Encoder.open(folder, engine=which).passages(PAIRS) - expected).mean()))
    assert np.mean(errors["bpr"]) < 1.5 * np.mean(errors["onnxruntime"])


def test_vectors_are_the_same_bits_at_every_level(kinds: dict[str, Path]) -> None:
    for folder in kinds.values():
        encoder = Encoder.open(folder, engine="bpr")
        found = []
        for level in kernels.simd_levels():
            with kernels.using_simd(level):
                found.append((encoder.passages(PAIRS), encoder.questions(TEXTS)))
        for passages, questions in found[1:]:
            np.testing.assert_array_equal(passages, found[0][0])
            np.testing.assert_array_equal(questions, found[0][1])


@at_every_level
def test_from_one_token_to_the_longest(tiny_model: Path, level: str) -> None:
    network = engine(tiny_model)
    everything = RANDOM.integers(0, len(WORDS), LENGTH)
    with kernels.using_simd(level):
        for count in range(1, LENGTH + 1):
            found = network.run("vector", everything[:count], np.zeros(count, np.int64))
            assert found.shape == (BITS,)
            assert np.isfinite(found).all()


def test_texts_of_512_tokens(tmp_path: Path) -> None:
    """Memory grows with the text, and what a long one leaves behind does not reach a short one."""
    network = wide(tmp_path, layers=2, width=64, heads=2, inner=96, places=512)
    ids = RANDOM.integers(0, 50, 512)
    short = network.run("vector", ids[:9], ids[:9])
    assert np.isfinite(network.run("vector", ids, ids)).all()
    np.testing.assert_array_equal(network.run("vector", ids[:9], ids[:9]), short)


def test_the_graph_is_read_without_onnx_runtime(tiny_model: Path) -> None:
    import subprocess
    import sys

    script = f"""
import sys
from bpr.encoder import Encoder
Encoder.open({str(tiny_model)!r}, engine="bpr").questions(["homer"])
assert not {{"onnxruntime", "onnx", "torch"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("ids", "segments", "says"),
    [
        ([], [], f"1 to {LENGTH} tokens, not 0"),
        ([1] * (LENGTH + 1), [0] * (LENGTH + 1), f"not {LENGTH + 1}"),
        ([10**6], [0], "outside the vocabulary"),
        ([-1], [0], "outside the vocabulary"),
        ([2**62], [0], "outside the vocabulary"),
    ],
)
def test_ids_that_the_network_does_not_know(tiny_model: Path, ids: list[int], segments: list[int], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        engine(tiny_model).run("vector", np.array(ids, np.int64), np.array(segments, np.int64))


def test_segments_that_the_network_does_not_know(kinds: dict[str, Path]) -> None:
    network = engine(kinds["segments"])
    for segments, says in (([2], "segment is outside"), ([-1], "segment is outside"), ([0, 0], "one segment a token")):
        with pytest.raises(InvalidInput, match=says):
            network.run("vector", np.array([1]), np.array(segments))
    with pytest.raises(InvalidInput, match="cannot be encoded"):
        network.run("vector", np.array([1], np.int32), np.array([0]))
    with pytest.raises(InvalidInput, match="needs segments"):
        network.inputs.discard("token_type_ids")
        network.run("vector", np.array([1]), np.array([0]))


# ── graphs that are not as they should be ────────────────────────────────────────────────────────────────────────────


def changed(source: Path, target: Path, change: Any) -> Path:
    """A copy of a graph, changed by `change(constants: dict, facts: dict)`."""
    model = onnx.load(source)
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    facts = json.loads(model.metadata_props[0].value)
    change(constants, facts)
    del model.graph.initializer[:]
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    model.metadata_props[0].value = facts["raw"] if "raw" in facts else json.dumps(facts)
    target.write_bytes(model.SerializeToString())
    return target


def wide(folder: Path, *, layers: int, width: int, heads: int, inner: int, places: int) -> bert.Bert:
    """A network of random constants, without a model folder."""
    from bpr.training.onnxgraph import Graph

    graph = Graph(int8=True)

    def floats(name: str, *shape: int, size: float = 0.1, middle: float = 0.0) -> None:
        graph.const((middle + size * RANDOM.standard_normal(shape)).astype(np.float32), name)

    graph.const(RANDOM.integers(-127, 128, (50, width)).astype(np.int8), "words")
    floats("words.scales", 50, 1, size=0, middle=0.01)
    floats("places", 1, places, width)
    for name in [
        "last",
        *(f"layer{i}.{part}" for i in range(layers) for part in ("qkv", "attention", "inner", "outer")),
    ]:
        floats(f"{name}.gamma", width, middle=1)
        floats(f"{name}.beta", width)
    shapes = {"qkv": (width, 3 * width), "attention": (width, width), "inner": (width, inner), "outer": (inner, width)}
    for layer in range(layers):
        for part, shape in shapes.items():
            graph.const(weights_within(128, shape), f"layer{layer}.{part}.weight")
            floats(f"layer{layer}.{part}.scales", shape[1], size=0, middle=0.001)
        floats(f"layer{layer}.qkv.bias", 3 * width)
        floats(f"layer{layer}.inner.bias", inner)
    floats("vector.weight", 16, width)
    floats("vector.bias", 16)
    facts = {"layers": layers, "heads": heads, "epsilon": 1e-12, "pooling": "mean", "normalize": True}
    model = graph.model(["input_ids"], ["vector"], 16, {bert.FACTS: json.dumps(facts)})
    (folder / "passage.onnx").write_bytes(model.SerializeToString())
    return engine(folder)


def gone(name: str) -> Any:
    return lambda constants, facts: constants.pop(name)


def other(name: str, make: Any) -> Any:
    return lambda constants, facts: constants.__setitem__(name, make(constants[name].copy()))


def fact(name: str, value: Any) -> Any:
    return lambda constants, facts: facts.__setitem__(name, value)


def overfull(weights: np.ndarray) -> np.ndarray:
    weights[2:4, 5] = 100
    return weights


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (gone("words"), "needs a constant 'words' of 2 dimensions as int8"),
        (gone("layer1.outer.weight"), r"needs a constant 'layer1\.outer\.weight'"),
        (gone("last.beta"), r"needs a constant 'last\.beta' of 1 dimensions as float32"),
        (gone("vector.bias"), r"needs a constant 'vector\.bias'"),
        (other("words", lambda a: a.astype(np.float32)), "needs a constant 'words'"),
        (other("words", lambda a: a[:, :-1]), "words and places differ in width"),
        (other("words", lambda a: a[:0]), "a network needs words"),
        (other("words.scales", lambda a: a[:-1]), "word_scales must be"),
        (other("places", lambda a: a[:, :0]), "1 to 65536 places"),
        (other("last.gamma", lambda a: a[:-1]), "gamma must be"),
        (other("last.gamma", lambda a: a * np.nan), "gamma must be finite"),
        (other("layer0.qkv.weight", lambda a: a[:, :-32]), "the weights of qkv have another shape"),
        (other("layer0.qkv.weight", overfull), "qkv has two neighbouring weights"),
        (other("layer0.qkv.scales", lambda a: a + np.inf), "qkv must be finite"),
        (other("layer0.inner.weight", lambda a: a[:, :-8]), "multiple of 32 wide"),
        (other("layer0.inner.bias", lambda a: a[:3]), "inner must be"),
        (other("layer1.outer.weight", lambda a: a[:-32]), "the weights of outer have another shape"),
        (other("vector.weight", lambda a: a[:-1]), "multiple of 8 wide"),
        (other("vector.weight", lambda a: a[:, :-1]), "the projection must be"),
        (other("vector.bias", lambda a: a[:-1]), "the projection's bias must be"),
        (fact("heads", 3), "multiple of 8 dimensions"),
        (fact("heads", 32), "multiple of 8 dimensions"),
        (fact("heads", 0), "no sensible numbers"),
        (fact("heads", "4"), "no sensible numbers"),
        (fact("layers", 3), r"needs a constant 'layer2\.qkv"),
        (fact("layers", 10**9), "no sensible numbers"),
        (fact("layers", True), "no sensible numbers"),
        (fact("epsilon", -1), "no sensible epsilon"),
        (fact("epsilon", None), "no sensible epsilon"),
        (fact("pooling", "max"), "no pooling"),
        (fact("normalize", 1), "no pooling"),
        (fact("more", 1), "cannot be read"),
        (fact("raw", "[" * 100_000), "cannot be read"),
        (fact("raw", "{"), "cannot be read"),
    ],
)
def test_graphs_that_are_refused(tiny_model: Path, tmp_path: Path, change: Any, says: str) -> None:
    path = changed(tiny_model / "passage.onnx", tmp_path / "a.onnx", change)
    with pytest.raises(InvalidInput, match=rf"a\.onnx is not a graph as `bpr export` makes it: .*{says}"):
        bert.open_bert(path)


def test_enormous_constants_do_no_harm(tiny_model: Path, tmp_path: Path) -> None:
    """What overflows is no number; it is never an index or a byte out of range."""
    for name in ("layer0.qkv.gamma", "layer0.inner.bias", "layer1.outer.scales", "places", "last.gamma"):
        path = changed(tiny_model / "passage.onnx", tmp_path / "a.onnx", other(name, lambda a: a * 0 + 3e38))
        network = bert.open_bert(path)
        assert network is not None
        for level in kernels.simd_levels():
            with kernels.using_simd(level):
                assert network.run("vector", np.arange(9), np.zeros(9, np.int64)).shape == (BITS,)


def test_sizes_that_the_engine_cannot_run_are_left_to_onnx_runtime() -> None:
    assert bert.fits(384, 12, 1536, 384)
    assert bert.fits(768, 12, 3072, 768)
    assert not bert.fits(312, 12, 1200, 384)
    assert not bert.fits(384, 7, 1536, 384)
    assert not bert.fits(384, 96, 1536, 384)
    assert not bert.fits(8192, 64, 16384, 384)
    assert not bert.fits(384, 12, 1536, 380)


def test_the_longest_question_of_the_model_can_be_encoded(tiny_model: Path) -> None:
    ids = Tokens(tiny_model).passage(("", "homer " * 200)).ids
    assert len(ids) == LENGTH
    assert np.isfinite(engine(tiny_model).run("vector", ids, np.zeros_like(ids))).all()


# ── Every token ──────────────────────────────────────────────────────────────────────────────────────────────────────


@at_every_level
def test_the_first_token_s_output_is_what_cls_pooling_gives(tmp_path: Path, level: str) -> None:
    make_model(tmp_path / "cls", pooling="cls")
    network = engine(tmp_path / "cls")
    tokens = Tokens(tmp_path / "cls")
    with kernels.using_simd(level):
        for pair in PAIRS[:12]:
            ids, segments = tokens.passage(pair)
            every = network._network.encode_tokens(ids, None, network.outputs.index("vector"))
            assert every.shape == (len(ids), BITS) and np.isfinite(every).all()
            np.testing.assert_array_equal(every[0], network.run("vector", ids, segments))


def test_every_token_has_the_same_checks(tiny_reader: Path) -> None:
    network = bert.open_bert(tiny_reader / "reader.onnx")
    assert network is not None and network.outputs == ["logits"]
    for ids, says in (([], "1 to 96 tokens"), ([5] * 97, "1 to 96 tokens"), ([10**6], "outside the vocabulary")):
        with pytest.raises(InvalidInput, match=says):
            network.run("logits", np.array(ids, np.int64), np.zeros(len(ids), np.int64))
