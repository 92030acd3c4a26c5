"""The command `tokentape`: wiring and error handling. The commands are in commands/ and import what they need when they run.

Bad input is one line on stderr and exit code 2, Ctrl-C and SIGTERM are exit code 130; TOKENTAPE_DEBUG=1 shows the traceback.
"""

from __future__ import annotations

import copy
import importlib.metadata
import os
import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tokentape.flows.commands import capture as commands_capture
from tokentape.flows.commands import claims as commands_claims
from tokentape.flows.commands import elastic as commands_elastic
from tokentape.flows.commands import flows as commands_flows
from tokentape.flows.commands import hardware as commands_hardware
from tokentape.flows.commands import imports as commands_import
from tokentape.flows.commands import kelle as commands_kelle
from tokentape.flows.commands import kv as commands_kv
from tokentape.flows.commands import live as commands_live
from tokentape.flows.commands import models as commands_models
from tokentape.flows.commands import ndp as commands_ndp
from tokentape.flows.commands import placement as commands_placement
from tokentape.flows.commands import quantise as commands_quantise
from tokentape.flows.commands import replay as commands_replay
from tokentape.flows.commands import serving as commands_serving
from tokentape.flows.commands import serving_fit as commands_serving_fit
from tokentape.flows.commands import speculation as commands_speculation
from tokentape.flows.commands import store as commands_store
from tokentape.flows.commands import synthesize as commands_synthesize
from tokentape.flows.commands import warehouse as commands_warehouse
from tokentape.flows.effects import without_effect

EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "datasets", "safetensors", "tokenizers"), "capture"),
    **dict.fromkeys(("prefect", "fastapi", "sqlalchemy"), "flows"),
    **dict.fromkeys(("altair", "vl_convert", "jinja2"), "dashboards"),
    "scipy": "calibrate",
}

INTERRUPTED = 130


class Command(TyperCommand):
    """Refuses an option that would be dropped in silence: given twice where it takes one value, or idle beside others."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        given = [parameter for parameter in order if parameter.param_type_name == "option"]
        for parameter in given:
            if not parameter.multiple and given.count(parameter) > 1:
                ctx.fail(f"{parameter.opts[0]} is given {given.count(parameter)} times and takes one value")
        rest = super().parse_args(ctx, args)
        said = without_effect(ctx.command_path.partition(" ")[2], {parameter.name for parameter in given}, ctx.params)
        if said:
            ctx.fail(said)
        return rest


class Group(typer.Typer):
    """Commands that refuse what they would ignore."""

    def command(self, name: str | None = None, **options: Any) -> Any:
        return super().command(name, cls=Command, **options)


app = Group(
    name="tokentape",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="""Record what a real language model did, token by token; replay it through memory policies and hardware.

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
    """,
)
importers = Group(no_args_is_help=True, rich_markup_mode=None, help="Turn another engine's trace into a tape.")
models = Group(no_args_is_help=True, rich_markup_mode=None, help="Model geometry: parameters, bytes, operations.")
machines = Group(no_args_is_help=True, rich_markup_mode=None, help="Machines: list, show, compare, start your own.")
calibrate = Group(no_args_is_help=True, rich_markup_mode=None, help="Fit cost models to measurements.")
validate = Group(no_args_is_help=True, rich_markup_mode=None, help="Compare cost models with measurements.")


def _version(is_asked: bool) -> None:
    if is_asked:
        print(f"tokentape {importlib.metadata.version('tokentape')}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """The options before the command."""


app.command("demo")(commands_flows.demo)
app.command("capture")(commands_capture.capture)
app.add_typer(importers, name="import")
importers.command("bigmoe")(commands_import.import_bigmoe)
importers.command("vllm")(commands_import.import_vllm)
importers.command("routing")(commands_import.import_routing)
importers.command("requests")(commands_import.import_requests)
importers.command("acceptance")(commands_import.import_acceptance)
app.command("synthesize")(commands_synthesize.synthesize)
app.command("ls")(commands_store.ls)
app.command("show")(commands_store.show)
app.command("rm")(commands_store.rm)
app.command("check")(commands_store.check)
app.command("migrate")(commands_store.migrate)
app.command("replay")(commands_replay.replay)
app.command("kv")(commands_kv.kv)
app.command("placement")(commands_placement.placement)
app.command("bits")(commands_placement.bits)
app.command("timeline")(commands_replay.timeline)
app.command("verify")(commands_replay.verify)
app.command("study")(commands_replay.study)
app.command("simulate")(commands_serving.simulate)
app.command("kv-step")(commands_kelle.kv_step)
app.command("capacity")(commands_serving.capacity)
app.command("speculate")(commands_elastic.speculate)
app.command("ndp")(commands_ndp.ndp)
app.add_typer(models, name="models")
models.command("list")(commands_models.models_list)
models.command("show")(commands_models.models_show)
app.add_typer(machines, name="hardware")
machines.command("list")(commands_hardware.hardware_list)
machines.command("show")(commands_hardware.hardware_show)
machines.command("diff")(commands_hardware.hardware_diff)
machines.command("new")(commands_hardware.hardware_new)
app.command("step")(commands_hardware.step)
app.add_typer(calibrate, name="calibrate")
calibrate.command("gpu")(commands_hardware.calibrate_gpu)
calibrate.command("router")(commands_synthesize.calibrate_router)
calibrate.command("kelle")(commands_kelle.calibrate_kelle)
calibrate.command("serving")(commands_serving_fit.calibrate_serving)
calibrate.command("elmoe3d")(commands_elastic.calibrate_elmoe3d)
calibrate.command("cxl_ndp")(commands_ndp.calibrate_cxl_ndp)
app.add_typer(validate, name="validate")
validate.command("hardware")(commands_hardware.validate_hardware)
app.command("claims")(commands_claims.claims)
app.command("load")(commands_warehouse.load)
app.command("sql")(commands_warehouse.sql)
app.command("query")(commands_warehouse.query)
app.command("site")(commands_warehouse.site)
app.command("serve")(commands_flows.serve)
app.command("evaluate")(commands_live.evaluate)
app.command("acceptance")(commands_speculation.acceptance)
app.command("orderings")(commands_live.orderings)
app.command("fidelity")(commands_live.fidelity)
app.command("quantise-report")(commands_quantise.quantise_report)
app.command("train-embedded")(commands_capture.train_embedded)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits with its code."""
    _drop_what_closed_streams_are_told()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is half-written is removed on the way out
    try:
        code = _app_of(sys.argv[1:] if arguments is None else arguments)(
            args=arguments, prog_name="tokentape", standalone_mode=False
        )
        if code == INTERRUPTED:  # typer has turned Ctrl-C into its exit code
            raise KeyboardInterrupt
    except BrokenPipeError:  # the reader of our output (`| head`) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("TOKENTAPE_DEBUG"):
            raise
        code = _explain(error)
    sys.exit(code if isinstance(code, int) else 0)


def _app_of(arguments: list[str]) -> typer.Typer:
    """The command line with the command that is called alone: typer builds the options of all it has, a tenth of a second."""
    called = arguments[0] if arguments else ""
    commands = [command for command in app.registered_commands if command.name == called]
    groups = [group for group in app.registered_groups if group.name == called]
    if not commands and not groups:
        return app
    alone = copy.copy(app)
    alone.registered_commands, alone.registered_groups = commands, groups
    return alone


def _drop_what_closed_streams_are_told() -> None:
    """For `>&-`: where Python found no stdout or stderr, printing goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _explain(error: BaseException) -> int:
    """One line on stderr; the exit code. Raises the error again if it is none of the expected kinds: that is a bug to see."""
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        return _say("stopped; no file is half-written, the same command goes on from here (capture: with --resume)", INTERRUPTED)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return _say("out of memory; lower --batch-size, --max-prompt-tokens or --workers, or choose another --device", 2)
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
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ValueError):
        where = f"{error.filename}: " if error.filename else ""
        return _say(f"{where}{error.strerror}", 2)
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
