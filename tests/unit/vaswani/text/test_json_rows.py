import io
import json
import tracemalloc

import pytest
from datasets import load_dataset

from vaswani.errors import UserError
from vaswani.text import json_rows
from vaswani.text.json_rows import JsonRows


ROWS = [
    {"translation": {"en": text, "de": f"{text} é 👩‍👩‍👧"}}
    for text in ('"a"', "]", "} [", "\\", "\n", "\u2028", "long" * 99)
]
LAYOUTS = {
    "lines": "".join(json.dumps(row) + "\n" for row in ROWS),
    "lines with empty ones": "\n\n".join(json.dumps(row) for row in ROWS),
    "lines of Windows": "\ufeff" + "".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in ROWS),
    "objects over several lines": "".join(json.dumps(row, indent=2) for row in ROWS),
    "array": json.dumps(ROWS, ensure_ascii=False),
    "array over several lines": "\ufeff" + json.dumps(ROWS, indent=2, ensure_ascii=False) + "\n\n",
    "data": json.dumps({"data": ROWS}),
    "data among other keys": json.dumps({"v": "1.0", "n": -2.5, "data": ROWS, "x": [{}]}, indent=1),
}


def read(text: str | bytes) -> list:
    return list(JsonRows(io.BytesIO(text if isinstance(text, bytes) else text.encode("utf-8")), "x"))


@pytest.mark.parametrize("chunk_bytes", [60, 61, 62, 63, 1 << 20])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_rows_wherever_it_is_cut(layout, chunk_bytes, monkeypatch):
    monkeypatch.setattr(json_rows, "CHUNK_BYTES", chunk_bytes)
    assert read(LAYOUTS[layout]) == ROWS


@pytest.mark.parametrize("text", ["", " \n", "[]", "[\n]\n", '{"data": []}'])
def test_no_rows_are_no_error(text):
    assert read(text) == []


@pytest.mark.parametrize("layout", ["lines", "array", "array over several lines", "data"])
def test_datasets_reads_the_same(layout, tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(LAYOUTS[layout], encoding="utf-8")
    field = "data" if layout == "data" else None
    assert load_dataset("json", data_files=str(path), split="train", field=field).to_list() == ROWS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"a": 1}\n{"a": 2\n{"a": 3}\n',
            r"x has no JSON object in row 2 \(line 2\): Expecting ',' delimiter in line 3",
        ),
        ('[\n {"a": 1},\n {\n"a": x}]', r"x has no JSON object in row 2 \(line 3\): Expecting value in line 4"),
        ('[{"a": 1},', r"x has no JSON object in row 2 \(line 1\): Expecting value in line 1"),
        ('[{"a": 1}\n{"a": 2}]', r"x has neither ',' nor '\]' behind row 1 \(line 1\)"),
        ('[{"a": 1}', r"x has neither ',' nor '\]' behind row 1 \(line 1\)"),
        ('[{"a": 1}]]', "x is no JSON behind the end of its array: Extra data"),
        ('{"data": [{"a": 1}]', "x is no JSON behind the end of its array: Expecting ',' delimiter"),
        ('{"a": "1\n2"}', r"x has no JSON object in row 1 \(line 1\): Invalid control character in line 1"),
        (b'{"a": 1}\n{"a": "\xff"}', "x is not UTF-8 in line 2: invalid start byte"),
        (b'{"a": 1}\n\n{"a": "\xc3', "x is not UTF-8 in line 3: unexpected end of data"),
    ],
)
def test_errors_name_row_and_line(text, message, monkeypatch):
    for chunk_bytes in (12, 1 << 20):
        monkeypatch.setattr(json_rows, "CHUNK_BYTES", chunk_bytes)
        with pytest.raises(UserError, match=f"^{message}$"):
            read(text)


def test_the_place_is_that_of_the_row_at_hand():
    rows = JsonRows(io.BytesIO(b'[{"a": 1}, {"a":\n2},\n{"a": 3}]'), "x")
    assert [rows.place for _ in rows] == ["row 1 (line 1)", "row 2 (line 1)", "row 3 (line 3)"]


def test_an_array_is_not_in_memory_as_a_whole_nor_is_what_is_no_json():
    file = io.BytesIO(json.dumps([{"a": "b" * 1000}] * 32_000).encode())
    broken = io.BytesIO(b'[{"a": "' + b"b" * 64_000_000)
    tracemalloc.start()
    assert sum(1 for _ in JsonRows(file, "x")) == 32_000
    assert tracemalloc.get_traced_memory()[1] < 8e6
    with pytest.raises(UserError, match=r"row 1 \(line 1\): Unterminated string starting in line 1"):
        next(iter(JsonRows(broken, "x")))
    assert tracemalloc.get_traced_memory()[1] < 48e6
    tracemalloc.stop()
