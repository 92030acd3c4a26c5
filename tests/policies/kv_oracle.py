"""Eviction as a person would write it: one dictionary of scores per head, a sort for the prompt, a minimum per step."""


def aep(
    prompt, rows, budget: int, sink: int, recent: int, importance: str = "sum", gamma: float = 0.98, window: int = 0
) -> list[list[int]]:
    """Positions kept after the prompt and after every row. prompt (c,): column sums; rows[i][n]: mass on key n <= c + i."""
    c = len(prompt)
    total, kept, states = {}, list(range(c)), []

    def score(n: int, now: int) -> float:
        return total[n] / (now - n + 1) if importance == "mean" else total[n]

    for n in range(c):
        seen = c - n
        total[n] = prompt[n] / seen * (1 - gamma**seen) / (1 - gamma) if importance == "decay" else float(prompt[n])
    if window:
        kept = [n for n in kept if n > c - window]
    if len(kept) > budget:
        safe = [n for n in kept if n < sink or n >= c - recent]
        others = sorted((n for n in kept if n not in safe), key=lambda n: (-score(n, c - 1), n))
        kept = sorted(safe + others[: budget - len(safe)])
    states.append(sorted(kept))
    for i, row in enumerate(rows):
        now = c + i
        total[now] = 0.0
        kept.append(now)
        for n in kept:
            total[n] = (gamma if importance == "decay" else 1.0) * total[n] + float(row[n])
        if window:
            kept = [n for n in kept if n > now + 1 - window]
        if len(kept) > budget:
            free = [n for n in kept if n >= sink and n <= now - recent]
            kept.remove(min(free, key=lambda n: (score(n, now), n)))
        states.append(sorted(kept))
    return states
