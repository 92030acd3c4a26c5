"""What the page of comparisons calls things, and what it says where it has nothing to draw."""

from tokentape.dashboards import theme

COMPARE = "Run: tokentape compare TRACE, then tokentape load and tokentape site."
STUDY = "Run: tokentape study near_starves_cache, say (docs/studies.md), then tokentape load and tokentape site."
QUALITY = "Run: tokentape evaluate --system NAME, then tokentape load and tokentape site."
TIMES = {
    "token_ms": "per output token, all in all",
    "gap_ms": "between tokens of a request",
    "ttft_ms": "to the first token",
}
ROLES = {"a method": theme.BLUE, "LRU": theme.VERMILLION, "holds all experts": theme.GREEN, "a bound": theme.ORANGE}
SHAPES = {"a method": "circle", "LRU": "square", "holds all experts": "diamond", "a bound": "triangle-up"}
PARTS = {
    "experts fetched": theme.VERMILLION,
    "experts near their memory": theme.GREEN,
    "experts read at their home": theme.SKY,
    "experts in the fast tier": theme.BLUE,
    "weights outside the experts": theme.PURPLE,
    "keys and values": theme.ORANGE,
    "power drawn all the time": "#9AA3AD",
    "nothing to do": "#E3E6EA",
}
