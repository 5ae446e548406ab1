import numpy as np

from fedkin.datasets import load_pendigits


def test_pen_digits_are_those_of_the_documentation():
    pen = load_pendigits()
    assert pen.X.shape == (10992, 16) and pen.X.dtype == np.float64
    assert pen.X.min() == 0.0 and pen.X.max() == 100.0
    counts = [1143, 1143, 1144, 1055, 1144, 1055, 1056, 1142, 1055, 1055]
    np.testing.assert_array_equal(np.bincount(pen.digit), counts)
    assert (pen.writer <= 30).sum() == 7494


def test_pen_digits_have_44_writers_with_distinct_samples():
    pen = load_pendigits()
    writers, sizes = np.unique(pen.writer, return_counts=True)
    np.testing.assert_array_equal(writers, np.arange(1, 45))
    assert sizes.min() == 247 and sizes.max() == 250
    assert len(set(zip(pen.writer.tolist(), pen.sample.tolist()))) == 10992
    assert pen.sample.min() == 1 and pen.sample.max() == 250


def test_every_axis_of_a_pen_digit_is_stretched_to_its_range():
    """What a coordinate looks like, and a pressure would not."""
    points = load_pendigits().X.reshape(-1, 8, 2)
    assert (points.max(axis=(1, 2)) == 100.0).all()
    assert (points.min(axis=(1, 2)) == 0.0).all()


def test_a_federation_of_writers_keeps_rows_together():
    pen = load_pendigits()
    data = pen.federation(labelled=True)
    assert data.names[0] == "writer-1" and data.names[43] == "writer-44" and len(data) == 44
    assert data.feature_names[:3] == ("x1", "y1", "x2") and data.feature_names[-1] == "y8"
    rows, digits = data.client(6)
    np.testing.assert_array_equal(rows, pen.X[pen.writer == 7])
    np.testing.assert_array_equal(digits, pen.digit[pen.writer == 7])
    assert pen.federation().y is None
