import numpy as np
from scipy.stats import kstest

from fedkin.randomness import KeyRing, philox, uniforms


def words(*values):
    return [np.array([value], dtype=np.uint64) for value in values]


def test_philox_gives_the_published_test_vectors():
    zero = [int(w[0]) for w in philox(words(0, 0, 0, 0), words(0)[0])]
    assert zero == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = [int(w[0]) for w in philox(words(*[0xFFFFFFFF] * 4), words(0xFFFFFFFFFFFFFFFF)[0])]
    assert ones == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    key = words(0xA4093822 | (0x299F31D0 << 32))[0]
    digits = philox(words(0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), key)
    assert [int(w[0]) for w in digits] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_a_draw_depends_on_seed_name_and_ask_alone():
    names = tuple(f"site-{k}" for k in range(50))
    whole = KeyRing(names, 7).at(3).uniform(4)
    some = KeyRing(names, 7).at(3, np.array([10, 3])).uniform(4)
    alone = KeyRing(("site-10",), 7).at(3).uniform(4)
    np.testing.assert_array_equal(whole[[10, 3]], some)
    np.testing.assert_array_equal(whole[[10]], alone)
    assert (KeyRing(names, 8).at(3).uniform(4) != whole).all()
    assert (KeyRing(names, 7).at(4).uniform(4) != whole).all()
    assert (KeyRing(names, 7).at(3).fold(1).uniform(4) != whole).all()


def test_a_draw_does_not_depend_on_how_many_follow():
    keys = KeyRing(("a", "b"), 0).clients
    np.testing.assert_array_equal(uniforms(keys, 9)[:, :4], uniforms(keys, 4))


def test_draws_are_uniform_and_normal_within_and_across_clients():
    keys = KeyRing(tuple(map(str, range(2000))), 1).at(1)
    drawn = keys.uniform(7)
    assert drawn.min() > 0 and drawn.max() < 1
    assert kstest(drawn.ravel(), "uniform").pvalue > 1e-3
    assert kstest(drawn[:, 0], "uniform").pvalue > 1e-3
    assert kstest(keys.normal(3, 2).ravel(), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.08
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.08


def test_seed_may_be_large_and_names_may_be_any_text():
    drawn = KeyRing(("Zürich", "東京", ""), 2**70).at(1).uniform()
    assert len(np.unique(drawn)) == 3
