"""scikit-learn's checks run whole: one of them asks for this variable before it looks."""

import pytest


@pytest.fixture(autouse=True)
def array_api_is_checked(request, monkeypatch):
    """Let `check_array_api_input` do its work; it reads the variable when it is called."""
    if "scikit_learn" in request.node.name:
        monkeypatch.setenv("SCIPY_ARRAY_API", "1")
