"""The pages of docs/ that the program itself writes: cli.md, settings.md, python.md, errors.md.

`make docs` runs it. tests/test_reference.py compares what it makes with what is committed, so a verb, an option, a
setting, a variable, an error or a public name that is new, gone or changed is a red test until the pages say so.
Whatever can be read from the program is read from it; here stands only what no code says: what the variables of the
environment are for.
"""

from __future__ import annotations

import ast
import functools
import html
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

import bpr
from bpr import errors
from bpr.cli import app
from bpr.cli.settings import EXPLAINED, READER_EXPLAINED
from bpr.training.readerrun import ReaderRecipe
from bpr.training.recipe import Recipe

ROOT = Path(__file__).parent.parent
DOCS, SOURCE, NATIVE = ROOT / "docs", ROOT / "src" / "bpr", ROOT / "native"

NOTE = "Written by `make docs` from the program itself; do not edit by hand."

# What the source reads or sets, and what for. Options with a variable of their own are found by themselves.
ENVIRONMENT = {
    "BPR_DEBUG": "`1`: an error of the command line also shows where in the program it arose.",
    "BPR_SIMD": "The instruction set of the kernel: `portable`, `avx2`, `avx512` or `neon`. Default: the best one that "
    "this processor has. Results are the same with each.",
    "BPR_TOKEN": "The token that requests to `bpr serve` must bring, where no `--token-file` says it.",
    "BPR_THREADS": "How many threads a call may use where it is not told (`--threads`, `threads=`). Default: as many "
    "as the process has cores.",
    "LOCAL_RANK": "Set by `torchrun`: which GPU of this machine a training process uses.",
    "ORT_DISABLE_TELEMETRY": "Set to `1` by bpr, unless it is set already, before ONNX Runtime is loaded.",
    "RAY_ENABLE_AUTO_CONNECT": "Set to `0` by `--ray`, unless it is set already, before Ray is loaded.",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "Set to `0` by `bpr serve --ray`, unless it is set already, before Ray "
    "Serve is loaded.",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "Set to `1` by `bpr serve --ray`, unless it is set already, before Ray Serve is "
    "loaded.",
    "RAY_USAGE_STATS_ENABLED": "Set to `0` by `--ray`, unless it is set already, before Ray is loaded.",
    "RANK": "Set by `torchrun`: the number of a training process; the first one prints and writes.",
    "WORLD_SIZE": "Set by `torchrun`: how many processes train together.",
}
# What libraries read, for us to name: rich draws what `bpr` prints.
OF_LIBRARIES = {
    "COLUMNS": "The width that tables and hits are fitted into where there is no terminal to ask.",
    "FORCE_COLOR": "Colours even where the output is no terminal.",
    "NO_COLOR": "No colours.",
}


def pages() -> dict[str, str]:
    """Every generated page by the name of its file."""
    return {name: write() for name, write in PAGES.items()}


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *(map(without_bars, row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def without_bars(cell: str) -> str:
    """A bar inside a cell must not end it; readers of Markdown differ in how they take a backslash inside code."""
    code = re.compile(r"`([^`]*\|[^`]*)`")
    return code.sub(lambda found: f"<code>{html.escape(found[1])}</code>", cell).replace("|", "&#124;")


# ── The command line ─────────────────────────────────────────────────────────────────────────────────────────────────


def verbs(command: Any = None, words: tuple[str, ...] = ("bpr",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every verb with the words that call it, groups before their members, in the order of --help."""
    command = command or typer.main.get_command(app)
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield (*words, name), inner
            yield from verbs(inner, (*words, name))


def cli_page() -> str:
    """docs/cli.md: what `--help` says, all of it."""
    program = typer.main.get_command(app)
    found = list(verbs())
    overview = [
        [f"[`{' '.join(words)}`](#{'-'.join(words)})", inner.get_short_help_str(200)]
        for words, inner in found
        if not hasattr(inner, "commands")
    ]
    parts = ["# The command line", NOTE, str(program.help), options_table(program)]
    parts += [plain(program.epilog), "## The verbs", table(["verb", "what it does"], overview)]
    for words, inner in found:
        parts.append(f"{'#' * len(words)} {' '.join(words)}")
        parts += verb_section(words, inner)
    return "\n\n".join(part for part in parts if part) + "\n"


def verb_section(words: tuple[str, ...], command: Any) -> list[str]:
    """One verb: how it is called, what it does, its options, its examples."""
    about = escaped(inspect.cleandoc(command.help or "").replace("\b\n", ""))
    if hasattr(command, "commands"):
        return [about]
    places = [place_of(param) for param in command.params if param.param_type_name == "argument"]
    return [f"    {' '.join([*words, *places, '[OPTIONS]'])}", about, options_table(command), plain(command.epilog)]


def options_table(command: Any) -> str:
    """The arguments and options of a command; not --help, which all have."""
    rows = []
    for param in command.params:
        if not getattr(param, "hidden", False):
            rows.append(
                [f"`{spelled(param)}`", escaped(" ".join([" ".join((param.help or "").split()), *facts(param)]))]
            )
    return table(["option", "what it does"], rows) if rows else ""


def place_of(param: Any) -> str:
    """An argument in the line that calls the verb: in brackets where it may be left out."""
    name = (param.metavar or param.name.upper()) + "..." * (param.nargs == -1)
    return name if param.required else f"[{name}]"


def spelled(param: Any) -> str:
    """An option in all its spellings, with what follows it."""
    if param.param_type_name == "argument":
        return place_of(param)
    names = ", ".join(sorted([*param.opts, *param.secondary_opts], key=len))
    if param.is_flag:
        return names
    kind = param.type_descriptor.annotation
    choices = "|".join(map(word, kind)) if inspect.isclass(kind) and issubclass(kind, Enum) else None
    return f"{names} {choices or param.metavar or {int: 'N', float: 'X'}.get(kind, 'TEXT')}"


def facts(param: Any) -> Iterator[str]:
    """What must be known beside an option's help: its limits, its default, and whether it may be left out."""
    limits = [(side, bound) for side, bound in (("at least", param.min), ("at most", param.max)) if bound is not None]
    if limits:
        yield f"[{', '.join(f'{side} {bound:g}' for side, bound in limits)}]"
    if param.multiple:
        yield "[repeatable]"
    if param.required:
        yield "[required]"
    elif not getattr(param, "is_flag", False) and param.default not in (None, (), []):
        default = param.default if isinstance(param.default, list | tuple) else [param.default]
        yield f"[default: {', '.join(map(word, default))}]"
    if param.envvar:
        yield f"[variable: {param.envvar}]"


def in_a_line(text: str | None) -> str:
    """Without its line breaks."""
    return " ".join((text or "").split())


def word(value: Any) -> str:
    """A choice or a default as it is typed: an enumeration's member by its value."""
    return str(getattr(value, "value", value))


def plain(epilog: str | None) -> str:
    """An epilog of click's (a paragraph after \\b keeps its lines) as Markdown; examples become code."""
    done = []
    for paragraph in inspect.cleandoc(epilog or "").replace("\b\n", "").split("\n\n"):
        head, *lines = paragraph.splitlines() or [""]
        if lines and all(line.startswith("  ") for line in lines):
            done.append(head + "\n\n" + "\n".join(f"    {line.strip()}" for line in lines))
        else:
            done.append(escaped(paragraph))
    return "\n\n".join(done)


def escaped(text: str) -> str:
    """Text of the program as Markdown: what it writes for a place (<id>) or in brackets is no tag and no link."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else re.sub(r"([<>\[\]*_])", r"\\\1", piece) for piece in pieces)


# ── Settings: recipes and the environment ────────────────────────────────────────────────────────────────────────────


def settings_page() -> str:
    """docs/settings.md: every key of a recipe, and every variable of the environment."""
    recipes = [
        ("A recipe of `bpr train`", Recipe, EXPLAINED, "bpr train --print-recipe"),
        ("A recipe of `bpr train-reader`", ReaderRecipe, READER_EXPLAINED, "bpr train-reader --print-recipe"),
    ]
    parts = [
        "# Settings",
        NOTE,
        "Searching and serving are told by options ([cli.md](cli.md)); training by a recipe, a TOML file. A key that "
        "is not below is an error, and so is a value of another type. `--set KEY=VALUE` changes one on the command "
        "line; `none` stands for no value.",
    ]
    for title, kind, explained, command in recipes:
        parts += [f"## {title}", f"`{command}` prints all of it as TOML, with the defaults."]
        parts.append(table(["key", "type", "default", "what it is"], list(recipe_rows(kind, explained))))
    read = environment()
    parts += ["## The environment", table(["variable", "what it does"], [[f"`{n}`", read[n]] for n in sorted(read)])]
    return "\n\n".join(parts) + "\n"


def recipe_rows(kind: type[Any], explained: Mapping[str, str], table_name: str = "") -> Iterator[list[str]]:
    """Key, type, default and meaning of each setting; those of a table inside follow under its name."""
    hints, defaults = get_type_hints(kind), kind()
    for each in fields(kind):
        key, hint = f"{table_name}{each.name}", hints[each.name]
        if is_dataclass(hint):
            yield from recipe_rows(hint, explained, f"{key}.")  # type: ignore[arg-type]  # a type, not an instance
        else:
            if key not in explained:
                raise LookupError(f"{kind.__name__}.{each.name} is explained nowhere: src/bpr/cli/settings.py")
            yield [f"`{key}`", type_name(hint), f"`{value_text(getattr(defaults, each.name))}`", explained[key]]


def type_name(hint: Any) -> str:
    """A type as a reader of TOML would call it."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(type_name(part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return ", ".join(f'`"{value}"`' for value in get_args(hint))
    if get_origin(hint) is tuple:
        return "list of whole numbers"
    names = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): '`"none"`'}
    return names[hint]


def value_text(value: Any) -> str:
    """A default as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) or value is None:
        return f'"{"none" if value is None else value}"'
    return str(list(value)) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)


def environment() -> dict[str, str]:
    """Every variable that the program reads, and what it does; LookupError for one that nobody has explained."""
    options = option_variables()
    unknown = variables_in_source() - {*ENVIRONMENT, *options}
    if unknown:
        raise LookupError(f"the source reads {sorted(unknown)}: say in tools/reference.py what it does")
    unread = {*ENVIRONMENT} - variables_in_source()
    if unread:
        raise LookupError(f"nothing reads {sorted(unread)} any more: strike it from tools/reference.py")
    return {**OF_LIBRARIES, **options, **ENVIRONMENT}


def option_variables() -> dict[str, str]:
    """Variables that typer reads for an option."""
    found = {}
    for words, command in verbs():
        for param in command.params:
            names = [param.envvar] if isinstance(param.envvar, str) else list(param.envvar or ())
            for name in names:
                found[name] = f"`{param.opts[0]}` of `{' '.join(words)}`: {escaped(in_a_line(param.help))}"
    return found


@functools.cache
def variables_in_source() -> set[str]:
    """Names that src/ and native/ ask the environment for, or put there."""
    found = set()
    for file in sorted(SOURCE.rglob("*.py")):
        found |= variables_of(ast.parse(file.read_text(encoding="utf-8")))
    for file in sorted(NATIVE.glob("*.[ch]*")):
        found |= set(re.findall(r'getenv\("(\w+)"\)', file.read_text(encoding="utf-8")))
    return found


def variables_of(tree: ast.AST) -> set[str]:
    """os.environ["X"], os.environ.get("X"), "X" in os.environ, os.getenv("X"); a name that is not written out, too."""
    asked: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and _is_environ(node.value):
            asked.append(node.slice)
        elif isinstance(node, ast.Compare) and any(map(_is_environ, node.comparators)):
            asked.append(node.left)
        elif isinstance(node, ast.Call) and node.args and _asks(node.func):
            asked.append(node.args[0])
    return {str(each.value) if isinstance(each, ast.Constant) else ast.unparse(each) for each in asked}


def _asks(function: ast.expr) -> bool:
    name = ast.unparse(function)
    return name == "os.getenv" or (isinstance(function, ast.Attribute) and _is_environ(function.value))


def _is_environ(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")


# ── Python ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def python_page() -> str:
    """docs/python.md: every public name, as it is called, and what its docstring says of it."""
    public = {name: getattr(bpr, name) for name in bpr.__all__ if not name.startswith("__")}
    functions = {name: value for name, value in public.items() if inspect.isfunction(value)}
    classes = {name: value for name, value in public.items() if inspect.isclass(value)}
    values = {name: value for name, value in classes.items() if not issubclass(value, Exception)}
    raised = [f"[`{name}`](errors.md#{name.lower()})" for name, value in classes.items() if name not in values]
    parts = ["# Python", NOTE, "Everything below is reached as `bpr.NAME`. What is not below is not public."]
    parts += ["## Functions", *(entry(f"bpr.{name}", value, 3) for name, value in functions.items()), "## Classes"]
    for name, kind in values.items():
        parts.append(entry(f"bpr.{name}", kind, 3))
        parts += [entry(f"{name}.{method}", value, 4) for method, value in members(kind)]
    parts += ["## Errors", ", ".join(raised) + "."]
    return "\n\n".join(parts) + "\n"


def members(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """What a class has of its own that has no underscore, in the order of the source."""
    for name, value in vars(kind).items():
        inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not name.startswith("_") and (inspect.isfunction(inner) or isinstance(inner, property)):
            yield name, inner


def entry(name: str, value: Any, level: int) -> str:
    """A heading, the signature, the docstring."""
    about = escaped(inspect.getdoc(value.fget if isinstance(value, property) else value) or "")
    if not about:
        raise LookupError(f"{name} has no docstring")
    return f"{'#' * level} {name}\n\n```python\n{signature(name, value)}\n```\n\n{about}"


def signature(name: str, value: Any) -> str:
    """How it is called, as it stands in the source."""
    source: Any = value.fget if isinstance(value, property) else value
    node = ast.parse(textwrap.dedent(inspect.getsource(source))).body[0]
    if isinstance(node, ast.ClassDef):
        made = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        own_fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
        given, result = parameters(made[0].args) if made else [field_text(each) for each in own_fields], ""
    else:
        assert isinstance(node, ast.FunctionDef) and node.returns is not None, name
        if isinstance(value, property):
            return f"{name}: {ast.unparse(node.returns)}"
        given, result = parameters(node.args), f" -> {ast.unparse(node.returns)}"
    line = f"{name}({', '.join(given)}){result}"
    return line if len(line) <= 100 else f"{name}(\n    " + ",\n    ".join(given) + f",\n){result}"


def parameters(given: ast.arguments) -> list[str]:
    """Each parameter with its type and default; not self and cls."""
    blanks: list[ast.expr | None] = [None] * (len(given.args) - len(given.defaults))
    by_place = list(zip(given.args, [*blanks, *given.defaults], strict=True))
    found = [parameter(*each) for each in by_place if each[0].arg not in ("self", "cls")]
    found += [f"*{parameter(given.vararg)}"] if given.vararg else ["*"] if given.kwonlyargs else []
    found += [parameter(*each) for each in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return [*found, *([f"**{parameter(given.kwarg)}"] if given.kwarg else [])]


def parameter(argument: ast.arg, default: ast.expr | None = None) -> str:
    """name: type = default"""
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    return f"{argument.arg}{kind}" + (f" = {ast.unparse(default)}" if default else "")


def field_text(field: ast.AnnAssign) -> str:
    """A field of a dataclass or a named tuple; what a factory makes is an ellipsis."""
    default = ""
    if field.value is not None:
        default = " = …" if isinstance(field.value, ast.Call) else f" = {ast.unparse(field.value)}"
    return f"{ast.unparse(field.target)}: {ast.unparse(field.annotation)}{default}"


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def error_page() -> str:
    """docs/errors.md: the tree, and for each error what it means and what to do."""
    found = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.BprError)]
    tree = inspect.getdoc(errors) or ""
    parts = [
        "# Errors",
        NOTE,
        "Every error that leaves bpr is one of these; the message says what is wrong, where, and what to do. The "
        "command line prints it in one line and ends with status 1 (`BPR_DEBUG=1` shows where it arose); how the "
        "service spells them is in [http.md](http.md#errors).",
        "\n".join(f"    {line}" for line in tree[tree.index("BprError\n") :].splitlines()),
    ]
    for kind in found:
        meaning, _, advice = (inspect.getdoc(kind) or "").partition("\n\n")
        if kind is not errors.BprError and not advice:
            raise LookupError(f"the docstring of {kind.__name__} does not say what to do: src/bpr/errors.py")
        parts += [f"## {kind.__name__}", escaped(meaning), escaped(advice)]
    return "\n\n".join(part for part in parts if part) + "\n"


PAGES = {"cli.md": cli_page, "settings.md": settings_page, "python.md": python_page, "errors.md": error_page}


def main() -> None:
    """Write the pages that have changed."""
    for name, text in pages().items():
        path = DOCS / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
