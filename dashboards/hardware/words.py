"""How the hardware page calls an engine's own memory, and how its roofline is drawn."""

from tokentape.dashboards import theme

OWN_MEMORY = "'s memory"  # behind the name of an engine that reads it in another way than through the tier's interface
EARLY_LAYERS = 4  # that the clock shows alone
WIDTH, HEIGHT = 1060, 440  # of the roofline, in pixels
SIZES = (40.0, 900.0)  # area of a point in square pixels, at no and at all of the step's time
REACHED, PEAK, OTHERS = "reached: peak × efficiency", "peak", "other engines, tiers and links, as reached"
ROOF = {REACHED: theme.INK, PEAK: theme.QUIET, OTHERS: theme.SKY}
ROOF_DASHES = {REACHED: [1, 0], PEAK: [5, 4], OTHERS: [1, 0]}
DECADES = [10.0**n for n in range(-4, 19)]
INTENSITY, SPEED = (f"format(datum.value, '{form}')" for form in (",~g", "~s"))
WORDS = "align=left baseline=middle fontSize=12"
RIM = f"{WORDS} stroke=white strokeWidth=4 strokeJoin=round"
