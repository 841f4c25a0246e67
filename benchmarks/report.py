"""Writes every measured figure of README.md, docs/ and the model's card, and draws the plots, from results/*.json.

python benchmarks/report.py [--check]

Nothing is measured here. A page has blocks, between `<!-- figures: NAME -->` and `<!-- end of figures -->`; what stands
in them is made by quality_blocks.py, speed_blocks.py, scale_blocks.py and, for the overview, here. --check writes
nothing, and ends with 1 where a page is not what the results give.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import quality_blocks
import scale_blocks
import speed_blocks
from blocks import BLOCKS, MARKED, PAGES, Results, bar, bars, block, filled, machine, signed, slashed, table, value, verdict
from bpr.compare.rows import MAIN
from bpr.evaluation import paired
from common import HOME

MODULES = (quality_blocks, scale_blocks, speed_blocks)  # imported for the blocks they have
UNNOTED = "before commits were noted"
COMMANDS = {"quality": "python benchmarks/quality.py", "compare": "bpr compare", "noted": "by hand"}


# ── One line for each promise ────────────────────────────────────────────────────────────────────────────────────────


class Line(NamedTuple):
    """A promise, what was measured, the bar, whether it holds, where more stands, and the results file."""

    promise: str
    measured: str
    bar: str
    holds: bool
    link: str
    file: str


def margin(figure: Mapping[str, Any]) -> float:
    """How far a figure is above its bar: below 1 it does not hold."""
    if figure["most"]:
        return float(figure["target"] / figure["value"]) if figure["value"] > 0 else float("inf")
    return float(figure["value"] / figure["target"]) if figure["target"] else float("inf")


def held(results: Results, file: str, promise: str, link: str, *parts: str) -> Line:
    """The figures of a file whose names have one of these parts (all without any): the one nearest to its bar."""
    some = [f for f in results(file)["figures"] if not parts or any(part in f["name"] for part in parts)]
    worst = min(some, key=lambda figure: (figure["holds"], margin(figure)))
    failing = sum(not figure["holds"] for figure in some)
    many = f" ({len(some) - failing} of {len(some)} hold; this is the nearest to its bar)" if len(some) > 1 else ""
    return Line(f"{promise}{many}", value(worst), bar(worst), not failing, link, file)


def beside(results: Results, rival: str, promise: str, least: Sequence[float] | None) -> Line | None:
    """BPR against a row of the paper's table, in points at every depth; least: of each, or that 0 is not ruled out."""
    found = results("compare-squad")
    row = next((r for r in found["rows"] if (r["name"], r["table"]) == (rival, MAIN) and "problem" not in r), None)
    if row is None:
        return None
    by = [row["bpr_is_better_by"][str(k)] for k in found["top"]]
    values = slashed((each["mean"] for each in by), signed)
    what = f"{promise}: points at top {slashed(found['top'], '{:g}'.format)}"
    link = "[the paper's tables](reproduction.md#the-papers-tables)"
    if least is None:
        return Line(what, values, "≥ 0, as far as the questions can tell", all(e["high"] >= 0 for e in by), link, "compare-squad")
    holds = all(each["mean"] >= limit for each, limit in zip(by, least, strict=True))
    return Line(what, values, f"≥ {slashed(least, signed)}", holds, link, "compare-squad")


def found_lines(results: Results) -> list[Line]:
    """What the shipped model finds."""
    own = quality_blocks.means(results("quality-squad-mini"))
    amazon, start = quality_blocks.means(results("quality-amazon-test-mini")), results("noted")["start model"]["amazon-test"]
    less, wanted = paired(*quality_blocks.cranfield(results)), quality_blocks.WANTED
    link, most = "[the model that ships](reproduction.md#the-model-that-ships)", quality_blocks.CRANFIELD_COST
    top = "%, top 1 / 20 / 100"
    enough = all(a >= b for a, b in zip(own, wanted, strict=True))
    more = all(a >= b for a, b in zip(amazon, start, strict=True))
    fall = f"{signed(less.mean)} [{signed(less.low)}, {signed(less.high)}]"
    return [
        Line(f"SQuAD dev among 220,963 passages: {top}", slashed(own), f"≥ {slashed(wanted)}", enough, link, "quality-squad-mini"),
        Line(f"Amazon reviews, beside the float start model: {top}", slashed(amazon), f"≥ {slashed(start)}", more, link, "quality-amazon-test-mini"),
        Line("Cranfield, nDCG@10 against the float start model", fall, f"≥ −{most:.1f}, judged with the interval", less.high >= -most, link, "quality-cranfield-mini"),
    ]


def lines(results: Results) -> list[Line]:
    """The overview."""
    floats = [-each for each in quality_blocks.BITS_COST]
    rivals = [
        beside(results, "DPR", "96 bytes a passage against floats, 16 times the bytes", floats),
        beside(results, "DPR + PQ", "the same against product quantisation, as many bytes", None),
        beside(results, "DPR, RaBitQ 1 bit", "the same against RaBitQ, 1 bit", None),
        beside(results, "DPR, RaBitQ 2 bits", "the same against RaBitQ, 2 bits", None),
    ]
    here = "[below](#{})".format
    return [
        *(line for line in rivals if line is not None),
        *found_lines(results),
        held(results, "scan", "the scan: times as fast as Faiss", here("the-scan-and-the-rerank"), "as fast as Faiss"),
        held(results, "scan", "one question: share of the read bandwidth", here("the-scan-and-the-rerank"), "bandwidth"),
        held(results, "scan", "two stages: times as fast as the authors' path", here("the-scan-and-the-rerank"), "authors"),
        held(results, "indexes", "cells beside the scan, Faiss and usearch: speed", here("indexes-that-leave-codes-out"), "as fast as"),
        held(results, "indexes", "cells beside graphs: bytes", here("indexes-that-leave-codes-out"), "bytes of cells"),
        held(results, "lookup", "hash look-up, and finding duplicates", "[hash look-up](reproduction.md#hash-lookup-where-it-wins-where-it-cannot)"),
        held(results, "memory", "memory and opening", here("memory")),
        held(results, "filters", "filters", "[filters](filters.md#what-it-costs)"),
        held(results, "live", "changes", "[bundles that change](live.md#what-it-costs)"),
        held(results, "load", "the service under load", "[under load](operations.md#under-load)"),
        held(results, "cluster", "a cluster", "[from one machine to many](operations.md#from-one-machine-to-many)"),
        held(results, "encode", "the encoder", "[the encoder](architecture.md#models-and-the-encoder)"),
        held(results, "reader", "the reader", "[the reader](reproduction.md#the-reader)"),
    ]


@block("overview")
def overview(results: Results) -> str:
    rows = [
        [each.promise, each.measured, each.bar, verdict(each.holds), each.link, f"`{command(each.file, results(each.file))}`"]
        for each in lines(results)
    ]
    return table(["promise", "measured", "bar", "holds", "more", "measured by"], rows)


@block("missed")
def missed(results: Results) -> str:
    """Every bar that does not hold, of every file."""
    some = [f for name in results.names() for f in results(name).get("figures", ()) if not f["holds"]]
    other = [f"- {each.promise}: {each.measured}, bar {each.bar}" for each in lines(results) if not each.holds and "hold;" not in each.promise]
    return f"{bars(some) if some else 'All bars of the benchmarks hold.'}\n\n" + "\n".join(other)


# ── Where each figure comes from ─────────────────────────────────────────────────────────────────────────────────────


def command(name: str, result: Mapping[str, Any]) -> str:
    return str(result.get("command") or COMMANDS[name.partition("-")[0]])


@block("files")
def files(results: Results) -> str:
    """Every results file: its command, commit, date and machine."""
    rows = []
    for name in results.names():
        own = results(name)
        when = own.get("date") or own.get("measured") or ("its entries say when" if name == "noted" else "")
        rows.append([f"{name}.json", f"`{command(name, own)}`", own.get("commit") or UNNOTED, when, machine(own)])
    return table(["file", "command", "commit", "date", "machine"], rows)


# ── Pages ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def written(results: Results) -> dict[Path, str]:
    """Every page that has blocks, as it should be. A block that no page has is an error."""
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    used = [name for text in texts.values() for name, _ in MARKED.findall(text)]
    if {*used} != {*BLOCKS} or len(used) != len({*used}):
        odd = sorted({*used} ^ {*BLOCKS}) or sorted(name for name in {*used} if used.count(name) > 1)
        raise SystemExit(f"each block must stand in one page, and be known: {', '.join(odd)}")
    return {page: filled(text, results) for page, text in texts.items() if MARKED.search(text)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where a page is not what it should be")
    check, results = parser.parse_args(arguments).check, Results()
    made = written(results)
    stale = [page for page, text in made.items() if text != page.read_text(encoding="utf-8")]
    for page in stale:
        print(f"{'not what the results give' if check else 'written'}: {page.relative_to(HOME)}")
        if not check:
            page.write_text(made[page], encoding="utf-8")
    if check:
        sys.exit(bool(stale))
    from drawings import draw_all  # matplotlib

    draw_all(results)


if __name__ == "__main__":
    main()
