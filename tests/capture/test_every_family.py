"""Every MoE architecture that is installed is recorded right or refused with the reason, and docs/capture.md says which."""

import json
from pathlib import Path

import every_family
import pytest
from typer.testing import CliRunner

from tokentape.flows.cli import app

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs" / "capture.md"
REFUSED = {  # and no other
    "DiffusionGemmaForBlockDiffusion", "DogeForCausalLM", "Inkling2LoopForCausalLM", "Inkling2LoopForConditionalGeneration",
    "JetMoeForCausalLM", "LongcatFlashForCausalLM",
    "NllbMoeForConditionalGeneration", "OpenAIPrivacyFilterForTokenClassification", "Qwen3OmniMoeForConditionalGeneration",
    "SwitchTransformersForConditionalGeneration", "ZayaForCausalLM",
}  # fmt: skip


def test_an_architecture_is_recorded_right_or_refused_with_the_reason() -> None:
    wrong, refused = {}, set()
    for name in every_family.architectures():  # not as parameters: the list is read from the code of 500 families
        try:
            refused |= {name} if every_family.examine(name).reason else set()
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"
    assert wrong == {}
    assert refused == REFUSED


def test_the_table_of_the_docs_is_what_this_test_found() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert every_family.rewritten(text) == text, "python tests/capture/every_family.py docs/capture.md"


def test_every_config_is_shown_or_refused_in_one_line(tmp_path: Path) -> None:
    wrong = {}
    for model_type in set(every_family.architectures().values()):
        path = tmp_path / f"{model_type}.json"
        path.write_text(json.dumps(every_family.CONFIG_MAPPING[model_type]().to_dict(), default=str))
        result = CliRunner().invoke(app, ["models", "show", str(path)])
        error = result.exception
        if result.exit_code and not (isinstance(error, ValueError) and "\n" not in str(error)):
            wrong[model_type] = repr(error)
    assert wrong == {}
