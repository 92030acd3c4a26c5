"""How far a layer's output strays, against experts whose outputs are drawn: orthogonal by chance, noise where they are low."""

import numpy as np
import pytest

from tokentape.policies.matryoshka import MAT
from tokentape.policies.sliced.strayed import low_error_frac, strayed


def test_what_is_added_up_is_what_drawn_outputs_do() -> None:
    rng = np.random.default_rng(0)
    n, n_experts, k, dim = 40, 12, 4, 20_000
    gates = rng.dirichlet(np.ones(n_experts), n).astype(np.float32)
    natural = np.argsort(-gates, axis=1)[:, :k]
    ids = np.stack([rng.permutation(n_experts)[:k] for _ in range(n)])
    is_low = rng.random((n, k)) < 0.5
    is_natural = np.zeros(gates.shape, bool)
    np.put_along_axis(is_natural, natural, True, axis=1)
    found = strayed(gates, is_natural, ids, is_low, 0.3)
    for i in range(n):
        outputs, noise = rng.standard_normal((2, n_experts, dim))
        own = sum(gates[i, e] * outputs[e] for e in natural[i])
        ours = sum(gates[i, e] * (outputs[e] + np.sqrt(0.3) * noise[e] * low) for e, low in zip(ids[i], is_low[i], strict=True))
        assert found[i] == pytest.approx(((ours - own) ** 2).sum() / (own**2).sum(), rel=0.08)
    same = np.zeros((n, k), bool)
    assert strayed(gates, is_natural, natural, same, 0.3) == pytest.approx(0.0, abs=1e-12)


def test_a_low_expert_errs_in_each_of_its_matrices() -> None:
    """Three matrices with the errors of Gaussian weights ; without a gate two; whole codes err less."""
    assert low_error_frac(MAT(8, 4), True) == pytest.approx(3 * 0.0122, rel=0.03)
    assert low_error_frac(MAT(4, 2), False) == pytest.approx(2 * 0.217, rel=0.03)
    assert low_error_frac(MAT(4, 4), True) < 3 * 0.01
