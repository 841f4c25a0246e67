"""The verbs that look at a bundle without asking it anything: verify, info.

Each turns options into one call, and what comes back into lines. Registered by being imported (cli/__init__.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .common import Bundle, Json, Quiet, fail, verb

if TYPE_CHECKING:
    from ..bundle import Opened
    from ..health import Health


@verb("verify wiki.bpr")
def verify(name: Bundle, as_json: Json = False, quiet: Quiet = False) -> None:
    """Check every byte of a bundle against its checksums."""
    from .. import bundle, terminal

    found = bundle.verify(name)
    damaged = [each for each in found if each.problem]
    if as_json:
        terminal.print_json({"bundle": str(name), "ok": not damaged, "files": [each._asdict() for each in found]})
    else:
        for each in damaged if quiet else found:
            state = f"damaged  {each.problem}" if each.problem else f"ok  {terminal.size(each.bytes):>10}  {each.file}"
            print(terminal.plain(state))
    if damaged:
        files = terminal.count(len(found), "file")
        fail(f"{name} is damaged in {len(damaged)} of {files}: restore it from a copy or build it again")


@verb("info wiki.bpr", "info wiki.bpr --json")
def info(name: Bundle, as_json: Json = False, quiet: Quiet = False) -> None:
    """Show what a bundle holds and how healthy its codes are."""
    from .. import bundle, terminal

    with bundle.open(name) as opened:
        facts = facts_of(opened)
        report = _health(opened) if facts["rows"] else None
    if as_json:
        terminal.print_json({**facts, "health": report and report.to_dict()})
        return
    terminal.print_facts(facts)
    if report is not None:
        terminal.print_health(report)


def _health(opened: Opened) -> Health:
    from .. import health, segments
    from ..index import ScanIndex

    index = segments.Contents(opened).index()
    if len(index) <= health.BIT_ROWS or isinstance(index, ScanIndex):
        return health.measure(index.planes.signs)
    return replace(health.measure(index.planes.take(health.spread(len(index))).signs), rows=len(index))


def facts_of(opened: Opened) -> dict[str, Any]:
    """What `info` says of a bundle, JSON-able."""
    from .. import segments

    known, files = opened.info, opened.manifest.files
    parts = [(each, len(segments.deleted(opened, each))) for each in segments.listed(opened)]
    rows, dimensions = int(known["rows"]), int(known["dimensions"])
    total = opened.manifest.bytes + opened.manifest.checksums.bytes
    return {
        "bundle": str(opened.path),
        "generation": opened.generation,
        "rows": rows,
        "deleted": sum(deleted for _, deleted in parts),
        "segments": [{"rows": each.rows, "deleted": deleted, "kind": each.kind} for each, deleted in parts],
        "kind": known.get("kind"),
        "index": known.get("index", {}),
        "candidates": known.get("candidates"),
        "bits": known["bits"],
        "planes": known["planes"],
        "levels": known["levels"],
        "dimensions": dimensions,
        "centered": known["centered"],
        "rotated": known["rotated"],
        "model": known["model"],
        "files": {entry.name: entry.bytes for entry in (*files.values(), opened.manifest.checksums)},
        "bytes": total,
        "bytes_per_passage": total / rows if rows else None,
        "code_bytes": rows * known["bits"] // 8 * known["planes"],
        "float32_bytes": rows * dimensions * 4,
    }
