"""An ONNX file's metadata and constants: those of the onnx package, and a clear word for every broken file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpr import bert
from bpr.errors import InvalidInput
from bpr.onnxfile import OnnxFile


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few constants, some of them not as bpr stores them."""
    arrays = {
        "floats": np.arange(12, dtype=np.float32).reshape(3, 4),
        "bytes": np.array([[-128, 127]], np.int8),
        "whole": np.array(7, np.int64),
        "none": np.zeros((0, 5), np.float32),
        "doubles": np.ones(3),  # a type that bpr's graphs do not have
    }
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    constants.append(onnx.helper.make_tensor("loose", onnx.TensorProto.FLOAT, [2], [1.0, 2.0]))  # not as raw bytes
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["floats"], ["y"])], "g", [], [], constants)
    model = onnx.helper.make_model(graph, producer_name="somebody")
    onnx.helper.set_model_props(model, {"key": "välue", "": "empty"})
    path = tmp_path_factory.mktemp("onnx") / "small.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_metadata_and_constants_are_those_of_the_onnx_package(small: Path, tiny_model: Path) -> None:
    for path in (small, tiny_model / "passage.onnx", tiny_model / "question.onnx"):
        theirs, ours = onnx.load(path), OnnxFile.open(path)
        assert ours.metadata == {each.key: each.value for each in theirs.metadata_props}
        expected = {each.name: onnx.numpy_helper.to_array(each) for each in theirs.graph.initializer}
        found = ours.constants()
        assert set(expected) - set(found) <= {"doubles", "loose"}
        for name, array in found.items():
            np.testing.assert_array_equal(array, expected[name])
            assert array.dtype == expected[name].dtype


def test_dimensions_may_be_packed_or_not(tmp_path: Path) -> None:
    data = bytes(8)
    for dims in (bytes([0x08, 2, 0x08, 1]), bytes([0x0A, 2, 2, 1])):
        tensor = dims + bytes([0x10, 1, 0x42, 1]) + b"x" + bytes([0x4A, len(data)]) + data
        graph = bytes([0x2A, len(tensor)]) + tensor
        (tmp_path / "a.onnx").write_bytes(bytes([0x3A, len(graph)]) + graph)
        assert OnnxFile.open(tmp_path / "a.onnx").constants()["x"].shape == (2, 1)


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def tensor(*fields: bytes) -> bytes:
    return field(7, field(5, b"".join(fields)))


FLOAT, NAME = bytes([0x10, 1]), field(8, b"x")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"no graph", "is not an ONNX file"),
        (b"\x3a\xff\xff\xff\xff\x7f", "behind the end"),
        (b"\xff" * 20, "does not end"),
        (b"\x3a", "does not end"),
        (b"\x39\x00", "behind the end"),
        (b"\x38\x01", "a number stands where"),
        (field(14, field(1, b"\xff")), "is not UTF-8"),
        (tensor(bytes([0x08, 3]), FLOAT, NAME, field(9, bytes(8))), "'x' has 8 bytes"),
        (tensor(b"\x08" + b"\xff" * 9 + b"\x01", FLOAT, NAME, field(9, bytes(8))), "'x' has 8 bytes"),  # −1
        (tensor(bytes([0x08, 1]) * 9, FLOAT, NAME, field(9, bytes(4))), "'x' has 4 bytes"),
        (tensor(FLOAT, bytes([0x40, 1])), "a number stands where"),
        (field(7, field(5, b"\x4a\x7f")), "broken ONNX file"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "a.onnx"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=says):
        OnnxFile.open(path).constants()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        OnnxFile.open(tmp_path)


def test_an_empty_file_is_an_empty_model(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"")
    assert OnnxFile.open(tmp_path / "a.onnx").constants() == {}
    assert bert.open_bert(tmp_path / "a.onnx") is None


@given(st.data())
def test_mutated_and_truncated_files_are_read_or_refused(small: Path, data: st.DataObject) -> None:
    content = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = small.with_name("mutated.onnx")
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        for array in OnnxFile.open(path).constants().values():
            array.tobytes()  # every byte is inside the file
    except InvalidInput as error:
        assert str(path) in str(error)


@given(st.data())
def test_mutated_graphs_are_run_or_refused(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Names, shapes and metadata lie between the weights: whatever they say, nothing but InvalidInput comes of it."""
    content = bytearray((tiny_model / "passage.onnx").read_bytes())
    small_parts = [at for at in range(len(content)) if at % 64 < 4] + list(range(len(content) - 200, len(content)))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.sampled_from(small_parts))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "mutated.onnx"
    path.write_bytes(content)
    try:
        network = bert.open_bert(path)
        if network is not None and network.outputs:
            network.run(network.outputs[0], np.array([2, 9, 3]), np.zeros(3, np.int64))
    except InvalidInput as error:
        assert len(str(error)) > 10
