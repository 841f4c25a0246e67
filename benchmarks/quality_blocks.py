"""The blocks about what is found: the shipped model, the paper's tables, words and vectors, answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from blocks import Result, Results, block, difference, interval, listed, signed, slashed, source, table
from bpr.compare import report as compared
from bpr.compare.rows import MAIN
from bpr.evaluation import interval as bootstrap
from bpr.evaluation import paired, reciprocal_rank, top_k

TOP = (1, 20, 100)
WANTED = (58.5, 91.8, 96.8)  # of the shipped model, top 1, 20 and 100 of SQuAD's dev questions
BITS_COST = (1.0, 0.2, 0.2)  # the most that bits may cost against the float twin, in points
INT8_COST = 0.3  # the most that int8 may cost
CRANFIELD_COST = 1.0  # the most by which nDCG@10 may fall under the start model's
Values = NDArray[np.float64]
HUNDREDTHS = "{:.2f}".format


# ── The model that ships ─────────────────────────────────────────────────────────────────────────────────────────────


def tops(result: Result, kind: str = "gold") -> list[Values]:
    return [top_k(result[kind], k).astype(np.float64) for k in TOP]


def means(result: Result) -> list[float]:
    return [100 * float(each.mean()) for each in tops(result)]


def spread(values: Iterable[Values], digits: int = 1) -> list[str]:
    return [interval(bootstrap(each).to_dict(), digits) for each in values]


def cranfield(results: Results) -> tuple[Values, Values]:
    """nDCG@10 of every question: the shipped model, and the float model it began as."""
    names = ("quality-cranfield-mini", "quality-cranfield-all-MiniLM-L6-v2-float")
    return tuple(np.array(results(name)["ndcg"]) for name in names)  # type: ignore[return-value]


@block("shipped")
def shipped(results: Results) -> str:
    """What mini finds, as it is served; and what int8 and bits cost it."""
    squad, amazon, start = results("quality-squad-mini"), results("quality-amazon-test-mini"), results("noted")
    own, first = cranfield(results)
    less = paired(own, first)
    served, floats = results.ledger("mini4")["results"], results.ledger("twin8s")["results"]
    int8 = [a - b for a, b in zip(served["dev/2000"], means(squad), strict=True)]
    bits = [a - b for a, b in zip(floats["dev"], served["dev/2000"], strict=True)]
    missed = [f"top {k}" for k, cost, most in zip(TOP, bits, BITS_COST, strict=True) if cost > most]
    lines = [
        ["SQuAD dev, gold paragraph, 220,963 passages", *spread(tops(squad)), slashed(WANTED)],
        ["SQuAD dev, answer string", *spread(tops(squad, "answer")), ""],
        [
            "Amazon test half, gold paragraph, 21,025 passages",
            *spread(tops(amazon)),
            f"{slashed(start['start model']['amazon-test'])}, the float start model",
        ],
    ]
    return f"""{table([squad.get("date", ""), *(f"top {k}" for k in TOP), "wanted"], lines)}

Cranfield, nDCG@10: {interval(bootstrap(own).to_dict())}, and {100 * first.mean():.1f} for the float start model:
{difference(less.to_dict())} question by question, p = {less.p:.2f}. No more than {CRANFIELD_COST:.1f} under it was
wanted, judged
with that interval, which {"does not hold" if less.high < -CRANFIELD_COST else "holds"} −{CRANFIELD_COST:.1f};
{len(own)} questions cannot say more.

On the GPU, in bfloat16 (the ledger's `mini4`), the same weights found {slashed(served["dev/2000"], HUNDREDTHS)} on
SQuAD,
{slashed(served["amazon-test/2000"], HUNDREDTHS)} on Amazon's test half and {served["cranfield/2000"]:.2f} on
Cranfield: int8, rounded by texts
(`bpr export --texts`), costs SQuAD {slashed(int8, HUNDREDTHS)} points; {INT8_COST} was
allowed{"" if max(int8) <= INT8_COST else ": **missed**"}.
The float twin (`twin8s`), from the same data with 8 epochs, found {slashed(floats["dev"], HUNDREDTHS)} in bfloat16, so
bits
cost {slashed(bits, HUNDREDTHS)} before int8: the aim of {slashed(BITS_COST)} is
{f"**missed** at {listed(missed)}" if missed else "reached"}."""


@block("card")
def card(results: Results) -> str:
    """The same, in short, for the model's card."""
    own, first = cranfield(results)
    less = paired(own, first)
    return f"""On 220,963 passages, int8, with the defaults: of SQuAD's dev questions
{slashed(means(results("quality-squad-mini")))} % have their paragraph
among the first 1 / 20 / 100. On Amazon reviews, text unlike its training's, it finds
{slashed(means(results("quality-amazon-test-mini")))} where its float
start model finds {slashed(results("noted")["start model"]["amazon-test"])}. On Cranfield's abstracts on aerodynamics
its nDCG@10 is
{100 * own.mean():.1f}, and the start model's {100 * first.mean():.1f} (difference {signed(less.mean)}, 95 % interval
{signed(less.low)} to {signed(less.high)})."""


@block("evaluate")
def evaluate(results: Results) -> str:
    """What `bpr evaluate` prints of SQuAD's dev questions."""
    found = results("quality-squad-mini")
    rows: dict[str, Values] = {}
    for kind in ("answer", "gold"):
        rows |= {f"top {k}, {kind}": values for k, values in zip(TOP, tops(found, kind), strict=True)}
        rows[f"MRR@10, {kind}"] = reciprocal_rank(found[kind])
    rank = np.array(found["gold"])  # one gold passage each, so the ideal gain is 1
    rows["nDCG@10, gold"] = np.where((rank > 0) & (rank <= 10), 1 / np.log2(1 + np.maximum(rank, 1)), 0.0)
    lines = ["                     %   95 % interval"]
    for name, values in rows.items():
        own = bootstrap(values)
        lines.append(f"{name:<15}  {own.mean:.2f}  {own.low:.2f} to {own.high:.2f}")
    return "```\n" + "\n".join(lines) + "\n```"


# ── The paper's tables ───────────────────────────────────────────────────────────────────────────────────────────────


def all_tables(found: Result) -> str:
    """As `bpr compare` writes them."""
    made = []
    for each in compared.tables(found):
        head, *cells = each.cells
        made.append(f"{each.title}:\n\n{table(head, cells)}")
    return "\n\n".join(made)


def sides(found: Result) -> dict[str, list[str]]:
    """Rivals, by what their intervals say at each depth: "+" BPR finds more, "−" less, "0" none can tell."""
    said: dict[str, list[str]] = {}
    for row in found["rows"]:
        if row["table"] != MAIN or row["name"] == found["main"] or "problem" in row:
            continue
        by = [row["bpr_is_better_by"][str(k)] for k in found["top"]]
        said[row["name"]] = ["+" if each["low"] > 0 else "−" if each["high"] < 0 else "0" for each in by]
    return said


def verdicts(found: Result) -> str:
    """What the differences say, in words: only what the intervals can tell."""
    said, lines = sides(found), []
    words = (("+", "surely finds more than"), ("−", "surely finds less than"), ("0", "cannot be told from"))
    for sign, what in words:
        everywhere = [name for name, signs in said.items() if set(signs) == {sign}]
        places = {
            name: [f"top {k}" for k, own in zip(found["top"], signs, strict=True) if own == sign]
            for name, signs in said.items()
        }
        some = [f"{name} at {listed(depths)}" for name, depths in places.items() if depths and name not in everywhere]
        parts = [f"{'; '.join(everywhere)} at every depth"] * bool(everywhere) + some
        if parts:
            lines.append(f"- {found['main']} {what}: {'; '.join(parts)}.")
    return "\n".join(lines)


def costs(found: Result) -> str:
    """Time beside the rivals."""
    rows = [
        row for row in found["rows"] if row["table"] == MAIN and "problem" not in row and row["name"] != found["main"]
    ]
    times = [
        f"{row['name']} {row['times_bpr_alone']:.1f} and {row['times_bpr_batch']:.1f}"
        for row in rows
        if row.get("times_bpr_alone") is not None
    ]
    return f"Times as long as {found['main']}, for one question and in a batch: {'; '.join(times)}."


@block("compare")
def compare(results: Results) -> str:
    """The present run; left to the block of the earlier run where it is that one."""
    now, then = results("compare-squad"), results("compare-squad-bf16")
    if now["rows"] == then["rows"]:
        return "The run of today is the earlier one, below."
    models = ", ".join(f"{name}: {label}" for name, label in now["models"].items())
    return f"""{source({"command": "bpr compare", **now})}; {now["questions"]:,} questions, {now["passages"]:,}
passages. Models: {models}.
{" ".join(f"{note}." for note in now["notes"])}

{all_tables(now)}

What it says:

{verdicts(now)}

{costs(now)}"""


@block("compare-bf16")
def compare_earlier(results: Results) -> str:
    """The run with vectors from a GPU: all rows of Table 1, and everything about the trained plane."""
    found = results("compare-squad-bf16")
    kept = [row for row in found["rows"] if row["table"] == MAIN or row["settings"]["side"] == "one plane"]
    if results("compare-squad")["rows"] == found["rows"]:
        kept = found["rows"]
    em = found["em"]
    lines = [[name, interval(own), difference(by) if by else ""] for name, (own, by) in em["rows"].items()]
    return f"""{found["date"]}: vectors of the twin and of the one-plane model from a GPU, bfloat16; BPR with two
planes is the int8
model that ships, which is to its disadvantage. {found["questions"]:,} questions, {found["passages"]:,} passages, 2
threads.

{all_tables({**found, "rows": kept})}

What it says:

{verdicts(found)}

{costs(found)}

EM of the shipped reader with 20 passages of each row, {em["questions"]} questions ({em["measured"]}):

{table(["", "EM", f"{found['main']}, against it"], lines)}"""


# ── Words and vectors ────────────────────────────────────────────────────────────────────────────────────────────────

SETS = {
    "squad": "SQuAD dev",
    "squad-wiki": "SQuAD dev",
    "amazon-test": "Amazon test",
    "cranfield": "Cranfield",
}
FUSED = {
    "codes": "codes",
    "BM25": "BM25",
    "codes + BM25, reciprocal ranks": "reciprocal ranks",
    "codes + BM25, weighted": "weighted scores",
}


def measures_of(found: Result, shown: Sequence[str]) -> list[str]:
    """Those of a set that are shown: Cranfield has one of its own."""
    return [each for each in found["systems"]["codes"] if each in (*shown, "nDCG@10")]


@block("hybrid")
def hybrid(results: Results) -> str:
    """Codes, BM25 and both, on every set."""
    found, lines = results("hybrid"), []
    for name, own in found["sets"].items():
        for number, measure in enumerate(measures_of(own, ("top 1", "top 20", "top 100"))):
            values = [own["systems"][system][measure] for system in FUSED]
            best = max(each["mean"] for each in values)
            shown = [f"**{v['mean']:.1f}**" if v["mean"] == best else f"{v['mean']:.1f}" for v in values]
            begin = "" if number else f"{SETS[name]}, {own['passages']:,} passages: "
            lines.append([f"{begin}{measure}", *shown, difference(values[-1]["against codes"])])
    return f"""{source(found)}:

{table(["", *FUSED.values(), "weighted, against codes"], lines)}

{unsure(found)}"""


def unsure(found: Result) -> str:
    """Where fused rankings are not surely better than codes alone."""
    doubtful = []
    for name, own in found["sets"].items():
        for system, label in list(FUSED.items())[2:]:
            for measure, value in own["systems"][system].items():
                if value["against codes"]["low"] <= 0:
                    doubtful.append(f"{label} on {SETS[name]} ({measure}: {difference(value['against codes'])})")
    return f"Not surely better than codes alone: {'; '.join(doubtful) or 'none of them'}."


@block("third-stage")
def third_stage(results: Results) -> str:
    found, lines = results("hybrid"), []
    for name, own in found["sets"].items():
        systems = [each for each in own["systems"] if each.startswith(("codes, then", "floats"))]
        shown = measures_of(own, ("top 1", "top 5", "top 20"))
        for number, system in enumerate(systems):
            values = [own["systems"][system][measure] for measure in shown]
            cells = [f"{v['mean']:.1f}: {difference(v['against codes'])}" for v in values]
            label = "" if number else f"{SETS[name]}{', nDCG@10' * (len(shown) == 1)}: "
            lines.append([f"{label}{system.removeprefix('codes, then ')}", *cells, *[""] * (3 - len(cells))])
    return table(["third stage, against codes alone", "top 1", "top 5", "top 20"], lines)


FUSIONS = {
    "codes": ("codes", ""),
    "BM25, k1 0.9, b 0.4": ("BM25", ""),
    "1000: weighted, BM25 weighs 0.5": ("weighted, standard deviations, BM25 weighs 0.5", "1,000"),
    "300: weighted, BM25 weighs 0.7": ("the same, 0.7", "300"),
    "100: weighted, BM25 weighs 0.8": ("the same, 0.8", "100"),
    "1000: 0 to 1, BM25 weighs 0.7": ("weighted, scores from 0 to 1, 0.7", "1,000"),
    "1000: by the best, BM25 weighs 0.5": ("weighted, scores by the best one, 0.5", "1,000"),
    "1000: reciprocal, k 5, BM25 weighs 1.0": ("reciprocal ranks, k = 5", "1,000"),
    "1000: reciprocal, k 60, BM25 weighs 1.0": ("reciprocal ranks, k = 60 (the usual)", "1,000"),
}


@block("fusion")
def fusion(results: Results) -> str:
    """The ways to fuse that were tried, or the best of each kind."""
    found = results("hybrid-tune")
    known = found["lines"]
    best = max((name for name in FUSIONS if name in known), key=lambda name: float(known[name]["mean"]))
    lines = []
    for name, (label, depth) in FUSIONS.items():
        if name in known:
            own = known[name]
            mean = f"**{own['mean']:.1f}**" if name == best else f"{own['mean']:.1f}"
            sets = [f"{own[each]['MRR@10']:.1f}" for each in ("amazon-tune", "squad-train")]
            lines.append([label, depth, *sets, mean])
    other = [
        f"{name.removeprefix('BM25, ')}: {known[name]['mean']:.1f}" for name in known if name.startswith("BM25, k1")
    ]
    words = f"\n\nBM25 alone by k1 and b, mean MRR@10: {'; '.join(other)}." if len(other) > 1 else ""
    return f"""{source(found)}:

{table(["", "rows of each list", "Amazon tune", "SQuAD train", "mean MRR@10"], lines)}{words}"""


@block("words")
def words(results: Results) -> str:
    """BM25 beside bm25s, in turns; bytes and memory."""
    found = results("hybrid-time")
    times = found["milliseconds a question"]
    lines = [[name, f"{own['best']:.2g}", f"{own['median']:.2g}"] for name, own in times.items()]
    sizes = found["bytes a passage"]
    parts = {"rows": "lexical-rows.npy", "counts": "lexical-counts.npy", "lengths": "lexical-lengths.npy"}
    kept = ", ".join(f"{sizes[file]:.0f} of {what}" for what, file in parts.items())
    return f"""{source(found)}: 220,963 passages, one thread, 100 rows, 10 × 100 questions; bpr's time includes making
words of the
question:

{table(["BM25", "ms a question, best", "median"], lines)}

Scores differ by at most {found["largest difference of a score"]:.1g}. On disk it is {sizes["all"]:.0f} bytes a passage
of 100 words: {kept}, the
rest of the words. Building took {found["seconds to build"]:.0f} s and {found["MB that building took at its peak"]:.0f}
MB at the peak."""


@block("rounding")
def rounding(results: Results) -> str:
    """How far kept vectors put scores off."""
    found = results("hybrid")["sets"]
    rows = {name: own["rounding"] for name, own in found.items() if "rounding" in own}
    forms = list(next(iter(rows.values())))
    lines = [[SETS[name], *(f"{100 * own[form]:.2g} %" for form in forms)] for name, own in rows.items()]
    return table(["off by, of the spread of a question's first 20 scores", *forms], lines)
