import os

import pytest

from vaswani.errors import UserError
from vaswani.text import lines as lines_module
from vaswani.text.lines import count_lines, decode_line, read_windows, whole_lines, write_lines


ODD = "eins\x85zwei\u2028drei\x0bvier\x1cfünf\x00\r sechs"


def windows(data: bytes, size: int, skip: int = 0) -> list[list[bytes]]:
    readable, writable = os.pipe()
    os.write(writable, data)
    os.close(writable)
    try:
        return list(read_windows(readable, size, skip))
    finally:
        os.close(readable)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_only_line_feeds_end_lines_and_none_is_lost(size):
    data = f"{ODD}\n\n\r\n last".encode()
    found = windows(data, size)
    assert [len(window) for window in found[:-1]] == [size] * (len(found) - 1)
    lines = [decode_line(raw, "x", 2) for window in found for raw in window]
    assert lines == [ODD, "", "", " last"]


def test_some_lines_can_be_left_out():
    assert windows(b"1\n2\n3\n4\n5", 2, skip=3) == [[b"4", b"5"]]
    assert windows(b"1\n2\n", 2, skip=2) == windows(b"", 2) == []


def test_more_lines_than_there_are_cannot_be_left_out():
    with pytest.raises(UserError, match="3 lines are done but the input has 2: not what became of it"):
        windows(b"1\n2\n", 2, skip=3)


def test_what_stands_in_a_pipe_comes_at_once_while_it_stays_open():
    readable, writable = os.pipe()
    os.write(writable, b"one\ntwo\nthr")
    found = read_windows(readable, 100)
    assert next(found) == [b"one", b"two"]
    os.write(writable, b"ee\n")
    assert next(found) == [b"three"]
    os.close(writable)
    assert list(found) == []
    os.close(readable)


def test_lines_are_counted_and_checked(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"a\n\n" + ODD.encode())
    assert count_lines(str(path)) == 3
    path.write_bytes(b"a\nb\xffc\n")
    with pytest.raises(UserError, match="text is not UTF-8 in line 2: invalid start byte"):
        count_lines(str(path))
    assert count_lines(str(path), "replace") == 2
    assert decode_line(b"b\xffc\r\n", "x", 2, "replace") == "b\ufffdc"
    assert decode_line(b"\xef\xbb\xbfa", "x", 1) == "a"
    with pytest.raises(UserError, match="nowhere cannot be read: No such file"):
        count_lines(str(tmp_path / "nowhere"))
    assert count_lines("/dev/null") is None


@pytest.mark.parametrize(
    ("content", "group", "lines", "kept"),
    [("a\nb\nhal", 1, 2, "a\nb\n"), ("a\nb\nc\nd", 2, 1, "a\nb\n"), ("a\nb\nc\n", 2, 1, "a\nb\n"), ("x", 1, 0, "")],
)
def test_what_is_half_written_does_not_count(content, group, lines, kept, tmp_path):
    path = tmp_path / "out"
    path.write_text(content)
    assert whole_lines(str(path), group) == (lines, len(kept.encode()))


def test_a_line_out_is_one_line(tmp_path):
    with open(tmp_path / "out", "wb", buffering=0) as file:
        write_lines(file.fileno(), ["a\nb", ODD, ""])
    assert (tmp_path / "out").read_bytes() == f"a b\n{ODD}\n\n".encode()


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize("skip", [0, 1, 4, 8, 9])
def test_lines_are_left_out_beyond_the_first_chunk(skip, chunk_bytes, monkeypatch):
    monkeypatch.setattr(lines_module, "CHUNK_BYTES", chunk_bytes)
    lines = [b"line %d" % number for number in range(9)]
    for end in (b"", b"\n"):
        found = windows(b"\n".join(lines) + end, 3, skip)
        assert [line for window in found for line in window] == lines[skip:]


def test_all_that_is_asked_for_is_written_even_in_parts(monkeypatch):
    readable, writable = os.pipe()
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    write_lines(writable, ["one", "zwei\ndrei"])
    os.close(writable)
    assert os.read(readable, 100) == b"one\nzwei drei\n"
    os.close(readable)


def test_only_the_first_line_loses_a_byte_order_mark():
    mark = "\ufeff"
    assert decode_line(f"{mark}a\n".encode(), "x", 1) == "a"
    assert decode_line(f"{mark}a\n".encode(), "x", 2) == f"{mark}a"
    with pytest.raises(UserError, match="x is not UTF-8 in line 7: invalid start byte"):
        decode_line(b"\xff", "x", 7)
