import numpy as np
import pytest

from training.explaining.positional_encoding import (
    D_MODEL,
    OFFSETS,
    VALUES,
    draw,
    encodings,
    shift_error,
    shift_matrix,
    shifted,
)


@pytest.mark.parametrize("offset", [-7, 0, 1, 10, 100, 5000])
def test_a_matrix_leads_from_any_position_to_the_one_k_further(offset):
    positions = [0, 1, 17, 999, 20_000]
    further = encodings([position + offset for position in positions])
    np.testing.assert_allclose(shifted(positions, offset), further, rtol=0, atol=1e-10)
    assert np.abs(shifted(positions, offset + 1) - further).max() > 0.1  # another matrix leads elsewhere
    assert shift_error(positions, offset) < 1e-10


def test_a_matrix_rotates_each_pair_of_dimensions():
    matrix = shift_matrix(3)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(D_MODEL), atol=1e-12)
    is_in_block = np.kron(np.eye(D_MODEL // 2), np.ones((2, 2))) == 1
    assert not matrix[~is_in_block].any()
    np.testing.assert_allclose(shift_matrix(2) @ shift_matrix(1), matrix, atol=1e-12)


def test_a_fitted_matrix_holds_at_unseen_positions_for_sinusoids_but_not_for_random_vectors():
    def error(vectors: np.ndarray) -> float:
        seen, unseen, offset = slice(0, 1000), slice(1000, 1500), 10
        moved = np.roll(vectors, -offset, axis=0)
        fitted = np.linalg.lstsq(vectors[seen], moved[seen])[0]
        return np.abs(vectors[unseen] @ fitted - moved[unseen]).max()

    quick = encodings(range(2000))[:, :32]  # slow waves need more positions for a fit
    assert error(quick) < 1e-8
    assert error(np.random.default_rng(0).normal(size=quick.shape)) > 1


def test_the_picture_has_encodings_and_what_the_matrices_make_of_them():
    figure = draw()
    rows, matrix, moved, products = figure.axes[:4]
    np.testing.assert_array_equal(rows.images[0].get_array(), encodings(range(100)))
    np.testing.assert_array_equal(matrix.images[0].get_array(), shift_matrix(10)[:16, :16])
    lines = moved.get_lines()
    assert len(lines) == 2 * len(OFFSETS)
    for line, marks in zip(lines[::2], lines[1::2], strict=True):
        np.testing.assert_allclose(line.get_xydata(), marks.get_xydata(), atol=1e-10)
        assert line.get_marker() == "None" != marks.get_marker()
    first, *others = (line.get_ydata() for line in products.get_lines())
    assert first.max() == first[50] == pytest.approx(D_MODEL / 2)
    for other in others:
        np.testing.assert_allclose(other, first, atol=1e-8)


def test_zero_is_transparent():
    assert [VALUES(share)[3] for share in (0.0, 1.0)] == [1, 1]
    assert VALUES(0.5)[3] < 0.01
