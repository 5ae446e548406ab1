"""Twenty real NVIDIA FLARE sites; how fast their rounds are: `python -m benchmarks.flare`."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the nvflare extra is not installed")

from fedkin import FMLR, Federation, MixedModel
from fedkin.engines.nvflare import Deployment, Flare, provision

pytestmark = [pytest.mark.flare, pytest.mark.deploy]

N_SITES, N_ROWS = 20, 30


def twenty_sites() -> Federation:
    rng = np.random.default_rng(20)
    clients = {}
    for k in range(N_SITES):
        X = rng.normal(size=(N_ROWS + k, 2))
        coef = np.array([2.0, -1.0]) if k % 2 else np.array([-2.0, 1.0])
        clients[f"site-{k:02d}"] = X, X @ coef + 0.5 * rng.normal(size=len(X))
    return Federation.from_clients(clients)


def test_twenty_sites_agree_with_one_process(tmp_path):
    data, sites = twenty_sites(), {}
    for k, name in enumerate(data.names):
        X, y = data.client(k)
        np.savez(tmp_path / f"{name}.npz", X=X, y=y)
        sites[name] = {"data": tmp_path / f"{name}.npz"}
    with Deployment(provision(tmp_path / "kits", data.names), sites).start(300.0) as running:
        engine = Flare(running, timeout=300.0)
        for model in (FMLR(2, random_state=0), MixedModel(random_state=0)):
            here, there = model.fit(data).coef_, model.set_params(engine=engine).fit()
            assert len(there.client_names_) == N_SITES
            np.testing.assert_allclose(there.coef_, here, rtol=1e-9, atol=1e-9)
