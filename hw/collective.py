"""Collectives between the devices of one machine: ring all-reduce in closed form.

Nothing here is fitted: the link's bandwidth, efficiency and latency come from the machine's file, with their ranges.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.sourced import BadSpec
from tokentape.hw.spec import HardwareSpec

Floats = NDArray[np.float64]


def all_reduce_s(machine: HardwareSpec, n_bytes: Floats, end: str = "value") -> Floats:
    """(n,) seconds to sum n_bytes of every device into all of them; 0 on one device. `end`: value, low or high, of the cost.

    A ring sends 2 (d - 1) / d of the bytes over each link (Patarasuk and Yuan, 2009, doi 10.1016/j.jpdc.2008.09.002); one latency
    per collective, since libraries overlap the hops. Raises BadSpec if several devices have no link from the fast tier to itself.
    """
    if machine.n_devices == 1:
        return np.zeros_like(n_bytes)
    link = machine.link(machine.fast, machine.fast)
    if link is None:
        raise BadSpec(
            f"{machine.name}: all-reduce over {machine.n_devices} devices needs a link from {machine.fast} to itself "
            f"(source_tier = target_tier = {machine.fast!r})"
        )
    rate = {"low": "high", "high": "low"}.get(end, "value")
    share = 2.0 * (machine.n_devices - 1) / machine.n_devices
    bytes_per_s = getattr(link.peak_bytes_per_s, rate) * getattr(link.efficiency_frac, rate)
    return np.asarray(getattr(link.latency_s, end) + share * n_bytes / bytes_per_s)
