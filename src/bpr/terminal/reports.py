"""What was measured, for people: a bundle's facts, the health of its codes, figures of runs, times beside peers.

The verbs that measure call it. It turns values into lines, and must not know how they came about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from .lines import console_of, count, plain, print_grid, size

if TYPE_CHECKING:
    from ..bench import Compared
    from ..demo import Recall
    from ..health import Distances, Health

WIDEST_BAR = 50  # characters of a bar in a histogram
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def saving(facts: Mapping[str, Any]) -> str:
    """How much smaller the codes are than the vectors."""
    codes, floats = facts["code_bytes"], facts["float32_bytes"]
    smaller = f": {floats / codes:.3g}× smaller" if codes else ""
    return f"{size(codes)} of codes; float32 vectors would need {size(floats)}{smaller}"


def shape(facts: Mapping[str, Any]) -> str:
    """Bits and planes."""
    return f"{count(facts['bits'], 'bit')}, {count(facts['planes'], 'plane')}"


def print_calibration(found: Mapping[str, Any]) -> None:
    """What `bpr calibrate` measured."""
    rows = [
        ("questions", f"{found['questions']:,}, {count(found['passages'], 'passage')} read for each"),
        ("exactly right", f"{found['exact']:.2f} %"),
        ("ECE", f"{found['ece']:.3f} (as it is stored: {found['ece_now']:.3f})"),
        ("right of the surest", "  ".join(f"{share}: {right:.0f} %" for share, right in found["coverage"].items())),
    ]
    if "auroc" in found:
        rows.append(("no answer", f"AUROC {found['auroc']:.3f} on {found['absent']:,} questions without their article"))
        rows.append(("threshold", f"{found['threshold']:.3f}"))
    print_grid(rows)


def print_facts(facts: Mapping[str, Any]) -> None:
    """What `bpr info` knows of a bundle."""
    done = [word for word in ("centered", "rotated") if facts[word]]
    print_grid(
        [
            ("bundle", plain(facts["bundle"])),
            ("generation", facts["generation"]),
            ("passages", f"{facts['rows']:,}"),
            *_segments(facts["segments"], facts["deleted"]),
            ("codes", f"{shape(facts)}, from {count(facts['dimensions'], 'dimension')}"),
            ("index", _index(facts["kind"], facts["index"])),
            ("transform", ", ".join(done) or "none"),
            ("model", plain(_model(facts["model"]))),
            ("size", saving(facts)),
        ]
    )
    files = [*sorted(facts["files"].items()), ("in all", facts["bytes"])]
    rows = [(name, size(bytes), f"{bytes / max(facts['rows'], 1):,.1f} B") for name, bytes in files]
    print_grid([("file", "size", "a passage"), *rows], justify="right")


def _segments(segments: Sequence[Mapping[str, Any]], deleted: int) -> list[tuple[str, str]]:
    """Of a bundle that was changed since it was built; nothing to say of any other."""
    if len(segments) < 2 and not deleted:
        return []
    sizes = " + ".join(f"{each['rows']:,}" for each in segments)
    gone = f", {deleted:,} of them deleted" if deleted else ""
    return [("segments", f"{sizes} rows{gone}")]


def _index(kind: str | None, settings: Mapping[str, Any]) -> str:
    cells = f", {settings['cells']:,} of them" if "cells" in settings else ""
    probes = f", {settings['probes']:.2%} of the codes looked at" if "probes" in settings else ""
    return f"{kind or 'none'}{cells}{probes}"


def _model(known: Mapping[str, Any] | None) -> str:
    return f"{known['name']} ({known['fingerprint'][:12]}…)" if known else "none: built from vectors"


def print_health(health: Health) -> None:
    """The code-health report, with a histogram and what to do about it."""
    console, balance = console_of(), health.balance
    console.print(f"Code health, on {health.sampled:,} of {count(health.rows, 'passage')}", style="bold")
    rows = [
        ("ones in a bit", f"{balance.mean:.2f} on average, {balance.min:.2f} to {balance.max:.2f}"),
        ("unbalanced", f"{balance.unbalanced:,} of {count(health.bits, 'bit')}, ones outside 0.1 to 0.9"),
        ("dead", f"{len(health.dead):,} of {count(health.bits, 'bit')}"),
        ("entropy", f"{health.entropy:.3f} a bit, {health.entropy_total:,.1f} in all"),
        ("duplicates", f"{health.duplicates:.2%}"),
    ]
    if (r := health.correlation) is not None:
        rows.append(("correlation", f"{r.mean:.3f} on average, bits {r.pair[0]} and {r.pair[1]}: {r.strongest:+.2f}"))
    if (d := health.distances) is not None:
        rows.append(("nearest", f"{d.nearest_mean:,.1f} on average, {d.nearest_min:,} to {d.nearest_max:,}"))
        rows.append(("distance", f"{d.mean:,.1f} ± {d.spread:,.1f}, {d.min:,} to {d.max:,}"))
        rows.append(("", f"spread like {d.independent_bits:,.0f} independent bits"))
    print_grid(rows)
    if health.distances is not None:
        _print_histogram(console, health.distances)
    for sentence in health.warnings():
        console.print(f"warning: {sentence}", style="yellow")
    if not health.warnings():
        console.print("The codes look healthy.", style="green")


def print_bench(machine: Mapping[str, Any], rows: list[Compared]) -> None:
    """Our time, and how many times as long the others took."""
    print_grid([(key, str(value)) for key, value in machine.items() if value is not None])
    peers = dict.fromkeys(peer for row in rows for peer in row.times)
    lines = [("questions", "threads", "ms each", *(peer.split()[0] for peer in peers))]
    for what in dict.fromkeys(row.what for row in rows):
        lines.append((what, *[""] * (len(lines[0]) - 1)))
        for row in (row for row in rows if row.what == what):
            times = (f"{row.times[peer]:.2f}×" if peer in row.times else "" for peer in peers)
            lines.append((f"{row.questions:>9}", f"{row.threads}", f"{row.ours:.3f}", *times))
    print_grid(lines, justify="right")
    console_of().print("×: times as long as bpr. read: reading the codes once, the limit for one question.")


def print_validation(runs: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> None:
    """Lines of a training ledger: how the held-out questions fared; of several runs the best one is marked."""
    names = list(dict.fromkeys(name for run in runs for name in run["metrics"]))
    lines = [("model", "steps", *(name.removeprefix("eval_").replace("_", " ") for name in names))]
    for run in runs:
        mark = " *" if len(runs) > 1 and run is best else ""
        figures = (f"{run['metrics'][name]:,.2f}" if name in run["metrics"] else "" for name in names)
        lines.append((plain(run["output"]) + mark, f"{run['steps']:,}", *figures))
    print_grid(lines, justify="right")


def print_evaluation(report: Mapping[str, Any]) -> None:
    """What `bpr evaluate` measured: each figure with its interval, and its difference to another run's."""
    against, asked = report["against"], report["asked"]
    lines = [("", "%", "95 % interval", *(() if against is None else ("difference", "95 % interval", "p")))]
    for name, found in report["measures"].items():
        judged = "" if found["questions"] == asked else f", of {found['questions']:,}"
        line = [name + judged, f"{found['mean']:.2f}", f"{found['low']:.2f} to {found['high']:.2f}"]
        if (more := found.get("difference")) is not None:
            line += [f"{more['mean']:+.2f}", f"{more['low']:+.2f} to {more['high']:+.2f}", f"{more['p']:.4f}"]
        lines.append(tuple(line))
    print_grid(lines, justify="right")
    compared = "" if against is None else f"; difference: to {plain(against)}, question by question"
    of = count(report["rows"], "passage") if "rows" in report else f"up to {count(report['depth'], 'result')} of each"
    console_of().print(f"{count(asked, 'question')}, {of}{compared}", soft_wrap=True)


def print_export(made: Iterable[tuple[str, int, float]]) -> None:
    """Each exported encoder: its side, its bytes, and the share of its sign bits that the float weights give too."""
    rows = [(f"{side}.onnx", size(bytes), f"{agreement:.2%}") for side, bytes, agreement in made]
    print_grid([("file", "size", "sign bits as in float32"), *rows], justify="right")


def print_indexed(facts: Mapping[str, Any], seconds: float) -> None:
    """What `bpr demo` built, how fast, and how small it is."""
    rows = facts["rows"]
    each, floats = facts["code_bytes"] // rows, facts["float32_bytes"] // rows  # bytes
    print_grid(
        [
            ("passages", f"{rows:,} in {seconds:,.1f} s, {rows / seconds:,.0f} a second"),
            ("codes", f"{shape(facts)}: {each:,} bytes a passage; float32 {floats:,}"),
            ("size", saving(facts)),
            ("bundle", f"{size(facts['bytes'])} in all: codes, texts, ids and checksums"),
        ]
    )


def print_recall(recall: Recall) -> None:
    """A bar for each number of passages that one may look at, as wide as the share of questions that it serves."""
    console = console_of()
    wide = len(f"top {max(recall.shares)}")
    room = max(1, min(WIDEST_BAR, console.width - wide - len("100.0%") - 3))
    for k, share in recall.shares.items():
        console.print(f"top {k:>{wide - 4}}  {_bar(share, room)} {share:.1%}", soft_wrap=True)
    took = f"encoded in {recall.encode:,.1f} s, searched in {recall.search:,.2f} s"
    console.print(f"{count(recall.questions, 'question')}: {took}")
    console.print()


def _print_histogram(console: Console, distances: Distances) -> None:
    """A bar for each bin, to an eighth of a character."""
    console.print(f"Distances of {count(distances.pairs, 'pair')}", style="bold")
    most = max(pairs for _, _, pairs in distances.histogram)
    labels = [f"{low}" if low == high else f"{low}–{high}" for low, high, _ in distances.histogram]
    wide = max(map(len, labels))
    room = max(1, min(WIDEST_BAR, console.width - wide - len(f"{most:,}") - 3))
    for label, (_, _, pairs) in zip(labels, distances.histogram, strict=True):
        console.print(f"{label:>{wide}}  {_bar(pairs / most, room)} {pairs:,}", soft_wrap=True)
    console.print()


def _bar(share: float, room: int) -> str:
    full, eighths = divmod(round(8 * room * share), 8)
    return "█" * full + _EIGHTHS[eighths]
