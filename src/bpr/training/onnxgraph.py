"""An ONNX graph while it grows, and the products in it as float32 or as int8.

bertgraph.py writes its network with it. Knows ONNX's operators; no particular network, nor how weights become bytes
(rounding.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from .rounding import MOST, Doubles, Floats, signed_bytes

OPSET, IR = 18, 9
MICROSOFT = "com.microsoft"  # ONNX Runtime's own operators


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

    def dense(
        self,
        x: str,
        weight: Floats,
        bias: Floats | None = None,
        name: str | None = None,
        products: Doubles | None = None,
    ) -> str:
        """x·Wᵀ + b; weight: float[out, in]. The constants are NAME.weight, NAME.scales and NAME.bias.

        products: of inputs, by which bytes are chosen (rounding.py).
        """
        added = [] if bias is None else [self.const(bias, _part(name, "bias"))]
        if not self.int8:
            product = self.op("MatMul", [x, self.const(weight.T, _part(name, "weight"))])
            return self.op("Add", [product, *added]) if added else product
        whole, scales = signed_bytes(weight, products)
        constants = [self.const(whole.T, _part(name, "weight")), self.const(scales, _part(name, "scales"))]
        # Without its fourth input, zeros for the weights' zero points, the product is up to a fifth faster.
        added = ["", *added] if added else []
        return self.op("DynamicQuantizeMatMul", [x, *constants, *added], MICROSOFT)

    def dense_by_row(
        self, x: str, weight: Floats, floor: float, name: str | None = None, products: Doubles | None = None
    ) -> str:
        """x·Wᵀ, as int8 with each row (token) of x in units of its largest value, or of `floor` if that is larger."""
        if not self.int8:
            return self.dense(x, weight, name=name)
        largest = self.op("ReduceMax", [x, self.const(np.array([-1]))], keepdims=1)  # [1, n, 1]
        largest = self.op("Max", [largest, self.const(floor)])
        return self.op("Mul", [self.dense(self.op("Div", [x, largest]), weight, name=name, products=products), largest])

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
        self,
        inputs: Sequence[str],
        outputs: Sequence[str],
        bits: int,
        facts: Mapping[str, str] | None = None,
        tokens: bool = False,
    ) -> onnx.ModelProto:
        """The finished graph: inputs int64[1, n], outputs float32[1, bits] (or each token's). facts: metadata."""
        shape: list[str | int | None] = [1, "n", bits] if tokens else [1, bits]
        graph = helper.make_graph(
            self._nodes,
            "bpr",
            [helper.make_tensor_value_info(name, TensorProto.INT64, [1, "n"]) for name in inputs],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
            self._constants,
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR, producer_name="bpr")
        helper.set_model_props(model, dict(facts or {}))
        return model


def _part(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"
