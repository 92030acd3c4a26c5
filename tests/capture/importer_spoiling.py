"""Ways to spoil a good file: other numbers, fields, lines, characters and bytes, all from one generator."""

import random
import re

EXTREMES = (
    *("nan", "NaN", "inf", "-Infinity", "1e20", "1e308", "-1e308", "1e400", "-1", "0", "0.5", "3.0", "1e3", "+3"),
    *(" 3", "3 ", "03"),
    *("4294967295", "4294967296", "2147483648", "9223372036854775808", "18446744073709551616", "9" * 400, "9" * 5000, "65536"),
    *("true", "null", '"5"', "[]", "{}", "", "\0", "\u0663", "\u2028", "1_0", "0x1", "'", '"', "1,2", "[1]", "x" * 3000, "7;8"),
    *("2024-02-30 00:00:00", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999999", "infinity", "-0", "1e-320", "8", "99999"),
)


def spoiled_text(text: str, rng: random.Random) -> bytes:
    """One to three changes of numbers, fields, lines or bytes."""
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        text = rng.choice((other_number, other_number, other_number, other_lines, other_characters))(text, rng)
    raw = text.encode("utf-8", errors="replace")
    if rng.random() < 0.15:
        raw = spoiled_bytes(raw, rng)
    return rng.choice((b"", b"", b"", b"", b"\xef\xbb\xbf")) + raw


def other_number(text: str, rng: random.Random) -> str:
    places = list(re.finditer(r"-?\d[\d.eE+-]*", text))
    if not places:
        return text
    place = rng.choice(places)
    other = str(rng.randrange(20)) if rng.random() < 0.3 else rng.choice(EXTREMES)
    return text[: place.start()] + other + text[place.end() :]


def other_lines(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(7):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[other])
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case 3:
            lines.insert(at, rng.choice(("", " ", ",", "#", "[" * 3000, "{}", "null", ",,,,,,,,,,")))
        case 4:
            lines = lines[:at]
        case 5:
            return rng.choice(("\r\n", "\r", "\n\n")).join(lines)
        case _:
            fields = lines[at].split(",")
            fields.insert(rng.randrange(len(fields) + 1), rng.choice(EXTREMES))
            lines[at] = ",".join(fields[rng.randrange(2) :])
    return "\n".join(lines)


def other_characters(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    match rng.randrange(3):
        case 0:
            odd = ("\0", '"', "'", ",", "{", "]", "\\", "\u2028", "\x85", "\x0c", "[" * 3000, "-", ".")
            return text[:at] + rng.choice(odd) + text[at:]
        case 1:
            return text[:at] + text[at + rng.randint(1, 4) :]
        case _:
            return text[:at]


def spoiled_bytes(raw: bytes, rng: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        if changed:
            at = rng.randrange(len(changed))
            match rng.randrange(4):
                case 0:
                    changed[at] ^= 1 << rng.randrange(8)
                case 1:
                    changed[at] = rng.choice((0, 255, 127, 128))
                case 2:
                    del changed[at : at + rng.choice((1, 4, 1000))]
                case _:
                    changed[at:at] = rng.randbytes(rng.choice((1, 4, 64)))
    return bytes(changed)
