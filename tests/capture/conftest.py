"""No hub in tests, and small model folders that load as a user's own would."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported

import pytest
import tiny_families
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tokentape.capture import models as embedded
from tokentape.capture.run import capture
from tokentape.warehouse.tape import Store

FOLDER_VOCAB = 260


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte: <pad> 0, <s> 1, </s> 2, then the 256 bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=FOLDER_VOCAB, special_tokens=["<pad>", "<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([""], trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    wrapped.add_bos_token = True
    return wrapped


@pytest.fixture(autouse=True)
def places_that_are_there(monkeypatch):
    """An index beyond the end is an error of torch 2.9, and taken from the start again by later ones."""
    take = torch.take_along_dim

    def checked(values, at, dim):
        assert 0 <= int(at.min()) <= int(at.max()) < values.shape[dim]
        return take(values, at, dim=dim)

    monkeypatch.setattr(torch, "take_along_dim", checked)
    monkeypatch.setattr(torch.Tensor, "take_along_dim", checked)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """`model_folder("Qwen3Moe")` -> path of a saved tiny model of that family with a byte tokenizer."""
    made = {}

    def folder(family: str) -> str:
        if family not in made:
            path = tmp_path_factory.mktemp("models") / family.lower()
            config = tiny_families.CONFIGS[family]()
            config.vocab_size = FOLDER_VOCAB
            model = tiny_families.randomised(AutoModelForCausalLM.from_config(config))
            model.save_pretrained(path)
            byte_tokenizer().save_pretrained(path)
            made[family] = str(path)
        return made[family]

    return folder


@pytest.fixture(scope="module")
def tiny():
    """A tiny model of every family with experts; a module's tests leave them as they were."""
    return {name: tiny_families.build(name) for name in tiny_families.MOE_CONFIGS}


@pytest.fixture(scope="session")
def prompts(tmp_path_factory):
    """A .jsonl file of seven short prompts of unequal length."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    words = ["alpha beta", "the quick brown fox", "x", "one two three four", "tape", "record once, replay often", "abc"]
    path.write_text("".join(f'{{"prompt": "{w}"}}\n' for w in words))
    return str(path)


@pytest.fixture(scope="session")
def loaded():
    """The embedded model; of tests that are marked `embedded`."""
    torch.set_num_threads(1)
    return embedded.load(embedded.find(embedded.EMBEDDED), device="cpu")


@pytest.fixture(scope="module")
def captured(settings, tmp_path_factory):
    """The tape of a module's `settings`, and its tables."""
    store = Store(str(tmp_path_factory.mktemp("captured")))
    return tiny_families.read(store, capture(settings, store))
