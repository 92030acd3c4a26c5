"""The paper's setting for tests: models, machines, Table 3, and the L0 parameters that its golden numbers were made with."""

from dataclasses import replace

import numpy as np
import polars as pl

from tokentape.flows.systems.elmoe3d.settings import Settings, setup_of
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants, ModelLaw, Speculation
from tokentape.replay.elmoe3d.fit import cells
from tokentape.replay.elmoe3d.points import as_points, points_of
from tokentape.warehouse.load import claims

QWEN, GLM, DEEPSEEK, GPT = MODELS = ("qwen3-30b-a3b", "glm-4.7-flash", "deepseek-v2-lite", "gpt-oss-20b")
STUDY = Settings.shipped()
SETUP = setup_of(STUDY)
TABLE = cells(claims().to_pylist())

_BETA = (0.2434, 0.4030, 0.5840, 0.1641)
_HEAD_GB = dict(zip(MODELS, (0.9879, 0.4850, 0.2428, 1.5910), strict=True))  # fitted, and read whole
PRINTED = ELMoE3DConstants(
    level="L0",
    rows="all-open",
    speculation=Speculation(verify_tokens=5.29, growth=0.898, fade=0.450, draft_tokens=4.73),
    laws={
        model: ModelLaw(beta=beta, exponent=1.0 - beta, own_table=own)
        for model, beta, own in zip(MODELS, _BETA, (True, False, False, True), strict=True)
    },
)


def cell(model, scheme, hb_gb, batch):
    """Its row of the table."""
    return TABLE.filter(pl.col("model") == model, pl.col("scheme") == scheme, pl.col("hb_gb") == hb_gb, pl.col("batch") == batch)


def point(model=QWEN, scheme="Elastic-SD", hb_gb=8, batch=1, fit=PRINTED, law=None, **changed):
    """A frame of one point; changed: columns of it. law: of its model, in place of the fit's."""
    of = fit if law is None else replace(fit, laws={model: law})
    return points_of(cell(model, scheme, hb_gb, batch), of, **changed)


def arrays(*points, machine=None, setup=SETUP):
    """Points as arrays, all of them on a machine of one's own where one is given."""
    frame = pl.concat(points, how="vertical_relaxed")
    if machine is not None:
        setup, frame = replace(setup, machines={"own": machine}), frame.with_columns(machine=pl.lit("own"))
    return as_points(frame, setup)


def with_fitted_heads(points, models):
    """As the printed numbers were made."""
    return replace(points, head_read_bytes=np.array([1e9 * _HEAD_GB[model] for model in models]), own_table=np.zeros(len(points)))
