"""Writes every measured figure of README.md, docs/ and the model's card, and draws the plots, from results/*.json.

python benchmarks/report.py [--check]

Nothing is measured here: it knows what the other scripts write, and not how they came by it. A page has blocks, between
`<!-- figures: NAME -->` and `<!-- end of figures -->`; what stands in them is made by the modules *_blocks.py and, for
the overview, here. drawings.py draws. --check writes nothing, and ends with 1 where a page is not what the results
give.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import answer_blocks
import quality_blocks
import scale_blocks
import speed_blocks
from blocks import (
    BLOCKS,
    MARKED,
    PAGES,
    Results,
    bar,
    block,
    difference,
    filled,
    machine,
    signed,
    slashed,
    table,
    value,
    verdict,
)
from bpr import model
from bpr.compare.rows import MAIN
from bpr.evaluation import paired
from common import HOME

MODULES = (answer_blocks, quality_blocks, scale_blocks, speed_blocks)  # imported for the blocks they have
UNNOTED = "before commits were noted"
COMMANDS = {"quality": "python benchmarks/quality.py", "compare": "bpr compare", "noted": "by hand"}


# ── One line for each promise ────────────────────────────────────────────────────────────────────────────────────────


class Line(NamedTuple):
    """A promise, what was measured, the bar, whether it holds, where more stands, and the results file."""

    promise: str
    measured: str
    bar: str
    holds: str
    link: str
    file: str


TABLES = "[the paper's tables](reproduction.md#the-papers-tables)"
SHIPPED = "[the model that ships](reproduction.md#the-model-that-ships)"
SCAN, CELLS, MEMORY = "[below](#the-scan-and-the-rerank)", "[below](#indexes-that-leave-codes-out)", "[below](#memory)"
HASH = "[hash look-up](reproduction.md#hash-lookup-where-it-wins-where-it-cannot)"
RIVALS = {  # by their rows in the paper's table: what BPR is promised to find, in points against them
    "DPR": ("96 bytes a passage, against floats of 16 times the bytes", [-each for each in quality_blocks.BITS_COST]),
    "DPR + PQ": ("96 bytes a passage, against product quantisation of as many", [0.0] * 3),
    "DPR, RaBitQ 1 bit": ("96 bytes a passage, against RaBitQ, 1 bit", [0.0] * 3),
    "DPR, RaBitQ 2 bits": ("96 bytes a passage, against RaBitQ, 2 bits", [0.0] * 3),
}
BARS = (  # file, promise, where more stands, and what the figures' names have in them, where it is not about all
    ("scan", "the scan", SCAN, "as fast as Faiss"),
    ("scan", "the limit of memory", SCAN, "bandwidth"),
    ("scan", "scan and rerank", SCAN, "authors"),
    ("scan", "rerank", SCAN, "rerank"),
    ("indexes", "cells, speed", CELLS, "as fast as"),
    ("indexes", "cells, bytes", CELLS, "bytes of cells"),
    ("lookup", "hash look-up and duplicates", HASH, ""),
    ("memory", "memory and opening", MEMORY, ""),
    ("filters", "filters", "[filters](filters.md#what-it-costs)", ""),
    ("live", "changes", "[bundles that change](live.md#what-it-costs)", ""),
    ("load", "the service under load", "[under load](operations.md#under-load)", ""),
    ("cluster", "a cluster", "[from one machine to many](operations.md#from-one-machine-to-many)", ""),
    ("encode", "the encoder", "[the encoder](architecture.md#models-and-the-encoder)", ""),
    ("reader", "the reader", "[the reader](reproduction.md#the-reader)", ""),
    ("reader-time", "the time of an answer", "[the reader](reproduction.md#the-reader)", ""),
)


def margin(figure: Mapping[str, Any]) -> float:
    """How many times as good as its bar a figure is; what cannot be better than it is not near it."""
    good, bad = (figure["target"], figure["value"]) if figure["most"] else (figure["value"], figure["target"])
    return float(good / bad) if bad > 0 and good != bad else float("inf")


def held(results: Results, file: str, promise: str, link: str, part: str) -> Line:
    """Of a file's figures that have this part in their names the one that is nearest to its bar, or furthest below."""
    some = [figure for figure in results(file)["figures"] if part in figure["name"]]
    worst = min(some, key=lambda figure: (figure["holds"], margin(figure)))
    holding = sum(figure["holds"] for figure in some)
    many = f", {holding} of {len(some)}" if len(some) > 1 else ""
    shown = f"{promise}: {worst['name']}"
    return Line(shown, value(worst), bar(worst), f"{verdict(holding == len(some))}{many}", link, file)


def decided(by: Sequence[Mapping[str, float]], least: Sequence[float]) -> str:
    """Whether differences are as large as they shall be, as far as their intervals can tell."""
    pairs = list(zip(by, least, strict=True))
    if all(each["mean"] >= limit for each, limit in pairs):
        return verdict(True)
    return verdict(False) if any(each["high"] < limit for each, limit in pairs) else "not decided"


def beside(results: Results) -> Iterator[Line]:
    """BPR against rows of the paper's table, in points at every depth; rows that the file lacks are left out."""
    found = results("compare-squad")
    depths = f"points at top {slashed(found['top'], '{:g}'.format)}"
    for row in found["rows"]:
        if row["name"] in RIVALS and row["table"] == MAIN and "problem" not in row:
            promise, least = RIVALS[row["name"]]
            by = [row["bpr_is_better_by"][str(k)] for k in found["top"]]
            values = slashed((each["mean"] for each in by), signed)
            bound = f"≥ {slashed(least, signed)}"
            yield Line(f"{promise}: {depths}", values, bound, decided(by, least), TABLES, "compare-squad")


def shipped(results: Results) -> Iterator[Line]:
    """What the shipped model finds."""
    start = results("noted")["start model"]["amazon-test"]
    sets = {
        "quality-squad-mini": ("SQuAD dev among 220,963 passages", quality_blocks.WANTED),
        "quality-amazon-test-mini": ("Amazon reviews, beside the float start model", start),
    }
    for file, (what, wanted) in sets.items():
        own = quality_blocks.means(results(file))
        enough = verdict(all(mine >= other for mine, other in zip(own, wanted, strict=True)))
        yield Line(f"{what}: %, top 1 / 20 / 100", slashed(own), f"≥ {slashed(wanted)}", enough, SHIPPED, file)
    less, most = paired(*quality_blocks.cranfield(results)).to_dict(), quality_blocks.CRANFIELD_COST
    what, fall = "Cranfield, nDCG@10 against the float start model", difference(less)
    yield Line(what, fall, f"≥ {signed(-most)}", decided([less], [-most]), SHIPPED, "quality-cranfield-mini")


def lines(results: Results) -> list[Line]:
    """Every promise."""
    return [*beside(results), *shipped(results), *(held(results, *each) for each in BARS)]


@block("overview")
def overview(results: Results) -> str:
    rows = [[*each[:5], f"`{command(each.file, results(each.file))}`"] for each in lines(results)]
    return table(["promise", "measured", "bar", "holds", "more", "measured by"], rows)


@block("missed")
def missed(results: Results) -> str:
    """Every bar that does not hold, of every file, and every promise that is no figure of a file."""
    some = [[each.promise, each.measured, each.bar, each.holds] for each in [*beside(results), *shipped(results)]]
    figures = [figure for name in results.names() for figure in results(name).get("figures", ())]
    some += [[each["name"], value(each), bar(each), verdict(each["holds"])] for each in figures]
    return table(["figure", "measured", "bar", "holds"], [each for each in some if each[-1] != verdict(True)])


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
    known, files = model.load(model.MINI)  # its bpr.json has the sum of its card
    model.save(model.MINI, known, files)
    from drawings import draw_all  # matplotlib

    draw_all(results)


if __name__ == "__main__":
    main()
