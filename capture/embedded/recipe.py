"""What decides the embedded model's weights: the recipe, the model's shape and the tokenizer."""

import dataclasses

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig

from tokentape.capture.embedded import texts

END_OF_TEXT = "<|endoftext|>"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights. `tokens` fixes the length of the schedule."""

    tokens: int = 28_000_000
    seed: int = 20_261_120
    batch_rows: int = 4
    context: int = 512
    vocabulary: int = 1024
    peak_lr: float = 3e-3
    final_lr_frac: float = 0.05
    warmup_frac: float = 0.02
    balance_coef: float = 0.01

    @property
    def n_steps(self) -> int:
        return max(1, self.tokens // (self.batch_rows * self.context))

    def lr(self, step: int) -> float:
        warmup = max(1, int(self.warmup_frac * self.n_steps))
        if step < warmup:
            return self.peak_lr * (step + 1) / warmup
        done = (step - warmup) / max(1, self.n_steps - warmup)
        return self.peak_lr * (1.0 - (1.0 - self.final_lr_frac) * done)


def model_config(recipe: Recipe) -> Qwen3MoeConfig:
    """4 layers, hidden 128, 4 heads of 32 without GQA, 16 experts of width 96, top-4, untied embeddings."""
    return Qwen3MoeConfig(  # type: ignore[call-arg]  # head_dim is not among its fields, and is taken all the same
        vocab_size=recipe.vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=96,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        rms_norm_eps=1e-6,
        max_position_embeddings=recipe.context,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,  # one would hold its embedding at zero, and it is the first token of every text
    )


def train_tokenizer(recipe: Recipe) -> PreTrainedTokenizerFast:
    """Byte-level BPE on the training split only; each digit is a token of its own."""
    rng = np.random.default_rng([recipe.seed, 1])
    generated = texts.math_items(False, [recipe.seed, 2])
    corpus = [item.prompt for item in texts.code_files(False) + texts.doc_topics(False)]
    corpus += [item.prompt + (item.solution or "") for item, _ in zip(generated, range(8_000), strict=False)]
    corpus += [texts.recall_training_passage(rng, 12, 12) for _ in range(1_500)]
    corpus += [c + v for c in texts.CONSONANTS for v in texts.VOWELS] * 4_000  # so that keys are two or three tokens
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=recipe.context,
        clean_up_tokenization_spaces=False,
    )
    # mypy misses the setter, which does not follow its getter.
    made.add_bos_token = True  # type: ignore[misc]  # training puts the end-of-text token before every document
    return made
