"""The blocks about time and bytes: the scan, indexes, filters, changes, the encoder, a GPU."""

from __future__ import annotations

from typing import Any

from blocks import Result, Results, bars, block, source, table

Rows = list[dict[str, Any]]


# ── The scan, the rerank, memory ─────────────────────────────────────────────────────────────────────────────────────


def best_of_variants(timings: Rows) -> Rows:
    """Faiss at its better of heap and counting, likewise the authors' path on top of it."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for timing in timings:
        system = "faiss" if timing["system"].startswith("faiss") else timing["system"]
        system = "authors' path" if system.startswith("authors") else system
        key = (timing["what"], system, timing["rows"], timing["bits"], timing["questions"], timing["threads"])
        if key not in best or timing["best"] < best[key]["best"]:
            best[key] = {**timing, "system": system}
    return list(best.values())


def grid(scan: Result, what: str) -> str:
    """Milliseconds a question by number of questions, and how many times as long as bpr."""
    rows = scan["scaling_rows"][2]
    timings = best_of_variants(scan["timings"])
    here = [t for t in timings if t["what"] == what and t["rows"] == rows and t["bits"] == 768]
    settings = sorted({(t["threads"], t["questions"]) for t in here})
    lines = []
    for system in dict.fromkeys(t["system"] for t in here):
        cells = [system]
        for threads, questions in settings:
            found = {t["system"]: t["best"] for t in here if (t["threads"], t["questions"]) == (threads, questions)}
            own = found["bpr"]
            cells.append(f"{found[system]:.3g} ({found[system] / own:.2g}×)" if system in found else "")
        lines.append(cells)
    made = table(["ms a question (× bpr)", *[f"{q} q, {t} thr" for t, q in settings]], lines)
    return f"{rows:,} rows of 768 bits:\n\n{made}"


@block("scan")
def scan_bars(results: Results) -> str:
    return f"{source(results('scan'))}:\n\n{bars(results('scan')['figures'])}"


@block("memory")
def memory_bars(results: Results) -> str:
    return f"{source(results('memory'))}:\n\n{bars(results('memory')['figures'])}"


@block("first-stage")
def first_stage(results: Results) -> str:
    return grid(results("scan"), "candidates")


@block("both-stages")
def both_stages(results: Results) -> str:
    return grid(results("scan"), "two stages")


@block("second-plane")
def second_plane(results: Results) -> str:
    memory = results("memory")
    times = [[name, f"{took:.3g}"] for name, took in memory["second_plane"].items()]
    return f"{2 * memory['rows']:,} rows:\n\n{table(['second plane', 'ms a question'], times)}"


# ── Indexes that leave codes out ─────────────────────────────────────────────────────────────────────────────────────


@block("indexes")
def indexes(results: Results) -> str:
    """How it was measured, as far as it has numbers, and the bars."""
    found = results("indexes")
    counts, size = found["counts"], found["sizes"][-2]
    slower = ", ".join(f"{name} {times:.2f}" for name, times in size["threads"].items())
    absent = "".join(f"Not built: {what}, for the time it takes (--graphs). " for what in found["left_out"])
    built = ", ".join(f"{name} {took:.0f} s" for name, took in size["seconds"].items() if "HNSW" in name)
    return f"""{source(found)}. On the real codes {counts["judged"]:,} questions are judged, on the larger
collections {counts["judged_on_made"]:,} of them, by the top {counts["k"]}; {counts["timed"]} questions are timed, in
{counts["rounds"]} rounds.

Peers are timed with one thread. Allowed {found["threads"]}, one question took them this many times as long at
{size["rows"]:,} rows: {slower}. {absent}At {size["rows"]:,} rows graphs took: {built}.

The bars, at 99 % of the scan's answers, cells with {found["threads"]} threads:

{bars(found["figures"])}"""


@block("indexes-tables")
def index_tables(results: Results) -> str:
    found, parts = results("indexes"), []
    for size in found["sizes"]:
        parts.append(f"### {size['rows']:,} rows\n\nAt equal shares of the scan's answers:\n")
        parts.append(equal_recall_table(found, size, "answers") + "\n\nAt equal shares of the scan's top 20:\n")
        parts.append(equal_recall_table(found, size, "overlap") + "\n")
    return "\n".join(parts)


def equal_recall_table(found: Result, size: Result, measure: str) -> str:
    """Milliseconds at the wanted recalls, best (middle), the bytes, and what it took to build."""
    here = [e for e in found["equal_recall"] if (e["rows"], e["measure"]) == (size["rows"], measure)]
    flat, lines = size["nbytes"]["bpr scan"] + size["plane"], []
    for system, threads in dict.fromkeys((each["system"], each["threads"]) for each in here):
        own = [each for each in here if (each["system"], each["threads"]) == (system, threads)]
        times = [f"{e['best']:.3g} ({e['middle']:.3g})" if e["best"] and e["middle"] else "never" for e in own]
        weight, seconds = size["nbytes"][system] + size["plane"], size["seconds"][system]
        ratio = f"{weight / size['rows']:.1f} ({weight / flat:.2f}×)"
        lines.append([system, str(threads), *times, ratio, f"{seconds:.0f} s" if seconds else ""])
    heads = [f"{recall:.1%}" for recall in found["recalls"]]
    return table(["ms, best (median), at", "threads", *heads, "bytes a row (× codes)", "to build"], lines)


@block("tune")
def tune(results: Results) -> str:
    """What the tuner measured, and what its choice finds for questions that it had not seen."""
    found = results("tune")
    tuned, chosen = found["tuned"], found["tuned"]["chosen"]
    lines = [
        [
            point["kind"],
            f"{point['candidates']:,}",
            "all" if point["probes"] is None else f"{point['probes']:.2%}",
            f"{point['recall']:.4f}",
            f"{point['milliseconds']:.3f}{' ←' if point == chosen else ''}",
        ]
        for point in tuned["points"]
    ]
    own, scan = found["found"]["tuned"], found["found"]["scan"]
    depths = [f"{own[k]:.2f} % in the {k} (the scan {scan[k]:.2f} %)" for k in own]
    return f"""{found["passages"]:,} passages, {tuned["questions"]:,} of SQuAD's training questions, wanted recall
{tuned["target_recall"]:g} ({source(found)}):

{table(["index", "candidates", "of the codes", "recall", "ms"], lines)}

For questions that it had not seen, the {found["asked"]:,} of SQuAD's development set, the tuned bundle finds of the
gold
passages {" and ".join(depths)}."""


# ── Hash look-up ─────────────────────────────────────────────────────────────────────────────────────────────────────


@block("lookup-tables")
def lookup_tables(results: Results) -> str:
    found, chosen = results("lookup"), set[int]()
    lines = []
    for each in found["tables"]:
        wish = f", `tables={each['tables']}`" if each["rows"] in chosen else ""  # the first is the index's own choice
        chosen.add(each["rows"])
        shape = f"{each['tables']} over {each['width']} bits"
        lines.append([f"{each['rows']:,}{wish}", shape, f"{each['bytes_a_row']:.1f}", f"{each['seconds']:.2g} s"])
    return table(["rows, 384 bits", "tables", "bytes a row (codes: 48)", "built in"], lines)


def ratio(times: float) -> str:
    """0.97, 4.0, 113."""
    return f"{times:.0f}" if times >= 10 else f"{times:.2g}"


@block("lookup-near")
def lookup_near(results: Results) -> str:
    """Passages with some bits changed: how many times as long the scan takes."""
    found = results("lookup")
    here = [each for each in found["compared"] if each["what"].startswith("passages,")]
    one = [each for each in here if (each["l"], each["batch"]) == (1, 1)]
    noise = sorted({each["noise"] for each in one})
    lines = []
    for rows, tables in dict.fromkeys((each["rows"], each["tables"]) for each in one):
        own = {each["noise"]: each for each in one if (each["rows"], each["tables"]) == (rows, tables)}
        cells = [f"{ratio(own[n]['times'])}{', scanned' * (own[n]['fell_back'] > 0.5)}" for n in noise]
        lines.append([f"{rows:,} rows, {tables} table{'s' if tables > 1 else ''}", *cells])
    batch = next(each for each in here if each["batch"] > 1)
    larger = next(each for each in here if each["batch"] > 1 and each["rows"] > batch["rows"])
    copies = next(each for each in found["compared"] if each["what"].startswith("every passage") and each["l"] == 10)
    return f"""{source(found)}:

{table(["bits changed of 384", *map(str, noise)], lines)}

{batch["batch"]} such questions in one call, {batch["noise"]} bits changed, take {batch["lookup"]:.3f} ms each where
the scan,
which shares its work among them, takes {batch["scan"]:.3f} ({batch["times"]:.0f} times; {larger["times"]:.0f} with
{larger["rows"]:,} rows). In a collection of {copies["rows"]:,} in which every text stands twenty times, a little
changed
each time, l = 10 is near too: {copies["times"]:.0f} times."""


@block("lookup-questions")
def lookup_questions(results: Results) -> str:
    """Real questions: how far their passages are, what looking them up would cost, and what giving it up does."""
    found = results("lookup")
    far = found["distances"]
    apart = ", ".join(f"{round(bits)} (l = {l})" for l, bits in far["nearest"].items())
    stubborn = [each for each in found["compared"] if each["what"].endswith("never given up")]
    lines = [
        [
            f"{each['tables']} tables, l = {each['l']}",
            f"{each['probes']:,.0f}",
            f"{each['visited'] / each['rows']:.0%}",
            f"{1 / each['times']:.0f}",
        ]
        for each in stubborn
    ]
    real = [each for each in found["compared"] if each["what"] == "real questions"]

    def cost(rows: int) -> str:
        own = [each for each in real if each["rows"] == rows]
        times = [f"{1 / e['times']:.2f} (l = {e['l']}{', in a batch' * (e['batch'] > 1)})" for e in own]
        return f"{rows:,} rows: {', '.join(times)}"

    costs = "; ".join(map(cost, dict.fromkeys(each["rows"] for each in real)))
    return f"""A question's l-th nearest passage is at distance {apart} of 384 on average ({far["questions"]} of
SQuAD's dev
questions); a passage's nearest neighbour is {round(far["passage"])} bits away. Looked up all the same,
{stubborn[0]["rows"]:,}
rows, one question, medians:

{table(["", "keys probed", "rows visited", "times as long as a scan"], lines)}

So the index lets it be: whatever l and the size, at least {min(e["fell_back"] for e in real):.0%} of the real
questions fell
back, and trying cost, in times as long as a scan alone: {costs}. The bars:

{bars(found["figures"])}"""


@block("duplicates")
def duplicates(results: Results) -> str:
    found = results("lookup")["duplicates"]
    radii = sorted({each["radius"] for each in found})
    lines = []
    for rows in sorted({each["rows"] for each in found}):
        own = {each["radius"]: each for each in found if each["rows"] == rows}
        lines.append([f"{rows:,} rows: groups", *(f"{own[r]['groups']:,}" for r in radii)])
        lines.append(["seconds", *(f"{own[r]['seconds']:.2g}" for r in radii)])
    return table(["radius", *map(str, radii)], lines)


# ── Filters and changes ──────────────────────────────────────────────────────────────────────────────────────────────


@block("filters")
def filters(results: Results) -> str:
    found = results("filters")
    by = {(t["questions"], t["system"]): t for t in found["timings"]}
    batches = sorted({t["questions"] for t in found["timings"]})
    plain = {q: by[q, "no filter"] for q in batches}

    def faster(questions: int, name: str) -> str:
        own, none = by[questions, name], plain[questions]
        return f"{none['best'] / own['best']:.1f} ({none['middle'] / own['middle']:.1f})"

    names = [n for _, n in by if "evaluation" not in n and n not in ("no filter", "10 % tombstones")]
    lines = [[name, *(faster(q, name) for q in batches)] for name in dict.fromkeys(names)]
    dead = next(each for each in found["figures"] if "tombstones" in each["name"])
    size, rounds = plain[1], [plain[q]["rounds"] for q in batches]
    heads = ["one question" if q == 1 else f"{q} questions" for q in batches]
    return f"""Times as fast as the same scan without a filter, evaluation of the filter included: {size["rows"]:,}
rows of
{size["bits"]} bits, {size["threads"]} threads, rows that match scattered evenly (the worst case), best of {rounds[0]}
runs
({rounds[-1]} of a batch) that took turns, and in brackets their medians. {source(found)}.

{table(["filter keeps", *heads], lines)}

A mask that strikes out a tenth of the rows, as deleted passages do: {dead["value"]:.2f} times as long as none (at most
{dead["target"]:g} is asked). The metadata of the benchmark, four fields, took {found["bytes_a_row"]:.1f} bytes a row.
The bars:

{bars(found["figures"])}"""


@block("live")
def live(results: Results) -> str:
    found = results("live")
    lines = [
        [each["what"], f"{1000 * each['seconds']:,.0f} ms", f"{each['bytes'] / 1e6:,.1f} MB", str(each["links"])]
        for each in found["changes"]
    ]
    return f"""A bundle of {found["rows"]:,} passages ({found["bits"]} bits), vectors given, one run each
({source(found)}):

{table(["change", "takes", "writes", "files taken over"], lines)}

{bars(found["figures"])}"""


# ── The encoder, and a GPU ───────────────────────────────────────────────────────────────────────────────────────────


@block("encode")
def encode(results: Results) -> str:
    found = results("encode")
    speeds = {**found["passages_per_second"], **found["limits"]}
    plain = found["passages_per_second"]["transformers, as they come"]
    lines = [[name, f"{speed:.1f}", f"{speed / plain:.2f}×"] for name, speed in speeds.items()]
    return f"""Passages of {found["tokens"]:.0f} tokens on average ({source(found)}). The limits are
those of the
dense layers alone:

{table(["", "passages/s", "of transformers in float32"], lines)}

{bars(found["figures"])}"""


@block("gpu")
def gpu(results: Results) -> str:
    found = results("gpu")
    lines = [
        [f"encode, {found['length']} tokens, {way}", f"{speed:,.0f} passages/s"]
        for way, speed in found["passages_per_second"].items()
    ]
    lines += [
        [f"train, {found['batch']} questions × 2 passages, {way}", f"{' and '.join(f'{r:.1f}' for r in runs)} steps/s"]
        for way, runs in found["steps_per_second"].items()
    ]
    return f"{source(found)}:\n\n{table(['', ''], lines)}"
