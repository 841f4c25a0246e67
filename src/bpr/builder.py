"""From passages and their vectors to a bundle on disk.

The edges (bpr.build, the command line) call it. It knows passages, codes and bundles; it must not know how vectors are
made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import bundle, passages
from .codes import LEVELS, Floats, blocks, checked_bits, checked_vectors, finite, pack, pack_magnitudes
from .disk import storage_error
from .errors import InvalidInput
from .records import Passage
from .transform import Transform

# What the files of a bundle are called.
SIGNS, MAGNITUDES = "signs.npy", "magnitudes.npy"
MEAN, ROTATION, SCALES = "mean.npy", "rotation.npy", "scales.npy"

Source: TypeAlias = str | Path | Iterable[Passage | Mapping[str, Any]]
# Called with what is being done, how much of it is done, and how much there is (None: not known).
Progress: TypeAlias = Callable[[str, int, int | None], None]


def build(
    source: Source,
    path: str | Path,
    *,
    vectors: ArrayLike | str | Path,
    planes: int = 1,
    center: bool = False,
    rotate: bool = False,
    bits: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> int:
    """Write the bundle `path` from passages and their vectors; returns the number of passages.

    source: a TSV, JSONL or BEIR file, or an iterable of dicts; its i-th passage has the i-th vector.
    vectors: float16/32/64[n, dimensions], an array or the path of an .npy file, which is read block by block.
    planes: 1 keeps signs (the paper's), 2 also a magnitude bit, for twice the bytes and a better rerank.
    center, rotate: for vectors that were not trained for bits; `bits` > dimensions (with rotate) gives longer codes.
    An existing bundle is replaced as a whole, at the end; until then, and after any error, the old one stays.
    """
    if planes not in (1, 2):
        raise InvalidInput(f"planes must be 1 or 2, not {planes}")
    floats = load_vectors(vectors)
    transform = _transform(floats, planes, center, rotate, bits, seed)
    say = progress or (lambda what, done, total: None)
    with bundle.create(path) as new:
        rows = _write_passages(source, new, len(floats), say)
        if rows != len(floats):
            texts, numbers = (f"{file}: " if isinstance(file, str | Path) else "" for file in (source, vectors))
            raise InvalidInput(
                f"{texts}{rows} passages but {numbers}{len(floats)} vectors; the i-th vector must be the i-th passage's"
            )
        _write_planes(new, floats, transform, planes, say)
        new.save(MEAN, transform.mean)
        new.save(SCALES, transform.scales)
        if transform.rotation is not None:
            new.save(ROTATION, transform.rotation)
        say("publishing", 0, None)
        new.publish(_info(rows, transform, planes, center))
    return rows


def load_vectors(vectors: ArrayLike | str | Path) -> Floats:
    """An array float[n, dimensions]; a path is memory-mapped."""
    if not isinstance(vectors, (str, Path)):
        return checked_vectors(vectors)
    try:
        # Not np.load, which would also open archives and pickles.
        with np.errstate(over="ignore"):  # a header may claim any size
            return checked_vectors(np.lib.format.open_memmap(vectors, mode="r"))
    except OSError as error:
        raise storage_error("read", Path(vectors), error) from error
    except InvalidInput as error:
        raise InvalidInput(f"{vectors}: {error}") from error
    except Exception as error:  # numpy's header parser lets a hostile header raise almost anything
        raise InvalidInput(
            f"{vectors} is not a plain .npy array of numbers (numpy.save writes one): {error}"
        ) from error


def load_transform(opened: bundle.Opened) -> Transform:
    """The transform of questions that a bundle was built with."""
    rotation = opened.array(ROTATION) if opened.info["rotated"] else None
    return Transform(opened.array(MEAN), rotation, opened.array(SCALES))


def _transform(floats: Floats, planes: int, center: bool, rotate: bool, bits: int | None, seed: int) -> Transform:
    if not (center or rotate or planes == 2):
        if bits not in (None, floats.shape[1]):
            raise InvalidInput(f"the vectors have {floats.shape[1]} dimensions: {bits} bits need a rotation (--rotate)")
        return Transform.identity(checked_bits(floats.shape[1]))
    return Transform.fit(floats, center=center, rotate=rotate, bits=bits, seed=seed)


def _write_passages(source: Source, new: bundle.Writer, total: int, say: Progress) -> int:
    try:
        return passages.write(_counted(passages.read(source), total, say), new)
    except passages.DuplicateId as error:
        if isinstance(source, str | Path) and Path(source).is_file():  # a pipe cannot be read again
            raise error.in_file(Path(source)) from None
        raise


def _write_planes(new: bundle.Writer, floats: Floats, transform: Transform, planes: int, say: Progress) -> None:
    width = len(transform.scales) // 8
    _write_plane(new, SIGNS, width, floats, transform, pack, say)
    if planes == 2:
        _write_plane(new, MAGNITUDES, width, floats, transform, pack_magnitudes, say)


def _write_plane(
    new: bundle.Writer,
    name: str,
    width: int,
    floats: Floats,
    transform: Transform,
    packed: Callable[[Floats], NDArray[np.uint8]],
    say: Progress,
) -> None:
    with new.array(name, np.dtype(np.uint8), (width,)) as out:
        for rows in blocks(len(floats)):
            block = transform.passages(finite(np.asarray(floats[rows]), rows.start))
            out.append(packed(finite(block, rows.start)))
            say(f"writing {name}", rows.stop, len(floats))


def _counted(source: Iterable[Passage], total: int, say: Progress) -> Iterable[Passage]:
    for row, passage in enumerate(source):
        if row % 4096 == 0:
            say("reading passages", row, total)
        yield passage
    say("reading passages", total, total)


def _info(rows: int, transform: Transform, planes: int, center: bool) -> dict[str, Any]:
    return {
        "kind": "scan",
        "rows": rows,
        "bits": len(transform.scales),
        "dimensions": len(transform.mean),
        "planes": planes,
        "levels": list(LEVELS) if planes == 2 else None,
        "centered": center,
        "rotated": transform.rotation is not None,
        "model": None,  # the vectors came from outside
        "resident": [SIGNS],  # read as a whole by every search; the rest only where candidates stand
    }
