"""An ONNX graph while it grows, and the products in it as float32 or as int8.

bertgraph.py writes its network with it. Knows ONNX's operators and how weights become bytes; no particular network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

Floats: TypeAlias = NDArray[np.float32]

OPSET, IR = 18, 9
MICROSOFT = "com.microsoft"  # ONNX Runtime's own operators
MOST = 127  # of a weight
MOST_OF_PAIR = 128  # of two neighbours with the same sign: 255 · 128 < 2¹⁵


class Graph:
    """Nodes and constants, in the order in which they were asked for. Values are known by name."""

    def __init__(self, int8: bool) -> None:
        """int8: whether products and the table of words are stored as bytes."""
        self.int8 = int8
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def const(self, value: ArrayLike, name: str | None = None) -> str:
        """A constant; floats become float32. name: for those that a reader of the file looks for."""
        array = np.asarray(value)
        array = np.ascontiguousarray(array, np.float32 if array.dtype.kind == "f" else array.dtype).reshape(array.shape)
        name = name or f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def op(
        self, kind: str, inputs: Sequence[str], domain: str = "", *, output: str | None = None, **attributes: Any
    ) -> str:
        """A node with one output."""
        return self.ops(kind, inputs, 1, domain, outputs=None if output is None else [output], **attributes)[0]

    def ops(
        self,
        kind: str,
        inputs: Sequence[str],
        count: int,
        domain: str = "",
        *,
        outputs: list[str] | None = None,
        **attributes: Any,
    ) -> list[str]:
        """A node with several outputs."""
        number = len(self._nodes)
        named = outputs or [f"{kind}{number}.{each}" for each in range(count)]
        node = helper.make_node(kind, inputs, named, name=f"{kind}{number}", domain=domain, **attributes)
        self._nodes.append(node)
        return named

    def dense(self, x: str, weight: Floats, bias: Floats | None = None, name: str | None = None) -> str:
        """x·Wᵀ + b; weight: float[out, in]. The constants are NAME.weight, NAME.scales and NAME.bias."""
        added = [] if bias is None else [self.const(bias, _part(name, "bias"))]
        if not self.int8:
            product = self.op("MatMul", [x, self.const(weight.T, _part(name, "weight"))])
            return self.op("Add", [product, *added]) if added else product
        whole, scales = signed_bytes(weight)
        constants = [self.const(whole.T, _part(name, "weight")), self.const(scales, _part(name, "scales"))]
        # Without its fourth input, zeros for the weights' zero points, the product is up to a fifth faster.
        added = ["", *added] if added else []
        return self.op("DynamicQuantizeMatMul", [x, *constants, *added], MICROSOFT)

    def dense_by_row(self, x: str, weight: Floats, floor: float, name: str | None = None) -> str:
        """x·Wᵀ, as int8 with each row (token) of x in units of its largest value, or of `floor` if that is larger."""
        if not self.int8:
            return self.dense(x, weight, name=name)
        largest = self.op("ReduceMax", [x, self.const(np.array([-1]))], keepdims=1)  # [1, n, 1]
        largest = self.op("Max", [largest, self.const(floor)])
        return self.op("Mul", [self.dense(self.op("Div", [x, largest]), weight, name=name), largest])

    def rows(self, table: Floats, ids: str, name: str | None = None) -> str:
        """The rows of a table: float[words, width], int64[1, n] → float32[1, n, width]; each row with its own scale."""
        if not self.int8:
            return self.op("Gather", [self.const(table, name), ids])
        scales = np.abs(table).max(axis=1, keepdims=True) / MOST
        scales[scales == 0] = 1
        whole = self.const(np.rint(table / scales).astype(np.int8), name)
        found = self.op("Cast", [self.op("Gather", [whole, ids])], to=TensorProto.FLOAT)
        return self.op("Mul", [found, self.op("Gather", [self.const(scales, _part(name, "scales")), ids])])

    def model(
        self, inputs: Sequence[str], outputs: Sequence[str], bits: int, facts: Mapping[str, str] | None = None
    ) -> onnx.ModelProto:
        """The finished graph: inputs int64[1, n], outputs float32[1, bits]. facts: for its metadata."""
        graph = helper.make_graph(
            self._nodes,
            "bpr",
            [helper.make_tensor_value_info(name, TensorProto.INT64, [1, "n"]) for name in inputs],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, bits]) for name in outputs],
            self._constants,
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR, producer_name="bpr")
        helper.set_model_props(model, dict(facts or {}))
        return model


def _part(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"


def signed_bytes(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """int8[out, in] and float32[out] with weight ≈ bytes · scale, whose products no processor has to clip.

    Without VNNI a product of bytes is `vpmaddubsw`: a₀w₀ + a₁w₁ for neighbours, saturated at 2¹⁵. With 0 ≤ a ≤ 255 it
    stays below if the positive parts of two neighbours, and their negative parts, sum up to no more than 128.
    """
    even = np.pad(weight, ((0, 0), (0, weight.shape[1] % 2))).reshape(len(weight), -1, 2)  # [out, pairs, 2]
    ups, downs = np.maximum(even, 0).sum(axis=2).max(axis=1), np.maximum(-even, 0).sum(axis=2).max(axis=1)
    # 0.6 less than the bound: rounding adds at most 0.5 to each of the two.
    limits = np.maximum(np.maximum(ups, downs) / (MOST_OF_PAIR - 0.6), np.abs(weight).max(axis=1) / MOST)
    scales = np.where(limits > 0, limits, 1).astype(np.float32)
    return np.rint(weight / scales[:, None]).astype(np.int8), scales
