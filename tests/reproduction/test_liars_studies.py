"""What survives of the study of liars at toy size."""

from reproduction.liars import METHODS, WAYS, WITHDRAWN


def test_honest_sites_bear_a_third_of_liars(kept_promises):
    # One draw of three means and scales tells nothing of a ratio: the Standardizer's needs more.
    assert len(kept_promises("liars", but="Standardizer")) > 40


def test_a_withdrawn_promise_is_about_a_method_and_a_lie_that_are_there():
    assert all(method in METHODS and lie in WAYS for method, lie in WITHDRAWN)


def test_what_is_withdrawn_is_seen_to_fail(toy):
    found = toy("liars")
    for method, lie in (("FMLR, sums", "features ten times"), ("FedGrEM", "colluding")):
        assert found.estimate("ratio", method=method, lie=lie).mean > 1.25
