"""How a command of the fixture `tokentape` ended; commands without some modules; what a folder holds."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.main

from tokentape.flows import cli

# Runs commands in one process in which some modules are not there; prints the code of each, a bug where one was looked for.
WITHOUT = """
import sys
sys.modules |= dict.fromkeys({absent})
from tokentape.flows.cli import main
for arguments in {commands}:
    try:
        main(arguments)
    except SystemExit as ended:
        print(ended.code)
"""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Cli:
    """`tokentape("ls", ...)` runs a command; `ok` and `refused` also say how it must end."""

    run: Callable[..., Done]

    def __call__(self, *arguments: str) -> Done:
        return self.run(*arguments)

    def ok(self, *arguments: str) -> Done:
        done = self.run(*arguments)
        assert done.code == 0, done.err
        return done

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """Rows of the warehouse of what the store holds now."""
        self.ok("load")
        rows: list[dict[str, Any]] = json.loads(self.ok("sql", statement, "--json").out)
        return rows

    def refused(self, *arguments: str) -> Done:
        """In one line."""
        done = self.run(*arguments)
        assert (done.code, len(done.err.strip().splitlines())) == (2, 1), done.err
        return done


def command_names() -> list[str]:
    """All commands, those of a group with its name before them."""
    top: Any = typer.main.get_command(cli.app)
    return [f"{name} {sub}" if sub else name for name, of in top.commands.items() for sub in getattr(of, "commands", [""])]


def codes_without(absent: tuple[str, ...], commands: list[list[str]], cwd: Path) -> tuple[list[str], str]:
    """The last printed line of each command, its exit code, and all of stderr."""
    script = WITHOUT.format(absent=absent, commands=commands)
    done = subprocess.run([sys.executable, "-c", script], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.isdigit()], done.stderr


def written(folder: Path, text: str, name: str = "mine.toml") -> str:
    """The path of a new file in a folder."""
    (folder / name).write_text(text)
    return str(folder / name)


def files(root: Path) -> dict[str, bytes]:
    """The bytes of each file below a folder."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
