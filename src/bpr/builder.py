"""From passages to a bundle on disk: their text is encoded with a model, or their vectors or codes are given.

The edges (bpr.build, the command line) call it. It knows passages, codes, bundles, and an encoder by what it does; it
must not know how vectors are made.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from . import bundle, documents, passages, segments
from . import model as models
from .bundlemodel import remembered, warm_up_code
from .codes import (
    LEVELS,
    Codes,
    Floats,
    checked_bits,
    finite,
    pack,
    pack_largest,
)
from .encoder import Encoder, Encodes
from .errors import InvalidInput, ModelMismatch
from .given import GivenCodes, given_codes, load_vectors, with_codes, with_vectors
from .kinds import Kind, Plan
from .model import Model
from .parts import Parts
from .records import Passage, Progress
from .segments import Block, Segment
from .textfiles import file_type
from .transform import Transform
from .vectors import Kind as VectorKind

PART_ROWS = 4096  # passages whose codes are kept together; after a kill at most so many are encoded again
FIT_ROWS = 4096  # passages that a transform of an encoder's vectors is measured on: a spread is known to a hundredth

Source: TypeAlias = str | Path | Iterable[Passage | Mapping[str, Any]]
Coded: TypeAlias = tuple[list[Codes], Floats | None]  # the planes of some passages, and their vectors if they are kept


def build(
    source: Source,
    path: str | Path,
    *,
    model: str | Path | Encodes | None = None,
    kind: Kind = "scan",
    words: bool = False,
    keep_vectors: VectorKind | None = None,
    vectors: ArrayLike | str | Path | None = None,
    codes: ArrayLike | str | Path | GivenCodes | None = None,
    planes: int | None = None,
    center: bool = False,
    rotate: bool = False,
    bits: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Write the bundle `path` from passages; returns their number. Their text is encoded, unless vectors are given.

    source: a TSV, JSONL or BEIR file, a folder or file of documents (cut into passages of 100 words), or an iterable of
    dicts. model: a model folder, "mini" (the default, it ships with bpr) or an opened encoder; the bundle remembers it.
    kind: of the index. "scan" compares every code; "cells" the few per cent around the question, for millions of
    passages (`bpr tune` sets how many); "hash" gives the scan's results, faster for near duplicates alone.
    words: keep the words too, for hybrid search. keep_vectors: keep the vectors as "int8" or "float16" on disk, for a
    third stage that scores the last 100 passages of a search with them.

    vectors: float16/32/64[n, dimensions], an array or the path of an .npy file, which is read block by block; the i-th
    is the i-th passage's. Only with vectors: planes: 1 keeps signs (the paper's, the default), 2 also a magnitude bit,
    for twice the bytes and a better rerank; center, rotate: for vectors that were not trained for bits; `bits` >
    dimensions (with rotate) gives longer codes.

    codes: uint8[n, bits/8] likewise, sign bits as `bpr.pack` makes them; model is then the one that they were made
    with, as you say, to search with text; without it, search with vectors.

    An existing bundle is replaced as a whole, at the end; until then, and after any error, the old one stays. What is
    encoded already is kept in `path`.parts until then: the same call after a kill goes on where it was (an iterable:
    if it yields the same passages again).
    """
    say, plan = progress or (lambda what, done, total: None), Plan(kind, words=words, vectors=keep_vectors)
    if vectors is None and (planes is not None or center or rotate or bits is not None):
        raise InvalidInput("planes, center, rotate and bits are for vectors of yours; a model has settled them")
    if codes is not None:
        if vectors is not None or keep_vectors is not None:
            raise InvalidInput(
                "codes are all that is needed, and all that there is: leave out vectors and keep_vectors"
            )
        return _build_from_codes(source, Path(path), codes, model, plan, say)
    if vectors is not None:
        how = (1 if planes is None else planes, center, rotate, bits, seed)
        return _build_from_vectors(source, Path(path), vectors, plan, how, say)
    given = "mini" if model is None else model
    encoder = Encoder.open(given) if isinstance(given, str | Path) else given
    return _build_from_text(source, Path(path), encoder, plan, threads, say)


# ── From text ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _build_from_text(
    source: Source, path: Path, encoder: Encodes, plan: Plan, threads: int | None, say: Progress
) -> int:
    model = encoder.model
    parts = Parts(path)
    with bundle.create(path) as new:
        total = _count(source, say)
        transform, rest = _fitted(source, encoder, total, threads, say)
        found = encoded(rest, encoder, transform, plan.vectors is not None, threads, parts, total, say)
        written = _write(new, source, plan, model.planes, transform, found, say)
        say("publishing", 0, None)
        known = remembered(model, getattr(encoder, "folder", None), path)
        known["warm_up"] = warm_up_code(encoder)
        info = {**_info(transform, model.planes, bool(transform.mean.any())), **known, **plan.to_info()}
        segments.publish(new, info, [written], 0)
    parts.remove()
    return written.rows


def _write(
    new: bundle.Writer,
    source: Source,
    plan: Plan,
    planes: int,
    transform: Transform,
    found: Iterable[Block],
    say: Progress,
) -> Segment:
    """The files of a bundle of one segment."""
    try:
        written = segments.write(new, "", plan, planes, len(transform.scales) // 8, found, say)
    except passages.DuplicateId as error:
        raise located(error, source) from None
    segments.save_transform(new, transform)
    return written


def located(error: passages.DuplicateId, source: Source) -> passages.DuplicateId:
    """The error with the lines of the file, if the passages are from one that can be read again (a pipe cannot)."""
    is_file = isinstance(source, str | Path) and Path(source).is_file()
    return error.in_file(Path(str(source))) if is_file else error


def read(source: Source) -> Iterator[Passage]:
    """Passages of a file of passages, of documents, or of an iterable."""
    if isinstance(source, str | Path):
        plain_text = file_type(Path(source)) in documents.DOCUMENT_TYPES and file_type(Path(source)) not in (
            documents.LINES_TYPES  # JSONL is passages already; `bpr passages` cuts documents in JSONL
        )
        if os.path.isdir(source) or plain_text:
            return documents.cut(source)
    return passages.read(source)


def _count(source: Source, say: Progress) -> int | None:
    """How many passages there are, if it can be known. Reading all before encoding any finds a bad last line now."""
    if not isinstance(source, str | Path):
        return len(source) if isinstance(source, Sized) else None
    if os.path.exists(source) and not (os.path.isfile(source) or os.path.isdir(source)):
        return None  # a pipe can be read only once
    rows = 0
    for rows, _ in enumerate(read(source), 1):
        if rows % PART_ROWS == 0:
            say("reading passages", rows, None)
    return rows


def _fitted(
    source: Source, encoder: Encodes, total: int | None, threads: int | None, say: Progress
) -> tuple[Transform, Iterator[Passage]]:
    """How this encoder's vectors become bits, and the passages.

    A model that was trained for bits needs no transform. The vectors of another (an encoder with `fit`) are centred,
    rotated and scaled as vectors of yours are, by what a sample of the passages shows: as many as FIT_ROWS, evenly
    spaced; the first ones, where passages can be read only once.
    """
    found, fit = read(source), getattr(encoder, "fit", None)
    if fit is None:
        return Transform.identity(encoder.model.bits), found
    if total is None or isinstance(source, Iterator):
        sample = list(islice(found, FIT_ROWS))
        found = chain(sample, found)
    else:
        sample = list(islice(read(source), 0, None, max(1, -(-total // FIT_ROWS))))
    say("encoding a sample", 0, len(sample))
    vectors = vectors_of([(passage.title, passage.text) for passage in sample], encoder, threads, lambda rows: None)
    return fit(finite(vectors)), found


def encoded(
    found: Iterable[Passage],
    encoder: Encodes,
    transform: Transform,
    keep: bool,
    threads: int | None,
    parts: Parts,
    total: int | None,
    say: Progress,
) -> Iterator[Block]:
    """The passages with their codes, and with `keep` their vectors, PART_ROWS at a time: encoded, or from before."""
    rest, begun, done = iter(found), 0, 0
    ahead: int = getattr(encoder, "parts_ahead", 0)  # of one that works elsewhere, on several parts at once
    waiting: deque[tuple[list[Passage], Callable[[], Coded]]] = deque()
    say("encoding passages", done, total)
    while True:
        while len(waiting) <= ahead and (some := list(islice(rest, PART_ROWS))):

            def tell(rows: int, before: int = begun) -> None:
                say("encoding passages", before + rows, total)

            pairs = [(passage.title, passage.text) for passage in some]
            waiting.append((some, _coding(pairs, begun, encoder, transform, keep, threads, parts, tell)))
            begun += len(some)
        if not waiting:
            return
        some, finish = waiting.popleft()
        yield Block(some, *finish())
        done += len(some)
        say("encoding passages", done, total)


def _coding(
    pairs: list[tuple[str, str]],
    first_row: int,
    encoder: Encodes,
    transform: Transform,
    keep: bool,
    threads: int | None,
    parts: Parts,
    say: Callable[[int], None],
) -> Callable[[], Coded]:
    """What gives the codes of these passages, and puts them among the parts: begun elsewhere, or done when called.

    say: is told how many are encoded.
    """
    model, number = encoder.model, first_row // PART_ROWS
    key = part_key(pairs, encoder, transform)
    shape, dimensions = (model.planes, len(pairs), model.bits // 8), len(transform.mean)
    size = shape[0] * shape[1] * shape[2]
    kept = parts.get(number, key, size + (len(pairs) * dimensions * 4 if keep else 0))
    if kept is not None:
        floats = np.frombuffer(kept, np.float32, offset=size).reshape(-1, dimensions) if keep else None
        before = list(np.frombuffer(kept, np.uint8, size).reshape(shape)), floats
        return lambda: before
    begin = getattr(encoder, "begin", None)
    elsewhere: Callable[[], Coded] | None = begin and begin(pairs, first_row, transform, keep)

    def finish() -> Coded:
        if elsewhere is not None:
            codes, vectors = elsewhere()
        else:
            codes, vectors = coded(vectors_of(pairs, encoder, threads, say), first_row, model, transform, keep)
        parts.put(number, key, b"".join(each.tobytes() for each in (*codes, *([] if vectors is None else [vectors]))))
        return codes, vectors

    return finish


def coded(vectors: Floats, first_row: int, model: Model, transform: Transform, keep: bool) -> Coded:
    """The planes of some passages from their vectors, uint8[n, bits/8] each, and the vectors if they are kept."""
    block = finite(transform.passages(finite(vectors, first_row)), first_row)
    codes = [pack(block)]
    if model.large is not None:
        codes.append(pack_largest(block, model.large))
    return codes, vectors if keep else None


def vectors_of(
    pairs: Sequence[tuple[str, str]], encoder: Encodes, threads: int | None, say: Callable[[int], None]
) -> Floats:
    """float32[n, dimensions], some at a time: the same as all at once, for no text's vector depends on others."""
    pieces = []
    for first in range(0, max(len(pairs), 1), encoder.at_once):
        if first:
            say(first)
        pieces.append(encoder.passages(pairs[first : first + encoder.at_once], threads=threads))
    return np.concatenate(pieces)


def part_key(pairs: Sequence[tuple[str, str]], encoder: Encodes, transform: Transform | None = None) -> bytes:
    """What the codes of a part depend on: its texts, the model, what computes it, and what its vectors go through."""
    key = hashlib.sha256(f"{encoder.model.fingerprint} {encoder.engine}\n".encode())
    if transform is not None and not transform.is_identity:
        for each in (transform.mean, transform.scales, transform.rotation):
            key.update(b"" if each is None else each.tobytes())
    for pair in pairs:
        for text in pair:
            raw = text.encode()
            key.update(len(raw).to_bytes(8, "little") + raw)
    return key.digest()


# ── From vectors ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _build_from_vectors(
    source: Source,
    path: Path,
    vectors: ArrayLike | str | Path,
    plan: Plan,
    how: tuple[int, bool, bool, int | None, int],
    say: Progress,
) -> int:
    """how: planes, center, rotate, bits, seed."""
    planes, center, *_ = how
    if planes not in (1, 2):
        raise InvalidInput(f"planes must be 1 or 2, not {planes}")
    floats = load_vectors(vectors)
    transform = _transform(floats, *how)
    with bundle.create(path) as new:
        found = with_vectors(passages.read(source), floats, transform, planes, (source, vectors), say)
        written = _write(new, source, plan, planes, transform, found, say)
        say("publishing", 0, None)
        segments.publish(new, {**_info(transform, planes, center), **plan.to_info()}, [written], 0)
    return written.rows


def _transform(floats: Floats, planes: int, center: bool, rotate: bool, bits: int | None, seed: int) -> Transform:
    if not (center or rotate or planes == 2):
        if bits not in (None, floats.shape[1]):
            raise InvalidInput(f"the vectors have {floats.shape[1]} dimensions: {bits} bits need a rotation (--rotate)")
        return Transform.identity(checked_bits(floats.shape[1]))
    return Transform.fit(floats, center=center, rotate=rotate, bits=bits, seed=seed)


def _info(transform: Transform, planes: int, center: bool) -> dict[str, Any]:
    return {
        "bits": len(transform.scales),
        "dimensions": len(transform.mean),
        "planes": planes,
        "levels": list(LEVELS) if planes == 2 else None,
        "centered": center,
        "rotated": transform.rotation is not None,
        "model": None,  # the vectors came from outside
    }


# ── From codes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _build_from_codes(
    source: Source,
    path: Path,
    codes: ArrayLike | str | Path | GivenCodes,
    model: str | Path | Encodes | None,
    plan: Plan,
    say: Progress,
) -> int:
    """One plane, as it is given; no transform."""
    ready = given_codes(codes)
    transform = Transform.identity(checked_bits(ready.bits))
    info = {**_info(transform, 1, False), **_stated(model, ready.bits, path), "levels": None, **plan.to_info()}
    with bundle.create(path) as new:
        found = with_codes(passages.read(source), ready, (source, codes), say)
        written = _write(new, source, plan, 1, transform, found, say)
        say("publishing", 0, None)
        segments.publish(new, info, [written], 0)
    return written.rows


def _stated(model: str | Path | Encodes | None, bits: int, path: Path) -> dict[str, Any]:
    """What the bundle remembers of the model that is said to have made the codes. Its bits must be theirs."""
    if model is None:
        return {}
    if isinstance(model, str | Path):
        return remembered(_of_width(models.load(model)[0], bits), models.resolve(model), path)
    return remembered(_of_width(model.model, bits), getattr(model, "folder", None), path)


def _of_width(model: Model, bits: int) -> Model:
    if model.bits != bits:
        raise ModelMismatch(f"the codes have {bits} bits, and the model {model.name!r} makes {model.bits}: name theirs")
    return model
