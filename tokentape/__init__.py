"""Record once, replay anywhere: what a language model did, token by token, through memory policies and machines.

    import tokentape as tt

    store = tt.open("./tape")
    store.tapes()                                             # a Polars frame
    tape = store.tape("embedded-math")                        # the start of an id will do
    run = tt.run(tape, "lru", capacity="50%", scope="global")
    run.metrics                                               # name, unit, value, band
    tt.compare(run, tt.run(tape, "belady", capacity="50%", scope="global"))
    tt.run_system(tape, "kelle", machine="kelle-edram")       # a whole system of policies
    tt.study("baselines", store)
    store.sql("from baselines")

Names are imported when they are first used: docs/python.md has them all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokentape.runs import Run, compare, run, run_system
    from tokentape.stores import Store, open, study
    from tokentape.warehouse.recorded import Tape

__all__ = ["Run", "Store", "Tape", "compare", "open", "run", "run_system", "study"]

_WHERE = {
    **dict.fromkeys(("Run", "compare", "run", "run_system"), "tokentape.runs"),
    **dict.fromkeys(("Store", "open", "study"), "tokentape.stores"),
    "Tape": "tokentape.warehouse.recorded",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tokentape' has no attribute {name!r}; it has {', '.join(__all__)}")
    found = globals()[name] = getattr(import_module(_WHERE[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
