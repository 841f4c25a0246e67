"""What was found, for people: hits, hits by document, answers where they stand in their passages.

The verbs that ask (search, answer, demo) call it. It turns records into lines, and must not know how they were found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from .lines import console_of, count, plain, print_lines

if TYPE_CHECKING:
    from ..demo import Answered
    from ..fusion import Group
    from ..records import Answer, Hit

TEXT_SHOWN = 2000  # characters of a passage that are looked at for the line that shows its beginning


def print_hits(question: int | str, hits: list[Hit]) -> None:
    """The question or its number, then two lines a hit, none wider than the terminal: rank, score, id, title; text."""
    console = console_of()
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
    print_lines(console, lines)


def print_groups(question: int | str, groups: Sequence[Group]) -> None:
    """Hits by document: the document, then the passages around its best hit."""
    console = console_of()
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
    console, indent = console_of(), " " * 4
    lines = list(Text(plain(question), "bold").wrap(console, console.width))
    room = max(console.width - len(indent), 16)
    for each in answers:
        lines.append(Text.assemble("  ", *_said(each)))
        shown = _around(each.passage.text, (each.start, each.end), 2 * room - 12)
        lines += [Text.assemble(indent, line) for line in shown.wrap(console, room)[:2]]
    if not answers:
        lines.append(Text.assemble("  ", *_said(None)))
    print_lines(console, lines)


def print_answered(answered: Answered) -> None:
    """A question and the times of its stages, then each passage: the title, and two lines of text from it."""
    console, indent = console_of(), " " * 7
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
    print_lines(console, lines)
    console.print()


def _said(answer: Answer | None) -> tuple[tuple[str, str], ...]:
    if answer is None:
        return (("no answer that is sure enough", "yellow"),)
    where = plain(answer.passage.title) or plain(answer.passage.id)
    return (plain(answer.text), "bold green"), (f"  {answer.confidence:.0%}", "cyan"), (f"  {where}", "")


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
