"""The paper's setting for tests: models, machines, Table 3, and the L0 parameters that its golden numbers were made with."""

from __future__ import annotations

from tokentape.flows.systems.elmoe3d.settings import Settings, setup_of
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants, ModelLaw, Speculation
from tokentape.replay.elmoe3d.cells import cells
from tokentape.warehouse.load import claims

QWEN, GLM, DEEPSEEK, GPT = MODELS = ("qwen3-30b-a3b", "glm-4.7-flash", "deepseek-v2-lite", "gpt-oss-20b")
STUDY = Settings.shipped()
SETUP = setup_of(STUDY)
TABLE = cells(claims().to_pylist())

_BETA, _HEAD_GB = (0.2434, 0.4030, 0.5840, 0.1641), (0.9879, 0.4850, 0.2428, 1.5910)
PRINTED = ELMoE3DConstants(
    level="L0",
    rows="all-open",
    speculation=Speculation(verify_tokens=5.29, growth=0.898, fade=0.450, draft_tokens=4.73),
    laws={
        model: ModelLaw(beta=beta, exponent=1.0 - beta, head_bytes=1e9 * head)
        for model, beta, head in zip(MODELS, _BETA, _HEAD_GB, strict=True)
    },
)
PRINTED_L1 = (1.330, 0.764, 0.783, 1.265)  # exponents


def cell(model, scheme, hb_gb, batch):
    return next(c for c in TABLE if (c.model, c.scheme, c.hb_gb, c.batch) == (model, scheme, hb_gb, batch))


def point(model=QWEN, scheme="Elastic-SD", hb_gb=8, batch=1, fit=PRINTED, **changed):
    return SETUP.point(cell(model, scheme, hb_gb, batch), fit, **changed)
