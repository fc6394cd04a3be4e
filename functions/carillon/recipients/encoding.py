"""What encoding a file is in. Letters read wrongly are worse than a list not read, so what is not sure is refused.

Marks, NULs and well-formed UTF-8 tell nearly every file. Of the eight-bit encodings only two are taken for themselves,
and only where the text that comes out could have been written: Windows-1252 (with Latin-1, which it contains), and
MacRoman in a file whose lines end in a lone CR. For other scripts charset-normalizer is asked, and believed only when
it recognises a language. `ListSpec.encoding` overrides all of it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from charset_normalizer import from_bytes

from carillon.errors import ListRejected

BLOCK = 1 << 20
HEAD = 65_536
TELLING = 200_000
"""Bytes of lines beyond ASCII by which an eight-bit encoding is judged."""

BAD = "\ufdd0"
"""Stands for bytes that are no text, in what `decoded` yields: a code point that no text ever holds."""

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32le",
    codecs.BOM_UTF32_BE: "utf-32be",
    codecs.BOM_UTF16_LE: "utf-16le",
    codecs.BOM_UTF16_BE: "utf-16be",
}
"""In this order: the mark of UTF-32LE begins with that of UTF-16LE."""

_NO_FILE_IS = {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"}
_FIX = "Save the list as CSV UTF-8, or say what it is in list.encoding"

# What Western Europe writes, language by language: a word that no single one of them writes was read wrongly.
_ALPHABETS = tuple(
    frozenset(letters + letters.upper().replace("SS", ""))
    for letters in (
        "äöüßé",
        "àâçéèêëîïôùûüÿœ",
        "áéíñóúüçàèìòïâêôãõ",
        "æøåéäöüó",
        "àèéìíòóùî",
        "áéíóúýðþæöïë",
        "éëïöüèêä",
        "äöåšž",
    )
)
_SYMBOLS = frozenset("€‚ƒ„…†‡ˆ‰‹‘’“”•–—˜™›¡¢£¤¥¦§¨©ª«¬\xad®¯°±²³´µ¶·¸¹º»¼½¾¿×÷\xa0")
_NOT_IN_WORDS = re.compile(
    r"[^\W\d_][^\w\s’'·\xad\x00-\x7f\-‘´][^\W\d_]|[A-Za-z][¹²³ªº][A-Za-z]|[A-Za-z]{3}[¹²³]"
    r"|[A-Za-z][§¶†‡¤¦¬±]|[€†‡¤¦¬±ˆ˜][A-Za-z]"
)
_STRANGE = re.compile(
    r"[þðý]|ì\w|ù(?!s?\b)\w|õ(?!e)|iæ\b|æ\b|ã(?![eo])\w|[šž].*[èæ]|[èæ].*[šž]|^è\w*[a-z]{3}"
    r"|[bcdfghjklmnpqrstvwxz][šž][bcdfghjklmnpqrstvwxz]"
)
"""Letters that are another one in Windows-1250, Windows-1254 or MacRoman, where a Western word would not have them."""


class Encoding(NamedTuple):
    """How a file's bytes become text."""

    name: str
    """In lower case, as Python knows it."""
    bom: bool
    """Whether the file begins with the mark of it."""
    clean: bool = False
    """Whether the file is UTF-8 throughout, so that nothing has to be decoded."""


def refused(cause: str, fix: str = _FIX) -> ListRejected:
    """A `ListRejected` for ``unknown_encoding``."""
    return ListRejected(f"unknown_encoding: {cause}. {fix}.")


def detect(path: Path, override: str | None = None) -> Encoding:
    """The encoding of ``path``, or what ``override`` says.

    Raises:
        ListRejected: unknown_encoding, also for an ``override`` that cannot be right.
    """
    with path.open("rb") as file:
        head = file.read(HEAD)
    marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    if override is not None:
        found = _checked(override, marked, head)
        return found._replace(clean=found.name == "utf-8" and _utf_8(path)[0] == 0)
    if marked and marked != "utf-8":
        return Encoding(marked, True)
    if b"\x00" in head:
        wide = _unmarked_utf_16(head)
        if wide is None:
            raise refused("the file has NUL bytes and is no UTF-16: it is binary", "Save the list as CSV UTF-8")
        return Encoding(wide, False)
    damage, proper = _utf_8(path)
    if marked or damage * 10 <= proper:
        return Encoding("utf-8", marked is not None, clean=damage == 0)
    return Encoding(_eight_bit(path), False)


def _utf_8(path: Path) -> tuple[int, int]:
    """How many stretches of bytes are not UTF-8, and how many bytes of it (about) are letters beyond ASCII."""
    damage = proper = 0
    decoder = codecs.getincrementaldecoder("utf-8")(_MARKING)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            text = decoder.decode(block)
            damage += text.count(BAD)
            proper += max(0, len(block) - len(text))
    return damage + decoder.decode(b"", final=True).count(BAD), proper


def _unmarked_utf_16(head: bytes) -> str | None:
    """Which UTF-16 it is: the one that decodes, with the line ends and delimiters of a table and no NULs."""
    head = head[: len(head) // 2 * 2]
    found = []
    for name in ("utf-16le", "utf-16be"):
        text = codecs.getincrementaldecoder(name)("replace").decode(head)
        ascii_share = sum(character < "\x80" for character in text) / max(1, len(text))
        if "\x00" not in text and "\ufffd" not in text and ascii_share > 0.1:
            found.append((ascii_share, name))
    return max(found)[1] if found else None


def _checked(override: str, marked: str | None, head: bytes) -> Encoding:
    fix = "Correct list.encoding, or leave it out"
    try:
        name = codecs.lookup(override).name
        text_encoding = codecs.lookup(override)._is_text_encoding
    except LookupError:
        name, text_encoding = "", False
    if not text_encoding or name in _NO_FILE_IS:
        raise refused(f"list.encoding is {override!r}, which is no encoding of text files", f"{fix}; utf-8 is one")
    name = _called(name)
    if name in ("utf-16", "utf-32"):
        if marked is None or not marked.startswith(name):
            wide = _unmarked_utf_16(head) if name == "utf-16" and marked is None else None
            if wide is None:
                raise refused(f"list.encoding is {override!r}, but the file has no such mark and does not look it", fix)
            return Encoding(wide, False)
        return Encoding(marked, True)
    if marked and marked != name and not (marked == "utf-16le" and name == "utf-32le"):
        raise refused(f"list.encoding is {override!r}, but the file begins with the mark of {marked}", fix)
    if (b"\x00" in head) != name.startswith(("utf-16", "utf-32")):
        looks = "has NUL bytes: it is UTF-16 or binary" if b"\x00" in head else "has no NUL byte, so it is not"
        raise refused(f"list.encoding is {override!r}, but the file {looks}", fix)
    return Encoding(name, marked is not None)


def _called(python_name: str) -> str:
    """The name that people know: ``windows-1252`` for ``cp1252``, ``utf-16le`` for ``utf-16-le``."""
    if re.fullmatch(r"cp125\d", python_name):
        return f"windows-{python_name[2:]}"
    if python_name == "utf_8_sig":
        return "utf-8"
    return {"mac-roman": "macintosh"}.get(python_name, re.sub(r"^(utf-(?:16|32))-(le|be)$", r"\1\2", python_name))


def _eight_bit(path: Path) -> str:
    sample, lone_cr = _telling(path)
    if lone_cr and _could_be_western(sample.decode("mac_roman")):
        return "macintosh"
    try:
        if _could_be_western(sample.decode("cp1252")):
            return "windows-1252"
    except UnicodeDecodeError:
        pass
    best = from_bytes(sample).best()
    if best is None:
        raise refused("nobody can tell the file's encoding from its bytes")
    text = str(best)
    letters = [c for c in text if c.isalpha() and c > "\x7f"]
    other_script = sum(c > "\u036f" for c in letters) > 0.9 * len(letters)
    if best.coherence >= 0.5 and best.chaos <= 0.1 and other_script and not text.count("\ufffd"):
        return _called(codecs.lookup(best.encoding).name)
    words = sorted({w for w in re.findall(r"[^\W\d_]+", _without_addresses(text)) if not w.isascii()}, key=len)
    read = f", in which some words would be {', '.join(words[-3:])}" if words else ""
    raise refused(
        f"the bytes do not tell the file's encoding for sure; the likeliest is "
        f"{_called(codecs.lookup(best.encoding).name)}{read}"
    )


def _without_addresses(text: str) -> str:
    return re.sub(r"\S*@\S*", " ", text)


def _telling(path: Path) -> tuple[bytes, bool]:
    """Lines that are not ASCII, and whether all lines end in a lone CR."""
    telling: list[bytes] = []
    size, lines_feed, returns = 0, 0, 0
    with path.open("rb") as file:
        rest = b""
        while (block := file.read(BLOCK)) and size < TELLING:
            lines_feed += block.count(b"\n")
            returns += block.count(b"\r")
            *lines, rest = re.split(rb"[\r\n]", rest[-BLOCK:] + block)
            for line in lines:
                if size < TELLING and not line.isascii():
                    telling.append(line)
                    size += len(line)
    if not rest.isascii():
        telling.append(rest)
    return b"\n".join(telling)[:TELLING], returns > 0 and lines_feed == 0


def _could_be_western(text: str) -> bool:
    """Whether the letters beyond ASCII are used as some Western European language uses them."""
    if any(c > "\x7f" and c not in _SYMBOLS and not any(c in alphabet for alphabet in _ALPHABETS) for c in set(text)):
        return False
    if _NOT_IN_WORDS.search(text) or re.search(r"[^\W\x00-\x7f]{4}", text):
        return False
    words = [word for word in re.findall(r"[^\W\d_]+", text) if not word.isascii()]
    return sum(map(_is_strange, words)) * 10 <= len(words)


def _is_strange(word: str) -> bool:
    special = {c for c in word if c > "\x7f" and c not in _SYMBOLS}
    capital_inside = any(a.islower() and b > "\x7f" and b.isupper() for a, b in pairwise(word))
    written = any(special <= alphabet for alphabet in _ALPHABETS)
    return not written or capital_inside or _STRANGE.search(word.lower()) is not None


def _mark(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return BAD, error.end


_MARKING = "carillon.mark"
codecs.register_error(_MARKING, _mark)


def decoded(path: Path, encoding: Encoding) -> Iterator[str]:
    """The text, block by block, without a mark; what is no text is `BAD`."""
    decoder = codecs.getincrementaldecoder(encoding.name)(_MARKING)
    first = True
    with path.open("rb") as file:
        while True:
            block = file.read(BLOCK)
            text = decoder.decode(block, final=not block)
            if first and text:
                text, first = text.removeprefix("\ufeff"), False
            if text:
                yield text
            if not block:
                return
