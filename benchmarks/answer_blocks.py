"""The blocks about the reader: how right its answers are, how sure it is, how long it takes; and what int8 costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blocks import Result, Results, bars, block, difference, interval, source, table

EM_COST = 0.5  # the most that bits may cost a reader


@block("reader")
def reader(results: Results) -> str:
    """EM and F1 of the reader as it is served, and of its float weights."""
    own, other = results("reader"), results("noted")["float reader"]

    def line(what: str, served: Result | None, floats: Result | None) -> list[str]:
        return [what, *(interval(side[name]) if side else "" for side in (served, floats) for name in ("EM", "F1"))]

    depths = sorted({*own["read"], *other["read"]}, key=int)
    lines = [line(k, own["read"].get(k), other["read"].get(k)) for k in depths]
    lines.append(line("the gold paragraph alone", own["gold"], other["gold"]))
    twin = other["twin"]
    return f"""The int8 reader on {own["questions"]:,} questions, always the same ({source(own)}); the float one on
{other["questions"]:,} ({other["measured"]}):

{table(["passages read", "EM, int8", "F1, int8", "EM, float", "F1, float"], lines)}

{bars(own["figures"])}

With the twin's 20 passages instead of BPR's the float reader's EM is {twin["EM"]:.2f}, so bits cost
{difference(twin["bits"], 2)} points of EM, p = {twin["bits"]["p"]:.2f} ({EM_COST} was allowed)."""


@block("confidence")
def confidence(results: Results) -> str:
    """How far the stored confidence is from what is right, and how well it tells that there is no answer."""
    own, other = results("reader"), results("noted")["float reader"]
    held, dev = own["held"], own["dev"]
    shares = [share for share in dev["coverage"] if share != "100%"][:: 1 if len(dev["coverage"]) < 6 else 2]
    surest = ", ".join(f"{dev['coverage'][share]:.0f} % of the surest {share.removesuffix('%')} %" for share in shares)
    return f"""Fitted on {held["questions"]:,} questions of the held-out articles, right from F1 {held["right_from"]:g}
on: ECE {held["ece"]:.3f} there, on other
folds than it was fitted to. On {dev["questions"]:,} of SQuAD's dev questions the stored confidence has an ECE of
**{dev["ece_now"]:.4f}**
(0.05 was wanted); on the float reader's answers to all {other["questions"]:,} it was {other["ece"]:.3f}. Exactly right
are {surest},
of all {dev["exact"]:.0f} %.

The same questions of the held-out articles asked again with all passages of their article masked have no right answer:
confidence tells the two kinds apart with an AUROC of **{held["auroc"]:.3f}**. Right answers given plus absent ones
refused are most at
a threshold of {held["threshold"]:.2f}; {own["threshold"]:.2f} is stored."""


@block("reader-time")
def reader_time(results: Results) -> str:
    own = results("reader-time")
    took = own["milliseconds"]
    return f"""One question, 20 passages, search included: {took["least"]:.0f} to {took["most"]:.0f} ms, the median
{took["median"]:.0f} (1 s was allowed; {source(own)})."""


@block("sure")
def sure(results: Results) -> str:
    """The same, in a sentence."""
    own = results("reader")
    return f"""The reader that ships was fitted so: on SQuAD's dev questions its confidence has an ECE of
{own["dev"]["ece_now"]:.2f}, and it gives no
answer below {100 * own["threshold"]:.0f} % ([reproduction.md](reproduction.md#the-reader), with the plot)."""


# ── int8 ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@block("int8")
def int8(results: Results) -> str:
    """Sign bits as in float32 by how weights are kept."""
    found = results("noted")["int8"]
    lines = [[name, *(f"{share:.1f} %" for share in shares)] for name, *shares in found["bits"]]
    head = ["weights", "AVX2, no VNNI", "without saturation (SSE path, under qemu)"]
    return f"""{found["measured"]}:

{table(head, lines)}

Plain dynamic int8 (7 bits, one scale for a text's activations) agrees on {found["plain"]:.1f} %. Between those two
instruction sets
{found["between"]:.1f} % of the bits of the shipped graph differ, all of them close to 0."""


@block("int8-rounding")
def int8_rounding(results: Results) -> str:
    """Nearest bytes against error feedback."""
    found = results("noted")["int8"]["rounding"]

    def cell(pair: Sequence[Any]) -> str:
        return f"{pair[0]:.5f}, {pair[1]:.2f} %"

    lines = [[name, *map(cell, cells)] for name, *cells in found["rows"]]
    head = ["weights", "passages", "questions", "ONNX Runtime, passages", "questions"]
    before, after = map(cell, found["cranfield"])
    return f"""{table(head, lines)}

On 200 abstracts of Cranfield, a kind of text that the second one had not seen: from {before} to {after}."""
