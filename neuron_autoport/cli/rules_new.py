"""`autoport rules new NAME --from WHAT`: write a rule file from a module that the user points at."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neuron_autoport.cli.options import InitOption, InputsOption, RulesOption, TrustFileOption
from neuron_autoport.cli.own import DtypeName, OwnRequest
from neuron_autoport.errors import RuleError

if TYPE_CHECKING:
    from neuron_autoport.rules.new import NewRule
    from neuron_autoport.rules.rule import Rule

NEW_EPILOG = """[bold]Examples[/bold]

[cyan]autoport rules new my_mlp --from mine.py:MLP --input 2,8,64 -o rules --trust-remote-code[/cyan]

[cyan]autoport rules new my_mlp --from gpt2:GPT2MLP -o rules[/cyan]: from a class of a model

[cyan]autoport rules new my_part --from opt[/cyan]: from the class with most that no rule claims
"""


def new_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new rule's name.")],
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHAT", help="FILE.py:CLASS, or a model: MODEL or MODEL:CLASS."
        ),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="Folder for NAME.yaml.")
    ] = Path("."),
    inputs: InputsOption = None,
    init: InitOption = None,
    rules: RulesOption = None,
    trust_remote_code: TrustFileOption = False,
) -> None:
    """Write a rule file that matches a module, with comments, ready to be edited.

    The pattern is read from the operations the module runs, not from its text. Where a rule of the library
    does the same, the replacement is taken from there; else the rule refuses, and lists the functions there are.
    """
    from neuron_autoport.rules.new import check_name
    from neuron_autoport.rules.sources import load_library

    check_name(name)
    path = out / f"{name}.yaml"
    if path.exists():
        raise RuleError("the file exists already and is left alone", str(path), f"rm {path}")
    start = ("autoport", "rules", "new", name, "--from", source)
    more: tuple[str, ...] = ("-o", str(out)) if out != Path(".") else ()
    more += tuple(word for folder in rules or [] for word in ("--rules", str(folder)))
    request = OwnRequest(
        start, source, tuple(inputs or ()), init, DtypeName.bf16, trust_remote_code, more
    )
    test = shlex.join(("autoport", "rules", "test", str(path), "--trust-remote-code"))
    library = load_library(rules or [], written_to=out, trust_code=trust_remote_code)
    if request.is_module:
        made = _from_own(name, request, library, test)
    else:
        if inputs or init:
            raise typer.BadParameter("--input and --init are for FILE.py:CLASS only")
        made = _from_model(name, source, library, test, trust_remote_code)
    _write(path, made.text)
    _tell(path, made, request, library)


def _from_own(name: str, request: OwnRequest, library: tuple[Rule, ...], test: str) -> NewRule:
    from neuron_autoport.own import check_runs
    from neuron_autoport.rules.new import rule_from_own

    own = request.load()
    check_runs(own, request.text())
    return rule_from_own(name, own, library, test)


def _from_model(
    name: str, source: str, library: tuple[Rule, ...], test: str, trust_remote_code: bool
) -> NewRule:
    from neuron_autoport.models.source import load_model_config
    from neuron_autoport.port import port_model
    from neuron_autoport.prove.model import small_source
    from neuron_autoport.rules.new import choose_class, rule_from_model

    model, _, wanted = source.partition(":")
    loaded = load_model_config(model, trust_remote_code=trust_remote_code)
    port = port_model(small_source(loaded), library)
    plan = choose_class(port, wanted or None, model)
    made_from = f"{model}:{plan.trace.module_class.__name__}"
    return rule_from_model(name, plan, library, made_from, test)


def _write(path: Path, text: str) -> None:
    from neuron_autoport.models.python_file import write_whole

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        step = "choose another folder with -o DIR"
        raise RuleError(f"cannot be written: {error.strerror}", str(path), step) from None


def _tell(path: Path, made: NewRule, request: OwnRequest, library: tuple[Rule, ...]) -> None:
    """What was written, and the commands that come next."""
    call = f"it calls {made.call}, as a rule of the library does" if made.call else (
        "nothing is replaced yet: `refuse` says so, edit it to call a function"
    )  # fmt: skip
    typer.echo(f"wrote {path}, from {made.made_from}")
    for line in made.match.splitlines():
        typer.echo(f"  {line}")
    typer.echo(f"its own example matches; {call}")
    _tell_part(made)
    if path.stem in {rule.name for rule in library}:
        typer.echo(f"there is a rule {path.stem} already: with --rules this one takes its place")
    folder = str(path.parent)
    typer.echo(f"try it:   autoport rules test {path} --trust-remote-code")
    if request.is_module:
        start = ("autoport", "inspect", request.name)
        typer.echo(f"use it:   {replace(request, command=start, more=('--rules', folder)).text()}")
    else:
        model = request.name.partition(":")[0]
        typer.echo(f"use it:   {shlex.join(('autoport', 'inspect', model, '--rules', folder))}")
    for number, command in enumerate(_next_commands(path, made, request)):
        typer.echo(f"{'go on:' if not number else '':<10}{command}")


_SHOWN = 12


def _tell_part(made: NewRule) -> None:
    """How much of the module the rule has, and what it leaves out, with the reasons."""
    part = made.part
    if not part.rest:
        return
    name = made.made_from.rpartition(":")[2]
    at = ""
    if part.lines is not None:
        first, last = part.lines
        at = f" ({part.file}:{first}" + (f" to {last})" if last != first else ")")
    total = f"{part.count} of the {part.whole} operations of {name}"
    typer.echo(f"the rule has {total}{at}. Left out:")
    shown = part.rest[:_SHOWN]
    wide = max(len(out.label) for out in shown)
    for out in shown:
        line = f"line {out.line}" if out.line is not None else ""
        typer.echo(f"  {line:<9}  {out.label:<{wide}}  {out.why}")
    if len(part.rest) > _SHOWN:
        typer.echo(f"  and {len(part.rest) - _SHOWN} more; the file names them all")


def _next_commands(path: Path, made: NewRule, request: OwnRequest) -> Iterator[str]:
    """For the children left out: a rule of their own, or their role."""
    children = {out.child.__name__: out for out in made.part.rest if out.child is not None}
    to = ("-o", str(path.parent)) if path.parent != Path(".") else ()
    for name, out in children.items():
        if out.role is not None or out.child is None:
            continue
        start = ("autoport", "rules", "new", _snake(name), "--from")
        model = request.name.partition(":")[0]
        if not request.is_module:
            yield shlex.join((*start, f"{model}:{name}", *to))
        elif out.sizes is not None and _is_beside(out.child, request):
            file = request.name.partition(".py")[0] + ".py"
            own = replace(request, command=(*start, f"{file}:{name}"), inputs=out.sizes, more=to)
            yield replace(own, init=None).text()
    if any(out.role is not None for out in children.values()):
        yield "autoport explain role    (a rule may ask for a child by its role)"


def _is_beside(child: type, request: OwnRequest) -> bool:
    """Is the class in the file that the user named, and can be made without arguments?"""
    from neuron_autoport.models.own_module import find_class

    file = inspect.getsourcefile(child)
    if file is None or Path(file).resolve() != find_class(request.name)[0].resolve():
        return False
    parameters = inspect.signature(child).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in kinds for p in parameters)


def _snake(name: str) -> str:
    """`LlamaMLP` as `llama_mlp`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
