"""What a live model loses under a policy, and orderings that it should show."""

from tokentape.warehouse.schema.table import View, names

TABLES = {
    "quality": View(
        names(
            "model_id policy parameters dataset seed perplexity bits_per_byte accuracy acceptance kl agreement_frac miss_frac "
            "flash_bytes_per_token dram_bytes_per_token kv_bytes hot_frac table_loss n_items n_tokens"
        ),
        names("model_id policy parameters dataset seed"),
        "quality of a live model under a policy, measured closed loop",
        nullable=names(
            "perplexity bits_per_byte accuracy acceptance kl agreement_frac miss_frac flash_bytes_per_token "
            "dram_bytes_per_token kv_bytes hot_frac table_loss"
        ),
        engine="live",
        facts=names("n_items n_tokens"),
    ),
    "fidelity": View(
        names("model_id policy parameters dataset seed hardware n_tokens metric unit open_loop closed_loop"),
        names("model_id policy parameters dataset seed hardware metric"),
        "a quantity of a policy on the same text, replayed and inside the model",
        engine="live",
        values="series",
        at={"metric": "part"},
        facts=names("n_tokens"),
    ),
    "orderings": View(
        names("study model_id dataset assertion margin mean low high n_seeds holds"),
        names("study model_id dataset assertion"),
        "a ratio that a live model is expected to keep, and what it was",
        engine="live",
        band="mean",
        facts=names("n_seeds"),
    ),
}
