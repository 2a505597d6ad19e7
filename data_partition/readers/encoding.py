"""The encoding of a text file: most are UTF-8, and spreadsheets and older programs write others.

A file is UTF-8 unless most of its lines with a letter beyond ASCII are none: one damaged line does not make it another.
"""

from __future__ import annotations

import codecs
import re

UTF8 = "UTF-8"
# With so many lines beyond ASCII, more would not change the guess.
_SAMPLE = 1000
_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
# Where nothing speaks for another one: what Windows writes in western Europe, and nearly ISO 8859-1.
_USUAL = "cp1252"
# Letters, and not the quotation marks and dashes that stand in every text.
_BEYOND = re.compile("[^\x00-\x7f‘’“”–—…]+")


def as_utf8(content: bytes) -> tuple[bytes, str]:
    """The same text in UTF-8 without a byte order mark, and the name of its encoding.

    Bytes that are no text stay as they are, so that who reads the lines finds them.
    """
    for mark, name in _MARKS.items():
        if content.startswith(mark):
            text = content[len(mark) :].decode(name, errors="replace")
            return text.encode(), name.upper()
    content = content.removeprefix(codecs.BOM_UTF8)
    if content.isascii() or _is_utf8(content):
        return content, UTF8
    beyond = [line for line in content.split(b"\n") if not line.isascii()]
    if 2 * sum(map(_is_utf8, beyond)) > len(beyond):
        return content, UTF8
    name = _guess(b"\n".join(beyond[:_SAMPLE]))
    return content.decode(name, errors="surrogateescape").encode(errors="surrogateescape"), name


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _guess(sample: bytes) -> str:
    from charset_normalizer import from_bytes

    if _is_western(sample):
        return _USUAL
    found = from_bytes(sample).best()
    return found.encoding if found else _USUAL


def _is_western(sample: bytes) -> bool:
    """Whether the bytes beyond ASCII are single accented letters within words, as they are in no other alphabet.

    A few short names fit many encodings, and what only counts letters takes them for Chinese.
    """
    try:
        text = sample.decode(_USUAL)
    except UnicodeDecodeError:
        return False
    runs = _BEYOND.findall(text)
    return all(character.isalpha() for run in runs for character in run) and 3 * len(runs) >= 2 * sum(map(len, runs))
