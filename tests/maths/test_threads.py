import numpy as np
import pytest

from fedkin.threads import SMALL, _libraries, one_thread


@pytest.fixture
def two_threads():
    """Two threads in all libraries, and what they had afterwards."""
    before = [library.num_threads for library in _libraries()]
    for library in _libraries():
        library.set_num_threads(2)
    yield
    for library, n in zip(_libraries(), before):
        library.set_num_threads(n)


def threads():
    return [library.num_threads for library in _libraries()]


def test_small_matrices_are_given_one_thread_and_the_others_come_back(two_threads):
    before = threads()
    assert before
    with one_thread(SMALL):
        assert threads() == [1] * len(before)
        with one_thread(SMALL):
            assert threads() == [1] * len(before)
        assert threads() == [1] * len(before)
    assert threads() == before


def test_large_matrices_keep_their_threads(two_threads):
    before = threads()
    with one_thread(SMALL + 1):
        assert threads() == before


def test_threads_come_back_after_an_error(two_threads):
    before = threads()
    with pytest.raises(np.linalg.LinAlgError), one_thread(2):
        np.linalg.cholesky(-np.eye(2))
    assert threads() == before
