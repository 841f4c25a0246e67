"""What all verbs share: the typer app, how a verb ends, and the options that several of them have.

The verbs' own files import it; it must not know any verb. Only typer is imported at the start, so that `bpr --help` is
quick; numpy and rich (terminal/) come with the verb that needs them.

A new verb is a function below `@verb(example, …)`: how it ends (errors, Ctrl-C, a closed pipe) is taken care of here.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from ..errors import BprError, InvalidInput

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
# What the extra `train` brings, and what comes along with it.
TRAINING = ("torch", "transformers", "accelerate", "safetensors", "bm25s", "numba", "onnx", "huggingface_hub")

EPILOG = """\b
Example:
  $ bpr passages docs/ -o passages.jsonl
  $ bpr index passages.jsonl -o docs.bpr
  $ bpr search docs.bpr "who wrote the Iliad?"

Exit status: 0 success, 1 failure (one line on stderr says why), 2 wrong usage, 130 interrupted.

BPR_THREADS limits the threads, NO_COLOR turns colours off, BPR_DEBUG=1 shows where in the program an error arose."""

# ── What --help looks like ───────────────────────────────────────────────────────────────────────────────────────────

WIDEST_HELP = 80
_ItsContext: Any = TyperCommand.context_class  # click's, or that of typer's own copy of click
_ItsHelp: Any = _ItsContext.formatter_class


class _Help(_ItsHelp):  # type: ignore[misc]
    """Fits on narrow terminals, too: its own way is never less than 50 columns, 32 of them for names."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        width = min(shutil.get_terminal_size().columns, WIDEST_HELP) - 2
        super().__init__(*arguments, **{**options, "width": width})

    def write_text(self, text: str) -> None:
        super().write_text("\n".join(_continued(line, self.width - 2) for line in text.split("\n")))

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        named = [(_two_lines(name, self.width - 2), about) for name, about in rows]
        super().write_dl(named, min(col_max, self.width * 2 // 5), col_spacing)


def _continued(line: str, width: int) -> str:
    """An example that is too long goes on in the next line, as a shell reads it; never cut within quotes."""
    if not line.startswith("  $ ") or len(line) <= width:
        return line
    lines = ["  $"]
    for word in re.findall(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""", line[4:]):
        if len(lines[-1]) + len(word) + 3 > width:
            lines.append("     ")
        lines[-1] += f" {word}"
    return " \\\n".join(lines)


def _two_lines(name: str, width: int) -> str:
    """The choices of an option, cut where they are too many for a line."""
    cut = name.rfind("|", 0, width) + 1
    return name if len(name) <= width or not cut else f"{name[:cut]}\n      {name[cut:]}"


class _Context(_ItsContext):  # type: ignore[misc]
    formatter_class = _Help


class _Verb(TyperCommand):
    context_class = _Context


class Verbs(TyperGroup):
    """Verbs with a first word in common."""

    context_class = _Context


app = typer.Typer(
    cls=Verbs,
    help="Passage retrieval over millions of passages on one ordinary machine, with learned binary codes.",
    epilog=EPILOG,
    rich_markup_mode=None,  # typer's rich help takes longer to import than all else together
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


# ── How every verb ends ──────────────────────────────────────────────────────────────────────────────────────────────


def verb(*examples: str, group: typer.Typer | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as the verb of its name; the examples stand at the end of its --help.

    group: of verbs with a first word in common, such as `bpr convert squad`.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def guarded(**options: Any) -> None:
            with ending():
                function(**options)

        for hint in get_type_hints(function, include_extras=True).values():
            for option in getattr(hint, "__metadata__", ()):
                option.readable = False  # a file that may not be read is no wrong usage: whoever reads it says so
        lines = "\n".join(f"  $ bpr {example}" for example in examples)
        (group or app).command(cls=_Verb, epilog=f"\b\nExample{'s' * (len(examples) > 1)}:\n{lines}")(guarded)
        return function

    return register


@contextmanager
def ending() -> Iterator[None]:
    """Every end but success is an exit status and one line on stderr; never a traceback."""
    try:
        with _interrupted_once():
            yield
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # whoever read our output has seen enough
        _give_up_stdout()
        sys.exit(1)
    except OSError as error:  # files speak as StorageError: this is stdout
        _give_up_stdout()
        fail(f"cannot write the output: {error.strerror or error}")
    except MemoryError:
        fail("there is not enough memory: close some programs, or give it less at a time")
    except (BprError, ImportError) as error:  # ImportError: the compiled kernel is missing, which it says clearly
        fail(str(error))


@contextmanager
def _interrupted_once() -> Iterator[None]:
    """The first Ctrl-C ends the verb, and no other is heard until the process has ended.

    A second one would break off the wait for threads that are in the kernel, and abort the process. Where somebody has
    another way with signals (nohup, a service's own), it stays.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def interrupt(number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def needs_extra(extra: str, *packages: str) -> Iterator[None]:
    """Around imports of what `pip install binary-passage-retriever` alone does not bring.

    packages: what the extra brings, by the names that they are imported by.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in packages:
            raise
        raise InvalidInput(
            f"this needs {package}, which is not installed: pip install 'binary-passage-retriever[{extra}]'"
        ) from error


def train_extra() -> AbstractContextManager[None]:
    """Around imports of training."""
    return needs_extra("train", *TRAINING)


@contextmanager
def drawing_into(folder: Path | None) -> Iterator[None]:
    """Around work whose outcome is to be drawn: what stands in the way is found before it, not after hours of it."""
    if folder is None:
        yield
        return
    from .. import plots
    from ..disk import made_folder

    if not plots.available():
        raise InvalidInput("drawing needs matplotlib: pip install 'binary-passage-retriever[eval]'")
    with made_folder(folder):
        yield


def write_drawings(folder: Path, name: str, drawn: Mapping[str, bytes]) -> None:
    """Into a folder that is there; drawn: by file type."""
    from ..disk import replacing

    with replacing(*(folder / f"{name}.{kind}" for kind in drawn)) as files:
        for file, content in zip(files, drawn.values(), strict=True):
            file.write(content)


def fail(message: str, status: int = 1) -> NoReturn:
    """One red line, then the end. The traceback of the error at hand only for those who asked for it."""
    if os.environ.get("BPR_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exc()
    from .. import terminal

    with suppress(OSError):  # stderr may be a file on the very disk that is full
        terminal.message(f"bpr: {message}", "red")
    sys.exit(status)


def _give_up_stdout() -> None:
    """What is left in its buffer goes nowhere, so that the interpreter does not fail on it at its end."""
    with suppress(OSError):  # it may be no file at all
        descriptor = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


# ── Options that several verbs have ──────────────────────────────────────────────────────────────────────────────────


Bundle = Annotated[Path, typer.Argument(metavar="NAME.bpr", help="A bundle that `bpr index` wrote.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no messages: only results and errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
NewModel = Annotated[Path, typer.Option("--output", "-o", metavar="MODEL", help="The model folder to make.")]
ReaderFolder = Annotated[
    Path | None, typer.Option("--reader", metavar="DIR", help="A folder with a reader, such as mini.")
]
WhereJson = Annotated[
    str | None,
    typer.Option(
        "--where", metavar="JSON", help='Only passages with this metadata: \'{"year": {">=": 2010}, "lang": "en"}\'.'
    ),
]


def _asked(questions: list[str] | None) -> list[str] | None:
    if any(not each.strip() for each in questions or ()):
        raise typer.BadParameter("a question is empty: put what you want to know in quotes")
    return questions


Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="QUESTION", help="Questions, each in quotes.", callback=_asked),
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Threads of the search.  [default: all cores]")]


def where_of(text: str | None) -> Any:
    """What --where says; whether it is a filter is for filters.py to tell."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f'is not JSON ({error}): \'{{"lang": "en"}}\' is', param_hint="'--where'") from None


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"bpr {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]


@app.callback()
def _program(version: Version = False) -> None:
    pass
