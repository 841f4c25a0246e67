"""What a person sees: messages, progress bars, hits, tables, the health report. The only importer of rich.

The command line calls it. It turns values into lines and must not know how they came about. Whatever stems from files
or names passes `plain` on its way, so that no passage can take over a terminal.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from . import records
    from .bench import Compared
    from .demo import Answered, Recall
    from .fusion import Group
    from .health import Distances, Health
    from .records import Answer, Hit

TEXT_SHOWN = 2000  # characters of a passage that are looked at for the line that shows its beginning
WIDEST_BAR = 50  # characters of a bar in a histogram

# What could move the cursor, colour the screen, break the line or turn its direction: the control characters of ASCII
# and Latin-1, Unicode's line ends and bidirectional overrides, and halves of surrogate pairs, which no stream takes.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def plain(text: str) -> str:
    """Text from files or names as it may go to a terminal: one line, without control characters."""
    return _CONTROLS.sub(" ", text)


def count(number: int, what: str) -> str:
    """1 passage, 2,000 passages."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def size(number: float) -> str:
    """Bytes for people, in powers of ten: 4.8 MB."""
    if number < 1000:
        return f"{number:.0f} B"
    for unit in ("kB", "MB", "GB"):
        number /= 1000
        if number < 999.95:
            return f"{number:.1f} {unit}"
    return f"{number / 1000:,.1f} TB"


def saving(facts: Mapping[str, Any]) -> str:
    """How much smaller the codes are than the vectors."""
    codes, floats = facts["code_bytes"], facts["float32_bytes"]
    smaller = f": {floats / codes:.3g}× smaller" if codes else ""
    return f"{size(codes)} of codes; float32 vectors would need {size(floats)}{smaller}"


def shape(facts: Mapping[str, Any]) -> str:
    """Bits and planes."""
    return f"{count(facts['bits'], 'bit')}, {count(facts['planes'], 'plane')}"


# ── Messages and progress, on stderr ─────────────────────────────────────────────────────────────────────────────────


def message(text: str, style: str = "") -> None:
    """One line on stderr."""
    _console(stderr=True).print(Text(plain(text), style), soft_wrap=True)


def log_to_stderr(name: str, quiet: bool) -> None:
    """Let a part of bpr write its log, a line an event; quiet: only what went wrong."""
    logger = logging.getLogger(name)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    logger.setLevel(logging.WARNING if quiet else logging.INFO)


@contextmanager
def bars(shown: bool) -> Iterator[records.Progress]:
    """What long work calls as it goes on: draws a bar for each part of it, if that is wanted and a person looks on."""
    if not (shown and sys.stderr.isatty()):
        yield lambda what, done, total: None
        return
    columns = TextColumn("{task.description}"), BarColumn(None), TaskProgressColumn(), TimeRemainingColumn(compact=True)
    tasks: dict[str, TaskID] = {}
    console = _console(stderr=True)
    with Progress(*columns, console=console, transient=True, expand=True, redirect_stdout=False) as progress:

        def say(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield say


def _console(stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


# ── Results, on stdout ───────────────────────────────────────────────────────────────────────────────────────────────


def print_json(value: Any) -> None:
    """One line. In ASCII: every encoding can store it, and no control character reaches a terminal."""
    print(json.dumps(value, ensure_ascii=True))


def print_hits(question: int | str, hits: list[Hit]) -> None:
    """The question or its number, then two lines a hit, none wider than the terminal: rank, score, id, title; text."""
    console = _console()
    ids, scores = [plain(hit.id) for hit in hits], [f"{hit.score:,.4f}" for hit in hits]
    ranks_wide, scores_wide = len(str(len(hits))) + 2, max(map(len, scores))
    ids_wide = min(max(map(cell_len, ids)), console.width // 3)
    lines = [Text(plain(question) if isinstance(question, str) else f"question {question}", "bold")]
    for hit, outside_id, score in zip(hits, ids, scores, strict=True):
        start = Text.assemble(f"{hit.rank:>{ranks_wide}}  ", (f"{score:>{scores_wide}}", "cyan"), "  ")
        name = Text(outside_id)
        name.truncate(ids_wide, overflow="ellipsis", pad=True)
        text = " ".join(plain(hit.text[:TEXT_SHOWN]).split())
        lines.append(Text.assemble(start, name, "  ", (plain(hit.title), "bold")))
        lines.append(Text(" " * (ranks_wide + 2) + text))
    for line in lines:
        line.truncate(console.width, overflow="ellipsis")
        line.rstrip()
    console.print(Text("\n").join(lines), soft_wrap=True)


def print_groups(question: int | str, groups: Sequence[Group]) -> None:
    """Hits by document: the document, then the passages around its best hit."""
    console = _console()
    console.print(
        Text(f"Question {question}" if isinstance(question, int) else plain(question), "bold"), soft_wrap=True
    )
    for group in groups:
        console.print(
            Text(f"{group.rank:>3}  {group.score:8.3f}  {plain(group.document)}  ({count(len(group.hits), 'hit')})"),
            soft_wrap=True,
        )
        for passage in group.passages:
            text = " ".join(plain(passage.text[:TEXT_SHOWN]).split())
            line = Text(f"       {text}", "dim" if passage.id != group.hits[0].id else "")
            line.truncate(max(console.width, 20), overflow="ellipsis")
            console.print(line, soft_wrap=True)


def print_answers(question: str, answers: Sequence[Answer]) -> None:
    """The question, then for each answer its text, its confidence, and two lines of its passage with it in them."""
    console, indent = _console(), " " * 4
    lines = list(Text(plain(question), "bold").wrap(console, console.width))
    room = max(console.width - len(indent), 16)
    for each in answers:
        lines.append(Text.assemble("  ", *_said(each)))
        shown = _around(each.passage.text, (each.start, each.end), 2 * room - 12)
        lines += [Text.assemble(indent, line) for line in shown.wrap(console, room)[:2]]
    if not answers:
        lines.append(Text.assemble("  ", *_said(None)))
    for line in lines:
        line.rstrip()
        line.truncate(console.width, overflow="ellipsis")
    console.print(Text("\n").join(lines), soft_wrap=True)


def _around(text: str, place: tuple[int, int], room: int) -> Text:
    """So many characters of a text around a place in it, which stands out."""
    parts = text[: place[0]], text[slice(*place)], text[place[1] :]
    head, own, tail = (" ".join(plain(part).split()) for part in parts)
    head += " " if head and parts[0][-1].isspace() else ""
    tail = (" " if tail and parts[2][0].isspace() else "") + tail
    whole, at = head + own + tail, (len(head), len(head) + len(own))
    first, last = _cut(whole, at, room // 2, room)
    shown = Text(whole[first:last])
    shown.stylize("bold green", at[0] - first, at[1] - first)
    return Text.assemble("…" if first else "", shown, "…" if last < len(whole) else "")


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
    _print_grid(rows)


def print_facts(facts: Mapping[str, Any]) -> None:
    """What `bpr info` knows of a bundle."""
    done = [word for word in ("centered", "rotated") if facts[word]]
    _print_grid(
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
    _print_grid([("file", "size", "a passage"), *rows], justify="right")


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
    console, balance = _console(), health.balance
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
    _print_grid(rows)
    if health.distances is not None:
        _print_histogram(console, health.distances)
    for sentence in health.warnings():
        console.print(f"warning: {sentence}", style="yellow")
    if not health.warnings():
        console.print("The codes look healthy.", style="green")


def print_bench(machine: Mapping[str, Any], rows: list[Compared]) -> None:
    """Our time, and how many times as long the others took."""
    _print_grid([(key, str(value)) for key, value in machine.items() if value is not None])
    peers = dict.fromkeys(peer for row in rows for peer in row.times)
    lines = [("questions", "threads", "ms each", *(peer.split()[0] for peer in peers))]
    for what in dict.fromkeys(row.what for row in rows):
        lines.append((what, *[""] * (len(lines[0]) - 1)))
        for row in (row for row in rows if row.what == what):
            times = (f"{row.times[peer]:.2f}×" if peer in row.times else "" for peer in peers)
            lines.append((f"{row.questions:>9}", f"{row.threads}", f"{row.ours:.3f}", *times))
    _print_grid(lines, justify="right")
    _console().print("×: times as long as bpr. read: reading the codes once, the limit for one question.")


def print_validation(runs: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> None:
    """Lines of a training ledger: how the held-out questions fared; of several runs the best one is marked."""
    names = list(dict.fromkeys(name for run in runs for name in run["metrics"]))
    lines = [("model", "steps", *(name.removeprefix("eval_").replace("_", " ") for name in names))]
    for run in runs:
        mark = " *" if len(runs) > 1 and run is best else ""
        figures = (f"{run['metrics'][name]:,.2f}" if name in run["metrics"] else "" for name in names)
        lines.append((plain(run["output"]) + mark, f"{run['steps']:,}", *figures))
    _print_grid(lines, justify="right")


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
    _print_grid(lines, justify="right")
    compared = "" if against is None else f"; difference: to {plain(against)}, question by question"
    of = count(report["rows"], "passage") if "rows" in report else f"up to {count(report['depth'], 'result')} of each"
    _console().print(f"{count(asked, 'question')}, {of}{compared}", soft_wrap=True)


def print_export(made: Iterable[tuple[str, int, float]]) -> None:
    """Each exported encoder: its side, its bytes, and the share of its sign bits that the float weights give too."""
    rows = [(f"{side}.onnx", size(bytes), f"{agreement:.2%}") for side, bytes, agreement in made]
    _print_grid([("file", "size", "sign bits as in float32"), *rows], justify="right")


def print_indexed(facts: Mapping[str, Any], seconds: float) -> None:
    """What `bpr demo` built, how fast, and how small it is."""
    rows = facts["rows"]
    each, floats = facts["code_bytes"] // rows, facts["float32_bytes"] // rows  # bytes
    _print_grid(
        [
            ("passages", f"{rows:,} in {seconds:,.1f} s, {rows / seconds:,.0f} a second"),
            ("codes", f"{shape(facts)}: {each:,} bytes a passage; float32 {floats:,}"),
            ("size", saving(facts)),
            ("bundle", f"{size(facts['bytes'])} in all: codes, texts, ids and checksums"),
        ]
    )


def print_answered(answered: Answered) -> None:
    """A question and the times of its stages, then each passage: the title, and two lines of text from it."""
    console, indent = _console(), " " * 7
    asked, times = answered.asked, answered.times
    said, took = answered.answer, answered.read
    stages = f"encode {times.encode:.1f} ms, candidates {times.candidates:.2f} ms, rerank {times.rerank:.2f} ms"
    heads = Text(plain(asked.question), "bold"), Text(stages, "cyan")
    lines = [line for head in heads for line in head.wrap(console, console.width)]
    room = max(console.width - len(indent), 16)
    if took is not None:
        lines.append(Text.assemble("  → ", *_said(said), (f"  {took:,.0f} ms with the search", "cyan")))
    if said is not None:
        shown = _around(said.passage.text, (said.start, said.end), 2 * room - 12)
        lines += [Text.assemble(indent, line) for line in shown.wrap(console, room)[:2]]
    for hit, holds in zip(answered.hits, answered.holds, strict=True):
        lines.append(Text.assemble("  ", ("✓" if holds else " ", "green"), f" {hit.rank}  {plain(hit.title)}"))
        shown = _excerpt(" ".join(plain(hit.text).split()), asked.question, asked.answers, 2 * room - 12)
        lines += [Text.assemble(indent, line) for line in shown.wrap(console, room)[:2]]
    for line in lines:
        line.rstrip()
        line.truncate(console.width, overflow="ellipsis")
    console.print(Text("\n").join(lines), soft_wrap=True)
    console.print()


def _said(answer: Answer | None) -> tuple[tuple[str, str], ...]:
    if answer is None:
        return (("no answer that is sure enough", "yellow"),)
    where = plain(answer.passage.title) or plain(answer.passage.id)
    return (plain(answer.text), "bold green"), (f"  {answer.confidence:.0%}", "cyan"), (f"  {where}", "")


def _excerpt(text: str, question: str, answers: Iterable[str], room: int) -> Text:
    """So many characters of a text: around an answer, with what the question says of it; or else the beginning."""
    words = [word for word in re.findall(r"\w+", question.lower()) if len(word) > 3]
    found = (re.finditer(rf"(?<!\w){re.escape(plain(answer))}(?!\w)", text, re.IGNORECASE) for answer in answers)
    places = [match.span() for matches in found for match in matches] or [(0, 0)]
    cuts = [(_cut(text, place, before, room), place) for place in places for before in (room // 2, 0, 4 * room // 5)]
    (first, last), (start, end) = max(cuts, key=lambda cut: sum(word in text[slice(*cut[0])].lower() for word in words))
    shown = Text(text[first:last])
    shown.stylize("bold green", start - first, end - first)
    return Text.assemble("…" if first else "", shown, "…" if last < len(text) else "")


def _cut(text: str, place: tuple[int, int], before: int, room: int) -> tuple[int, int]:
    """Where an excerpt with this place in it begins and ends: at words, and `before` characters earlier if it can."""
    first = text.rfind(" ", 0, max(0, min(place[0] - before, len(text) - room))) + 1
    if first + room >= len(text):
        return first, len(text)
    return first, max(text.rfind(" ", first, first + room), place[1]) or first + room


def print_recall(recall: Recall) -> None:
    """A bar for each number of passages that one may look at, as wide as the share of questions that it serves."""
    console = _console()
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


def print_table(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    """Lines below a head. What is too wide for the terminal goes on below, with the first column again."""
    console = _console()
    wide = [max(cell_len(row[number]) for row in rows) + 2 for number in range(len(rows[0]))]
    console.print(Text(plain(title), "bold"), soft_wrap=True)
    first = 1
    while first < len(wide):
        last = first + 1
        while last < len(wide) and wide[0] + sum(wide[first : last + 1]) <= console.width:
            last += 1
        _print_grid([(plain(row[0]), *row[first:last]) for row in rows], justify="right")
        first = last


def _print_grid(rows: Iterable[tuple[str, ...]], justify: Literal["left", "right"] = "left") -> None:
    """Aligned columns; values that are too long for the terminal go on below. An empty line follows."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        grid.add_row(*(Text(cell, justify="left" if number == 0 else justify) for number, cell in enumerate(row)))
    console = _console()
    console.print(grid)
    console.print()
