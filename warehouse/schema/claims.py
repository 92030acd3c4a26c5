"""The papers' numbers and what the studies answer."""

from tokentape.warehouse.schema.table import Table, names

TABLES = {
    "answers": Table(
        names("claim_id study mode value low high how"),
        names("claim_id study mode"),
        "what a study computed for a number that a paper reports",
        nullable=names("low high"),
    ),
    "claims": Table(
        names("claim_id paper location metric model setting statistic comparator value unit role"),
        names("claim_id"),
        "a number of a paper; value is null where it is withheld or the paper prints none",
        nullable=names("value"),
    ),
}
