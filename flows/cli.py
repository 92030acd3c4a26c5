"""The command `tokentape`: wiring and error handling. The commands are in commands/ and import what they need when they run.

Bad input is one line on stderr and exit code 2, Ctrl-C and SIGTERM are exit code 130; TOKENTAPE_DEBUG=1 shows the traceback.
"""

import copy
import gc
import importlib.metadata
import inspect
import logging
import os
import signal
import sys
import textwrap
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tokentape.flows import console
from tokentape.flows.commands import (
    capture,
    claims,
    cxl_ndp,
    decide,
    elmoe3d,
    exports,
    flows,
    hardware,
    imports,
    kelle,
    live,
    models,
    replay,
    serving,
    serving_fit,
    store,
    synthesize,
    systems,
    validate,
    warehouse,
)
from tokentape.flows.effects import without_effect
from tokentape.flows.memory import keep_memory

EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "datasets", "safetensors", "tokenizers"), "capture"),
    **dict.fromkeys(("prefect", "fastapi", "sqlalchemy"), "flows"),
    **dict.fromkeys(("altair", "vl_convert", "jinja2"), "dashboards"),
    "scipy": "calibrate",
    "distributed": "dask",
    "ray": "ray",
}

INTERRUPTED = 130
_STRUCK = "Query interrupted"  # a RuntimeError of DuckDB's, where Ctrl-C comes while it works
SENTENCE = 200  # characters; what is longer is cut
HEADINGS = {  # of the help, what is used most first
    "Tapes": ("capture", "record", "import", "export", "synthesize", "ls", "show", "check", "push", "pull", "rm"),
    "Replays": ("study", "claims", "replay", "compare", "explain", "decide", "serving", "step", "timeline", "verify"),
    "Machines and models": ("hardware", "models", "fit", "calibrate", "validate"),
    "Inside a live model": ("evaluate", "orderings", "fidelity"),
    "Answers": ("load", "query", "sql", "diff", "plot", "site", "watch", "serve", "demo"),
}


QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Results and errors only.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Every step, and where an error is from.")]


def _everywhere(
    is_json: Annotated[bool, typer.Option("--json", help="The tables as JSON.")] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """The options of every command."""


@lru_cache
def _common_options() -> tuple[Any, ...]:
    alone = typer.Typer(add_completion=False)
    alone.command()(_everywhere)
    return tuple(typer.main.get_command(alone).params)


def _listen(quiet: bool, verbose: bool) -> None:
    if quiet and verbose:
        raise ValueError("--quiet and --verbose ask for opposite things; give one of them")
    if quiet or verbose:
        console.log.setLevel(logging.WARNING if quiet else logging.DEBUG)


class Command(TyperCommand):
    """Has the options of every command, and refuses what would be dropped in silence: an option given twice that takes one value,
    a NAME=VALUE whose name comes twice, or one that is idle beside others."""

    has_tables = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        is_own = any(parameter.name == "as_json" for parameter in self.params)
        self.params += [p for p in _common_options() if p.name != "is_json" or (self.has_tables and not is_own)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        path = ctx.command_path.partition(" ")[2]
        texts, _, order = self.make_parser(ctx).parse_args(args=list(args))
        given = [parameter for parameter in order if parameter.param_type_name == "option"]
        for parameter in given:
            if not parameter.multiple and given.count(parameter) > 1:
                ctx.fail(f"{parameter.opts[0]} is given {given.count(parameter)} times and takes one value")
            pairs = [text.partition("=")[0] for text in texts[parameter.name] if "=" in text] if parameter.multiple else []
            if len(pairs) > len(set(pairs)):
                ctx.fail(f"{parameter.opts[0]} gives {max(pairs, key=pairs.count)} twice; leave one out")
        rest = super().parse_args(ctx, args)
        said = without_effect(path, {parameter.name for parameter in given}, ctx.params)
        if said:
            ctx.fail(said)
        return rest

    def invoke(self, ctx: Any) -> Any:
        _listen(ctx.params.pop("quiet"), ctx.params.pop("verbose"))
        if not ctx.params.pop("is_json", False):
            return super().invoke(ctx)
        with console.one_document():
            try:
                return super().invoke(ctx)
            except typer.Exit as ended:  # what it found wrong is in the document
                said = ended
        raise said


class Action(Command):
    """Leaves something, and prints at most its name: no table that could be JSON."""

    has_tables = False


class Headed(TyperGroup):
    """Shows the commands under HEADINGS with a sentence each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, names in HEADINGS.items() if ctx.parent is None else (("Commands", self.commands),):
            rows = [(name, self.commands[name].get_short_help_str(SENTENCE)) for name in names if name in self.commands]
            with formatter.section(heading):
                formatter.write_dl(rows)


HELP = """Record what a real language model did, token by token; replay it through memory policies and hardware.

    \b
    A first tour:
      tokentape demo                                          everything once, on the model that ships with tokentape
    \b
    Step by step:
      tokentape capture --model embedded --dataset math       record a tape
      tokentape ls                                            what is in the store
      tokentape replay TRACE --policy lru --capacity 50% --scope global
      tokentape study baselines                               every policy at every capacity
      tokentape load && tokentape query best_policy           into DuckDB, and ask
      tokentape site                                          pages that open from a file

    Tapes and results live in the store: --store, else TOKENTAPE_STORE, else ./tape.
    """
plain: dict[str, Any] = {"cls": Headed, "no_args_is_help": True, "rich_markup_mode": None}
app = typer.Typer(name="tokentape", help=HELP, pretty_exceptions_enable=False, **plain)


def _version(is_asked: bool) -> None:
    if is_asked:
        print(f"tokentape {importlib.metadata.version('tokentape')}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """The options before the command."""
    console.log.setLevel(logging.INFO)
    _listen(quiet, verbose)


def _group(name: str, meaning: str) -> typer.Typer:
    made = typer.Typer(help=meaning, **plain)
    app.add_typer(made, name=name)
    return made


def _help(function: Callable[..., None]) -> str:
    """What a command's docstring says; the commands that end it are examples, each on the line where it stands."""
    said, gap, examples = (inspect.getdoc(function) or "").partition("\n\ntokentape ")
    heading = "Examples" if "\ntokentape " in examples else "Example"
    return said + (gap and f"\n\n\b\n{heading}:\n{textwrap.indent(f'tokentape {examples}', '  ')}")


def _add(to: typer.Typer, cls: type[Command], **commands: Any) -> None:
    for name, function in commands.items():
        to.command(name, cls=cls, help=_help(function))(function)


_add(app, Command, ls=store.ls, check=store.check, study=replay.study, claims=claims.claims, replay=replay.replay)
_add(app, Command, compare=systems.compare, explain=systems.explain)
_add(app, Command, fit=models.fit)
_add(app, Command, timeline=replay.timeline, verify=replay.verify, diff=replay.diff, query=warehouse.query, sql=warehouse.sql)
_add(app, Command, evaluate=live.evaluate, orderings=live.orderings, fidelity=live.fidelity)
_add(app, Action, capture=capture.capture, record=capture.record, synthesize=synthesize.synthesize, show=store.show, rm=store.rm)
_add(app, Action, push=store.push, pull=store.pull)
_add(app, Action, load=warehouse.load, plot=warehouse.plot, site=warehouse.site, watch=flows.watch, serve=flows.serve)
_add(app, Action, demo=flows.demo)
importers = _group("import", "Turn another engine's trace into a tape.")
_add(importers, Action, vllm=imports.import_vllm, routing=imports.import_routing, bigmoe=imports.import_bigmoe)
_add(importers, Action, sglang=imports.import_sglang, requests=imports.import_requests, acceptance=imports.import_acceptance)
_add(importers, Action, chats=imports.import_chats)
exporters = _group("export", "Write a tape's decisions and traces as other programs read them.")
_add(exporters, Action, oracle=exports.oracle, ot=exports.ot, chrome=exports.chrome, requests=exports.requests)
_add(exporters, Action, aiconfigurator=exports.aiconfigurator, **{"moe-trace": exports.moe_trace})
_add(exporters, Command, kt=exports.kt, eplb=exports.eplb)
decisions = _group("decide", "Let one decision be taken over recorded tapes: KV eviction, placement, bit widths, drafts.")
_add(decisions, Command, kv=decide.kv, place=decide.placement, precision=decide.bits, draft=decide.acceptance)
engine = _group("serving", "Serve requests iteration by iteration: latencies at a rate, the highest rate within limits.")
_add(engine, Command, simulate=serving.simulate, capacity=serving.capacity)
step = _group("step", "Estimate one step of a model on a machine, in closed form: time, bytes, energy.")
_add(step, Command, gpu=hardware.step, kelle=kelle.kv_step, elmoe3d=elmoe3d.speculate, cxl_ndp=cxl_ndp.decode)
machines = _group("hardware", "Machines: list, show, compare, start your own, set beside measurements.")
_add(machines, Command, list=hardware.hardware_list, show=hardware.hardware_show, diff=hardware.hardware_diff)
_add(machines, Command, validate=hardware.validate_hardware)
_add(machines, Action, new=hardware.hardware_new)
geometry = _group("models", "Models: parameters, bytes and operations, what bits cost them, and training the embedded one.")
_add(geometry, Command, list=models.models_list, show=models.models_show, quantise=models.quantise_report)
_add(geometry, Action, train=capture.train_embedded)
held = _group("validate", "Predictions beside what real engines measured.")
_add(held, Command, serving=validate.serving, offload=validate.offload)
calibrate = _group("calibrate", "Fit cost models to measurements and to what papers publish.")
_add(calibrate, Command, gpu=hardware.calibrate_gpu, serving=serving_fit.calibrate_serving, kelle=kelle.calibrate_kelle)
_add(calibrate, Command, elmoe3d=elmoe3d.calibrate_elmoe3d, cxl_ndp=cxl_ndp.calibrate_cxl_ndp)
_add(calibrate, Command, router=synthesize.calibrate_router)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits with its code."""
    _drop_what_closed_streams_are_told()
    gc.set_threshold(200_000)  # what a command imports and makes mostly lives to its end: a twentieth of the time to look at it
    keep_memory()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is half-written is removed on the way out
    try:
        called = (sys.argv[1:] if arguments is None else arguments)[:1]
        code = _command_of(*called)(args=arguments, prog_name="tokentape", standalone_mode=False)
        if code == INTERRUPTED:  # typer has turned Ctrl-C into its exit code
            raise KeyboardInterrupt
    except BrokenPipeError:  # the reader of our output (`| head`) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("TOKENTAPE_DEBUG"):
            raise
        console.log.debug("", exc_info=error)
        code = _explain(error)
    sys.exit(code if isinstance(code, int) else 0)


@lru_cache
def _command_of(called: str = "") -> Any:
    """The command line with the command that is called alone: typer builds the options of all it has, a tenth of a second."""
    commands = [command for command in app.registered_commands if command.name == called]
    groups = [group for group in app.registered_groups if group.name == called]
    alone = copy.copy(app)
    if commands or groups:
        alone.registered_commands, alone.registered_groups = commands, groups
    return typer.main.get_command(alone)


def _drop_what_closed_streams_are_told() -> None:
    """For `>&-`: where Python found no stdout or stderr, printing goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _explain(error: BaseException) -> int:
    """One line on stderr; the exit code. Raises the error again if it is none of the expected kinds: that is a bug to see."""
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort" or str(error) == _STRUCK:
        return _say("stopped; no file is half-written, the same command goes on from here (capture: with --resume)", INTERRUPTED)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return _say("out of memory; lower --batch-size, --max-prompt-tokens, --rate or --workers, or choose another --device", 2)
    if hasattr(error, "format_message"):  # the command line itself was wrong
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "tokentape"
        return _say(f"{error.format_message()} (`{path} --help` shows how)" if error.format_message() else "", 2)
    if isinstance(error, ImportError):
        root = (error.name or "").partition(".")[0]
        if root in EXTRAS:
            return _say(f"{root} is not installed; run: pip install 'tokentape[{EXTRAS[root]}]'", 2)
        raise error
    if isinstance(error, RuntimeError) and "cannot cache function" in str(error):
        return _say("compiled kernels cannot be kept: no folder for them can be written; set NUMBA_CACHE_DIR to one that can", 2)
    if type(error).__module__.partition(".")[0] == "botocore":
        how = "S3 is found and entered by AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws"
        return _say(f"{str(error).splitlines()[0]}; {how}", 2)
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ValueError):
        where = f"{error.filename}: " if error.filename else ""
        return _say(f"{where}{error.strerror}", 2)
    if isinstance(error, UnicodeEncodeError):  # of what is printed, or of an argument in another encoding
        text = ascii(error.object[error.start : error.end])
        return _say(f"{text} is no text in {error.encoding}; set PYTHONUTF8=1, and the terminal to UTF-8", 2)
    if isinstance(error, (ValueError, OSError)):
        return _say(str(error), 2)
    raise error


def _say(message: str, code: int) -> int:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if lines:
        print(f"tokentape: {' '.join(lines)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
