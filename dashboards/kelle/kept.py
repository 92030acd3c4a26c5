"""The Kelle page on recorded attention: how much of it each policy keeps, which tokens are popular, and where a replay drifts."""

from __future__ import annotations

from tokentape.dashboards.engine import Ask, Control, Drawn, some
from tokentape.dashboards.kelle.words import first_of, named, whos


def kept(ask: Ask) -> Drawn:
    """The first tapes with their budgets, of which the middle one opens."""
    held = named(first_of(ask("kept"), "tape", ask.size))
    found = some(held.drop_nulls("budget"))
    choices = []
    for (tape,), of in found.group_by(["tape"], maintain_order=True):
        budgets = of["budget"].unique().sort().to_list()
        middle = budgets[(len(budgets) - 1) // 2]
        choices += [{"tape": str(tape), "keeping": f"{n}"} for n in [middle, *(n for n in budgets if n != middle)]]
    return Drawn(
        {"kept": held},
        facts=whos(found),
        said=found,
        controls=(Control("tape", "Tape"), Control("keeping", "Budget, replayed")),
        choices=tuple(choices),
    )


def along(ask: Ask) -> Drawn:
    held = named(first_of(ask("timeline"), "tape", ask.size))
    found = some(held.drop_nulls("budget"))
    return Drawn({"along": held}, facts=whos(found), said=found)


def drift(ask: Ask) -> Drawn:
    found = some(named(ask("divergence")))
    return Drawn({"drift": found}, facts=whos(found))
