"""A GPU-NDP decode written out event by event in plain Python: every part of work ends somewhen, and the last end counts."""

import numpy as np

HW = {"gpu": 989.4e12, "hbm": 3.35e12, "ndp": 2.048e12, "cxl": 512e9, "link": 32e9, "exchange": 4e-6}


def decode_s(tape, groups, hot, bits, model, knobs, policy="", fetch_bits=0.0, overlaps=False, scales=True, hw=HW):
    """(G, T, L) seconds. bits: (G, L, E). policy: "", ema, never, always or balance; fetch_bits: HOBBIT's, 0: experts stay."""
    n_groups, n_layers, n_experts, k = len(groups), tape.n_layers, tape.n_experts, tape.top_k
    expert_bytes, ops = 6.0 * model["h"] * model["f"], 6.0 * model["h"] * model["f"]
    found = np.zeros((n_groups, tape.n_steps, n_layers))
    for g, members in enumerate(groups):
        for layer in range(n_layers):
            resident = {e for e in range(n_experts) if hot[g, layer, e]} if policy in ("", "ema") else set()
            capacity = int(hot[g, layer].sum())
            prompts = [sum(int(tape.prefill_counts[s, layer, e]) for s in members) for e in range(n_experts)]
            average = [p / sum(prompts) * len(members) * k for p in prompts]
            for t in range(tape.n_steps):
                alive = [s for s in members if tape.n_decode[s] > t]
                if not alive:
                    break
                counts = [0] * n_experts
                for s in alive:
                    for e in tape.decode_ids[s, t, layer]:
                        counts[int(e)] += 1
                moved = 0
                if policy == "ema":
                    average = [knobs["beta"] * a + (1 - knobs["beta"]) * c for a, c in zip(average, counts, strict=True)]
                    wanted = set(sorted(range(n_experts), key=lambda e, a=tuple(average): (-a[e], e))[:capacity])
                    moved, resident = len(wanted - resident), wanted
                elif policy in ("always", "balance"):
                    active = sorted((e for e in range(n_experts) if counts[e]), key=lambda e, c=tuple(counts): (-c[e], e))
                    options = range(min(capacity, len(active)) + 1)
                    n = min(capacity, len(active))
                    if policy == "balance":
                        u = expert_bytes / hw["cxl"]
                        n = min(
                            options,
                            key=lambda n, a=tuple(active), c=tuple(counts): max(
                                n * expert_bytes / hw["link"], sum(max(u, c[e] * ops / hw["ndp"]) for e in a[n:])
                            ),
                        )
                    moved, resident = n, set(active[:n])
                clock = model["attention"] / (hw["hbm"] * 0.8)
                clock += len(alive) * model["kv"] * knobs["context"] / (hw["hbm"] * 0.6) + knobs["fixed"]
                away = [e for e in range(n_experts) if counts[e] and e not in resident]
                on_gpu = [e for e in range(n_experts) if counts[e] and (e in resident or fetch_bits)]
                link_end = clock
                for _ in range(moved):
                    link_end += expert_bytes / hw["link"]
                for _ in away if fetch_bits else ():
                    link_end += fetch_bits / 16 * expert_bytes / hw["link"]
                gpu_end = ndp_end = clock if overlaps else link_end
                for e in on_gpu:
                    gpu_end += max(expert_bytes / hw["hbm"], counts[e] * ops / (hw["gpu"] * 0.5))
                if away and not fetch_bits:
                    ndp_end += hw["exchange"] + sum(counts[e] for e in away) * 4 * model["h"] / hw["link"]
                    for e in away:
                        b = float(bits[g, layer, e])
                        rate = hw["ndp"] * 16 / b if scales else hw["ndp"]
                        ndp_end += max(expert_bytes * b / 16 / hw["cxl"], counts[e] * ops / rate)
                found[g, t, layer] = max(link_end, gpu_end, ndp_end)
    return found
