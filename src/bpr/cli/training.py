"""The verbs that make a model: train, export, average.

Each turns options into one call, and what comes back into lines. Registered by being imported (cli/__init__.py). torch
is imported by the verb that needs it, and not before.

Under torchrun every process runs the verb: the first one (rank 0) writes and speaks, the others compute.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import __version__
from ..errors import InvalidInput
from .common import Json, NewModel, Quiet, train_extra, verb

if TYPE_CHECKING:
    from ..records import Progress
    from ..training.prepared import Prepared
    from ..training.trainer import Report

SOURCE = "source.json"  # in MODEL.data: what it was made from

# ── Options ──────────────────────────────────────────────────────────────────────────────────────────────────────────

RecipeFile = Annotated[Path | None, typer.Argument(metavar="RECIPE.toml", help="The settings; see --print-recipe.")]
Pile = Annotated[Path | None, typer.Option("--passages", metavar="P", help="The passages: TSV, JSONL or BEIR.")]
Taught = Annotated[
    Path | None,
    typer.Option("--examples", metavar="E", help="The examples, as `bpr convert` and `bpr mine` write them."),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="MODEL", help="The model folder to make.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value for a setting. Repeatable.")
]
HoldOut = Annotated[
    float,
    typer.Option("--hold-out", min=0, max=1, help="Share of the groups (articles) that is kept for the validation."),
]
Reserve = Annotated[
    list[Path] | None,
    typer.Option(
        "--reserve", metavar="EXAMPLES", help="Never look at the positives of these, a test set's. Repeatable."
    ),
]
Ready = Annotated[
    Path | None,
    typer.Option("--prepared", metavar="FOLDER", help="Instead of P and E: the MODEL.data of an earlier run."),
]
OwnTokenizer = Annotated[
    Path | None, typer.Option("--tokenizer", metavar="FILE", help="A tokenizer.json.  [default: the start model's own]")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where a run that was stopped left its last checkpoint.")]
Choices = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        metavar="KEY=V1,V2,...",
        help="Train with each value, the best by top-100 wins. Repeatable.",
    ),
]
PrintRecipe = Annotated[bool, typer.Option("--print-recipe", help="Print all settings with their defaults, and exit.")]

ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder with float weights.")]
ExportTo = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="OUT", help="A folder without the float weights.  [default: MODEL itself]"),
]
Float32 = Annotated[bool, typer.Option("--float32", help="float32, not int8: four times as large, and slower.")]
Texts = Annotated[
    Path | None,
    typer.Option(
        "--texts",
        metavar="PASSAGES",
        help="Round int8 weights by these, a few hundred at random: TSV, JSONL or BEIR. Closer to float32.",
    ),
]
AskedToo = Annotated[
    Path | None,
    typer.Option(
        "--questions",
        metavar="QA",
        help="With --texts: questions, as `bpr evaluate` reads them.  [default: the beginnings of the passages]",
    ),
]
Tuned = Annotated[Path, typer.Argument(metavar="TUNED", help="The fine-tuned model folder.")]
Start = Annotated[Path, typer.Argument(metavar="START", help="The model folder that it was tuned from.")]
Share = Annotated[float, typer.Option("--share", min=0, max=1, help="Of the tuned weights in the mean.")]


# ── The verbs ────────────────────────────────────────────────────────────────────────────────────────────────────────


@verb(
    "train --print-recipe > recipe.toml",
    "train recipe.toml --passages squad/passages.jsonl --examples squad/bm25.jsonl -o model",
    "train recipe.toml --prepared model.data --sweep learning_rate=1e-5,2e-5,5e-5 -o sweep",
)
def train(
    recipe: RecipeFile = None,
    passages: Pile = None,
    examples: Taught = None,
    output: Output = None,
    changes: Changes = None,
    hold_out: HoldOut = 0.03,
    reserve: Reserve = None,
    prepared: Ready = None,
    tokenizer: OwnTokenizer = None,
    resume: Resume = False,
    sweep: Choices = None,
    print_recipe: PrintRecipe = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train the two encoders. Texts are cut into tokens once, into MODEL.data; MODEL/ledger.jsonl says what was done.

    On several GPUs: torchrun --nproc-per-node 8 -m bpr.cli train ...
    """
    if print_recipe:
        _print_recipe()
        return
    recipe, output = required(recipe, "RECIPE.toml"), required(output, "--output' / '-o")
    inputs = _inputs(passages, examples, prepared, hold_out, reserve)
    values, choices = pairs_of(changes, "--set"), _choices(sweep)
    from .. import terminal

    with train_extra():
        from ..training import recipe as recipes
        from ..training import run
        from ..training.output import check_output
        from ..training.prepared import Prepared
    settings = recipes.load(recipe, values)
    if not choices:  # of several runs each has its own folder
        check_output(output)
    own = tokenizer or tokenizer_of(settings.start)
    first = os.environ.get("RANK", "0") == "0"
    with terminal.bars(first and not quiet) as say:
        data = Prepared.load(prepared) if prepared else prepared_data(inputs, own, output, say, first)
        how: dict[str, Any] = {"resume": resume, "report": reporter(first and not quiet, say)}
        with redirect_stdout(sys.stderr):  # what libraries print is no result
            if choices:
                lines, best = run.sweep(settings, choices, data, own, output, **how)
            else:
                best = run.train(settings, data, own, output, **how)
                lines = [best]
    if first:
        print_outcome(lines, best, as_json, quiet)


@verb(
    "export model",
    "export model -o model-int8 --texts passages.jsonl --questions examples.jsonl",
    "export model -o model-float32 --float32",
)
def export(
    model: ModelFolder,
    output: ExportTo = None,
    float32: Float32 = False,
    texts: Texts = None,
    questions: AskedToo = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make the ONNX files that indexing, search and answers run.

    MODEL may be a reader's folder, too: then it is reader.onnx, and OUT may be a model folder with the same tokenizer.
    """
    if float32 and texts is not None:
        raise typer.BadParameter("float32 rounds nothing: leave one of them out", param_hint="'--texts'")
    if questions is not None and texts is None:
        raise typer.BadParameter("it goes with --texts", param_hint="'--questions'")
    from .. import terminal
    from ..disk import made_folder
    from ..passages import read
    from ..questions import read_questions
    from .reader import export_reader_of, holds_reader_alone

    with train_extra():
        from ..training.export import drawn, export_onnx
    pile = None if texts is None else [(each.title, each.text) for each in drawn(read(texts))]
    asked = None if questions is None else [each.text for each in drawn(read_questions(questions))]
    if holds_reader_alone(model):
        export_reader_of(model, output, float32, pile, asked, as_json, quiet)
        return
    place = nullcontext() if output is None else made_folder(output, whole=True)
    with place, terminal.bars(not quiet) as say:
        say("exporting", 0, None)
        made = export_onnx(model, output, int8=not float32, texts=pile, questions=asked, progress=say)
    if as_json:
        terminal.print_json({"model": str(made.folder), "bytes": made.bytes, "agreement": made.agreement})
    else:
        terminal.print_export([(side, made.bytes[side], made.agreement[side]) for side in made.bytes])


@verb("average tuned start --share 0.8 -o mean")
def average(
    tuned: Tuned,
    start: Start,
    output: NewModel,
    share: Share = 0.8,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Mix the weights of a fine-tuned model and its start.

    The mean often keeps what both are good at: the task, and other kinds of text.
    """
    from .. import terminal

    with train_extra():
        from ..training.averaging import average as averaged
    with terminal.bars(not quiet) as say:
        say("averaging", 0, None)
        model = averaged(tuned, start, share, output)
    if as_json:
        terminal.print_json({"model": str(output), "share": share, "fingerprint": model.fingerprint})
    elif not quiet:
        terminal.message(f"{output}: {share:g} × {tuned} + {1 - share:g} × {start}; `bpr export {output}` comes next")


# ── From options to calls ────────────────────────────────────────────────────────────────────────────────────────────


def required(value: Path | None, name: str) -> Path:
    """The value of an option that only --print-recipe can do without."""
    if value is None:
        raise typer.BadParameter("it is missing", param_hint=f"'{name}'")
    return value


def _inputs(
    passages: Path | None, examples: Path | None, prepared: Path | None, hold_out: float, reserve: Sequence[Path] | None
) -> dict[str, Any]:
    """What the data is made from; with --prepared it is made already."""
    if prepared is not None:
        if passages is not None or examples is not None or reserve:
            raise typer.BadParameter(
                "the data is prepared: leave out --passages, --examples and --reserve", param_hint="'--prepared'"
            )
        return {}
    if passages is None or examples is None:
        missing = "--passages" if passages is None else "--examples"
        raise typer.BadParameter("it is missing, and so is --prepared", param_hint=f"'{missing}'")
    return {"passages": passages, "examples": examples, "reserved": list(reserve or ()), "hold_out": hold_out}


def pairs_of(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """KEY=VALUE, each key once."""
    found: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = (part.strip() for part in text.partition("="))
        if not key or not equals or key in found:
            wrong = f"{key!r} stands twice" if key in found else f"{text!r} is not KEY=VALUE"
            raise typer.BadParameter(wrong, param_hint=f"'{option}'")
        found[key] = value
    return found


def _choices(texts: Sequence[str] | None) -> dict[str, list[str]]:
    return {key: [part.strip() for part in some.split(",")] for key, some in pairs_of(texts, "--sweep").items()}


def tokenizer_of(start: str) -> Path:
    """The tokenizer.json of the model that training begins with."""
    from huggingface_hub import try_to_load_from_cache

    from .. import model as models

    if not start:
        raise InvalidInput("the recipe has no start: name a folder of transformers weights, or a bpr model")
    folder = models.resolve(start)
    if folder.is_dir():
        found: Any = folder / models.TOKENIZER
    else:
        try:
            found = try_to_load_from_cache(start, models.TOKENIZER)
        except ValueError:  # no name that the hub could have
            found = None
    if not isinstance(found, str | Path) or not Path(found).is_file():
        what = f"{folder} has no {models.TOKENIZER}" if folder.is_dir() else f"start = {start!r} is not on this machine"
        raise InvalidInput(f"{what}: name a folder that has one, or give --tokenizer FILE")
    return Path(found)


def prepared_data(inputs: Mapping[str, Any], tokenizer: Path, output: Path, say: Progress, first: bool) -> Prepared:
    """The data as tokens: from MODEL.data if that was made of these very files, else made anew and kept there."""
    from ..disk import made_folder, storage_error
    from ..training.data import read_examples
    from ..training.prepared import Prepared, prepare

    home = output.absolute().with_name(output.absolute().name + ".data")
    files = [inputs["passages"], inputs["examples"], tokenizer, *inputs["reserved"]]
    source = {"bpr": __version__, "hold_out": inputs["hold_out"], "sha256": [_sum(path) for path in files]}
    try:
        if home.exists() and not (home / SOURCE).exists() and any(home.iterdir()):
            raise InvalidInput(
                f"{home}, where the tokens would go, holds something else: choose another name for MODEL"
            )
        if (home / SOURCE).exists() and (home / SOURCE).read_text() == json.dumps(source):
            return Prepared.load(home)
        data = prepare(
            inputs["passages"],
            read_examples(inputs["examples"]),
            tokenizer,
            reserved=[example for path in inputs["reserved"] for example in read_examples(path)],
            held_share=inputs["hold_out"],
            progress=say,
        )
        if first:
            with made_folder(home, whole=True):
                (home / SOURCE).write_text("")  # ours, and not whole yet
                data.save(home)
                (home / SOURCE).write_text(json.dumps(source))
    except OSError as error:
        raise storage_error("prepare", home, error) from error
    return data


def _sum(path: Path) -> str:
    from ..disk import storage_error
    from ..model import sha256

    try:
        return sha256(path)
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no such file") from None
    except OSError as error:
        raise storage_error("read", path, error) from error


def reporter(shown: bool, say: Progress) -> Report:
    """What training tells as it goes on: a bar where a person looks on, and a line for each figure."""
    from .. import terminal

    def report(logs: Mapping[str, float]) -> None:
        if not shown:
            return
        step, done = logs.get("step", 0), logs.get("epoch")
        say("training", int(step), round(step / done) if done else None)
        terminal.message("  ".join(f"{name} {value:.5g}" for name, value in logs.items() if name != "epoch"))

    return report


def _print_recipe() -> None:
    with train_extra():
        from ..training.recipe import Recipe
    from .settings import as_toml

    print(as_toml(Recipe().to_dict()), end="")


def print_outcome(lines: Sequence[Mapping[str, Any]], best: Mapping[str, Any], as_json: bool, quiet: bool) -> None:
    """What the ledgers say of some runs."""
    from .. import terminal
    from ..training.output import LEDGER

    if as_json:
        terminal.print_json({"best": best["output"], "runs": lines})
        return
    if best["metrics"]:
        terminal.print_validation(lines, best)
    if quiet:
        return
    for line in lines if not best["metrics"] else ():
        terminal.message(f"{line['output']}: {terminal.count(line['steps'], 'step')}; no questions were held out")
    folder = Path(best["output"])
    terminal.message(f"settings, data and figures: {folder / LEDGER}; `bpr export {folder}` makes the model's ONNX")
