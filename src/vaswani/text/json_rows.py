"""Rows of a JSON file, one after another: an object per line, an array of objects, or one in an object's `data`.

These are the layouts that `datasets` reads, but no array is ever in memory as a whole, even if it is one line.
"""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from vaswani.errors import UserError


CHUNK_BYTES = 1 << 20
LARGEST_ROW = 1 << 24  # characters; a longer one is not a pair of sentences but a broken file
SPACE = re.compile(r"[ \t\n\r]*")
# {"version": "1", "data": [{ ..., up to the array
BEFORE_DATA = re.compile(r'\{\s*("[^"\\]*"\s*:\s*("[^"\\]*"|[\w.+-]+)\s*,\s*)*"data"\s*:\s*(?=\[\s*[{\]])')
DECODER = json.JSONDecoder()


class JsonRows:
    """The rows of a JSON file, to be iterated over once, and the place of the current one.

    Parameters
    ----------
    file : binary file
    name : str
        The file's name, for errors.

    Raises
    ------
    UserError
        While iterating, if the file is not UTF-8 (with the line) or not JSON (with row and line).
    """

    def __init__(self, file: BinaryIO, name: str):
        self.name = name
        self._chunks = _decode(file, name)
        self._text = ""  # the part of the file that is being read
        self._position = 0  # the next character of this part
        self._row_position = 0  # where in this part the current row begins
        self._line = 1  # the line in which this part begins
        self._row = 0

    @property
    def place(self) -> str:
        """The place where the current row begins, such as ``row 2 (line 5)``."""
        return f"row {self._row} (line {self._line + self._text.count(chr(10), 0, self._row_position)})"

    def __iter__(self) -> Iterator[Any]:
        self._peek()
        before = BEFORE_DATA.match(self._text, self._position)
        if before:
            self._position = before.end()
        if self._peek() == "[":
            yield from self._read_array()
            self._finish('{"data": []' if before else "[]")
        else:
            while self._peek():
                yield self._read_row()

    def _read_array(self) -> Iterator[Any]:
        self._position += 1
        separator = self._peek()
        while separator != "]":
            yield self._read_row()
            separator = self._peek()
            if separator not in ("]", ","):
                raise UserError(f"{self.name} has neither ',' nor ']' behind {self.place}")
            self._position += separator == ","
        self._position += 1

    def _read_row(self) -> Any:
        self._peek()
        self._row += 1
        while True:
            self._row_position = self._position
            try:
                row, self._position = DECODER.raw_decode(self._text, self._position)
                return row
            except json.JSONDecodeError as error:
                place = f"{self.place}: {error.msg.removesuffix(' at')} in line {self._line + error.lineno - 1}"
                if len(self._text) - self._position > LARGEST_ROW or not self._read_more():
                    raise UserError(f"{self.name} has no JSON object in {place}") from error
            except ValueError as error:  # a number of thousands of digits
                raise UserError(f"{self.name} cannot be read in {self.place}: {error}") from error

    def _finish(self, before: str) -> None:
        """Check that the rest of the file closes what `before` opened, and holds nothing else."""
        try:
            json.loads(before + self._text[self._position :] + "".join(self._chunks))
        except json.JSONDecodeError as error:
            raise UserError(f"{self.name} is no JSON behind the end of its array: {error.msg}") from error

    def _peek(self) -> str:
        """Move to the next character that is no space, and return it; "" at the end of the file."""
        while True:
            self._position = SPACE.match(self._text, self._position).end()
            if self._position < len(self._text) or not self._read_more():
                return self._text[self._position : self._position + 1]

    def _read_more(self) -> bool:
        """Append the next chunk to the text, drop the text already read, and return whether there was a chunk."""
        chunk = next(self._chunks, "")
        self._line += self._text.count("\n", 0, self._position)
        self._text = self._text[self._position :] + chunk
        self._position = self._row_position = 0
        return chunk != ""


def _decode(file: BinaryIO, name: str) -> Iterator[str]:
    """Yield a file's text in parts of about a million characters, without a byte order mark."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line, is_open = 1, True
    while is_open:
        chunk = file.read(CHUNK_BYTES)
        is_open = bool(chunk)
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            line += error.object.count(b"\n", 0, error.start)
            raise UserError(f"{name} is not UTF-8 in line {line}: {error.reason}") from error
        line += chunk.count(b"\n")
        if text:
            yield text
