"""
Six writers: what is a group?
=============================

Six of 44 people who wrote digits, none of them labelled. What is gained is a common meaning: if
every group is named once for all six writers, 14 % of the digits are in a group of another digit;
alone it is 60 %, because group 3 is another digit for each.
"""

import numpy as np
from matplotlib import pyplot

from fedkin import FedGrEM, LocalEM, Standardizer
from fedkin.datasets import load_pendigits

writers = load_pendigits().federation(labelled=True).take(range(6))
data = Standardizer(whiten=True, n_groups=10).fit(writers).transform(writers)
_, axes = pyplot.subplots(1, 2, sharey=True, figsize=(8, 3.8), layout="constrained")
for model, ax in zip((FedGrEM(10, random_state=0), LocalEM(10, random_state=0)), axes):
    group, name = model.fit(data).predict(data), type(model).__name__
    # Every group is named after the digit it holds most often, once for all writers.
    counts = np.array(
        [np.bincount(writers.y[group == r].astype(int), minlength=10) for r in range(10)]
    )
    right = counts.max(axis=1).sum() / len(group)
    print(f"{name}: {100 * (1 - right):.0f} % of digits in a group of another digit")
    ax.imshow(counts[np.argsort(counts.argmax(axis=1))], cmap="Blues")
    ax.set(title=f"groups of {name}", xlabel="digit", xticks=range(10))
axes[0].set_ylabel("group")
